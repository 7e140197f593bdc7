"""Capabilities that no single op can show, measured on three graphs.

Nothing rewrites these graphs before the backend sees them: all savings are the engine's.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fusewire.contract.backend import Backend, Device
from fusewire.contract.region import build
from fusewire.dtypes import float32
from fusewire.errors import EngineError
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.elementwise import abs_, add, subtract, tanh
from fusewire.ops.movement import transpose
from fusewire.plan.transfer import hand_over, to_host
from fusewire.process.guard import guarded
from fusewire.registry.capability import MEASURED, Shown

Step = Callable[[Value], Value]
COPIES, LINKS, STAGES = 8, 16, 24
TINY, TIMED, HELD = 8, 1024, 1536
_MEMORY, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def demonstrate(backend: Backend, device: Device) -> dict[str, Shown]:
    """Measure the flags of ``capability.MEASURED``."""
    if device.facts.get("interprets"):
        return dict.fromkeys(MEASURED, Shown(False, "The time of an interpreter shows nothing."))
    shows = {"graph optimisation": _optimises, "memory optimisation": _reuses, "JIT": _generates}
    shown = {}
    for flag, show in shows.items():
        try:
            shown[flag] = guarded(backend.info.name, "run", flag, show, backend, device)
        except EngineError as error:
            shown[flag] = Shown(False, str(error))
    return shown


def _optimises(backend: Backend, device: Device) -> Shown:
    """Compute the same value eight times, where once is enough."""
    work = _chain(tanh, LINKS)
    one = _seconds(backend, device, work)
    many = _seconds(
        backend, device, lambda x: functools.reduce(add, [work(x) for _ in range(COPIES)])
    )
    said = f"{COPIES} equal chains of {LINKS} tanh take {many / one:.1f} times as long as one."
    return Shown(many < one * COPIES / 3, said)


def _generates(backend: Backend, device: Device) -> Shown:
    """Run a chain of cheap ops: code generated for it reads and writes memory once."""
    chains = (_chain(lambda x: abs_(subtract(x, 0.5)), count) for count in (1, LINKS))
    one, many = (_seconds(backend, device, chain) for chain in chains)
    said = f"{LINKS} times |x - 0.5| takes {many / one:.1f} times as long as once."
    return Shown(many < one * LINKS / 4, said)


def _reuses(backend: Backend, device: Device) -> Shown:
    """Compute 48 tensors in sequence, of which two are needed at a time."""
    if not _RESET.exists():
        return Shown(False, "Peak memory can only be measured on Linux.")
    work = _chain(lambda x: transpose(tanh(x), perm=(1, 0)), STAGES)
    # Memory that an engine allocates on first use does not count.
    _ready(backend, device, work, TINY)()
    before = _kilobytes("VmRSS")
    _RESET.write_text("5")
    _ready(backend, device, work, HELD)()
    tensors = (_kilobytes("VmHWM") - before) / (HELD * HELD * 4 / 1024)
    said = f"{2 * STAGES} nodes in a row need memory for {tensors:.1f} tensors."
    return Shown(tensors < STAGES / 2, said)


def _chain(step: Step, count: int) -> Step:
    return lambda x: functools.reduce(lambda value, _: step(value), range(count), x)


def _ready(backend: Backend, device: Device, work: Step, side: int) -> Callable[[], None]:
    x = Value(TensorType(float32, (side, side)), "x")
    executable = build(backend, Graph([x], [work(x)], name="demonstration"), device)
    given = np.linspace(-2, 2, side * side, dtype=np.float32).reshape(side, side)

    def run() -> None:
        for value in executable.run([hand_over(given, backend.exchange_on(device))]):
            to_host(value)

    return run


def _seconds(backend: Backend, device: Device, work: Step) -> float:
    run = _ready(backend, device, work, TIMED)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _kilobytes(field: str) -> int:
    lines = _MEMORY.read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])
