"""Discrete Fourier transforms, as numpy.fft defines them; spectrum.py builds on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import COMPLEX, STORED, complex64, complex128, float32, float64
from fusewire.ir.dims import Dim, floordiv, size
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import EXACT, SCALED, Family, Kind, Op, Trait
from fusewire.ops.inference import axes_of, axis_of, require, within
from fusewire.ops.movement import concat
from fusewire.ops.sample import Refuses, Sample, bad, draw, sample
from fusewire.ops.slicing import split

FAMILY = Family("fourier")

NEEDS_AXIS = "a transform needs an axis"
REAL_OF = {complex64: float32, complex128: float64}
COMPLEX_OF = {real: whole for whole, real in REAL_OF.items()}


def _resized(x: TensorType, axis: int, length: Dim) -> TensorType:
    axis = axis_of(axis, x.rank)
    filled = within(1, length) is not False and within(1, x.shape[axis]) is not False
    require(filled, "a transform needs at least one element.")
    return x.with_shape((*x.shape[:axis], length, *x.shape[axis + 1 :]))


def _fft_type(x: TensorType, *, length: Dim | None = None, axis: int = -1) -> TensorType:
    return _resized(x, axis, x.shape[axis_of(axis, x.rank)] if length is None else length)


def _rfft_type(x: TensorType, *, length: Dim | None = None, axis: int = -1) -> TensorType:
    full = _fft_type(x, length=length, axis=axis)
    return _resized(full, axis, floordiv(full.shape[axis], 2) + 1).with_dtype(COMPLEX_OF[x.dtype])


def _irfft_type(x: TensorType, *, length: Dim | None = None, axis: int = -1) -> TensorType:
    given = (x.shape[axis_of(axis, x.rank)] - 1) * 2 if length is None else length
    return _resized(x, axis, given).with_dtype(REAL_OF[x.dtype])


def _flops(inputs: Any, outputs: Any, attrs: Any) -> Dim:
    length = outputs[0].shape[attrs["axis"]]
    return size(outputs[0].shape) * (5 * length.bit_length() if isinstance(length, int) else 50)


def _samples() -> list[Sample]:
    return [
        sample(draw(8)),
        sample(draw(2, 5)),
        sample(draw(3, 4, 2), axis=1),
        sample(draw(2, 6), length=4),
        sample(draw(2, 3), length=7, axis=-2),
        sample(draw(0, 4)),
    ]


def _transform(
    name: str, rule: Any, doc: str, dtypes: Any, refuses: Refuses | None = None
) -> Op[Value]:
    run = getattr(np.fft, name)
    return FAMILY.declare(
        name,
        rule,
        doc=doc,
        reference=lambda x, length, axis: run(x, length, axis),
        dtypes=dtypes,
        tolerance=SCALED,
        flops=_flops,
        kind=Kind.WINDOW,
        samples=_samples,
        lacks={"scalar": NEEDS_AXIS},
        refuses=refuses,
    )


fft = _transform(
    "fft",
    _fft_type,
    "Transform along an axis, cut or padded to length.",
    COMPLEX,
    refuses=lambda: [
        bad("a transform needs at least one element", "[0]"),
        bad("a transform needs at least one element", "[8]", length=0),
        bad("axis -1 is outside a tensor of rank 0", "[]", length=4),
    ],
)
ifft = _transform("ifft", _fft_type, "Undo fft, divided by the length.", COMPLEX)
rfft = _transform(
    "rfft",
    _rfft_type,
    "Transform real numbers; returns length // 2 + 1 frequencies.",
    (float32, float64),
)
irfft = _transform(
    "irfft",
    _irfft_type,
    "Undo rfft; the length is even unless it is given.",
    COMPLEX,
    refuses=lambda: [bad("axis -1 is outside a tensor of rank 0", "[]")],
)


def _along(x: Value, axes: Sequence[int], transform: Op[Value]) -> Value:
    for axis in axes:
        x = transform(x, axis=axis)
    return x


def _fftn_type(x: TensorType, *, axes: tuple[int, ...] | None = None) -> TensorType:
    for axis in axes_of(axes, x.rank):
        _fft_type(x, axis=axis)
    return x


def _last(x: TensorType, axes: tuple[int, ...] | None) -> tuple[tuple[int, ...], int]:
    """Give the axes but the last, and the last, which a real transform halves."""
    found = axes_of(axes, x.rank) if axes is None else tuple(axis_of(a, x.rank) for a in axes)
    require(len(set(found)) == len(found) > 0, f"axes {axes} must name an axis, each once.")
    return found[:-1], found[-1]


def _rfftn_type(x: TensorType, *, axes: tuple[int, ...] | None = None) -> TensorType:
    return _rfft_type(x, axis=_last(x, axes)[1])


def _irfftn_type(
    x: TensorType, *, axes: tuple[int, ...] | None = None, length: Dim | None = None
) -> TensorType:
    return _irfft_type(x, length=length, axis=_last(x, axes)[1])


def _rfftn(x: Value, axes: tuple[int, ...] | None) -> Value:
    others, last = _last(x.tensor, axes)
    return _along(rfft(x, axis=last), others, fft)


def _irfftn(x: Value, axes: tuple[int, ...] | None, length: Dim | None) -> Value:
    others, last = _last(x.tensor, axes)
    return irfft(_along(x, others, ifft), length=length, axis=last)


def _several(
    name: str,
    rule: Any,
    doc: str,
    dtypes: Any,
    expand: Any,
    refuses: Refuses | None = None,
    **attrs: Any,
) -> Op[Value]:
    return FAMILY.declare(
        name,
        rule,
        doc=doc,
        expand=expand,
        dtypes=dtypes,
        tolerance=SCALED,
        lacks={"scalar": NEEDS_AXIS},
        samples=lambda: [
            sample(draw(3, 4)),
            sample(draw(2, 3, 4), axes=(0, -1), **attrs),
            sample(draw(0, 3, 4), axes=(1, 2)),
        ],
        refuses=refuses,
    )


fftn = _several(
    "fftn",
    _fftn_type,
    "Transform along several axes.",
    COMPLEX,
    lambda x, axes: _along(x, axes_of(axes, x.tensor.rank), fft),
    refuses=lambda: [
        bad("a transform needs at least one element", "[0, 4]"),
        bad("axis 1 is outside a tensor of rank 0", "[]", axes=(1, 2)),
    ],
)
ifftn = _several(
    "ifftn",
    _fftn_type,
    "Undo fftn.",
    COMPLEX,
    lambda x, axes: _along(x, axes_of(axes, x.tensor.rank), ifft),
)
rfftn = _several(
    "rfftn",
    _rfftn_type,
    "Transform real numbers along several axes; the last is halved.",
    (float32, float64),
    _rfftn,
)
irfftn = _several(
    "irfftn",
    _irfftn_type,
    "Undo rfftn; length is that of the last axis.",
    COMPLEX,
    _irfftn,
    length=5,
    refuses=lambda: [
        bad("axes None must name an axis, each once", "[]"),
        bad("axes (1, 1) must name an axis, each once", "[3, 4]", axes=(1, 1)),
        bad("axis 1 is outside a tensor of rank 0", "[]", axes=(1, 2)),
    ],
)


def _shift_type(x: TensorType, *, axes: tuple[int, ...] | None = None) -> TensorType:
    axes_of(axes, x.rank)
    return x


def _shift(x: Value, axes: tuple[int, ...] | None, back: bool) -> Value:
    for axis in axes_of(axes, x.tensor.rank):
        dim = x.tensor.shape[axis]
        half = floordiv(dim, 2)
        first = half if back else dim - half
        front, rest = split(x, axis=axis, sizes=(first, dim - first))
        x = concat(rest, front, axis=axis)
    return x


def _declare_shift(name: str, doc: str, back: bool, refuses: Refuses | None = None) -> Op[Value]:
    return FAMILY.declare(
        name,
        _shift_type,
        doc=doc,
        expand=lambda x, axes: _shift(x, axes, back),
        dtypes=STORED,
        traits=(Trait.MOVEMENT,),
        tolerance=EXACT,
        samples=lambda: [
            sample(draw(5, 4)),
            sample(draw(3, 5), axes=(-1,)),
            sample(draw()),
            sample(draw(0, 3)),
        ],
        refuses=refuses,
    )


fftshift = _declare_shift(
    "fftshift",
    "Move frequency 0 to the middle.",
    back=False,
    refuses=lambda: [bad("axis 0 is outside a tensor of rank 0", "[]", axes=(0,))],
)
ifftshift = _declare_shift("ifftshift", "Undo fftshift.", back=True)
