"""Work in forked copies of this process, which must have one thread; what they said, and how they
ended. For campaigns that need thousands of processes; Fusewire itself never forks."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
# Memory, where there is such a folder: for campaigns that do not ask what the disk does.
QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass(frozen=True)
class Forked:
    """A child, and the end of a pipe that it writes to."""

    pid: int
    fd: int

    def read(self, seconds: float = 120.0) -> tuple[bytes, int]:
        """Give all that it said, and its exit status; one that is late is killed."""
        said = b""
        end = time.monotonic() + seconds
        os.set_blocking(self.fd, False)
        while time.monotonic() < end:
            try:
                part = os.read(self.fd, 2**16)
            except BlockingIOError:
                time.sleep(0.0005)
                continue
            if not part:
                break
            said += part
        else:
            os.kill(self.pid, signal.SIGKILL)
            said += b"it hung"
        os.close(self.fd)
        return said, os.waitpid(self.pid, 0)[1]


def fork(work: Callable[[int], None]) -> Forked:
    """Start a child that does some work; it is given the end of a pipe to write to."""
    # Otherwise every child copies the pages whose reference counts the collector touches.
    gc.freeze()
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return Forked(pid, read)
    try:
        os.close(read)
        work(write)
    except BaseException:  # noqa: BLE001 # told to the parent, which judges
        os.write(write, traceback.format_exc().encode())
    finally:
        os._exit(0)


def report(measure: Callable[[argparse.Namespace], Row], parser: argparse.ArgumentParser) -> None:
    """Run a campaign, print its row, and end with 1 if it found problems."""
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    start = time.monotonic()
    # The key of a campaign is its own, and no user's.
    with tempfile.TemporaryDirectory(prefix="store-key-") as config:
        os.environ["FUSEWIRE_CONFIG"] = config
        row = measure(given)
    row["seconds"] = round(time.monotonic() - start, 1)
    row["machine"] = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    if given.json:
        print(json.dumps(row))
    else:
        for name, value in row.items():
            print(f"{name}: {value}")
    raise SystemExit(1 if row["problems"] else 0)
