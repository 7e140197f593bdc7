"""Configure kernels for an absent GPU, from what compiles and the resources it uses.

Nothing is timed, and whoever writes the choice down says so.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fusewire.backends.triton.client import Compiler
from fusewire.backends.triton.program import Program
from fusewire.backends.triton.targets import Target
from fusewire.contract.backend import Config, Fact
from fusewire.contract.tuning import Estimate, Piece
from fusewire.errors import EngineError
from fusewire.ir.graph import Graph

RULE = (
    "Not timed. Of the configurations that compile, spill no register and fit into shared memory, "
    "the one that keeps most multiprocessors busy; then the one that loads least for a result; "
    "then the one of which most threads are resident; then what it has untuned."
)
# Each is compiled, which takes about half a second.
_MOST = 8
# Combinations that people who have such GPUs end up with, beside what is untuned; of an axis that
# a kernel does not have, nothing is said.
_TRIED: tuple[dict[str, Fact], ...] = (
    {"rows": 64, "columns": 64, "stages": 3},
    {"rows": 128, "columns": 64, "stages": 3},
    {"rows": 64, "columns": 128, "stages": 3},
    {"rows": 128, "columns": 128, "warps": 8, "stages": 2},
    {"rows": 16, "columns": 64, "depth": 64},
    {"rows": 16, "columns": 16, "warps": 2},
    {"tile": 4096, "block": 1024},
    {"tile": 4096, "block": 1024, "warps": 8},
    {"tile": 1024, "block": 256, "warps": 2},
)


@dataclass(frozen=True)
class Room:
    """What a multiprocessor has, and how many there are."""

    units: int
    shared: int
    registers: int = 65536
    threads: int = 2048


# Of NVIDIA's A100 and H100 and AMD's MI300X, from their makers' tables; others are taken for the
# smallest of them. AMD counts 512 registers for a lane of each of 4 units of 64 lanes.
_ROOMS = {
    "80": Room(108, 163 << 10),
    "90": Room(132, 227 << 10),
    "gfx942": Room(304, 64 << 10, 131072),
}
_SMALLEST = Room(108, 64 << 10)


def choose(
    piece: Piece, target: Target, lower: Callable[[Graph, Config], Program], compiler: Compiler
) -> Estimate:
    """Choose for one kernel."""
    room = _ROOMS.get(target.architecture, _SMALLEST)
    left_out: Counter[str] = Counter()
    best: tuple[tuple[float, ...], dict[str, Fact], Mapping[str, int]] | None = None
    tried = list(itertools.islice(_configurations(piece), _MOST))
    for chosen in tried:
        try:
            program = lower(piece.graph, Config(options=chosen))
            (about,) = compiler.compile(program, target.triton, measured=True)
        except EngineError:
            left_out["does not compile"] += 1
            continue
        takes = {name: int(about[name]) for name in ("registers", "spill_bytes", "shared")}
        if takes["spill_bytes"] or takes["shared"] > room.shared:
            left_out["spills" if takes["spill_bytes"] else "does not fit"] += 1
            continue
        threads = int(about["warps"]) * int(about["threads"])
        worth = _worth(
            chosen, sum(launch.grid[0] for launch, _ in program.turns()), takes, threads, room
        )
        # The first of equals: what is untuned comes before the others.
        if best is None or worth > best[0]:
            best = worth, chosen, takes
    found = (piece.untuned, {}) if best is None else best[1:]
    return Estimate(piece.key, piece.name, found[0], len(tried), dict(left_out), found[1])


def _configurations(piece: Piece) -> Iterator[dict[str, Fact]]:
    """Yield what is tried for a kernel: what is untuned, then combinations of its own axes."""
    seen = []
    for more in ({}, *_TRIED):
        fits = {n: x for n, x in more.items() if n in piece.axes and x in piece.axes[n]}
        chosen = {**piece.untuned, **fits}
        if chosen not in seen:
            seen.append(chosen)
            yield chosen


def _worth(
    chosen: Mapping[str, Fact], programs: int, takes: Mapping[str, int], threads: int, room: Room
) -> tuple[float, ...]:
    high, wide = (float(str(chosen.get(name, 32))) for name in ("rows", "columns"))
    fitting = min(
        room.threads // threads,
        room.registers // max(takes["registers"] * threads, 1),
        room.shared // max(takes["shared"], 1),
    )
    busy = min(programs / room.units, 1.0)
    return busy, high * wide / (high + wide), float(fitting * threads)
