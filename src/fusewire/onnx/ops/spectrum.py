"""Spectra of real signals. ONNX has no complex numbers beyond a last axis of two parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fusewire.dtypes import dtype, float32, float64, int64
from fusewire.errors import FormatError, TypeRuleError
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, floordiv, unbacked
from fusewire.ir.graph import Node, Value
from fusewire.onnx.elements import element_of
from fusewire.onnx.ops.reading import cast, chosen, counted, is_told, scalar
from fusewire.onnx.ops.writing import attrs_of, operand, require_filled, spelled
from fusewire.ops import creation, dynamic, elementwise, indexing, logic, movement, spectrum
from fusewire.ops.declare import Op
from fusewire.ops.inference import axis_of
from fusewire.ops.shape import dim_of

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write


def _only(call: OnnxCall, value: Value | None) -> Dim | None:
    """Tell the one element of an operand, None when only the run can."""
    found = call.dims(value)
    return found[0] if found else None


def _number(x: Value) -> Value:
    found = scalar(x)
    assert found is not None
    return cast(found, int64)


def _cut(x: Value, size: Value, axis: int) -> Value:
    """Cut or pad an axis to a size that the run tells."""
    rank = x.tensor.rank
    change = elementwise.subtract(size, dim_of(x, axis))
    places = constant(np.arange(2 * rank) == rank + axis)
    sides = elementwise.multiply(cast(places, int64), change)
    dims = tuple(unbacked() if i == axis else dim for i, dim in enumerate(x.tensor.shape))
    return dynamic.dynamic_pad(x, sides, dims=dims)


def _read_dft(call: OnnxCall) -> Converted:
    x, size = call[0], scalar(call.get(1))
    size = None if size is None else cast(size, int64)
    told = call.get(2) if call.opset >= 20 else None
    if call.opset < 20 or told is None:
        return _along(call, x, size, call.attr("axis", 1) if call.opset < 20 else -2)
    known = _only(call, told)
    if isinstance(known, int):
        return _along(call, x, size, known)
    return _along_any(call, x, size, _number(told))


def _along_any(call: OnnxCall, x: Value, size: Value | None, at: Value) -> Value:
    """Transform the axis that the run tells: the first one that can be, unless it is another."""
    operands = [x] if size is None else [x, size]
    rank, found = x.tensor.rank, None
    for place in range(rank - 1):
        try:
            this = _along(call, x, size, place)
        except TypeRuleError:
            # Half the spectrum of no signal: an axis of one element.
            continue
        if found is None:
            found = this
            continue
        flag = logic.logical_or(logic.equal(at, place), logic.equal(at, place - rank))
        found = chosen(
            call,
            flag,
            [found, *operands],
            lambda _, a, n=None, axis=place: _along(call, a, n, axis),
        )
    if found is None:
        call.refuse(f"no axis of {x.type} can be transformed.")
    return found


def _along(call: OnnxCall, x: Value, size: Value | None, axis: int) -> Value:
    """Transform an axis, cut or padded first where only the run tells the length."""
    attrs = {"inverse": call.flag("inverse"), "onesided": call.flag("onesided")}
    axis = axis_of(axis, x.tensor.rank)
    if size is None:
        return spectrum.dft(x, axis=axis, **attrs)
    known = _only(call, size)
    if known is not None:
        found = spectrum.dft(x, length=known, axis=axis, **attrs)
        if is_told(found, x):
            return found
    if attrs["inverse"] and attrs["onesided"]:
        call.refuse(
            "the length of a signal that is made of half its spectrum must be known before the "
            "run. Make dft_length a constant."
        )
    return spectrum.dft(_cut(x, size, axis), axis=axis, **attrs)


def _write_dft(e: Emitter, node: Node, x: Ref) -> Ref:
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


def _read_stft(call: OnnxCall) -> Converted:
    signal, window, told = call[0], call.get(2), call.get(3)
    if signal.tensor.rank == 2:
        # Real signals without an axis of parts, which engines take.
        signal = movement.expand_dims(signal, axes=(2,))
    step, size = _only(call, call[1]), _only(call, told)
    if told is None:
        size = signal.tensor.shape[1] if window is None else window.tensor.shape[0]
    # A one-sided spectrum is for real signals.
    onesided = call.flag("onesided", 1) and signal.tensor.shape[2] == 1
    if isinstance(step, int) and size is not None:
        found = spectrum.stft(signal, window, frame_step=step, frame_length=size, onesided=onesided)
        if is_told(found, signal, window):
            return found
    zero, one = (constant(np.int64(n)) for n in (0, 1))
    if window is not None:
        offsets = counted(window, 0)
    elif told is not None:
        offsets = creation.range_(zero, _number(told), one)
    else:
        offsets = counted(signal, 1)
    room = elementwise.subtract(dim_of(signal, 1), dim_of(offsets, 0))
    starts = creation.range_(zero, elementwise.add(room, 1), _number(call[1]))
    places = elementwise.add(movement.expand_dims(starts, axes=(1,)), offsets)
    framed = indexing.gather(signal, places, axis=1)
    if window is not None:
        framed = elementwise.multiply(framed, movement.expand_dims(window, axes=(1,)))
    return spectrum.dft(framed, onesided=onesided)


def _write_stft(e: Emitter, node: Node, signal: Ref, window: Ref | None) -> Ref:
    """Transform frames."""
    require_filled(e, node)
    attrs = attrs_of(node)
    step, length = e.scalar(attrs["frame_step"]), e.scalar(attrs["frame_length"])
    return e("STFT", signal, step, window, length, onesided=int(bool(attrs["onesided"])))


def _read_window(op: Op[Value], terms: tuple[float, ...]) -> Read:
    """Make the converter of a window."""

    def convert(call: OnnxCall) -> Converted:
        to, periodic = call.dtype("output_datatype", float32), call.flag("periodic", 1)
        size = _only(call, call[0])
        if size is not None:
            found = op.new(size=size, periodic=periodic, dtype=to)
            if is_told(found):
                return found
        wide = to if to.bits > 32 else float32
        zero, one = (constant(np.int64(n)) for n in (0, 1))
        places = cast(creation.range_(zero, _number(call[0]), one), wide)
        period = cast(dim_of(places, 0), wide)
        period = period if periodic else elementwise.subtract(period, 1.0)
        return cast(spectrum.cosine_window(places, period, terms), to)

    return convert


def _write_window(op: str) -> Write:
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


def _read_mel_weight_matrix(call: OnnxCall) -> Converted:
    counts = [_number(call[i]) for i in range(3)]
    edges = [scalar(call[i]) for i in (3, 4)]
    bins, length = (_only(call, call[i]) for i in (0, 1))
    rows = unbacked() if length is None else floordiv(length, 2) + 1
    return spectrum.mel_weight_matrix(
        *counts,
        *edges,
        frequencies=rows,
        columns=unbacked() if bins is None else bins,
        dtype=call.dtype("output_datatype", float32),
    )


def _write_mel_weight_matrix(e: Emitter, node: Node, *xs: Ref) -> Ref:
    """Make the triangles of mel bins; its edges are float32."""
    to = dtype(node.attrs["dtype"])  # type: ignore[arg-type]  # a DType
    bins, length, rate, low, high = xs
    edges = [e.cast(x, float32) for x in (low, high)]
    counts = [e.cast(x, int64) for x in (bins, length, rate)]
    return e("MelWeightMatrix", *counts, *edges, of=to, output_datatype=element_of(to))


READERS: Mapping[str, Read] = {
    "DFT": _read_dft,
    "STFT": _read_stft,
    "HannWindow": _read_window(spectrum.hann_window, spectrum.WINDOWS["hann"]),
    "HammingWindow": _read_window(spectrum.hamming_window, spectrum.WINDOWS["hamming"]),
    "BlackmanWindow": _read_window(spectrum.blackman_window, spectrum.WINDOWS["blackman"]),
    "MelWeightMatrix": _read_mel_weight_matrix,
}


WRITERS: Mapping[str, Write] = {
    "dft": _write_dft,
    "stft": _write_stft,
    "hann_window": _write_window("HannWindow"),
    "hamming_window": _write_window("HammingWindow"),
    "mel_weight_matrix": _write_mel_weight_matrix,
}
