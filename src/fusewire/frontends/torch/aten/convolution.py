"""Convolutions and windows of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.graph import Value
from fusewire.ops import convolution, patches
from fusewire.ops.movement import expand_dims, squeeze

ROWS = Rows()


def spread(numbers: Any, count: int) -> tuple[Any, ...]:
    """Give a number for each spatial axis: one given stands for all."""
    given = tuple(numbers) if isinstance(numbers, list | tuple) else (numbers,)
    return given * count if len(given) == 1 else given


def both(padding: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Pad as much before as after each axis."""
    return tuple((size, size) for size in padding)


def _conv(
    x: Value, w: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Value:
    count = w.tensor.rank - 2
    return convolution.conv(
        x,
        w,
        bias,
        strides=spread(stride, count),
        padding=both(spread(padding, count)),
        dilations=spread(dilation, count),
        groups=groups,
    )


def _batched(x: Value, rank: int) -> tuple[Value, bool]:
    """Add a batch of one to what has none."""
    if x.tensor.rank == rank:
        return x, False
    return expand_dims(x, axes=(0,)), True


@ROWS.add("conv1d", "conv2d", "conv3d", ops="conv")
def _convolve(
    call: AtenCall,
    x: Value,
    w: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    batch, is_single = _batched(x, w.tensor.rank)
    y = _conv(batch, w, bias, stride, padding, dilation, groups)
    return squeeze(y, axes=(0,)) if is_single else y


@ROWS.add("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input",
          ops="conv_transpose")  # fmt: skip
def _conv_transpose(
    call: AtenCall,
    x: Value,
    w: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Value:
    count = w.tensor.rank - 2
    batch, is_single = _batched(x, w.tensor.rank)
    y = convolution.conv_transpose(
        batch,
        w,
        bias,
        strides=spread(stride, count),
        padding=both(spread(padding, count)),
        output_padding=spread(output_padding, count),
        dilations=spread(dilation, count),
        groups=groups,
    )
    return squeeze(y, axes=(0,)) if is_single else y


@ROWS.add("convolution", ops="conv, conv_transpose")
def _convolution(
    call: AtenCall,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Value:
    if transposed:
        return _conv_transpose(call, x, w, bias, stride, padding, output_padding, groups, dilation)
    return _convolve(call, x, w, bias, stride, padding, dilation, groups)


@ROWS.add("im2col", ops="unfold")
def _im2col(
    call: AtenCall, x: Value, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> Value:
    batch, is_single = _batched(x, 4)
    y = patches.unfold(
        batch,
        window=spread(kernel, 2),
        strides=spread(stride, 2),
        padding=both(spread(padding, 2)),
        dilations=spread(dilation, 2),
    )
    return squeeze(y, axes=(0,)) if is_single else y


@ROWS.add("col2im", ops="fold")
def _col2im(
    call: AtenCall, x: Value, spatial: Any, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> Value:
    batch, is_single = _batched(x, 3)
    y = patches.fold(
        batch,
        spatial=tuple(spatial),
        window=spread(kernel, 2),
        strides=spread(stride, 2),
        padding=both(spread(padding, 2)),
        dilations=spread(dilation, 2),
    )
    return squeeze(y, axes=(0,)) if is_single else y
