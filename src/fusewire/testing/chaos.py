"""A backend that misbehaves on purpose: real faults, at a chosen phase.

A reference names the fault and the phase, so that a child process or an entry point needs nothing
else: ``fusewire.testing.chaos:segv_at_compile``. Apart from that it runs graphs as the reference
does, so ``none_at_run`` is a well-behaved backend, and ``stale_at_run`` gives wrong answers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, final

import numpy as np

from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Gap,
    Held,
    Into,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.region import claim_by_table, edge_slots, weight_slots
from fusewire.dtypes import int8
from fusewire.errors import ShapeMismatchError
from fusewire.ir.graph import Array, Constant, Graph
from fusewire.ir.text import INLINE_BYTES, parse_graph, print_graph
from fusewire.ops.interpret import Interpreter
from fusewire.ops.table import all_ops
from fusewire.testing.wrong import KINDS, SWAPPED, Spoiler, swapped

# "recompile" is every compile but the first, "rerun" every run of an executable but the first, and
# "value" every run whose first element asks for a fault, and "row" every run with a row whose first
# element does.
PHASES = (
    "import", "probe", "claim", "compile", "recompile", "load", "run", "rerun", "value", "row",
)  # fmt: skip
# Where memory faults stop by themselves: a test must not take the machine down.
_MOST_MEMORY = 4 << 30
_PAGE = mmap.PAGESIZE
# Linux only, as the faults are that use them.
_DONT_NEED, _STOP = getattr(mmap, "MADV_DONTNEED", 4), getattr(signal, "SIGSTOP", 19)


def _spin() -> NoReturn:
    while True:
        pass


def _sleep() -> NoReturn:
    while True:
        time.sleep(1)


def _eat() -> NoReturn:
    eaten = []
    for _ in range(_MOST_MEMORY >> 24):
        eaten.append(np.ones(1 << 24, np.uint8))
    raise MemoryError("ate all that a test may")


def _eat_shared() -> NoReturn:
    """Fill the memory that is shared with the parent, and look as if nothing were held."""
    listed = Path("/proc/self/maps").read_text().splitlines()
    ends = next(line.split()[0] for line in listed if "memfd:fusewire" in line).split("-")
    start, step = (int(ends[0], 16) + int(ends[1], 16)) // 2 & -_PAGE, 1 << 24
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for place in range(start, start + _MOST_MEMORY, step):
        ctypes.memset(place, 1, step)
        libc.madvise(place, step, _DONT_NEED)
    raise MemoryError("ate all that a test may")


def _throw() -> NoReturn:
    raise RuntimeError("chaos was asked for")


def _misfit() -> NoReturn:
    raise ShapeMismatchError("chaos wants another size")


def _hang_with_a_child(command: str) -> NoReturn:
    # Named after the process that watches, so that it can look for it.
    subprocess.Popen([sys.executable, "-c", command, f"chaos-of-{os.getppid()}"])
    _sleep()


def _scribble() -> None:
    """Write nonsense to every descriptor."""
    for opened in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            os.write(int(opened.name), b"chaos" * 100)


def _chatter() -> None:
    for _ in range(200):
        os.write(1, b"engine says something on stdout\n" * 1000)
        os.write(2, b"and complains on stderr\n" * 1000)


FAULTS: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "garbage": lambda: None,
    "alias": lambda: None,
    **dict.fromkeys((*KINDS, SWAPPED), lambda: None),
    "segv": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exit": lambda: os._exit(3),
    "quit": lambda: sys.exit("chaos quits"),
    "raise": _throw,
    "misfit": _misfit,
    "hang": _sleep,
    # PyDLL holds the interpreter lock while the native function waits.
    "hang_gil": lambda: ctypes.PyDLL(None).pause(),
    "spin": _spin,
    "stop": lambda: os.kill(os.getpid(), _STOP),
    "stubborn": lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), _sleep()),
    "grandchild": lambda: _hang_with_a_child("import time; time.sleep(600)"),
    "runaway": lambda: _hang_with_a_child("import os, time; os.setsid(); time.sleep(600)"),
    "oom": _eat,
    "oom_shared": _eat_shared,
    "slow": lambda: time.sleep(0.2),
    "scribble": _scribble,
    "mutter": lambda: threading.Timer(0.5, _scribble).start(),
    "chatter": _chatter,
    "asked": lambda: None,
}


def asking_for(fault: str) -> float:
    """Return the first element of an input that makes ``asked_at_value`` misbehave."""
    return -1000.0 - list(FAULTS).index(fault)


_ASKED = {asking_for(fault): fault for fault in FAULTS}


@final
class ChaosExecutable(Executable):
    """An interpreter with a fault."""

    def __init__(self, graph: Graph, chaos: ChaosBackend) -> None:
        self._interpreter = Interpreter(graph)
        self._chaos = chaos
        self._phase = "run"
        # Answers are wrong from the phase on, not only at it.
        is_wrong = chaos.fault in KINDS and chaos.phase in ("run", "rerun")
        self._spoiler = Spoiler(chaos.fault) if is_wrong else None

    @property
    def is_reentrant(self) -> bool:
        """Always: faults do not take turns."""
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run node by node; garbage has another dtype, an alias is an input."""
        if self._chaos.phase in ("value", "row"):
            self._chaos.strikes_as_asked(inputs)
        fault = self._chaos.strikes(self._phase)
        is_early = (self._phase, self._chaos.phase) == ("run", "rerun")
        self._phase = "rerun"
        if fault == "alias":
            return list(inputs)
        found = [x.copy() if isinstance(x, np.ndarray) else x for x in self._interpreter(inputs)]
        if fault == "garbage":
            return [x.astype(np.int8) for x in found]
        if self._spoiler is None or is_early:
            return found
        return self._spoiler(found, inputs)


