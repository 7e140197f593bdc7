"""Movement of elements: shape, order, repeats, parts; sizes are known or given by the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Table,
    concat,
    const,
    convert,
    number,
    rank_of,
    select,
    shape_of,
    wrapped,
)
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Node

# Not -(2**31): a slice that steps by that is never written, or ends the process (2026.4.1).
LOWEST = 1 - 2**31


def attr(node: Node, name: str) -> Any:
    """Read an attribute, whose type the op's rule has checked."""
    return node.attrs[name]


def axis_of(node: Node, rank: int, name: str = "axis") -> int:
    """Read an axis, counted from the front."""
    return int(attr(node, name)) % rank


def as_numbers(function: Any) -> Any:
    """Move bools as bytes: the engine lacks some moves of bools."""

    def lower(s: Any, node: Node, *xs: Ov) -> Any:
        if node.outputs[0].tensor.dtype.kind != "bool":
            return function(s, node, *xs)
        moved = [convert(x, "u8") if _is_bool(x) else x for x in xs]
        found = function(s, node, *moved)
        if isinstance(found, list):
            return [convert(x, "boolean") for x in found]
        return convert(found, "boolean")

    return lower


def _is_bool(x: Ov | None) -> bool:
    return x is not None and x.get_element_type().get_type_name() == "boolean"


def sizes_in_place(given: Sequence[Dim], wanted: Sequence[Dim]) -> list[int] | None:
    """Write a shape as the engine works it out by itself: 0 is as before, -1 is what is left.

    None where that does not say all of it. The engine then also knows what it need not compute.
    """
    if 0 in wanted:
        return None
    same = (*(old == new for old, new in zip(given, wanted, strict=False)), *[False] * len(wanted))
    sizes = [
        dim if isinstance(dim, int) else 0 if is_same else -1
        for dim, is_same in zip(wanted, same, strict=False)
    ]
    return sizes if sizes.count(-1) <= 1 else None


def reshaped(s: Any, x: Ov, given: Sequence[Dim], wanted: Sequence[Dim]) -> Ov:
    """Give another shape."""
    if tuple(given) == tuple(wanted):
        return x
    sizes = sizes_in_place(given, wanted)
    if sizes is None:
        return ops.reshape(x, s.shape(wanted), False)
    return ops.reshape(x, const(sizes), True)


def turned_axes(x: Ov, shape: Sequence[Dim], perm: Sequence[int]) -> Ov:
    """Reorder axes; where only axes of size 1 change places, by giving another shape.

    The engine would do the same, and take an axis of size 0 for one to be copied (2026.4.1).
    """
    moved = [axis for axis in perm if shape[axis] != 1]
    if list(perm) == list(range(len(shape))):
        return x
    if moved == sorted(moved):
        sizes = sizes_in_place(shape, [shape[axis] for axis in perm])
        if sizes is not None:
            return ops.reshape(x, const(sizes), True)
        return ops.reshape(x, ops.gather(shape_of(x), const(list(perm)), const(0)), False)
    return ops.transpose(x, const(list(perm)))


def _broadcast(s: Any, node: Node, x: Ov) -> Ov:
    return ops.broadcast(x, s.shape(node.outputs[0].tensor.shape))


def _squeeze(s: Any, node: Node, x: Ov) -> Ov:
    rank = rank_of(x)
    axes = [axis % rank for axis in attr(node, "axes")]
    return ops.squeeze(x, const(axes)) if axes else x


def _expand_dims(s: Any, node: Node, x: Ov) -> Ov:
    rank = node.outputs[0].tensor.rank
    axes = sorted(axis % rank for axis in attr(node, "axes"))
    return ops.unsqueeze(x, const(axes)) if axes else x


def _concat(s: Any, node: Node, *xs: Ov) -> Ov:
    return concat(list(xs), axis_of(node, node.outputs[0].tensor.rank))


def _stack(s: Any, node: Node, *xs: Ov) -> Ov:
    axis = axis_of(node, node.outputs[0].tensor.rank)
    return concat([ops.unsqueeze(x, const([axis])) for x in xs], axis)


def _tile(s: Any, node: Node, x: Ov) -> Ov:
    repeats = attr(node, "repeats")
    if all(isinstance(count, int) for count in repeats):
        return ops.tile(x, const(repeats)) if repeats else x
    return _tiled(x, s.shape(repeats))


def _tiled(x: Ov, repeats: Ov) -> Ov:
    """Repeat as often as the run tells, two axes at a time.

    The engine writes nothing when it repeats three axes beside the first (2026.4.1).
    """
    rank = rank_of(x)
    for first in range(0, rank, 2):
        here = const([first <= axis < first + 2 for axis in range(rank)], "boolean")
        ones = number(1, repeats)
        x = ops.tile(x, select(here, repeats, ones))
    return x


def _limit(s: Any, limit: Dim, stride: int, whole: Dim) -> Ov:
    """Say where a slice ends; before the first element there is no place to name."""
    if stride > 0:
        return const([2**31 - 1]) if limit == whole else s.size(limit)
    if isinstance(limit, int):
        return const([limit if limit >= 0 else LOWEST])
    found = s.size(limit)
    return select(ops.less(found, const([0])), const([LOWEST]), found)


def _slice(s: Any, node: Node, x: Ov) -> Ov:
    shape = node.operands[0].tensor.shape
    parts = zip(attr(node, "starts"), attr(node, "limits"), attr(node, "strides"), strict=True)
    cut = [(axis, *part) for axis, part in enumerate(parts) if part != (0, shape[axis], 1)]
    if not cut:
        return x
    axes, starts, _, strides = zip(*cut, strict=True)
    ends = [_limit(s, limit, by, shape[axis]) for axis, _, limit, by in cut]
    steps = [max(LOWEST, min(by, 2**31 - 1)) for by in strides]
    return ops.slice(x, s.shape(starts), _listed(ends), const(steps), const(list(axes)))


