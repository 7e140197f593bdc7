"""How kernels may be cut: options that cut all alike, and the space in which each is tuned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fusewire.backends.triton.info import INFO
from fusewire.backends.triton.printer import Tiles, dot_of, print_kernel, widest_of
from fusewire.contract.backend import Config, Fact
from fusewire.contract.tuning import TUNED, Axes, Piece, Space, distinct, each_cut, pieces_of
from fusewire.errors import OptionsError
from fusewire.kernel.form import Kernel
from fusewire.kernel.parts import Part

DEFAULTS: dict[str, Fact] = {**vars(Tiles()), TUNED: ()}
_MOST_STAGES = 5
_WARPS: tuple[Fact, ...] = (8, 2)
# What is tried, by what a program takes; what it has untuned comes before.
SPACE: Space = {
    "product": {
        "rows": (64, 128, 16),
        "columns": (64, 128, 16),
        "depth": (64, 16),
        "warps": _WARPS,
        "stages": (2, 3, 4),
    },
    "rows": {"tile": (1024, 4096, 8192), "warps": _WARPS},
    "points": {"block": (256, 1024, 2048), "warps": _WARPS},
}


def tiles_of(config: Config) -> Tiles:
    """Say how kernels are cut; OptionsError for options that cannot be."""
    options = config.checked(INFO.name, DEFAULTS)
    del options[TUNED]
    stages = options["stages"]
    if type(stages) is not int or not 0 <= stages <= _MOST_STAGES:
        raise OptionsError(f"stages={stages}: there are 1 to {_MOST_STAGES}, 0 for Triton's own.")
    for name, value in options.items():
        is_power = type(value) is int and value > 0 and not value & (value - 1)
        if not is_power and name != "stages":
            raise OptionsError(f"{name}={value}: tiles are powers of two, as 32 is.")
    numbers: dict[str, Any] = options
    return Tiles(**numbers)


def tuned(config: Config) -> dict[str, Tiles]:
    """Say how single kernels are cut, by their keys."""
    return each_cut(config, config.checked(INFO.name, DEFAULTS)[TUNED], SPACE, tiles_of)


def pieces(parts: Iterable[Part], tiles: Tiles, config: Config) -> Iterator[Piece]:
    """Give the kernels for which there is something to choose."""

    def axes_of(kernel: Kernel) -> Axes:
        taken = "product" if dot_of(kernel) else "rows" if widest_of(kernel) > 1 else "points"
        return distinct(SPACE[taken], tiles, lambda cut: print_kernel(kernel, cut).code)

    return pieces_of(parts, config, axes_of)
