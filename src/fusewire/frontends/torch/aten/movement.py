"""Shapes, axes, slices and joins."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall, axes_in, axis_in
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Value
from fusewire.ops import layout, movement, slicing

ROWS = Rows()


@ROWS.add("view", "reshape", "_unsafe_view", "_reshape_alias", "view_copy", "reshape_as", "view_as",
          "flatten.using_ints", "unflatten.int", "unsqueeze", "unsqueeze_copy", "squeeze",
          "squeeze.dim", "squeeze.dims", "squeeze_copy.dim", "squeeze_copy.dims",
          ops="reshape")  # fmt: skip
def _reshape(call: AtenCall, x: Value, *rest: Any) -> Value:
    """Reshape to the shape that PyTorch has computed."""
    return x if x.tensor.shape == call.shape else movement.reshape(x, shape=call.shape)


@ROWS.add("permute", "permute_copy", ops="transpose")
def _permute(call: AtenCall, x: Value, dims: Sequence[int]) -> Value:
    return movement.transpose(x, perm=axes_in(dims, x.tensor.rank))


@ROWS.add("transpose.int", "swapaxes", "swapdims", "transpose_copy.int", ops="transpose")
def _transpose(call: AtenCall, x: Value, dim0: int, dim1: int) -> Value:
    rank = x.tensor.rank
    if rank == 0:
        return x
    perm = [*range(rank)]
    perm[dim0 % rank], perm[dim1 % rank] = dim1 % rank, dim0 % rank
    return movement.transpose(x, perm=tuple(perm))


@ROWS.add("t", "numpy_T", "mT", "t_copy", ops="transpose")
def _t(call: AtenCall, x: Value) -> Value:
    rank = x.tensor.rank
    if rank < 2:
        return x
    if call.name.startswith("aten.mT"):
        return movement.transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))
    return movement.transpose(x, perm=tuple(reversed(range(rank))))


@ROWS.add("movedim.int", "movedim.intlist", ops="transpose")
def _movedim(call: AtenCall, x: Value, source: Any, destination: Any) -> Value:
    rank = x.tensor.rank
    sources, places = axes_in(source, rank), axes_in(destination, rank)
    rest = iter(axis for axis in range(rank) if axis not in sources)
    perm = [sources[places.index(i)] if i in places else next(rest) for i in range(rank)]
    return movement.transpose(x, perm=tuple(perm))


@ROWS.add("expand", "expand_copy", "expand_as", "broadcast_to", ops="broadcast_to")
def _expand(call: AtenCall, x: Value, *rest: Any) -> Value:
    return movement.broadcast_to(x, shape=call.shape)


@ROWS.add("cat", "concat", "concatenate", ops="concat")
def _cat(call: AtenCall, xs: Sequence[Value], dim: int = 0) -> Value:
    # PyTorch leaves out empty vectors whatever the rank of the others.
    rank = len(call.shape)
    kept = [x for x in xs if x.tensor.rank == rank]
    parts = [call.value(x) for x in kept]
    return parts[0] if len(parts) == 1 else movement.concat(*parts, axis=axis_in(dim, rank))


@ROWS.add("stack", ops="stack")
def _stack(call: AtenCall, xs: Sequence[Value], dim: int = 0) -> Value:
    return movement.stack(*map(call.value, xs), axis=dim % len(call.shape))


@ROWS.add("slice.Tensor", "slice_copy.Tensor", ops="slice")
def _slice(
    call: AtenCall, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    axis = dim % x.tensor.rank
    if call.number(step, "the step") != 1:
        return slicing.slice_axis(x, axis, slice(start, end, step))
    # PyTorch knows more of open sizes, such as that they are at most that of a table.
    first, _, _ = slicing.normalize_slice(slice(start, end), x.tensor.shape[axis])
    return _part(x, axis, first, first + call.shape[axis])


def _part(x: Value, axis: int, first: Dim, limit: Dim) -> Value:
    """Slice an axis inside its bounds."""
    shape = x.tensor.shape
    return slicing.slice_(
        x,
        starts=tuple(first if i == axis else 0 for i in range(len(shape))),
        limits=tuple(limit if i == axis else dim for i, dim in enumerate(shape)),
        strides=(1,) * len(shape),
    )


@ROWS.add("narrow", ops="slice")
def _narrow(call: AtenCall, x: Value, dim: int, start: Any, length: Any) -> Value:
    axis = dim % x.tensor.rank
    if isinstance(start, int) and start < 0:
        start = x.tensor.shape[axis] + start
    return slicing.slice_axis(x, axis, slice(start, start + length))


@ROWS.add("select.int", "select_copy.int", ops="slice, squeeze")
def _select(call: AtenCall, x: Value, dim: int, index: Any) -> Value:
    axis = dim % x.tensor.rank
    if isinstance(index, int) and index < 0:
        index = x.tensor.shape[axis] + index
    part = slicing.slice_axis(x, axis, slice(index, index + 1))
    return movement.squeeze(part, axes=(axis,))


def _pieces(x: Value, axis: int, sizes: Sequence[Dim]) -> tuple[Value, ...]:
    return slicing.split(x, axis=axis, sizes=tuple(sizes))


@ROWS.add("split.Tensor", "split_copy.Tensor", "split_with_sizes", "split_with_sizes_copy",
          "split.sizes", "chunk", "unsafe_chunk", "tensor_split.sections", "unsafe_split.Tensor",
          "tensor_split.indices", "hsplit.int", "unsafe_split_with_sizes",
          ops="split")  # fmt: skip
def _split(call: AtenCall, x: Value, sizes: Any, dim: int = 0, *rest: Any) -> tuple[Value, ...]:
    """Cut into pieces of the sizes that PyTorch has computed."""
    axis = dim % x.tensor.rank
    return _pieces(x, axis, [type_.shape[axis] for type_ in call.types if type_ is not None])


@ROWS.add("unbind.int", "unbind_copy.int", ops="split, squeeze")
def _unbind(call: AtenCall, x: Value, dim: int = 0) -> tuple[Value, ...]:
    axis = dim % x.tensor.rank
    return tuple(
        movement.squeeze(part, axes=(axis,)) for part in _pieces(x, axis, [1] * len(call.types))
    )


def _padding(x: Value, pad: Sequence[Dim]) -> tuple[tuple[Dim, Dim], ...]:
    """Turn PyTorch's list, which begins with the last axis."""
    pairs = list(itertools.zip_longest(pad[::2], pad[1::2]))
    return ((0, 0),) * (x.tensor.rank - len(pairs)) + tuple(reversed(pairs))


