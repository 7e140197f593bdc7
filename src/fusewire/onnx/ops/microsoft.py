"""Ops of com.microsoft, which ONNX Runtime writes into files that it has optimized or quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import DType, uint4, uint8
from fusewire.ir.builder import constant
from fusewire.ir.graph import Array, Value
from fusewire.onnx.ops.quantization import single
from fusewire.onnx.ops.reading import cast
from fusewire.onnx.ops.recurrent import settings
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import activation, contraction, movement, normalization, pooling, quantization
from fusewire.ops.elementwise import add, multiply
from fusewire.ops.quantized import matmul_integer, matmul_nbits
from fusewire.ops.recurrent import Prepared, biases, lstm_cell, lstm_functions, part, run_rows
from fusewire.ops.slicing import split


def _fast_gelu(call: OnnxCall) -> Converted:
    bias = call.get(1)
    return activation.gelu(call[0] if bias is None else add(call[0], bias), approximate=True)


def _fused_matmul(call: OnnxCall) -> Converted:
    if call.flag("transBatchA") or call.flag("transBatchB"):
        call.refuse("transBatchA and transBatchB are not known. Write a Transpose before.")
    sides = enumerate(("transA", "transB"))
    a, b = (_turned(call[i]) if call.flag(name) else call[i] for i, name in sides)
    alpha = call.attr("alpha", 1.0)
    product = contraction.matmul(a, b)
    return product if alpha == 1.0 else multiply(product, alpha)


def _turned(x: Value) -> Value:
    rank = x.tensor.rank
    return x if rank < 2 else movement.transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))


def _skip_layer_norm(call: OnnxCall) -> Converted:
    return _skipped(
        call,
        call.get(4),
        lambda x, epsilon: normalization.layer_norm(x, call[2], call.get(3), epsilon=epsilon),
    )


def _skip_rms_norm(call: OnnxCall) -> Converted:
    return _skipped(
        call, call.get(3), lambda x, epsilon: normalization.rms_norm(x, call[2], epsilon=epsilon)
    )


def _skipped(
    call: OnnxCall, bias: Value | None, norm: Callable[[Value, float], Value]
) -> Sequence[Value | None]:
    """Normalize a sum, which is given as well; statistics in between are not."""
    total = add(call[0], call[1])
    total = total if bias is None else add(total, bias)
    return [norm(total, call.attr("epsilon", 1e-12)), None, None, total]


def _scaled(total: Value, a_scale: Value, b_scale: Value) -> Value:
    return multiply(cast(total, a_scale.tensor.dtype), multiply(a_scale, b_scale))


def _product(x: Value, codes: Value, scale: Value, zero: Value | None) -> Value:
    """Multiply by codes, with x brought to codes of its own first."""
    own, own_scale, own_zero = quantization.dynamic_quantize(x)
    return _scaled(matmul_integer(own, codes, own_zero, zero), own_scale, scale)


def _dynamic_matmul(call: OnnxCall) -> Converted:
    zero, bias = call.get(3), call.get(4)
    found = _product(call[0], call[1], single(call[2]), None if zero is None else single(zero))
    return found if bias is None else add(found, bias)


def _matmul_to_float(call: OnnxCall) -> Converted:
    zeros = [None if (zero := call.get(i)) is None else single(zero) for i in (4, 5)]
    total = matmul_integer(call[0], call[1], *zeros)
    found, bias = _scaled(total, single(call[2]), single(call[3])), call.get(6)
    return found if bias is None else add(found, bias)


def _matmul_nbits(call: OnnxCall) -> Converted:
    """Unpack codes of 4 or 8 bits: in the file, each block of a row has whole bytes."""
    bits, block = call.needed("bits"), call.needed("block_size")
    inputs, outputs = call.needed("K"), call.needed("N")
    if call.get(4) is not None:
        call.refuse("g_idx reorders the rows of the weights. Export the model without it.")
    if bits not in _UNSIGNED or block < 1 or block * bits % 8:
        call.refuse(f"codes of {bits} bits in blocks of {block} are not known.")
    blocks = -(-inputs // block)
    size = blocks * block
    codes = _unpacked(call, 1, bits, outputs, size)[:, :inputs]
    scale = movement.reshape(call[2], shape=(outputs, blocks))
    if (given := call.get(3)) is None:
        zero = np.full((outputs, blocks), 2 ** (bits - 1), np.uint8)
    elif given.tensor.dtype is not uint8:
        call.refuse(f"zero points are {given.tensor.dtype}. Export the model with uint8.")
    else:
        zero = _unpacked(call, 3, bits, outputs, blocks)
    stored = _UNSIGNED[bits].numpy
    weights = constant(codes.astype(stored)), scale, constant(zero.astype(stored))
    found, bias = matmul_nbits(call[0], *weights, block=block), call.get(5)
    return found if bias is None else add(found, bias)


def _unpacked(call: OnnxCall, position: int, bits: int, rows: int, columns: int) -> Array:
    """Read codes, the lower half of a byte first; a row begins with a byte of its own."""
    packed = call.array(call[position])
    if packed is None or packed.dtype != np.uint8:
        call.refuse("the codes of the weights must be constants of uint8.")
    width = -(-columns * bits // 8)
    if packed.size != rows * width:
        call.refuse(f"{rows} rows of {columns} codes are {rows * width} bytes, not {packed.size}.")
    codes = packed.reshape(rows, width)
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(rows, -1)
    return codes[:, :columns]


_UNSIGNED: Mapping[int, DType] = {4: uint4, 8: uint8}


def _weights(call: OnnxCall, position: int, scales: int, index: int) -> list[Value]:
    """Take a direction's codes [inputs, gates], their scale and their zero point."""
    codes, scale, zero = call[position], call[scales], call[scales + 1]
    own = [part(codes, index, *codes.tensor.shape[1:])]
    return own + [single(part(v, index, *(v.tensor.shape[1:] or (1,)))) for v in (scale, zero)]


