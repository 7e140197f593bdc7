"""The ops that ONNX Runtime runs: those that the ONNX writer writes and that have kernels."""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, final

import numpy as np

from fusewire.backends.onnxruntime.copies import input_names, output_names
from fusewire.backends.onnxruntime.kernels import KERNELS, SINCE
from fusewire.backends.onnxruntime.mended import MENDED
from fusewire.contract.backend import ENGINE_NAN, NAN, Fact
from fusewire.dtypes import DType, bfloat16, dtype, float32, float64, int8, int32, int64, uint8
from fusewire.errors import FormatError
from fusewire.ir.dims import symbols
from fusewire.ir.graph import Array, Graph, Node
from fusewire.ir.types import TensorType, Type
from fusewire.numerics.codes import packed_halves
from fusewire.onnx.ops import recurrent
from fusewire.onnx.ops.write_table import WRITERS
from fusewire.onnx.ops.writing import (
    attrs_of,
    choose,
    compare,
    number,
    operand,
    plain,
    widened,
)
from fusewire.onnx.write.emitter import Emitter, refusal
from fusewire.onnx.write.model import Model, OnnxBody, OnnxStep, Ref, Write
from fusewire.onnx.write.target import LEADS, OnnxTarget
from fusewire.onnx.write.writer import WrittenModel, emit
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op
from fusewire.process.machine import features
from fusewire.rewrite.static_int8 import adds_in_16_bits

# Frames up to this long are transformed well enough, whatever their length.
EXACT_FRAME = 64


def _solved(e: Emitter, node: Node, a: Ref, b: Ref) -> Ref:
    """Multiply by the inverse; the engine has nothing that solves."""
    return e("MatMul", e("com.microsoft:Inverse", a), b)


def _triangular(e: Emitter, node: Node, a: Ref, b: Ref) -> Ref:
    """Solve with what one triangle holds."""
    part = e("Trilu", a, upper=int(not node.attrs["lower"]))
    return _solved(e, node, part, b)


def _sigmoid(e: Emitter, node: Node, x: Ref) -> Ref:
    """Take the engine's own where it has one: it is right to the digits of 1."""
    if x.dtype not in (bfloat16, float64):
        return e("Sigmoid", x)
    wide = widened(e, x, float32)
    grown = e("Add", e("Exp", e("Neg", wide)), number(e, 1.0, wide))
    return e.cast(e("Reciprocal", grown), x.dtype)


def _stft(e: Emitter, node: Node, signal: Ref, window: Ref | None) -> Ref | Sequence[Ref]:
    """Convolve with waves where the engine's transform loses digits.

    Frames of 400, as no power of two, come out 200 epsilons off (1.31.1).
    """
    attrs = attrs_of(node)
    length, parts = attrs["frame_length"], operand(node, 0).tensor.shape[2]
    known = isinstance(length, int) and length > EXACT_FRAME and length & (length - 1)
    if not known or parts != 1 or not attrs["onesided"] or signal.dtype is not float32:
        return WRITERS["stft"](e, node, signal, window)
    bins = length // 2 + 1
    turns = np.outer(np.arange(bins), np.arange(length)) % length * (2 * np.pi / length)
    waves = np.stack([np.cos(turns), -np.sin(turns)], axis=1).reshape(2 * bins, 1, length)
    weights = e.constant(waves, float32)
    weights = weights if window is None else e("Mul", weights, window)
    flat = e("Transpose", signal, perm=[0, 2, 1])
    found = e("Conv", flat, weights, strides=[attrs["frame_step"]])
    framed = e("Transpose", found, perm=[0, 2, 1])
    return e("Reshape", framed, e.integers(0, 0, bins, 2))