@ROWS.add("constant_pad_nd", ops="pad")
def _constant_pad(call: AtenCall, x: Value, pad: Sequence[Dim], value: Any = 0) -> Value:
    return slicing.pad(x, call.value(value), padding=_padding(x, pad))


@ROWS.add("pad", ops="pad")
def _pad(
    call: AtenCall, x: Value, pad: Sequence[Dim], mode: str = "constant", value: Any = None
) -> Value:
    if mode == "constant":
        return slicing.pad(x, call.value(value or 0), padding=_padding(x, pad))
    ours = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    return slicing.pad(x, padding=_padding(x, pad), mode=ours)


@ROWS.add("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", ops="pad")
def _reflection_pad(call: AtenCall, x: Value, pad: Sequence[Dim]) -> Value:
    return slicing.pad(x, padding=_padding(x, pad), mode="reflect")


@ROWS.add("replication_pad1d", "replication_pad2d", "replication_pad3d", ops="pad")
def _replication_pad(call: AtenCall, x: Value, pad: Sequence[Dim]) -> Value:
    return slicing.pad(x, padding=_padding(x, pad), mode="edge")


@ROWS.add("repeat", "tile", ops="tile")
def _repeat(call: AtenCall, x: Value, repeats: Sequence[Dim]) -> Value:
    rank = max(x.tensor.rank, len(repeats))
    if x.tensor.rank < rank:
        x = movement.reshape(x, shape=(*(1,) * (rank - x.tensor.rank), *x.tensor.shape))
    counts = (1,) * (rank - len(repeats)) + tuple(repeats)
    return movement.tile(x, repeats=counts)


