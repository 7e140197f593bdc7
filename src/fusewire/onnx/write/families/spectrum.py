"""Spectra of real signals. ONNX has no complex numbers beyond a last axis of two parts."""

from __future__ import annotations

import numpy as np

from fusewire.dtypes import dtype, float32, float64, int64
from fusewire.errors import FormatError
from fusewire.ir.graph import Node
from fusewire.onnx.elements import element_of
from fusewire.onnx.ops.writing import attrs_of, operand, spelled
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.families.convolution import require_filled
from fusewire.onnx.write.model import Ref, Write
from fusewire.ops.inference import axis_of


def dft(e: Emitter, node: Node, x: Ref) -> Ref:
    """Transform; half a spectrum is mirrored before it is transformed back."""
    require_filled(e, node)
    attrs = attrs_of(node)
    shape = operand(node, 0).tensor.shape
    axis, length = axis_of(attrs["axis"], len(shape)), attrs["length"]
    inverse, onesided = bool(attrs["inverse"]), bool(attrs["onesided"])
    if inverse and onesided:
        return _inverse_half(e, node, x, axis)
    told = None if length is None else e.scalar(length)
    place = e.constant(np.int64(spelled(e, attrs["axis"], len(shape))))
    if inverse and x.dtype is float64:
        return _turned(e, x, told, place, e.scalar(node.outputs[0].tensor.shape[axis]))
    return e("DFT", x, told, place, inverse=int(inverse), onesided=int(onesided))


def _turned(e: Emitter, x: Ref, told: Ref | None, place: Ref, terms: Ref) -> Ref:
    """Transform back by transforming forth: engines divide by the length in float32."""
    sign = e.constant(np.array([1.0, -1.0]))
    found = e("DFT", e("Mul", x, sign), told, place)
    return e("Mul", e("Div", found, e.cast(terms, float64)), sign)


def _inverse_half(e: Emitter, node: Node, x: Ref, axis: int) -> Ref:
    """Complete the spectrum of a real signal, transform it, and keep the real part."""
    made, bins = node.outputs[0].tensor.shape[axis], operand(node, 0).tensor.shape[axis]
    if not isinstance(made, int) or not isinstance(bins, int):
        raise FormatError("Half a spectrum is mirrored only where its size is known.")
    half = made // 2 + 1
    at = e.integers(axis)
    if bins < half:
        pads = [0] * (2 * operand(node, 0).tensor.rank)
        pads[len(pads) // 2 + axis] = half - bins
        x = e("Pad", x, e.integers(*pads))
    elif bins > half:
        x = e("Slice", x, e.integers(0), e.integers(half), at)
    # Frequencies 0 and, of an even length, the middle one have no twin, and must be real.
    turned = e("Mul", x, e.constant(np.array([1.0, -1.0]), x.dtype))
    back = e("Slice", turned, e.integers(made - half), e.integers(0), at, e.integers(-1))
    real = e("Mul", x, e.constant(np.array([1.0, 0.0]), x.dtype))
    ends = np.zeros([half if i == axis else 1 for i in range(operand(node, 0).tensor.rank)], bool)
    single = [0, half - 1] if made % 2 == 0 else [0]
    np.moveaxis(ends, axis, 0)[single] = True
    kept = e("Where", e.constant(ends), real, x, of=x.dtype)
    whole = e("Concat", kept, back, axis=axis)
    place = e.constant(np.int64(axis))
    if x.dtype is float64:
        signal = _turned(e, whole, None, place, e.scalar(made))
    else:
        signal = e("DFT", whole, None, place, inverse=1)
    return e("Slice", signal, e.integers(0), e.integers(1), e.integers(-1))


def stft(e: Emitter, node: Node, signal: Ref, window: Ref | None) -> Ref:
    """Transform frames."""
    require_filled(e, node)
    attrs = attrs_of(node)
    step, length = e.scalar(attrs["frame_step"]), e.scalar(attrs["frame_length"])
    return e("STFT", signal, step, window, length, onesided=int(bool(attrs["onesided"])))


def window_of(op: str) -> Write:
    """Make a window, computed in float32 or wider."""

    def write(e: Emitter, node: Node) -> Ref:
        attrs = attrs_of(node)
        to = dtype(attrs["dtype"])
        wide = to if to.bits > 16 else float32
        size = e.scalar(attrs["size"])
        periodic = int(bool(attrs["periodic"]))
        found = e(op, size, of=wide, output_datatype=element_of(wide), periodic=periodic)
        return e.cast(found, to)

    return write


def mel_weight_matrix(e: Emitter, node: Node, *xs: Ref) -> Ref:
    """Make the triangles of mel bins; its edges are float32."""
    to = dtype(node.attrs["dtype"])  # type: ignore[arg-type]  # a DType
    bins, length, rate, low, high = xs
    edges = [e.cast(x, float32) for x in (low, high)]
    counts = [e.cast(x, int64) for x in (bins, length, rate)]
    return e("MelWeightMatrix", *counts, *edges, of=to, output_datatype=element_of(to))


WRITERS = {
    "dft": dft,
    "stft": stft,
    "hann_window": window_of("HannWindow"),
    "hamming_window": window_of("HammingWindow"),
    "mel_weight_matrix": mel_weight_matrix,
}
