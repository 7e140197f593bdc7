"""Shapes and attributes of nodes as ints, and indices through broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.ir.graph import Node, Value
from fusewire.kernel.index import Index
from fusewire.kernel.lower.body import Indices

Ints = tuple[int, ...]


def shape_of(value: Value) -> Ints:
    """Give a shape, which must be of ints."""
    return ints(value.tensor.shape)


def ints(dims: object) -> Ints:
    """Give a tuple of ints as such."""
    assert isinstance(dims, Sequence)
    found = tuple(dim for dim in dims if isinstance(dim, int))
    assert len(found) == len(dims), f"ints are needed, found {dims}"
    return found


def whole(node: Node, key: str) -> int:
    """Give an attribute that is an int."""
    attr = node.attrs[key]
    assert isinstance(attr, int), f"{node!r} needs an int as {key}"
    return attr


def axis_of(node: Node, rank: int, key: str = "axis") -> int:
    """Give an attribute that names an axis, counted from the front."""
    return whole(node, key) % rank


def broadcast(index: Indices, operand: Value) -> Indices:
    """Give the index of an operand that broadcasts to what is indexed."""
    shape = shape_of(operand)
    own = index[len(index) - len(shape) :]
    return tuple(Index() if dim == 1 else part for part, dim in zip(own, shape, strict=True))


def replaced(index: Indices, axis: int, *parts: Index) -> Indices:
    """Put other parts in the place of one."""
    return (*index[:axis], *parts, *index[axis + 1 :])
