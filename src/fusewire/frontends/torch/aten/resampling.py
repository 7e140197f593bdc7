"""Resizing and sampling images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.frontends.torch.aten.rows import Convert, Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.graph import Value
from fusewire.ops import elementwise, image, movement, resampling, slicing

ROWS = Rows()

# PyTorch's numbers of a mode and of a padding.
_CUBIC, _BORDER = 2, 1
# Elements that count on each side of a place in cubic mode.
_REACH = 2


def _scales(call: AtenCall, x: Value, scales: Sequence[float | None]) -> tuple[float, ...] | None:
    """Give PyTorch's factors where the code has them: sizes divided may differ a little."""
    rank = x.tensor.rank
    if any(scale is None for scale in scales):
        return None
    return (1.0,) * (rank - len(scales)) + tuple(float(scale or 0) for scale in scales)


def _nearest(exact: bool) -> Convert:
    def convert(call: AtenCall, x: Value, sizes: Any, *scales: float | None) -> Value:
        return resampling.resize(
            x,
            sizes=call.shape,
            scales=_scales(call, x, scales),
            mode="nearest",
            coordinates="half_pixel" if exact else "asymmetric",
            rounding="half_up" if exact else "floor",
        )

    return convert


def _nearest_by(exact: bool) -> Convert:
    resize = _nearest(exact)

    def convert(call: AtenCall, x: Value, sizes: Any, scales: Sequence[float] | None) -> Value:
        found: Value = resize(call, x, sizes, *_factors(call, scales))
        return found

    return convert


def _factors(call: AtenCall, scales: Sequence[float] | None) -> Sequence[float | None]:
    return [None] * (len(call.shape) - 2) if scales is None else scales


for _start, _exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True)):
    _names = [f"{_start}{count}d" for count in (1, 2, 3)]
    ROWS.add(*_names, ops="resize")(_nearest(_exact))
    ROWS.add(*(f"{name}.vec" for name in _names), ops="resize")(_nearest_by(_exact))


def _smooth(mode: str, antialias: bool = False) -> Convert:
    def convert(
        call: AtenCall, x: Value, sizes: Any, align_corners: bool, *scales: float | None
    ) -> Value:
        return resampling.resize(
            x,
            sizes=call.shape,
            scales=None if align_corners else _scales(call, x, scales),
            mode=mode,
            coordinates="align_corners" if align_corners else "half_pixel",
            cubic_a=-0.5 if antialias else -0.75,
            antialias=antialias,
            exclude_outside=antialias,
        )

    return convert


def _smooth_by(mode: str, antialias: bool) -> Convert:
    resize = _smooth(mode, antialias)

    def convert(
        call: AtenCall, x: Value, sizes: Any, align_corners: bool, scales: Sequence[float] | None
    ) -> Value:
        found: Value = resize(call, x, sizes, align_corners, *_factors(call, scales))
        return found

    return convert


for _name, _mode, _antialias in (
    ("upsample_linear1d", "linear", False),
    ("upsample_bilinear2d", "linear", False),
    ("upsample_trilinear3d", "linear", False),
    ("upsample_bicubic2d", "cubic", False),
    ("_upsample_bilinear2d_aa", "linear", True),
    ("_upsample_bicubic2d_aa", "cubic", True),
):
    ROWS.add(_name, ops="resize")(_smooth(_mode, _antialias))
    ROWS.add(f"{_name}.vec", ops="resize")(_smooth_by(_mode, _antialias))


@ROWS.add("grid_sampler_2d", "grid_sampler_3d", "grid_sampler", ops="grid_sample")
def _grid_sampler(
    call: AtenCall, x: Value, grid: Value, mode: int, padding: int, align_corners: bool
) -> Value:
    if (mode, padding) == (_CUBIC, _BORDER):
        x, grid = _with_border(call, x, grid, align_corners)
    return image.grid_sample(
        x,
        grid,
        mode=("linear", "nearest", "cubic")[mode],
        padding=("zeros", "border", "reflection")[padding],
        align_corners=align_corners,
    )


def _with_border(call: AtenCall, x: Value, grid: Value, align: bool) -> tuple[Value, Value]:
    """Widen the image by its border, and move places so that they stay where they were.

    Ours moves places outside to the border and then weighs the elements around it, and PyTorch
    weighs first. With the elements that a place near the border needs, there is no difference.
    """
    wider = ((0, 0), (0, 0), (_REACH, _REACH), (_REACH, _REACH))
    factors = []
    # A place has its last axis first.
    for dim in reversed(x.tensor.shape[2:]):
        span = dim - 1 if align else dim
        sizes = [call.value(size, grid.tensor.dtype) for size in (span, span + 2 * _REACH)]
        factors.append(elementwise.divide(*sizes))
    moved = elementwise.multiply(grid, movement.stack(*factors, axis=0))
    return slicing.pad(x, padding=wider, mode="edge"), moved


@ROWS.add("affine_grid_generator", ops="affine_grid")
def _affine_grid(call: AtenCall, theta: Value, sizes: Any, align_corners: bool) -> Value:
    return image.affine_grid(theta, sizes=tuple(sizes[2:]), align_corners=align_corners)