def _quantize(e: Emitter, node: Node, x: Ref, scale: Ref, zero: Ref | None) -> Ref | Sequence[Ref]:
    """Divide, round and saturate node by node where the engine's own makes -128 of infinity.

    That is in float16, and where a scale is for a block of elements (1.31.1): it saturates after a
    cast to int32.
    """
    attrs, to = attrs_of(node), dtype(attrs_of(node)["dtype"])
    if to.is_integer:
        x, scale = widened(e, x, float32), widened(e, scale, float32)
    block = attrs["block"]
    size = block and operand(node, 0).tensor.shape[attrs["axis"]]
    if not isinstance(size, int) or not block or to.bits < 8 or not to.is_integer:
        return WRITERS["quantize"](e, node, x, scale, zero)
    places = e.integers(*(i // block for i in range(size)))
    codes = e("Round", e("Div", x, e("Gather", scale, places, axis=attrs["axis"])))
    if zero is not None:
        codes = e("Add", codes, e("Gather", e.cast(zero, x.dtype), places, axis=attrs["axis"]))
    low, high = (number(e, bound, x) for bound in to.range)
    return e.cast(e("Clip", codes, low, high), to)


# The engine's blocks have a power of two of codes, from 16 on; larger ones are cut.
_LEAST_BLOCK, _MOST_BLOCK = 16, 256
_NBITS = "com.microsoft:MatMulNBits"


def _matmul_nbits(e: Emitter, node: Node, x: Ref, codes: Ref, scale: Ref, zero: Ref | None) -> Ref:
    """Multiply with packed codes, in float32: the engine's other ways round x to 8 bits."""
    of = operand(node, 1).tensor.dtype
    known = [operand(node, 1).constant, *(v.constant for v in node.operands[2:])]
    if any(value is None for value in known):
        raise FormatError("ONNX Runtime packs codes and scales that are constants.")
    arrays = [np.asarray(value.array) for value in known if value is not None]
    outputs, inputs = arrays[0].shape
    given = attrs_of(node)["block"]
    block = min(given & -given, _MOST_BLOCK) if given < inputs else _whole_block(inputs)
    if block < _LEAST_BLOCK:
        raise FormatError(f"ONNX Runtime has blocks of 16, 32, ... codes, found {given}.")
    e.target.require(_NBITS, x.dtype, 0)
    if e.is_trial:
        return e.raw(_NBITS, [x], [x.dtype], {})[0]
    codes_of = _unsigned(of, arrays[0])
    zeros_of = _unsigned(of, arrays[2] if zero is not None else np.zeros_like(arrays[1], of.numpy))
    scales = arrays[1].astype(np.float32)
    sizes = _Blocks(outputs, inputs, given, block)
    if of.bits == 4:
        return _product_of_halves(e, x, sizes, codes_of, scales, zeros_of)
    # Codes of 8 bits as two of 4: the engine's own are 40 times as slow in float32 (1.31.1).
    lower = _product_of_halves(e, x, sizes, codes_of & 15, scales, zeros_of & 15)
    upper = _product_of_halves(e, x, sizes, codes_of >> 4, 16 * scales, zeros_of >> 4)
    return e("Add", lower, upper)


class _Blocks(NamedTuple):
    """The sizes of weights: blocks of ``given`` codes are cut into those of ``block``."""

    outputs: int
    inputs: int
    given: int
    block: int

    @property
    def per_row(self) -> int:
        """How many blocks a row has."""
        return -(-self.inputs // self.block)

    def cut(self, numbers: Array) -> Array:
        """Give each smaller block the number of the block that it was cut from."""
        places = np.arange(self.per_row) * self.block // self.given
        return np.asarray(numbers[:, np.minimum(places, numbers.shape[1] - 1)])


def _unsigned(of: DType, codes: Array) -> Array:
    """Move signed codes up to where the lowest one is 0."""
    middle = 2 ** (of.bits - 1) if of.is_signed else 0
    return (codes.astype(np.int16) + middle).astype(np.uint8)


def _product_of_halves(
    e: Emitter, x: Ref, sizes: _Blocks, codes: Array, scales: Array, zeros: Array
) -> Ref:
    """Multiply with codes of 4 bits without a sign."""
    filled = np.zeros((sizes.outputs, sizes.per_row * sizes.block), np.uint8)
    filled[:, : sizes.inputs] = codes
    packed = packed_halves(filled).reshape(sizes.outputs, sizes.per_row, sizes.block // 2)
    constants = packed, sizes.cut(scales), packed_halves(sizes.cut(zeros))
    attrs = {"K": sizes.inputs, "N": sizes.outputs, "bits": 4, "block_size": sizes.block}
    operands = [x, *map(e.constant, constants)]
    return e.raw(_NBITS, operands, [x.dtype], {**attrs, "accuracy_level": 1})[0]


def _whole_block(inputs: int) -> int:
    """Find the largest block that does not reach far beyond the only block of a row."""
    return next((b for b in (256, 128, 64, 32) if inputs % b == 0), _LEAST_BLOCK)


# Pi as a sum, whose first two parts have 33 bits: multiples of them up to 2**20 are exact.
_PI = (3.14159265346825122833, 1.21542010126079319532e-10, 4.04453249759190126308e-21)


def _periodic(op: str, shift: float) -> Write:
    """Write sine, or cosine as the sine between its zeros; at half a turn these lie shifted.

    In float64 the engine's own err by 1e-16 everywhere, so that near a zero no digit is right.
    """

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        if x.dtype is not float64:
            return e(op, x)
        shifted, two = number(e, shift, x), number(e, 2.0, x)
        turns = e("Round", e("Sub", e("Div", x, number(e, math.pi, x)), shifted))
        zero, rest = e("Add", turns, shifted), x
        for part in _PI:
            rest = e("Sub", rest, e("Mul", zero, number(e, part, x)))
        odd = e("Sub", turns, e("Mul", two, e("Floor", e("Div", turns, two))))
        signs = (1.0, 2.0) if op == "Sin" else (-1.0, -2.0)
        first, change = (number(e, sign, x) for sign in signs)
        near = e("Mul", e("Sin", rest), e("Sub", first, e("Mul", change, odd)))
        size = e("Abs", x)
        above = compare(e, "Greater", size, number(e, 1.0, x))
        below = compare(e, "Less", size, number(e, 1e6, x))
        return choose(e, e("And", above, below), near, e(op, x))

    return write


# What the engine has beyond the standard, and what of the standard it has otherwise.
OWN: Mapping[str, Write] = {
    "inverse": plain("com.microsoft:Inverse"),
    "solve": _solved,
    "triangular_solve": _triangular,
    "sigmoid": _sigmoid,
    "stft": _stft,
    "matmul_nbits": _matmul_nbits,
    "quantize": _quantize,
    "sin": _periodic("Sin", 0.0),
    "cos": _periodic("Cos", 0.5),
}
# More versions of the engine know the lower one; the higher has ops that it lacks.
OPSETS = (21, 26)
# Ops whose kernels ended with opset 21, though ONNX goes on with them.
LOWEST_ONLY = {"roi_align"}
LOWERING: dict[str, Write] = {**WRITERS, **OWN}
# Dtypes of tensors that can cross the border.
CROSSING = KERNELS["Identity"]
# Kernels that are there, and are not right (1.31.1 on x86 with AVX-512; the first two anywhere):
# float64 computed in float32, or refused by the run, or without its NaN; integers added up and
# multiplied in float64; int64 compared by halves, so that 2**32 - 2 is below 2.
DISTRUSTED = {
    *((op, float64) for op in ("Shrink", "LSTM", "GRU", "LogSoftmax")),
    *(
        (op, of)
        for op in ("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare")
        for of in (int32, int64)
    ),
    *((op, int64) for op in ("Max", "Min", "Clip", "Sign", "ReduceMax", "ReduceMin")),
}


# The same by the names of our ops, and those that we write otherwise for the sake of digits.
_DISTRUSTED_OPS: Mapping[frozenset[DType], Collection[str]] = {
    frozenset((float64,)): (
        *("shrink", "lstm", "gru", "sin", "cos", "sigmoid", "log_softmax", "cross_entropy"),
    ),
    frozenset((int32, int64)): ("reduce_sum", "reduce_prod", "norm_l1", "sum_square"),
    frozenset((int64,)): ("maximum", "minimum", "clip", "sign", "reduce_max", "reduce_min"),
}


# Ops on codes whose kernels add two products in 16 bits where the processor has no more.
_ON_CODES = ("matmul_integer", "conv_integer", "qlinear_matmul", "qlinear_conv")


def distrusts(graph: Graph) -> str | None:
    """Say why the engine must not run the nodes of a file just as they are, or None."""
    saturates = adds_in_16_bits(features())
    for part in graph.walk():
        for node in part.nodes:
            if node.op in recurrent.WRITERS and recurrent.may_be_idle(node):
                return f"ONNX Runtime's own {node.op} ends the process if it has no steps."
            found = {v.type.dtype for v in node.operands if isinstance(v.type, TensorType)}
            if saturates and node.op in _ON_CODES and found >= {int8, uint8}:
                return f"ONNX Runtime's own {node.op} saturates on this processor."
            for dtypes, ops in _DISTRUSTED_OPS.items():
                if node.op in ops and dtypes & found:
                    names = ", ".join(sorted(of.name for of in dtypes & found))
                    return f"ONNX Runtime's own {node.op} is not right for {names}."
    return None


def gains_by_sizes(graph: Graph) -> bool:
    """Tell whether known sizes leave out branches that we write around kernels of the engine."""
    nodes = (node for part in graph.walk() for node in part.nodes)
    return any(node.op in recurrent.WRITERS and _is_told_by_inputs(node) for node in nodes)


def _is_told_by_inputs(layer: Node) -> bool:
    """Tell whether the steps of a recurrent layer are open, and inputs tell them."""
    time, batch, _ = layer.operands[0].tensor.shape
    found = (symbol for dim in (time, batch) for symbol in symbols(dim))
    return recurrent.may_be_idle(layer) and not any(symbol.unbacked for symbol in found)


def needs_exact_codes(graph: Graph) -> bool:
    """Tell whether the engine is to turn signed weights into unsigned ones where it fuses.

    It does so for all weights, and has no kernels for signed codes with unsigned weights.
    """
    if not adds_in_16_bits(features()):
        return False
    ops = ("dequantize", "qlinear_matmul", "qlinear_conv")
    nodes = [node for part in graph.walk() for node in part.nodes if node.op in ops]
    given = [node.operands[0] for node in nodes if node.operands[0].constant is None]
    return {v.tensor.dtype for v in given} == {uint8}


@final
class Runtime(OnnxTarget):
    """The CPU kernels of ONNX Runtime."""

    def __init__(self, opset: int) -> None:
        self._opset = opset

    @property
    def name(self) -> str:
        return "ONNX Runtime"

    @property
    def opset(self) -> int:
        return self._opset

    @property
    def is_cautious(self) -> bool:
        return True

    @property
    def saturates(self) -> bool:
        return adds_in_16_bits(features())

    def takes(self, op: str, of: DType, place: int) -> bool:
        if (op, of) in DISTRUSTED:
            return False
        key = op if place == LEADS.get(op, 0) else f"{op}@{place}"
        return of in KERNELS.get(key, ()) and SINCE.get(op, 0) <= self._opset


def opsets(graph: Graph) -> Sequence[int]:
    """List the opsets for which all of a graph may be written."""
    used = {node.op for part in graph.walk() for node in part.nodes}
    return OPSETS[:1] if used & LOWEST_ONLY else OPSETS


def refuses(node: Node, versions: Sequence[int] = OPSETS) -> str | None:
    """Say why a node is not taken; None when it is."""
    if get_op(node.op).is_(Trait.HOST):
        return f"{node.op} works on sequences, optionals or strings, which the reference runs."
    # Codes that are packed into the model are not handed over.
    given = (v.type for v in node.operands if node.op != "matmul_nbits" or v.constant is None)
    for type_ in (*given, *node.types):
        if (reason := _foreign(type_)) is not None:
            return reason
    table = table_of()
    reason = refusal(node, Model(Runtime(versions[0]), table))
    return reason and refusal(node, Model(Runtime(versions[-1]), table))


def _foreign(type_: Type) -> str | None:
    if not isinstance(type_, TensorType):
        return f"ONNX Runtime is given tensors only, not a {type_}."
    if type_.dtype not in CROSSING:
        return f"ONNX Runtime has no {type_.dtype}, or it cannot be handed over."
    return None


# Nodes that give their first input with elements replaced, and copy nothing if both are one memory.
_REPLACING = ("ScatterElements", "ScatterND")


def in_place(written: WrittenModel, inputs: int, outputs: int) -> tuple[int, ...]:
    """Tell, for each output, which input it may be written over; -1 for none, () if all are.

    No other node reads that input; one that asks for its shape does not read it.
    """
    readers = Counter(
        name for step in _all_steps(written.body) if step.op != "Shape" for name in step.inputs
    )
    sole = {name: place for place, name in enumerate(input_names(inputs)) if readers[name] == 1}
    replaced = {
        step.outputs[0]: sole[step.inputs[0]]
        for step in written.body.steps
        if step.op in _REPLACING and step.inputs[0] in sole
    }
    if not replaced:
        return ()
    return tuple(replaced.get(name, -1) for name in output_names(outputs))


def _all_steps(body: OnnxBody) -> Iterator[OnnxStep]:
    """List the nodes of a graph and of the bodies in it, which see the names around them."""
    for step in body.steps:
        yield step
        for attr in step.attrs.values():
            if isinstance(attr, OnnxBody):
                yield from _all_steps(attr)


def table_of(launch: Mapping[str, Fact] = MappingProxyType({})) -> Mapping[str, Write]:
    """Give the rows that an artifact is written by."""
    return LOWERING if launch.get(NAN) == ENGINE_NAN else ChainMap({**MENDED}, LOWERING)


def lower(region: Graph, launch: Mapping[str, Fact] = MappingProxyType({})) -> WrittenModel:
    """Write a region for the lowest opset that has all it needs.

    Inputs and outputs are named by their places: names of values need not differ.
    """
    table = table_of(launch)
    names = input_names(len(region.inputs)), output_names(len(region.outputs))
    try:
        return emit(region, Runtime(OPSETS[0]), table, names)
    except FormatError:
        return emit(region, Runtime(OPSETS[-1]), table, names)
