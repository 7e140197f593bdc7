"""How kernels may be cut: options that cut all alike, and the space in which each is tuned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fusewire.backends.webgpu.info import INFO
from fusewire.backends.webgpu.printer import Target, is_shared, print_kernel
from fusewire.backends.webgpu.refusal import features_of
from fusewire.contract.backend import Config, Device, Fact
from fusewire.contract.tuning import TUNED, Axes, Piece, Space, distinct, each_cut, pieces_of
from fusewire.errors import OptionsError
from fusewire.kernel.analysis import contraction_of, shape_of
from fusewire.kernel.form import Kernel
from fusewire.kernel.parts import Part

# timestamps: False, True, or this, with which nothing else counts as the time of a run.
CLOCK = "clock"
# rows: invocations that share a row, 0 for what suits the device; tile: sums that one invocation
# makes of products, rows by columns; depth: how much of the factors a workgroup brings into its
# memory at a time, 0 where each invocation loads its own; points: how many of them an invocation
# computes one after another; memory: bytes on the device, 0 for all that it has; tuned: what cuts
# single kernels.
DEFAULTS: dict[str, Fact] = {
    "workgroup": 256, "rows": 0, "tile": (4, 4), "depth": 0, "points": 1, "memory": 0,
    "timestamps": False, "debug": False, TUNED: (),
}  # fmt: skip
TILES = (1, 2, 4, 8, 16)
POINTS = (1, 2, 4, 8, 16)
DEPTHS = (0, 4, 8, 16, 32)
# Invocations that share a row. A software device runs one vector of them at a time.
ROWS, SOFTWARE_ROWS = 64, 8

# What is timed at level 3, by how a kernel is spread; few of each, since each is compiled.
_WORKGROUPS: tuple[Fact, ...] = (32, 64, 128, 8)
SPACE: Space = {
    "tiles": {
        "tile": ((8, 8), (8, 4), (4, 8), (2, 8), (8, 2), (1, 8)),
        "workgroup": _WORKGROUPS,
        "depth": (8, 16),
    },
    "rows": {"rows": (1, 4, 16, 32, 64, 128)},
    "points": {"points": (4, 16), "workgroup": _WORKGROUPS},
}


def target_of(config: Config, device: Device) -> Target:
    """Say what kernels are printed for; OptionsError for options that cannot be."""
    chosen = config.checked(INFO.name, DEFAULTS)
    widest, most = _fact(device, "max_workgroups"), _fact(device, "max_invocations")
    sizes = {}
    for name in ("workgroup", "rows"):
        size = chosen[name]
        least = 1 if name == "workgroup" else 0
        if not isinstance(size, int) or not least <= size <= most:
            raise OptionsError(f"{name}={size}: {device.name} runs 1 to {most} invocations.")
        sizes[name] = size
    rows = sizes["rows"] or (SOFTWARE_ROWS if device.is_software else ROWS)
    if rows & (rows - 1):
        raise OptionsError(f"rows={rows}: invocations meet by halves, so it is a power of two.")
    for name, known in (("points", POINTS), ("depth", DEPTHS)):
        size = chosen[name]
        if type(size) is not int or size not in known:
            raise OptionsError(f"{name}={size}: it is one of {', '.join(map(str, known))}.")
        sizes[name] = size
    match chosen["tile"]:
        case (int(high), int(wide)) if high in TILES and wide in TILES:
            tile = high, wide
        case other:
            raise OptionsError(f"tile={other}: it is two of {', '.join(map(str, TILES))}.")
    return Target(
        features_of(device), widest, sizes["workgroup"], rows, tile, sizes["points"], sizes["depth"]
    )


def tuned(config: Config, device: Device) -> dict[str, Target]:
    """Say what single kernels are printed for, by their keys."""
    told = config.checked(INFO.name, DEFAULTS)[TUNED]
    return each_cut(config, told, SPACE, lambda cut: target_of(cut, device))


def pieces(parts: Iterable[Part], target: Target, config: Config) -> Iterator[Piece]:
    """Give the kernels for which there is something to choose."""

    def axes_of(kernel: Kernel) -> Axes:
        def printed(cut: Target) -> tuple[object, ...]:
            found = print_kernel(kernel, cut)
            return found.source, found.params, found.groups

        return distinct(SPACE[_spread(kernel, target)], target, printed)

    return pieces_of(parts, config, axes_of)


def _spread(kernel: Kernel, target: Target) -> str:
    if shape_of(kernel) not in ("map", "serial") and is_shared(kernel, target.rows):
        return "rows"
    return "points" if contraction_of(kernel) is None else "tiles"


def _fact(device: Device, name: str) -> int:
    found = device.facts[name]
    assert isinstance(found, int)
    return found
