"""List devices in a process of its own: a library that dies there takes no other device with it.

The caller names a function of a module. It says ``say_ready`` when the engine is imported, which
takes as long as the machine needs, and ``say_devices`` at the end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any

from fusewire.contract.backend import Device, Unavailable
from fusewire.process.confinement import inherited

# The time that the libraries have to start and to add two numbers on each device.
SECONDS = 8.0
_IMPORT_SECONDS = 60.0
_READY = "the engine is imported"


@dataclasses.dataclass(frozen=True)
class Fallen:
    """How a process ended that listed nothing: ``code`` is that of an ``Unavailable``."""

    code: str
    how: str


def devices_apart(
    module: str, call: str, seconds: float = SECONDS
) -> list[Device | Unavailable] | Fallen:
    """Have a process call a function, such as ``tell()``, and return the devices that it lists."""
    words = [sys.executable, "-c", f"from {module} import {call.partition('(')[0]}; {call}"]
    env = {**inherited(), "PYTHONPATH": os.pathsep.join(sys.path)}
    out, err = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(words, stdout=out, stderr=err, text=True, env=env) as process:
        lines, is_over = _lines(process, seconds)
    if is_over:
        return Fallen("hung", f"gave no answer in {seconds:.0f} s")
    if process.returncode:
        last = (lines or ["nothing"])[-1]
        return Fallen("crashed", f"ended with {process.returncode}; it said: {last}")
    return [_read(row) for row in json.loads(lines[-1])]


def say_ready() -> None:
    """Say that the engine is imported: from now on it is the libraries that take time."""
    sys.stdout.write(f"{_READY}\n")
    sys.stdout.flush()


def say_devices(found: Iterable[Device | Unavailable]) -> None:
    """Print devices as one line for ``devices_apart``."""
    sys.stdout.write(f"\n{json.dumps([dataclasses.asdict(x) for x in found])}\n")


def _read(row: dict[str, Any]) -> Device | Unavailable:
    if "code" in row:
        return Unavailable(**row)
    facts = {name: tuple(x) if isinstance(x, list) else x for name, x in row["facts"].items()}
    return Device(**{**row, "facts": facts})


def _lines(process: subprocess.Popen[str], seconds: float) -> tuple[list[str], bool]:
    """Read all lines, and kill a process that takes longer after the engine is imported."""
    over = threading.Event()

    def end() -> None:
        over.set()
        process.kill()

    lines = []
    timer = threading.Timer(_IMPORT_SECONDS, end)
    timer.start()
    for line in process.stdout or ():
        if line.strip() == _READY:
            # Until now it was the machine that was slow, or fast.
            timer.cancel()
            timer = threading.Timer(seconds, end)
            timer.start()
        elif line.strip():
            lines.append(line.strip())
    process.wait()
    timer.cancel()
    return lines, over.is_set()
