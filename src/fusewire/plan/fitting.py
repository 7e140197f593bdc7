"""Decide for which sizes a region is compiled by itself, beside what serves any size.

An engine may be faster if it knows the sizes of its inputs. Compiling takes the time of many calls,
so that is done for the sizes of the first call, which the plan was mostly chosen at, and behind the
calls for others that keep coming.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from fusewire.contract.backend import FITTED, SIZES, Config
from fusewire.ir.types import TensorType, type_symbols
from fusewire.plan.plan import Region

# The shapes of the inputs of a region.
Sizes = tuple[tuple[int, ...], ...]
# The calls after which sizes are compiled for, and for how many that is done: each takes memory.
FITTING_CALLS, MOST_FITTED = 64, 4
# Sizes of which calls are counted.
_MOST_COUNTED = 1024


def is_fitted(region: Region, config: Config) -> bool:
    """Tell whether a region is also compiled for known sizes, on an engine with these options."""
    if region.shapes != "dynamic" or config.options.get(SIZES) != FITTED:
        return False
    types = [value.type for value in region.inputs]
    found = {symbol for type_ in types for symbol in type_symbols(type_)}
    # Sizes that only a run tells are seldom the same twice.
    are_told = bool(found) and not any(symbol.unbacked for symbol in found)
    return are_told and all(isinstance(type_, TensorType) for type_ in types)


def at_known_sizes(region: Region) -> Region:
    """Return a region as it is compiled for known sizes."""
    return replace(region, shapes="static", load=lambda own: region.graph)


def as_compiled(region: Region, config: Config) -> Region:
    """Return a region as the first call has it compiled: itself, or at known sizes."""
    return at_known_sizes(region) if is_fitted(region, config) else region


@final
class SizeFitting:
    """The sizes that a region was called with; ``region`` is that region at known sizes."""

    def __init__(self, region: Region) -> None:
        self.region = at_known_sizes(region)
        self._first: Sizes | None = None
        self._others: set[Sizes] = set()
        self._calls: dict[Sizes, int] = {}

    def is_first(self, sizes: Sizes) -> bool:
        """Tell whether these are the sizes of the first call, without those that are left out."""
        if self._first is None and sizes not in self._others and not self._is_full:
            self._first = sizes
        return sizes == self._first

    def leave_out(self, sizes: Sizes) -> None:
        """Have calls of the first sizes run what serves any size; others may be the first."""
        self._others.add(sizes)
        self._first = None

    @property
    def _is_full(self) -> bool:
        return len(self._others) + 1 >= MOST_FITTED

    def is_due(self, sizes: Sizes) -> bool:
        """Count a call of other sizes; tell, once, that it is time to compile for them."""
        if sizes in self._others or self._is_full:
            return False
        calls = self._calls.pop(sizes, 0) + 1
        if calls >= FITTING_CALLS:
            self._others.add(sizes)
            return True
        self._calls[sizes] = calls
        if len(self._calls) > _MOST_COUNTED:
            self._calls.pop(next(iter(self._calls)))
        return False
