"""Types of values: tensors for every engine; sequences and optionals for the reference only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from fusewire.dtypes import DType, DTypeLike, dtype
from fusewire.ir.dims import Apply, Dim, Shape, Symbol, evaluate, size, substitute, symbols

# NumPy's limits on dims and on bytes, which hold even if a size is 0.
MOST_RANK, MOST_BYTES = 64, 2**63 - 1


@dataclass(frozen=True)
class TensorType:
    """A dense tensor; strings are tensors of dtype ``string``. The rank is always known."""

    dtype: DType
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def size(self) -> Dim:
        """Number of elements."""
        return size(self.shape)

    @cached_property
    def is_static(self) -> bool:
        """Whether every dim is an int."""
        return all(isinstance(dim, int) for dim in self.shape)

    def with_shape(self, shape: tuple[Dim, ...]) -> TensorType:
        """Replace the shape."""
        return TensorType(self.dtype, tuple(shape))

    def with_dtype(self, of: DTypeLike) -> TensorType:
        """Replace the dtype."""
        return TensorType(dtype(of), self.shape)


@dataclass(frozen=True)
class SequenceType:
    """A list of values of one type; a dim that differs between elements is unbacked."""

    element: Type

    def __str__(self) -> str:
        return f"sequence<{self.element}>"


@dataclass(frozen=True)
class OptionalType:
    """A value that may be absent."""

    element: Type

    def __str__(self) -> str:
        return f"optional<{self.element}>"


Type: TypeAlias = TensorType | SequenceType | OptionalType


# The most characters of a size in a sentence: sizes of sizes can take pages.
_SHOWN = 32


def brief(type_: Type) -> str:
    """Print a type for people; a size that would take up a line is left out.

    >>> from fusewire.dtypes import float32
    >>> from fusewire.ir.parse import parse_dim
    >>> brief(TensorType(float32, (2, parse_dim("floordiv(max(samples-256, 0), samples+1)"))))
    'float32[2, ...]'
    """
    if not isinstance(type_, TensorType):
        text, inner = str(type_), str(type_.element)
        return text.replace(inner, brief(type_.element))
    dims = (text if len(text) <= _SHOWN else "..." for text in map(str, type_.shape))
    return f"{type_.dtype.name}[{', '.join(dims)}]"


def tensor_of(type_: Type) -> TensorType:
    """Return the tensor type inside sequences and optionals."""
    while not isinstance(type_, TensorType):
        type_ = type_.element
    return type_


def impossible(type_: Type) -> str | None:
    """Say why no array can have this type; None if one can."""
    shape = tensor_of(type_).shape
    if len(shape) > MOST_RANK:
        return f"a tensor has at most {MOST_RANK} dims, found {len(shape):,}."
    known = math.prod([dim for dim in shape if isinstance(dim, int) and dim])
    if known * tensor_of(type_).dtype.itemsize > MOST_BYTES:
        return f"{type_} has more elements than any memory can hold."
    return None


def type_symbols(type_: Type) -> Iterator[Symbol]:
    """Yield the symbols that a type mentions."""
    for dim in tensor_of(type_).shape:
        yield from symbols(dim)


def substitute_type(
    type_: Type, values: Mapping[Symbol, Dim], known: dict[Apply, Dim] | None = None
) -> Type:
    """Replace symbols in a type; ``known`` as for ``substitute``."""
    if isinstance(type_, TensorType):
        if type_.is_static:
            return type_
        return type_.with_shape(tuple(substitute(dim, values, known) for dim in type_.shape))
    return type(type_)(substitute_type(type_.element, values, known))


def concrete_shape(type_: TensorType, values: Mapping[Symbol, int]) -> tuple[int, ...]:
    """Compute the shape for the values of its symbols."""
    return tuple(evaluate(dim, values) for dim in type_.shape)
