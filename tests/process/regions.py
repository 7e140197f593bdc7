"""A small region, and what it takes to contact an engine about it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fusewire import ops
from fusewire.contract.backend import Config, Device, Refusal
from fusewire.dtypes import float32
from fusewire.ir.builder import constant
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.process.isolate import Contact, first_contact
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import ChildPool

DEVICE = Device("cpu", "test")
WEIGHTS = np.linspace(0, 1, 32 * 32, dtype=np.float32).reshape(32, 32)
INPUT = np.ones((2, 32), np.float32)
# Enough for a machine with much else to do; a fault that is not a hang never waits for it.
PATIENT = ChildLimits(60.0, 1 << 30)
BRIEF = ChildLimits(1.5, 1 << 30)


def chaos(name: str) -> str:
    return f"fusewire.testing.chaos:{name}"


def region(weights: object = WEIGHTS) -> Graph:
    """A weight too large to be in the text, and a dim that inputs bind."""
    x = Value(TensorType(float32, (symbol("n"), 32)), "x")
    return Graph([x], [ops.add(ops.matmul(x, constant(weights, "w")), 1.0)], output_names=["y"])


def contact(pool: ChildPool, name: str, limits: ChildLimits = PATIENT) -> Contact | Refusal:
    return first_contact(chaos(name), region(), DEVICE, Config(), [INPUT], limits, pool=pool)


def made(found: Contact | Refusal) -> Contact:
    assert isinstance(found, Contact), found
    return found


def refused(found: Contact | Refusal) -> Refusal:
    assert isinstance(found, Refusal), found
    return found


def workers(parent: int) -> set[int]:
    """Find the children of a process, dead ones that nobody reaped included."""
    listed = Path(f"/proc/{parent}/task").glob("*/children")
    return {int(word) for path in listed for word in path.read_text().split()}


def stays(is_so: Callable[[], object], seconds: float = 10.0) -> bool:
    """Tell whether something is still so after some time; sooner when it is not."""
    deadline = time.monotonic() + seconds
    while (is_still := bool(is_so())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_still


def outlived(mark: str) -> bool:
    """Tell whether a process with a word in its command line does not go away."""
    return stays(lambda: running(mark))


def running(mark: str) -> list[int]:
    """List the processes that have a word in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def talkative() -> None:
    """Say something, as engines do, and die."""
    os.write(1, b"kernel 7 is missing\n\x1b[31m")
    os.abort()
