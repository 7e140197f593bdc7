"""Sizes that are not known while tracing, as ``x.shape`` returns them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from fusewire.frontends.trace.location import refusal
from fusewire.ir.dims import Dim, Sym, is_at_most, is_equal

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording


def _both(function: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make an operator and its reflection: sizes give a size, anything else an array."""

    def forward(self: Size, other: Any) -> Any:
        dim = dim_of(other)
        if dim is not None:
            return self.recording.size(function(self.dim, dim))
        return function(self.recording.array(self), other)

    def backward(self: Size, other: Any) -> Any:
        dim = dim_of(other)
        if dim is not None:
            return self.recording.size(function(dim, self.dim))
        return function(other, self.recording.array(self))

    return forward, backward


class Size:
    """An int that only the run determines. Arithmetic with ints gives a size, else an array."""

    __slots__ = ("dim", "recording")

    def __init__(self, recording: Recording, dim: Sym) -> None:
        self.recording = recording
        self.dim = dim

    def __repr__(self) -> str:
        return str(self.dim)

    def __str__(self) -> str:
        return self._unknown("as text; repr shows its name")

    def __format__(self, spec: str) -> str:
        return self._unknown("as text; repr shows its name")

    def __hash__(self) -> int:
        # As the key of a dict it would be found missing, whatever it turns out to be.
        return self._unknown("as a key")

    __add__, __radd__ = _both(operator.add)
    __sub__, __rsub__ = _both(operator.sub)
    __mul__, __rmul__ = _both(operator.mul)
    __floordiv__, __rfloordiv__ = _both(operator.floordiv)
    __mod__, _ = _both(operator.mod)

    def __truediv__(self, other: Any) -> Any:
        return self.recording.array(self) / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.recording.array(self)

    def __pow__(self, other: Any) -> Any:
        return self * self if other == 2 else self.recording.array(self) ** other

    def __rpow__(self, other: Any) -> Any:
        return other ** self.recording.array(self)

    def __neg__(self) -> Any:
        return self * -1

    def __eq__(self, other: object) -> bool:
        dim = dim_of(other)
        found = False if dim is None else is_equal(self.dim, dim)
        return self._unknown(f"== {other!r}") if found is None else found

    def __le__(self, other: Any) -> bool:
        return self._at_most(self.dim, dim_of(other), f"<= {other!r}")

    def __ge__(self, other: Any) -> bool:
        return self._at_most(dim_of(other), self.dim, f">= {other!r}")

    def __lt__(self, other: Any) -> bool:
        return not self._at_most(dim_of(other), self.dim, f"< {other!r}")

    def __gt__(self, other: Any) -> bool:
        return not self._at_most(self.dim, dim_of(other), f"> {other!r}")

    def _at_most(self, left: Dim | None, right: Dim | None, asked: str) -> bool:
        if left is None or right is None:
            return self._unknown(asked)
        if is_at_most(left, right):
            return True
        return False if is_at_most(right + 1, left) else self._unknown(asked)

    def _unknown(self, asked: str) -> NoReturn:
        raise refusal(
            f"The size {self.dim} is known only when the program runs, but this line needs it "
            f"({self.dim} {asked}). Give the dim a number in its Spec to trace for that size, or "
            "write the line so that it does not need the number: np.arange(n) for range(n), "
            "fusewire.ops.scan for a loop over an axis."
        )

    def __bool__(self) -> bool:
        return self._unknown("as a truth value")

    def __index__(self) -> int:
        return self._unknown("as an int")

    def __int__(self) -> int:
        return self._unknown("as an int")

    def __float__(self) -> float:
        return self._unknown("as a float; n ** 0.5 and np.sqrt(n) work")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return self.recording.call_ufunc(ufunc, method, inputs, options)


def dim_of(x: object) -> Dim | None:
    """Return the dim of an int or a size, or None."""
    if isinstance(x, Size):
        return x.dim
    if isinstance(x, int | np.integer) and not isinstance(x, bool):
        return int(x)
    return None
