"""Matrix products and convolutions."""

from __future__ import annotations

import string
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch's own documentation has it

from fusewire.backends.torch.lowering.signature import (
    Function,
    Lower,
    Sized,
    operand,
    output,
    plain,
    sized,
)
from fusewire.backends.torch.storage import Tensor
from fusewire.ir.graph import Node
from fusewire.ops.window import Window

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
# Spatial axes that PyTorch convolves over.
MOST_AXES = 3


def _dot_general(node: Node) -> Function:
    contract: Any = node.attrs["contract"]
    batch: Any = node.attrs["batch"]
    ranks = operand(node, 0).rank, operand(node, 1).rank
    summed, shared = (
        [[axis % rank for axis in axes] for axes, rank in zip(pairs, ranks, strict=True)]
        for pairs in (contract, batch)
    )
    free = [
        [axis for axis in range(ranks[side]) if axis not in (*summed[side], *shared[side])]
        for side in (0, 1)
    ]
    left = (*shared[0], *free[0], *summed[0])
    right = (*shared[1], *summed[1], *free[1])

    def function(a: Tensor, b: Tensor) -> Tensor:
        outer = [a.shape[i] for i in shared[0]]
        rows = [a.shape[i] for i in free[0]]
        columns = [b.shape[i] for i in free[1]]
        inner = 1
        for i in summed[0]:
            inner *= a.shape[i]
        many, wide = _size(rows), _size(columns)
        product = torch.matmul(
            a.permute(left).reshape(*outer, many, inner),
            b.permute(right).reshape(*outer, inner, wide),
        )
        return product.reshape((*outer, *rows, *columns))

    return function


def _size(dims: list[int]) -> int:
    total = 1
    for dim in dims:
        total *= dim
    return total


def _gemm(node: Node) -> Function:
    attrs: Any = node.attrs
    alpha, beta = attrs["alpha"], attrs["beta"]
    turns_a, turns_b = attrs["transpose_a"], attrs["transpose_b"]

    def function(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
        a = a.t() if turns_a else a
        b = b.t() if turns_b else b
        if c is None or beta == 0.0:
            product = torch.mm(a, b)
            return product if alpha == 1.0 else product * alpha
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)

    return function


_SLIDING = ("strides", "padding", "dilations")


def _conv(node: Node) -> Function | Sized:
    attrs: Any = node.attrs
    apart, groups = attrs["input_dilations"], attrs["groups"]
    rank = output(node).rank - 2
    convolve, window = _CONV[rank], Window.of((1,) * rank, *(attrs[k] for k in _SLIDING))
    is_whole = output(node).dtype.is_integer and set(window.dilations) != {1}
    even = all(low == high >= 0 for low, high in window.padding)
    inner = tuple(low for low, _ in window.padding) if even else (0,) * rank
    border = [side for pair in reversed(window.padding) for side in pair]

    def function(x: Tensor, w: Tensor, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
        if 0 in shape or 0 in w.shape:
            # It adds up no products.
            zeros = x.new_zeros(shape)
            return zeros if bias is None else zeros + bias.reshape(-1, *[1] * rank)
        x = x if apart is None else _spread(x, apart)
        x = x if even else F.pad(x, border)
        if not is_whole:
            return convolve(x, w, bias, window.strides, inner, window.dilations, groups)
        # It has no dilated filters of integers: zeros are put between their elements.
        return convolve(x, _spread(w, window.dilations), bias, window.strides, inner, 1, groups)

    return sized(output(node).shape, function)


def _spread(x: Tensor, dilations: tuple[int, ...]) -> Tensor:
    """Put dilations - 1 zeros between neighbours."""
    spatial = [(dim - 1) * step + 1 for dim, step in zip(x.shape[2:], dilations, strict=True)]
    whole = x.new_zeros((*x.shape[:2], *spatial))
    whole[(..., *(slice(None, None, step) for step in dilations))] = x
    return whole


def _conv_transpose(node: Node) -> Function:
    attrs: Any = node.attrs
    rank, groups = output(node).rank - 2, attrs["groups"]
    sliding = Window.of((1,) * rank, *(attrs[k] for k in _SLIDING))
    extra = attrs["output_padding"] or (0,) * rank
    convolve = _TRANSPOSED[rank]
    sides = zip(reversed(sliding.padding), reversed(extra), strict=True)
    border = [side for (low, high), more in sides for side in (-low, more - high)]

    def function(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        # PyTorch pads both sides alike: all of it is computed, then cut and grown.
        y = F.pad(convolve(x, w, None, sliding.strides, 0, 0, groups, sliding.dilations), border)
        return y if bias is None else y + bias.reshape(-1, *[1] * rank)

    even = all(low == high >= 0 for low, high in sliding.padding)
    if even and all(more < step for more, step in zip(extra, sliding.strides, strict=True)):
        inner = tuple(low for low, _ in sliding.padding)
        return lambda x, w, bias: convolve(
            x, w, bias, sliding.strides, inner, extra, groups, sliding.dilations
        )
    return function


def _einsum(node: Node) -> Function:
    equation = str(node.attrs["equation"]).replace(" ", "")
    return lambda *xs: torch.einsum(equation, *xs)


def is_plain_equation(equation: str) -> bool:
    """Tell whether an equation has letters, commas, an arrow and dots only."""
    return set(equation.replace(" ", "")) <= {*string.ascii_letters, ",", "-", ">", "."}


TABLE: dict[str, Lower] = {
    "dot_general": _dot_general,
    "matmul": plain(torch.matmul),
    "linear": plain(F.linear),
    "gemm": _gemm,
    "outer": plain(torch.outer),
    "einsum": _einsum,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
}