@ROWS.add("repeat_interleave.self_int", ops="repeat")
def _repeat_interleave(
    call: AtenCall, x: Value, count: Dim, dim: int | None = None, *rest: Any
) -> Value:
    if dim is None:
        x, dim = movement.reshape(x, shape=(x.tensor.size,)), 0
    return movement.repeat(x, count=count, axis=dim % x.tensor.rank)


@ROWS.add("flip", ops="flip")
def _flip(call: AtenCall, x: Value, dims: Sequence[int]) -> Value:
    return slicing.flip(x, axes=axes_in(dims, x.tensor.rank)) if dims and x.tensor.rank else x


@ROWS.add("roll", ops="roll")
def _roll(call: AtenCall, x: Value, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Value:
    by = call.numbers(shifts, "the shift")
    if dims:
        return slicing.roll(x, shifts=by, axes=axes_in(dims, x.tensor.rank))
    flat = movement.reshape(x, shape=(x.tensor.size,))
    return movement.reshape(slicing.roll(flat, shifts=by, axes=(0,)), shape=call.shape)


@ROWS.add("tril", ops="tril")
def _tril(call: AtenCall, x: Value, diagonal: Any = 0) -> Value:
    return layout.tril(x, offset=call.number(diagonal, "the diagonal"))


@ROWS.add("triu", ops="triu")
def _triu(call: AtenCall, x: Value, diagonal: Any = 0) -> Value:
    return layout.triu(x, offset=call.number(diagonal, "the diagonal"))


@ROWS.add("diagonal", "diagonal_copy", ops="diagonal")
def _diagonal(call: AtenCall, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return layout.diagonal(x, offset=offset, axis1=dim1, axis2=dim2)


@ROWS.add("pixel_shuffle", ops="depth_to_space")
def _pixel_shuffle(call: AtenCall, x: Value, factor: int) -> Value:
    *lead, channels, height, width = x.tensor.shape
    four = movement.reshape(x, shape=(_product(lead), channels, height, width))
    return movement.reshape(layout.depth_to_space(four, block=factor, mode="crd"), shape=call.shape)


@ROWS.add("pixel_unshuffle", ops="space_to_depth")
def _pixel_unshuffle(call: AtenCall, x: Value, factor: int) -> Value:
    *lead, channels, height, width = x.tensor.shape
    four = movement.reshape(x, shape=(_product(lead), channels, height, width))
    return movement.reshape(layout.space_to_depth(four, block=factor, mode="crd"), shape=call.shape)


def _product(dims: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


@ROWS.add("unfold", ops="slice, stack")
def _unfold(call: AtenCall, x: Value, dim: int, size: Any, step: Any) -> Value:
    """Give windows of an axis an axis of their own, at the end."""
    rank = x.tensor.rank
    if rank == 0:
        return movement.reshape(x, shape=call.shape)
    axis, width, stride = dim % rank, call.number(size, "the window"), call.number(step, "the step")
    count = call.shape[axis]
    parts = [
        slicing.slice_axis(x, axis, slice(i, i + (count - 1) * stride + 1, stride))
        for i in range(width)
    ]
    return movement.stack(*parts, axis=rank)


@ROWS.add("as_strided", "as_strided_copy", ops="reshape")
def _as_strided(call: AtenCall, x: Value, sizes: Any, strides: Any, offset: Any = None) -> Value:
    """Take what is the operand itself, reshaped: nothing else is known of strides."""
    expected: list[Dim] = []
    total: Dim = 1
    for dim in reversed(list(sizes)):
        expected.insert(0, total)
        total = total * dim
    if list(strides) == expected and not offset and total == x.tensor.size:
        return movement.reshape(x, shape=call.shape)
    raise call.refusal("it reads memory by strides. Use slices, expand or unfold.")