def _listed(items: Sequence[Ov]) -> Ov:
    return items[0] if len(items) == 1 else concat(list(items), 0)


def _split(s: Any, node: Node, x: Ov) -> list[Ov]:
    axis = axis_of(node, rank_of(x))
    given = attr(node, "sizes")
    sizes = [dim if isinstance(dim, int) else -1 for dim in given]
    # One size may be what is left.
    lengths = const(sizes) if sizes.count(-1) <= 1 else s.shape(given)
    return list(ops.variadic_split(x, const(axis), lengths).outputs())


def _iota(s: Any, node: Node) -> Ov:
    shape, of = node.outputs[0].tensor.shape, node.outputs[0].tensor.dtype
    axis = axis_of(node, len(shape))
    counted = ops.range(const(0), s.scalar(shape[axis]), const(1), "i32")
    counted = convert(counted, "f32") if of.is_float else wrapped(counted, of)
    column = [-1 if i == axis else 1 for i in range(len(shape))]
    placed = counted if len(shape) == 1 else ops.reshape(counted, const(column), False)
    return placed if len(shape) == 1 else ops.broadcast(placed, s.shape(shape))


def _range(s: Any, node: Node, start: Ov, stop: Ov, step: Ov) -> Ov:
    of = node.outputs[0].tensor.dtype
    first, last, by = (convert(x, "i32") for x in (start, stop, step))
    # Where the end lies behind the start, the engine counts the other way (2026.4.1).
    ahead, behind = ops.maximum(first, last), ops.minimum(first, last)
    last = select(ops.less(by, const(0)), behind, ahead)
    return wrapped(ops.range(first, last, by, "i32"), of)


def _refuses_range(node: Node) -> str | None:
    if node.outputs[0].tensor.dtype.is_float:
        return "OpenVINO counts the steps of a range of floats in float32, and may miss one."
    return None


def _dynamic_slice(s: Any, node: Node, x: Ov, starts: Ov, limits: Ov, strides: Ov | None) -> Ov:
    axes = attr(node, "axes")
    chosen = range(rank_of(x)) if axes is None else [axis % rank_of(x) for axis in axes]
    if not len(chosen):
        return x
    steps = const([1] * len(chosen)) if strides is None else strides
    # What needs more bits arrives as the nearest int32.
    first, last, by = (ops.maximum(part, const([LOWEST])) for part in (starts, limits, steps))
    return ops.slice(x, first, last, by, const(list(chosen)))


def _dynamic_broadcast(s: Any, node: Node, x: Ov, shape: Ov) -> Ov:
    if not isinstance(node.operands[1].tensor.shape[0], int):
        # The engine must know the rank; aligned at the end, ones in front change nothing.
        grown = concat([const([1] * node.outputs[0].tensor.rank), shape], 0)
        count = node.outputs[0].tensor.rank
        shape = ops.slice(grown, const([-count]), const([2**31 - 1]), const([1]), const([0]))
        shape = ops.reshape(shape, const([count]), False)
    return ops.broadcast(x, shape, None, "BIDIRECTIONAL")


def counted_list(node: Node, sizes: Ov) -> Ov:
    """Tell the engine how many sizes a list has: as many as the result has axes."""
    if isinstance(node.operands[1].tensor.shape[0], int):
        return sizes
    return ops.reshape(sizes, const([node.outputs[0].tensor.rank]), False)


def _unsplit(function: Any) -> Any:
    """Look at the first piece alone: all have the same shape."""
    return lambda s, node, x: function(x[0] if isinstance(x, tuple) else x)


def _reshape(s: Any, node: Node, x: Ov) -> Ov:
    shape = attr(node, "shape")
    axes = node.operands[0].tensor.shape
    if shape == () and axes and all(dim == 1 for dim in axes):
        # A reshape to a scalar behind a dense layer stops the process (2026.4.1).
        return ops.squeeze(x, const(list(range(len(axes)))))
    return reshaped(s, x, axes, shape)


_SHAPE = _unsplit(shape_of)
MOVES: dict[str, Any] = {
    "reshape": _reshape,
    "transpose": lambda s, node, x: turned_axes(
        x, node.operands[0].tensor.shape, attr(node, "perm")
    ),
    "broadcast_to": _broadcast,
    "full": _broadcast,
    "squeeze": _squeeze,
    "expand_dims": _expand_dims,
    "concat": _concat,
    "stack": _stack,
    "tile": _tile,
    "slice": _slice,
    "split": _split,
    "dynamic_reshape": lambda s, node, x, shape: ops.reshape(x, counted_list(node, shape), False),
    "dynamic_broadcast_to": _dynamic_broadcast,
    "dynamic_full": lambda s, node, x, shape: ops.broadcast(x, counted_list(node, shape)),
    "dynamic_tile": lambda s, node, x, repeats: _tiled(x, counted_list(node, repeats)),
    "dynamic_slice": _dynamic_slice,
}
TABLE: Table = {
    **{name: Entry(as_numbers(function)) for name, function in MOVES.items()},
    "iota": Entry(_iota, "fiu"),
    "range": Entry(_range, "fi", refuses=_refuses_range),
    "shape_of": Entry(_SHAPE, "fiubo", _SHAPE, _SHAPE),
}
