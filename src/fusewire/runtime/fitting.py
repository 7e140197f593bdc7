"""Decide for which sizes a region is compiled by itself, beside what serves any size.

An engine may be faster if it knows the sizes of its inputs. Compiling takes the time of many calls,
so that is done for the sizes of the first call, which the plan was mostly chosen at, and behind the
calls for others that keep coming.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, final

from fusewire.runtime.plan import Region

# The shapes of the inputs of a region.
Sizes = tuple[tuple[int, ...], ...]
# The calls after which sizes are compiled for, and for how many that is done: each takes memory.
FITTING_CALLS, MOST_FITTED = 64, 4
# Sizes of which calls are counted.
_MOST_COUNTED = 1024


@final
class SizeFitting:
    """The sizes that a region was called with.

    ``region`` is the region as it is compiled for known sizes.
    """

    def __init__(self, region: Region) -> None:
        self.region = replace(region, shapes="static", load=lambda own: region.graph)
        self._fitted: set[Sizes] = set()
        self._calls: dict[Sizes, int] = {}

    def is_first(self, sizes: Sizes) -> bool:
        """Tell whether these are the sizes of the first call."""
        if not self._fitted:
            self._fitted.add(sizes)
            return True
        return len(self._fitted) == 1 and sizes in self._fitted

    def count(self, sizes: Sizes) -> Literal["wait", "fit", "leave"]:
        """Count a call of other sizes, and say what to do about them."""
        if len(self._fitted) >= MOST_FITTED:
            return "leave"
        calls = self._calls[sizes] = self._calls.pop(sizes, 0) + 1
        if len(self._calls) > _MOST_COUNTED:
            self._calls.pop(next(iter(self._calls)))
        if calls < FITTING_CALLS:
            return "wait"
        del self._calls[sizes]
        self._fitted.add(sizes)
        return "fit"


def fitting_of(region: Region, fits: Callable[[Region], bool]) -> SizeFitting | None:
    """Return the fitting of a region; None if its engine is not told sizes, or needs them."""
    from fusewire.ir.types import type_symbols

    found = {symbol for value in region.inputs for symbol in type_symbols(value.type)}
    # Sizes that only a run tells are seldom the same twice.
    if not found or region.shapes != "dynamic" or any(x.unbacked for x in found):
        return None
    return SizeFitting(region) if fits(region) else None
