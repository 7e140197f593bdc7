"""Resizing and sampling images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.frontends.torch.aten.rows import Convert, Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.graph import Value
from fusewire.ops import image, resampling

ROWS = Rows()


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


ROWS.add("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", ops="resize")(
    _nearest(exact=False)
)
ROWS.add("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
         ops="resize")(_nearest(exact=True))  # fmt: skip


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


ROWS.add("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", ops="resize")(
    _smooth("linear")
)
ROWS.add("upsample_bicubic2d", ops="resize")(_smooth("cubic"))
ROWS.add("_upsample_bilinear2d_aa", ops="resize")(_smooth("linear", antialias=True))
ROWS.add("_upsample_bicubic2d_aa", ops="resize")(_smooth("cubic", antialias=True))


@ROWS.add("grid_sampler_2d", "grid_sampler_3d", "grid_sampler", ops="grid_sample")
def _grid_sampler(
    call: AtenCall, x: Value, grid: Value, mode: int, padding: int, align_corners: bool
) -> Value:
    return image.grid_sample(
        x,
        grid,
        mode=("linear", "nearest", "cubic")[mode],
        padding=("zeros", "border", "reflection")[padding],
        align_corners=align_corners,
    )


@ROWS.add("affine_grid_generator", ops="affine_grid")
def _affine_grid(call: AtenCall, theta: Value, sizes: Any, align_corners: bool) -> Value:
    return image.affine_grid(theta, sizes=tuple(sizes), align_corners=align_corners)