@final
class ChaosBackend(Backend):
    """Runs every graph, until the fault strikes."""

    def __init__(self, fault: str = "none", phase: str = "run") -> None:
        self.fault = fault
        self.phase = phase
        self._has_compiled = False
        self.strikes("import")

    def strikes(self, phase: str) -> str:
        """Misbehave if this is the phase; some faults are in the result of the phase."""
        if phase != self.phase or self.fault == "none":
            return "none"
        # This clock is shared between processes, so a test can measure the delay.
        os.write(2, f"chaos strikes at {time.monotonic():.6f}\n".encode())
        FAULTS[self.fault]()
        return self.fault

    def strikes_as_asked(self, inputs: Sequence[Held]) -> None:
        """Misbehave as the first element says, or that of any row."""
        array = inputs[0]
        if not isinstance(array, np.ndarray) or not array.size:
            return
        rows = array.reshape(len(array), -1)[:, 0] if self.phase == "row" else array.flat[:1]
        for element in rows:
            fault = _ASKED.get(float(element))
            if fault is not None:
                FAULTS[fault]()

    @property
    def info(self) -> BackendInfo:
        """Who this is."""
        return BackendInfo("chaos", "1", "Misbehaves on purpose.", "Fusewire", trusted=False)

    @property
    def gaps(self) -> Sequence[Gap]:
        """None: every fault is intended."""
        return ()

    @property
    def exchange(self) -> Exchange:
        """Any host array."""
        return Exchange(needs_contiguous=False)

    def probe(self) -> list[Device | Unavailable]:
        """One device; garbage is not a device."""
        if self.strikes("probe") == "garbage":
            return [None]  # type: ignore[list-item]  # garbage
        return [Device("cpu", "chaos")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer all nodes; garbage offers nodes that do not exist."""
        if self.strikes("claim") == "garbage":
            return [Offer((len(graph.nodes),))]
        return claim_by_table(graph, lambda node: None, shapes="dynamic")

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Print the graph; garbage has slots of another dtype."""
        config.checked("chaos", ())
        fault = self.strikes("compile")
        self.strikes("recompile" if self._has_compiled else "")
        self._has_compiled = True
        slots = (*edge_slots(region), *weight_slots(region, INLINE_BYTES + 1))
        if fault == "garbage":
            slots = tuple(replace(slot, dtype=int8) for slot in slots)
        return Artifact("rebuild", print_graph(region).encode(), slots)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Parse the graph; garbage is not executable."""
        if self.strikes("load") == "garbage":
            return object()  # type: ignore[return-value]  # garbage
        # Otherwise the first run imports them, which takes longer than short deadlines.
        all_ops()
        held = {digest: Constant.of(array) for digest, array in weights.items()}
        graph = parse_graph(artifact.payload.decode(), held)
        is_swapped = self.fault == SWAPPED
        return ChaosExecutable((is_swapped and swapped(graph)) or graph, self)


def __getattr__(name: str) -> Callable[[], ChaosBackend]:
    """Make ``segv_at_compile`` a backend that does what it says."""
    fault, _, phase = name.partition("_at_")
    if fault not in FAULTS or phase not in PHASES:
        raise AttributeError(
            f"chaos has no {name}. It has <fault>_at_<phase>: {', '.join(FAULTS)}; "
            f"{', '.join(PHASES)}."
        )
    if (fault, phase) == ("garbage", "import"):
        return lambda: object()  # type: ignore[return-value]  # garbage
    return functools.partial(ChaosBackend, fault, phase)
