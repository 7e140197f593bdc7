"""Spectra of signals: transforms of frames, windows, mel weights.

Signals are real tensors whose last axis has 1 (real) or 2 (real, imaginary) elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.dtypes import FLOATS, DType, float32, int32, int64
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, floordiv
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops.conversion import cast
from fusewire.ops.creation import iota
from fusewire.ops.declare import FRESH, SCALED, Family, Op, Trait, ulps
from fusewire.ops.elementwise import (
    add,
    complex_,
    cos,
    divide,
    imag,
    maximum,
    multiply,
    real,
    square,
    subtract,
)
from fusewire.ops.fourier import fft, ifft, irfft, rfft
from fusewire.ops.indexing import gather
from fusewire.ops.inference import axis_of, require, require_dims, same_dtype, within
from fusewire.ops.logic import equal, where
from fusewire.ops.movement import broadcast_to, expand_dims, reshape, squeeze, stack
from fusewire.ops.reduction import narrowed, widened
from fusewire.ops.sample import Refuses, bad, draw, given, sample
from fusewire.ops.scatter import scatter_elements
from fusewire.ops.shape import dim_of
from fusewire.ops.slicing import slice_axis

FAMILY = Family("spectrum")

NEEDS_SIGNAL = "a signal needs an axis of time and one of parts"


def _dft_type(
    x: TensorType,
    *,
    length: Dim | None = None,
    axis: int = -2,
    inverse: bool = False,
    onesided: bool = False,
) -> TensorType:
    require(x.rank > 1, f"{NEEDS_SIGNAL}, found {x}.")
    axis, parts = axis_of(axis, x.rank), x.shape[-1]
    require(axis < x.rank - 1, "the last axis holds real and imaginary parts; choose another.")
    require(parts in (1, 2), f"the last axis must have 1 or 2 elements, found {parts}.")
    if onesided:
        fits = parts == (2 if inverse else 1)
        require(fits, "onesided takes real numbers forward, and complex ones back.")
    halved = onesided and inverse
    full = (x.shape[axis] - 1) * 2 if halved else x.shape[axis]
    full = full if length is None else length
    require(within(1, full), "a transform needs at least one element.")
    made = floordiv(full, 2) + 1 if onesided and not inverse else full
    return x.with_shape((*x.shape[:axis], made, *x.shape[axis + 1 : -1], 1 if halved else 2))


def _part(x: Value, index: int) -> Value:
    last = x.tensor.rank - 1
    return squeeze(slice_axis(x, last, slice(index, index + 1)), axes=(last,))


def _dft(x: Value, length: Dim | None, axis: int, inverse: bool, onesided: bool) -> Value:
    axis = axis_of(axis, x.tensor.rank)
    wide = widened(x)
    first = _part(wide, 0)
    if onesided and not inverse:
        found = rfft(first, length=length, axis=axis)
    else:
        zero = constant(np.zeros((), wide.tensor.dtype.numpy))
        numbers = complex_(first, _part(wide, 1) if x.tensor.shape[-1] == 2 else zero)
        if onesided:
            signal = irfft(numbers, length=length, axis=axis)
            return narrowed(expand_dims(signal, axes=(-1,)), x)
        found = (ifft if inverse else fft)(numbers, length=length, axis=axis)
    return narrowed(stack(real(found), imag(found), axis=-1), x)


dft = FAMILY.declare(
    "dft",
    _dft_type,
    doc="Transform a signal whose last axis holds real and imaginary parts; onesided keeps half.",
    expand=_dft,
    dtypes=FLOATS,
    tolerance=SCALED,
    lacks={"scalar": NEEDS_SIGNAL},
    samples=lambda: [
        sample(draw(2, 5, 1)),
        sample(draw(2, 5, 2), inverse=True),
        sample(draw(2, 6, 1), onesided=True),
        sample(draw(2, 4, 2), onesided=True, inverse=True),
        sample(draw(3, 2, 2), axis=0, length=4),
        sample(draw(2, 4, 2), onesided=True, inverse=True, length=7),
        sample(draw(0, 4, 1)),
    ],
    refuses=lambda: [
        bad("a signal needs an axis of time and one of parts, found", "[]"),
        bad("the last axis holds real and imaginary parts; choose another", "[2, 5, 1]", axis=2),
        bad("the last axis must have 1 or 2 elements, found 5", "[2, 5]"),
        bad(
            "onesided takes real numbers forward, and complex ones back", "[2, 6, 2]", onesided=True
        ),
        bad("a transform needs at least one element", "[2, 0, 1]"),
        bad("axis 3 is outside a tensor of rank 3", "[2, 5, 1]", axis=3),
    ],
)


def _stft_type(
    signal: TensorType,
    window: TensorType | None = None,
    *,
    frame_step: int,
    frame_length: Dim,
    onesided: bool = True,
) -> TensorType:
    require(signal.rank == 3, f"a signal is (batch, time, parts), found {signal}.")
    require(frame_step > 0, f"frame_step must be at least 1, found {frame_step}.")
    same_dtype(signal, window)
    if window is not None:
        require(window.rank == 1, f"a window has one axis, found {window}.")
        require_dims(window.shape[0], frame_length, "the size of the window and frame_length")
    batch, time, parts = signal.shape
    require(within(frame_length, time), f"frames of {frame_length} do not fit into {time}.")
    frames = floordiv(time - frame_length, frame_step) + 1
    framed = signal.with_shape((batch, frames, frame_length, parts))
    return _dft_type(framed, onesided=onesided)


def _places(frames: Dim, length: Dim, step: int) -> Value:
    """Give the times that each frame takes."""
    starts = multiply(iota.new(shape=(frames, 1), axis=0), step)
    return add(starts, iota.new(shape=(1, length), axis=1))


def _stft(
    signal: Value, window: Value | None, frame_step: int, frame_length: Dim, onesided: bool
) -> Value:
    frames = floordiv(signal.tensor.shape[1] - frame_length, frame_step) + 1
    framed = gather(signal, _places(frames, frame_length, frame_step), axis=1)
    if window is not None:
        framed = multiply(framed, expand_dims(window, axes=(1,)))
    return dft(framed, onesided=onesided)


stft = FAMILY.declare(
    "stft",
    _stft_type,
    doc="Transform frames of a signal (batch, time, parts), each times the window.",
    expand=_stft,
    dtypes=FLOATS,
    tolerance=SCALED,
    lacks={"scalar": NEEDS_SIGNAL},
    samples=lambda: [
        sample(draw(2, 12, 1), draw(4, low=0.1), frame_step=3, frame_length=4),
        sample(draw(1, 9, 1), None, frame_step=2, frame_length=5),
        sample(draw(1, 8, 2), draw(4), frame_step=2, frame_length=4, onesided=False),
        sample(draw(0, 8, 1), draw(4), frame_step=2, frame_length=4),
        sample(
            draw(1, 720, 1), draw(400, low=0.1), frame_step=160, frame_length=400, only=(float32,)
        ),
    ],
    refuses=lambda: [
        bad(
            "a signal is (batch, time, parts), found float32[]", "[]", frame_step=2, frame_length=5
        ),
        bad("frame_step must be at least 1, found 0", "[1, 9, 1]", frame_step=0, frame_length=5),
        bad(
            "operands must have one dtype, found float32 and bool",
            "[0, 8, 1]",
            "bool[4]",
            frame_step=2,
            frame_length=4,
        ),
        bad(
            "a window has one axis, found float32[]",
            "[1, 9, 1]",
            "[]",
            frame_step=2,
            frame_length=5,
        ),
        bad("frames of 5 do not fit into 1", "[1, 1, 1]", frame_step=2, frame_length=5),
        bad(
            "the size of the window and frame_length must be equal",
            "[0, 8, 1]",
            "[5]",
            frame_step=2,
            frame_length=4,
        ),
    ],
)


def _istft_type(
    x: TensorType, window: TensorType, *, frame_step: int, onesided: bool = True
) -> TensorType:
    require(x.rank == 4, f"a spectrum is (batch, frames, frequencies, parts), found {x}.")
    require(x.shape[3] == 2, f"a spectrum has 2 parts, found {x.shape[3]}.")
    require(window.rank == 1, f"a window has one axis, found {window}.")
    require(frame_step > 0, f"frame_step must be at least 1, found {frame_step}.")
    same_dtype(x, window)
    (length,) = window.shape
    bins = floordiv(length, 2) + 1 if onesided else length
    require_dims(x.shape[2], bins, "the frequencies and those of the window")
    time = (x.shape[1] - 1) * frame_step + length
    return x.with_shape((x.shape[0], time, 1 if onesided else 2))


def _istft(x: Value, window: Value, frame_step: int, onesided: bool) -> Value:
    batch, time, parts = _istft_type(
        x.tensor, window.tensor, frame_step=frame_step, onesided=onesided
    ).shape
    (length,), frames = window.tensor.shape, x.tensor.shape[1]
    flat = (frames * length,)
    spread = expand_dims(widened(window), axes=(1,))
    found = dft(widened(x), length=length, inverse=True, onesided=onesided)
    signal = reshape(multiply(found, spread), shape=(batch, *flat, parts))
    weights = broadcast_to(square(spread), shape=(1, frames, length, 1))
    places = reshape(_places(frames, length, frame_step), shape=(1, *flat, 1))

    def overlap(parts_of: Value) -> Value:
        outer, _, inner = parts_of.tensor.shape
        empty = constant(np.zeros((), parts_of.tensor.dtype.numpy))
        at = broadcast_to(places, shape=parts_of.tensor.shape)
        into = broadcast_to(empty, shape=(outer, time, inner))
        return scatter_elements(into, at, parts_of, axis=1, reduction="add")

    total = overlap(reshape(weights, shape=(1, *flat, 1)))
    # Where no window reaches there is nothing to divide by, and the sum is 0.
    weight = where(equal(total, 0.0), constant(np.ones((), total.tensor.dtype.numpy)), total)
    return narrowed(divide(overlap(signal), weight), x)


istft = FAMILY.declare(
    "istft",
    _istft_type,
    doc="Undo stft: add up the frames times the window, over the sum of its squares.",
    expand=_istft,
    dtypes=FLOATS,
    lacks={"scalar": NEEDS_SIGNAL},
    samples=lambda: [
        sample(draw(2, 4, 3, 2), draw(4, low=0.5), frame_step=2),
        sample(draw(1, 3, 5, 2), draw(5, low=0.5), frame_step=2, onesided=False),
        sample(draw(0, 2, 3, 2), draw(4, low=0.5), frame_step=1),
    ],
    refuses=lambda: [
        bad("a spectrum is (batch, frames, frequencies, parts), found", "[]", "[4]", frame_step=2),
        bad("a spectrum has 2 parts, found 3", "[2, 4, 3, 3]", "[4]", frame_step=2),
        bad("a window has one axis, found float32[]", "[2, 4, 3, 2]", "[]", frame_step=2),
        bad("frame_step must be at least 1, found 0", "[2, 4, 3, 2]", "[4]", frame_step=0),
        bad(
            "operands must have one dtype, found float32 and bool",
            "[2, 4, 3, 2]",
            "bool[4]",
            frame_step=2,
        ),
        bad(
            "the frequencies and those of the window must be equal",
            "[2, 4, 4, 2]",
            "[4]",
            frame_step=2,
        ),
    ],
)


def cosine_window(places: Value, period: Value, terms: tuple[float, ...]) -> Value:
    """Sum cosines of once, twice, ... around the period, the first term being constant."""
    turns = divide(places, maximum(period, 1.0))
    total = add(multiply(turns, 0.0), terms[0])
    for times, factor in enumerate(terms[1:], 1):
        total = add(total, multiply(cos(multiply(turns, 2.0 * np.pi * times)), factor))
    return total


def _window_type(*, size: Dim, periodic: bool = True, dtype: DType = float32) -> TensorType:
    require(dtype in FLOATS, f"a window has floats, found {dtype}.")
    return TensorType(dtype, (size,))


def _window(
    name: str, doc: str, terms: tuple[float, ...], refuses: Refuses | None = None
) -> Op[Value]:
    def expand(size: Dim, periodic: bool, dtype: DType) -> Value:
        wide = dtype if dtype.bits > 32 else float32
        places = iota.new(shape=(size,), axis=0, dtype=wide)
        period = cast(dim_of(places, 0), dtype=wide)
        if not periodic:
            period = subtract(period, 1.0)
        found = cosine_window(places, period, terms)
        return found if dtype is wide else cast(found, dtype=dtype)

    return FAMILY.declare(
        name,
        _window_type,
        doc=doc,
        expand=expand,
        dtypes=(float32,),
        tolerance=ulps(16),
        lacks=dict.fromkeys(("empty", "scalar", "broadcast"), "has no operands"),
        samples=lambda: [
            sample(size=8),
            sample(size=5, periodic=False, dtype="float16"),
            sample(size=0, dtype="float64"),
        ],
        refuses=refuses,
    )


WINDOWS = {
    "hann": (0.5, -0.5),
    "hamming": (25 / 46, -21 / 46),
    "blackman": (0.42, -0.5, 0.08),
}
hann_window = _window("hann_window", "Make a Hann window.", WINDOWS["hann"])
hamming_window = _window("hamming_window", "Make a Hamming window.", WINDOWS["hamming"])
blackman_window = _window(
    "blackman_window",
    "Make a Blackman window.",
    WINDOWS["blackman"],
    refuses=lambda: [bad("a window has floats, found bool", size=8, dtype="bool")],
)


def _mel_type(
    bins: TensorType,
    dft_length: TensorType,
    sample_rate: TensorType,
    low: TensorType,
    high: TensorType,
    *,
    frequencies: Dim = FRESH,
    columns: Dim = FRESH,
    dtype: DType = float32,
) -> TensorType:
    for of in (bins, dft_length, sample_rate, low, high):
        require(of.rank == 0, f"every operand must be a scalar, found {of}.")
    return TensorType(dtype, (frequencies, columns))


def _mel(
    bins: Array,
    dft_length: Array,
    sample_rate: Array,
    low: Array,
    high: Array,
    dtype: DType,
    **made: Any,
) -> Array:
    count = int(bins)
    edges = [2595 * np.log10(1 + float(edge) / 700) for edge in (low, high)]
    mels = np.arange(count + 2) * ((edges[1] - edges[0]) / (count + 2)) + edges[0]
    hertz = 700 * (10 ** (mels / 2595) - 1)
    points = ((int(dft_length) + 1) * hertz // int(sample_rate)).astype(np.int64)
    left, centre, right = points[:-2], points[1:-1], points[2:]
    at = np.arange(int(dft_length) // 2 + 1)[:, None]
    rising = np.where(left == centre, at == centre, (at - left) / np.maximum(centre - left, 1))
    falling = (right - at) / np.maximum(right - centre, 1)
    found = np.where((at >= left) & (at <= centre), rising, 0.0)
    return np.where((at >= centre) & (at < right), falling, found)


mel_weight_matrix = FAMILY.declare(
    "mel_weight_matrix",
    _mel_type,
    doc="Make the triangles that turn frequencies (rows) into mel bins (columns).",
    reference=_mel,
    output_shapes=lambda bins, dft_length, *rest, **attrs: [[int(dft_length) // 2 + 1, int(bins)]],
    dtypes=(int32, int64),
    traits=(Trait.UNBACKED, Trait.DISCONTINUOUS),
    tolerance=ulps(4),
    flops=8,
    lacks=dict.fromkeys(("empty", "broadcast"), "every operand is a scalar"),
    samples=lambda: [
        sample(given(8), given(16), given(8192), given(0.0, "float32"), given(4096.0, "float32")),
        sample(
            given(3),
            given(25),
            given(99),
            given(5.0, "float32"),
            given(40.0, "float32"),
            dtype="float64",
        ),
    ],
    refuses=lambda: [
        bad(
            "every operand must be a scalar, found int32[1]",
            "[1]",
            "[]",
            "[]",
            "float32[]",
            "float32[]",
        )
    ],
)