def _dynamic_lstm(call: OnnxCall) -> Converted:
    """Expand a layer whose weights are codes: x, and h at each step, are brought to codes too.

    This is what ONNX Runtime computes with one thread; with more it cuts batches apart first.
    """
    attrs = settings(call, ("sigmoid", "tanh", "tanh"))
    bias, lengths, h0, c0, peepholes = (call.get(i) for i in range(3, 8))
    hidden = call[2].tensor.shape[1]

    def rows(index: int) -> Value:
        return _product(call[0], *_weights(call, 1, 8, index))

    def prepare(index: int) -> Prepared:
        total = None if bias is None else add(*biases(bias, index, 4 * hidden))
        fixed = _weights(call, 2, 10, index)
        if peepholes is not None:
            fixed += split(part(peepholes, index, 3 * hidden), axis=0, sizes=(hidden,) * 3)
        uses = lstm_functions(attrs["activations"], index, attrs["clip"])
        is_coupled, is_peeping = call.flag("input_forget"), peepholes is not None
        cell = lstm_cell(
            uses, hidden, lambda h, rest: _product(h, *rest[:3]), is_coupled, is_peeping
        )
        return total, fixed, cell

    return run_rows(rows, lengths, [h0, c0], hidden, attrs["direction"], prepare)


def _qlinear(op: Callable[..., Value], operands: int, **names: Any) -> Read:
    """Make the converter of an op on codes: each operand has a scale and a zero point."""

    def convert(call: OnnxCall) -> Converted:
        given = [
            quantization.dequantize(call[i], single(call[i + 1]), _zero(call, i + 2))
            for i in range(0, 3 * operands, 3)
        ]
        attrs = {ours: call.attr(name, default) for ours, (name, default) in names.items()}
        return _encoded(call, op(*given, **attrs), 3 * operands, call[0].tensor.dtype)

    return convert


def _zero(call: OnnxCall, position: int) -> Value | None:
    found = call.get(position)
    return None if found is None else single(found)


def _encoded(call: OnnxCall, y: Value, position: int, like: DType) -> Value:
    """Bring numbers to codes by the scale at a place, and the zero point behind it."""
    zero = _zero(call, position + 1)
    to = like if zero is None else zero.tensor.dtype
    return quantization.quantize(y, single(call[position]), zero, dtype=to)


def _qlinear_concat(call: OnnxCall) -> Converted:
    parts = [
        quantization.dequantize(call[i], single(call[i + 1]), _zero(call, i + 2))
        for i in range(2, len(call.inputs), 3)
    ]
    joined = movement.concat(*parts, axis=call.needed("axis"))
    return _encoded(call, joined, 0, call[2].tensor.dtype)


def _qlinear_global_average_pool(call: OnnxCall) -> Converted:
    if call.flag("channels_last"):
        call.refuse("channels_last is not known. Export the model with channels first.")
    numbers = quantization.dequantize(call[0], single(call[1]), _zero(call, 2))
    return _encoded(call, pooling.global_average_pool(numbers), 3, call[0].tensor.dtype)


_OPS: Mapping[str, Read] = {
    "Gelu": lambda call: activation.gelu(call[0]),
    "BiasGelu": lambda call: activation.gelu(add(call[0], call[1])),
    "FastGelu": _fast_gelu,
    "QuickGelu": lambda call: activation.quick_gelu(call[0], alpha=call.attr("alpha", 1.702)),
    "FusedMatMul": _fused_matmul,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulIntegerToFloat": _matmul_to_float,
    "MatMulNBits": _matmul_nbits,
    "DynamicQuantizeLSTM": _dynamic_lstm,
    "QLinearAdd": _qlinear(add, 2),
    "QLinearMul": _qlinear(multiply, 2),
    "QLinearSigmoid": _qlinear(activation.sigmoid, 1),
    "QLinearLeakyRelu": _qlinear(activation.leaky_relu, 1, alpha=("alpha", 0.01)),
    "QLinearConcat": _qlinear_concat,
    "QLinearGlobalAveragePool": _qlinear_global_average_pool,
}
READERS: Mapping[str, Read] = {f"com.microsoft:{name}": convert for name, convert in _OPS.items()}
