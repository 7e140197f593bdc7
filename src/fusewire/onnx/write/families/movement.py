"""Moving elements: shape, order, repeats; and their twins with shapes that the run tells."""

from __future__ import annotations

from fusewire.dtypes import int64
from fusewire.ir.dims import Dim, Shape, floordiv, size
from fusewire.ir.graph import Node
from fusewire.onnx.ops.writing import attrs_of, indices, operand, spelled
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Ref


def reshape(e: Emitter, node: Node, x: Ref) -> Ref:
    """Change the shape."""
    return reshaped(e, x, operand(node, 0).tensor.shape, node.outputs[0].tensor.shape)


def reshaped(e: Emitter, x: Ref, before: Shape, after: Shape) -> Ref:
    """Change the shape, by a constant wherever one will do."""
    kept = [
        0 if not isinstance(dim, int) and axis < len(before) and before[axis] == dim else dim
        for axis, dim in enumerate(after)
    ]
    unknown = [axis for axis, dim in enumerate(kept) if not isinstance(dim, int)]
    # A 0 copies the dim of x; what is 0 itself needs another form.
    if len(unknown) <= 1 and 0 not in after:
        told: list[Dim] = [-1 if axis in unknown else dim for axis, dim in enumerate(kept)]
        if not (unknown and _may_be_empty(before, after, unknown[0])) and (
            e.target.is_cautious or _follows(before, after, unknown)
        ):
            return e("Reshape", x, e.shape(tuple(told)))
    return e("Reshape", x, e.shape(after), allowzero=1)


def _may_be_empty(before: Shape, after: Shape, axis: int) -> bool:
    """Tell whether what a -1 is divided by may be 0."""
    return any(not isinstance(dim, int) for i, dim in enumerate(after) if i != axis)


def _follows(before: Shape, after: Shape, unknown: list[int]) -> bool:
    """Tell whether whoever reads a -1 finds the dim that is meant."""
    others = [dim for axis, dim in enumerate(after) if axis not in unknown]
    return all(floordiv(size(before), size(others)) == after[axis] for axis in unknown)


def transpose(e: Emitter, node: Node, x: Ref) -> Ref:
    """Reorder the axes."""
    perm = attrs_of(node)["perm"]
    return e("Transpose", x, perm=perm) if perm else e("Identity", x)


def broadcast_to(e: Emitter, node: Node, x: Ref) -> Ref:
    """Repeat; a 1 leaves the dim of x as it is, so that fewer need the run."""
    before, after = operand(node, 0).tensor.shape, node.outputs[0].tensor.shape
    if before == after:
        return e("Identity", x)
    new = len(after) - len(before)
    wanted: list[Dim] = [
        1 if axis >= new and before[axis - new] == dim else dim for axis, dim in enumerate(after)
    ]
    return e("Expand", x, e.shape(tuple(wanted)))


def full(e: Emitter, node: Node, value: Ref) -> Ref:
    """Repeat a scalar."""
    return e("Expand", value, e.shape(node.outputs[0].tensor.shape))


def concat(e: Emitter, node: Node, *xs: Ref) -> Ref:
    """Join along an axis."""
    axis = attrs_of(node)["axis"]
    return e("Concat", *xs, axis=axis)


def expand_dims(e: Emitter, node: Node, x: Ref) -> Ref:
    """Insert axes of size 1."""
    axes, rank = attrs_of(node)["axes"], node.outputs[0].tensor.rank
    return e("Unsqueeze", x, e.integers(*(spelled(e, axis, rank) for axis in axes)))


def squeeze(e: Emitter, node: Node, x: Ref) -> Ref:
    """Drop axes of size 1; without axes ONNX would drop all."""
    axes = attrs_of(node)["axes"]
    return e("Squeeze", x, e.integers(*axes)) if axes else e("Identity", x)


def stack(e: Emitter, node: Node, *xs: Ref) -> Ref:
    """Join along a new axis."""
    axis = attrs_of(node)["axis"]
    place = e.integers(axis % node.outputs[0].tensor.rank)
    return e("Concat", *(e("Unsqueeze", x, place) for x in xs), axis=axis)


def tile(e: Emitter, node: Node, x: Ref) -> Ref:
    """Repeat the whole along each axis."""
    repeats = attrs_of(node)["repeats"]
    return e("Tile", x, e.shape(repeats)) if repeats else e("Identity", x)


def dynamic_reshape(e: Emitter, node: Node, x: Ref, shape: Ref) -> Ref:
    """Change the shape to one that the run tells, in which 0 is 0."""
    return e("Reshape", x, indices(e, shape), allowzero=1)


def dynamic_tile(e: Emitter, node: Node, x: Ref, repeats: Ref) -> Ref:
    """Repeat as often as the run tells."""
    is_scalar = operand(node, 0).tensor.rank == 0
    return e("Identity", x) if is_scalar else e("Tile", x, indices(e, repeats))


def _expanded(e: Emitter, node: Node, x: Ref, shape: Ref) -> Ref:
    return e("Expand", x, indices(e, shape))


WRITERS = {
    "reshape": reshape,
    "transpose": transpose,
    "broadcast_to": broadcast_to,
    "full": full,
    "concat": concat,
    "expand_dims": expand_dims,
    "squeeze": squeeze,
    "stack": stack,
    "tile": tile,
    "shape_of": lambda e, node, x: e("Shape", x, dtype=int64),
    "dynamic_reshape": dynamic_reshape,
    "dynamic_broadcast_to": _expanded,
    "dynamic_full": _expanded,
    "dynamic_tile": dynamic_tile,
}
