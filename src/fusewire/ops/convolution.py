"""Convolution over NC+spatial tensors, and ops defined by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import FLOATS, INTEGERS
from fusewire.ir.dims import Dim, floordiv, size
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops.contraction import exact_matmul
from fusewire.ops.declare import LINEAR, NEEDS_ROOM, Family, Kind, Trait
from fusewire.ops.inference import require, require_dims, same_dtype, within
from fusewire.ops.movement import reshape, transpose
from fusewire.ops.sample import Sample, bad, draw, sample
from fusewire.ops.slicing import flip
from fusewire.ops.window import Padding, Sizes, Window, known

FAMILY = Family("convolution")

NEEDS_SPATIAL = "a convolution needs a batch, channels and spatial axes"
# Elements of the matrix of windows that one product works on.
_CHUNK = 1 << 22


def dilated(spatial: Sequence[Dim], dilations: Sizes | None) -> tuple[Dim, ...]:
    """Give spatial sizes after dilations - 1 zeros were put between neighbours."""
    return tuple(
        (dim - 1) * d + 1 if d > 1 else dim
        for dim, d in zip(spatial, dilations or (1,) * len(spatial), strict=True)
    )


def _conv_type(
    x: TensorType,
    w: TensorType,
    bias: TensorType | None = None,
    *,
    strides: Sizes | None = None,
    padding: Padding | None = None,
    dilations: Sizes | None = None,
    input_dilations: Sizes | None = None,
    groups: int = 1,
) -> TensorType:
    require(x.rank > 2, f"{NEEDS_SPATIAL}, found rank {x.rank}.")
    require(x.rank == w.rank, f"x and w need one rank, found {x.rank} and {w.rank}.")
    require_dims(x.shape[1], w.shape[1] * groups, "channels of x and groups times channels of w")
    filters = w.shape[0]
    require(
        groups > 0 and not (isinstance(filters, int) and filters % groups),
        f"groups must divide the {filters} filters, found {groups}.",
    )
    if bias is not None:
        require(bias.rank == 1, f"bias must have one axis, found {bias}.")
        require_dims(bias.shape[0], filters, "the size of bias and the number of filters")
    if input_dilations is not None:
        require(len(input_dilations) == x.rank - 2, "input_dilations needs one entry per axis.")
    window = Window.of(w.shape[2:], strides, padding, dilations)
    spatial = window.output(dilated(x.shape[2:], input_dilations))
    return TensorType(same_dtype(x, w, bias), (x.shape[0], filters, *spatial))


def _conv(
    x: Array,
    w: Array,
    bias: Array | None,
    *,
    strides: Sizes | None,
    padding: Padding | None,
    dilations: Sizes | None,
    input_dilations: Sizes | None,
    groups: int,
) -> Array:
    window = Window.of(w.shape[2:], strides, padding, dilations)
    spatial = dilated(x.shape[2:], input_dilations)
    places = known(window.output(spatial))
    y = np.zeros((x.shape[0], w.shape[0], *places), x.dtype)
    if y.size and x.size and w.size:
        full = x
        if spatial != x.shape[2:]:
            full = np.zeros((*x.shape[:2], *known(spatial)), x.dtype)
            steps = [slice(None, None, d) for d in (1, 1, *(input_dilations or ()))]
            full[tuple(steps)] = x
        _slide(window, window.padded(full, 0), w, y, groups)
    return y if bias is None else y + bias.reshape(-1, *[1] * len(places))


def _slide(window: Window, x: Array, w: Array, y: Array, groups: int) -> None:
    """Multiply matrices of windows by the filters, some places at a time, into y."""
    rank = len(window.sizes)
    axes = tuple(range(2, rank + 2))
    cells: Array = np.lib.stride_tricks.sliding_window_view(x, known(window.extents), axes)
    steps = [slice(None, None, n) for n in (1, 1, *window.strides, *window.dilations)]
    cells = cells[tuple(steps)]
    count, channels, first, *rest = cells.shape[: rank + 2]
    cells = cells.reshape(count, groups, channels // groups, *cells.shape[2:])
    # Axes as (image, group, row, channel, *offsets, *other places): a row at a time is a matrix.
    cells = np.moveaxis(cells, (3, *range(rank + 3, 2 * rank + 3)), (2, *range(4, rank + 4)))
    filters = w.reshape(groups, w.shape[0] // groups, -1)
    target = y.reshape(count, groups, -1, first, *rest)
    row = filters.shape[0] * filters.shape[2] * int(np.prod(rest, dtype=np.int64))
    rows = min(max(_CHUNK // row, 1), first)
    images = max(_CHUNK // (row * first), 1)
    for image in range(0, count, images):
        for start in range(0, first, rows):
            part = cells[image : image + images, :, start : start + rows]
            # The axis of rows came first only to be cut; it belongs before the other places.
            part = np.moveaxis(part, 2, rank + 3)
            into = target[image : image + images, :, :, start : start + rows]
            matrix = part.reshape(*part.shape[:2], filters.shape[2], -1)
            into[...] = exact_matmul(filters, matrix).reshape(into.shape)


def _conv_flops(inputs: Any, outputs: Any, attrs: Any) -> Dim:
    return size((*outputs[0].shape, *inputs[1].shape[1:], 2))


def conv_samples() -> list[Sample]:
    """Samples of convolutions in one to three dimensions."""
    one = ((1, 1), (0, 2))
    return [
        sample(draw(1, 2, 5, 4), draw(3, 2, 3, 2), draw(3)),
        sample(draw(2, 3, 6), draw(2, 3, 3), None, strides=(2,), padding=((1, 2),)),
        sample(draw(1, 2, 5, 5), draw(2, 2, 2, 2), None, padding=one, dilations=(2, 1)),
        sample(draw(2, 4, 3, 3), draw(4, 1, 3, 3), draw(4), padding=((1, 1), (1, 1)), groups=4),
        sample(draw(1, 4, 4), draw(6, 2, 2), None, groups=2, input_dilations=(3,)),
        sample(draw(1, 1, 3, 4, 3), draw(2, 1, 2, 2, 2), None, strides=(1, 2, 1)),
        sample(draw(1, 1, 5), draw(1, 1, 2), None, padding=((-1, -1),)),
        sample(draw(0, 2, 4, 4), draw(3, 2, 3, 3), draw(3)),
        sample(draw(1, 0, 4), draw(2, 0, 3), draw(2)),
        sample(draw(1, 2, 2), draw(3, 2, 3), draw(3)),
    ]


conv = FAMILY.declare(
    "conv",
    _conv_type,
    doc="Slide filters w (O, I/groups, *window) over x (N, I, *spatial) and sum the products.",
    reference=_conv,
    dtypes=FLOATS + INTEGERS,
    traits=(Trait.CONTRACTION, Trait.LINEAR),
    tolerance=LINEAR,
    flops=_conv_flops,
    kind=Kind.CONTRACT,
    not_folded=NEEDS_ROOM,
    samples=conv_samples,
    refuses=lambda: [
        bad("a convolution needs a batch, channels and spatial axes", "[]", "[2, 0, 3]", "[2]"),
        bad("x and w need one rank, found 3 and 0", "[1, 0, 4]", "[]", "[2]"),
        bad(
            "channels of x and groups times channels of w must be equal",
            "[1, 1, 4]",
            "[2, 0, 3]",
            "[2]",
        ),
        bad("groups must divide the 2 filters, found 0", "[1, 0, 4]", "[2, 0, 3]", "[2]", groups=0),
        bad("bias must have one axis, found float32[]", "[1, 0, 4]", "[2, 0, 3]", "[]"),
        bad(
            "input_dilations needs one entry per axis",
            "[1, 0, 4]",
            "[2, 0, 3]",
            "[2]",
            input_dilations=(1, 1),
        ),
        bad(
            "the size of bias and the number of filters must be equal",
            "[1, 0, 4]",
            "[3, 0, 3]",
            "[2]",
        ),
        bad(
            "operands must have one dtype, found int8 and float32",
            "int8[1, 1, 5]",
            "[1, 1, 2]",
            padding=((-1, -1),),
        ),
    ],
    lacks={"scalar": NEEDS_SPATIAL},
)


def _known_window(w: TensorType) -> Sizes:
    require(all(isinstance(d, int) for d in w.shape[2:]), f"the window must be known, found {w}.")
    return known(w.shape[2:])


def _conv_transpose_type(
    x: TensorType,
    w: TensorType,
    bias: TensorType | None = None,
    *,
    strides: Sizes | None = None,
    padding: Padding | None = None,
    output_padding: Sizes | None = None,
    dilations: Sizes | None = None,
    groups: int = 1,
) -> TensorType:
    require(x.rank > 2, f"{NEEDS_SPATIAL}, found rank {x.rank}.")
    require(x.rank == w.rank, f"x and w need one rank, found {x.rank} and {w.rank}.")
    require_dims(x.shape[1], w.shape[0], "channels of x and of w")
    channels = w.shape[0]
    whole = groups > 0 and not (isinstance(channels, int) and channels % groups)
    require(whole, f"groups must divide the {channels} channels, found {groups}.")
    window = Window.of(_known_window(w), strides, padding, dilations)
    extra = output_padding or (0,) * (x.rank - 2)
    require(len(extra) == x.rank - 2, "output_padding needs one entry per axis.")
    if bias is not None:
        require(bias.rank == 1, f"bias must have one axis, found {bias}.")
        require_dims(bias.shape[0], w.shape[1] * groups, "the size of bias and the filters")
    spatial = []
    for axis, dim in enumerate(x.shape[2:]):
        low, high = window.padding[axis]
        grown = (dim - 1) * window.strides[axis] + window.extents[axis] + extra[axis]
        require(
            within(low + high, grown), f"padding ({low}, {high}) leaves nothing of axis {axis}."
        )
        spatial.append(grown - low - high)
    return TensorType(same_dtype(x, w, bias), (x.shape[0], w.shape[1] * groups, *spatial))


def _conv_transpose(
    x: Value,
    w: Value,
    bias: Value | None,
    strides: Sizes | None,
    padding: Padding | None,
    output_padding: Sizes | None,
    dilations: Sizes | None,
    groups: int,
) -> Value:
    channels, filters, *sizes = w.tensor.shape
    rank = len(sizes)
    window = Window.of(sizes, strides, padding, dilations)
    extra = output_padding or (0,) * rank
    inner = floordiv(channels, groups)
    turned = flip(w, axes=tuple(range(2, rank + 2)))
    apart = reshape(turned, shape=(groups, inner, filters, *sizes))
    swapped = transpose(apart, perm=(0, 2, 1, *range(3, rank + 3)))
    ends = known(window.extents)
    return conv(
        x,
        reshape(swapped, shape=(filters * groups, inner, *sizes)),
        bias,
        padding=tuple(
            (ends[i] - 1 - low, ends[i] - 1 - high + extra[i])
            for i, (low, high) in enumerate(window.padding)
        ),
        dilations=window.dilations,
        input_dilations=window.strides,
        groups=groups,
    )


conv_transpose = FAMILY.declare(
    "conv_transpose",
    _conv_transpose_type,
    doc="Add w (I, O/groups, *window) times each element of x at its place.",
    expand=_conv_transpose,
    dtypes=FLOATS,
    traits=(Trait.CONTRACTION, Trait.LINEAR),
    tolerance=LINEAR,
    lacks={"scalar": NEEDS_SPATIAL},
    samples=lambda: [
        sample(draw(1, 2, 3, 3), draw(2, 3, 3, 2), draw(3), strides=(2, 1)),
        sample(
            draw(1, 2, 4),
            draw(2, 1, 3),
            None,
            padding=((1, 2),),
            output_padding=(1,),
            strides=(3,),
            dilations=(2,),
        ),
        sample(draw(2, 4, 3), draw(4, 2, 2), draw(4), groups=2, padding=((2, 0),)),
        sample(draw(1, 1, 2, 2, 2), draw(1, 1, 2, 1, 2), None, strides=(1, 2, 2)),
        sample(draw(0, 2, 3), draw(2, 3, 3), draw(3)),
    ],
    refuses=lambda: [
        bad("a convolution needs a batch, channels and spatial axes", "[]", "[2, 3, 3]", "[3]"),
        bad("x and w need one rank, found 3 and 0", "[0, 2, 3]", "[]", "[3]"),
        bad("channels of x and of w must be equal, found 3 and 2", "[0, 3, 3]", "[2, 3, 3]", "[3]"),
        bad(
            "groups must divide the 2 channels, found 0", "[0, 2, 3]", "[2, 3, 3]", "[3]", groups=0
        ),
        bad(
            "output_padding needs one entry per axis",
            "[0, 2, 3]",
            "[2, 3, 3]",
            "[3]",
            output_padding=(1, 1),
        ),
        bad("bias must have one axis, found float32[]", "[0, 2, 3]", "[2, 3, 3]", "[]"),
        bad(
            "the size of bias and the filters must be equal, found 3 and",
            "[0, 2, 3]",
            "[2, 4, 3]",
            "[3]",
        ),
        bad(
            "padding (0, 0) leaves nothing of axis 1",
            "[1, 1, 2, 0, 2]",
            "[1, 1, 2, 1, 2]",
            strides=(1, 2, 2),
        ),
        bad("a convolution needs a batch, channels and spatial axes", "[2, 3]", "[2, 3, 3]", "[3]"),
        bad(
            "padding (2, 3) leaves nothing of axis 0",
            "[2, 4, 3]",
            "[4, 2, 2]",
            "[4]",
            groups=2,
            padding=((2, 3),),
        ),
        bad(
            "operands must have one dtype, found float32 and bool",
            "[1, 1, 2, 2, 2]",
            "bool[1, 1, 2, 1, 2]",
            strides=(1, 2, 2),
        ),
        bad("the window must be known", "[1, 2, 3]", "[2, 3, k]"),
    ],
)
