"""Products and convolutions in int8, with ranges that were measured on a user's data.

Not a rule of the pipeline: it changes the values. Backends use it where a user accepts the error.
Each layer is named by the digest of its weights, so that its ranges fit whatever part of a graph it
is in. Pairs of ``quantize`` and ``dequantize`` say what is rounded; engines make int8 kernels of
them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np

from fusewire.dtypes import float32, uint8
from fusewire.errors import OptionsError
from fusewire.ir.builder import Rebuild, constant
from fusewire.ir.graph import Array, Graph, Node, Value
from fusewire.ops.contraction import matmul
from fusewire.ops.elementwise import add
from fusewire.ops.quantization import dequantize, quantize

# Smaller matrices gain nothing.
LEAST_WEIGHTS = 1024
# Codes of weights: all of a byte, and half of it for engines that add two products in 16 bits.
WHOLE, HALF = 127, 63
_CODES = 255
_INT32 = 2**31 - 1
# Engines compute these together with the convolution before them.
_ACTIVATIONS = ("relu", "clip")
_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?"
_LINE = re.compile(rf"([0-9a-f]{{16}})((?: {_NUMBER}){{4}})", re.ASCII)

Range: TypeAlias = "tuple[float, float]"


@dataclass(frozen=True)
class LayerRanges:
    """The ranges of what the weights of a layer are multiplied with, and of what it returns."""

    input: Range
    output: Range


@dataclass(frozen=True)
class Layer:
    """A node with weights that is worth int8, and what it returns after its activation."""

    node: Node
    key: str
    output: Value

    @property
    def input(self) -> Value:
        return self.node.operands[0]

    @property
    def is_conv(self) -> bool:
        return self.node.op == "conv"


def layers(graph: Graph) -> list[Layer]:
    """List the layers of a graph that int8 may serve; those in bodies of control flow stay."""
    return [layer for node in graph.nodes if (layer := _layer(graph, node)) is not None]


def _layer(graph: Graph, node: Node) -> Layer | None:
    if node.op not in ("conv", "matmul", "linear"):
        return None
    x, weights = node.operands[:2]
    if weights.constant is None or weights.tensor.dtype is not float32:
        return None
    if node.op != "conv":
        is_matrix = weights.tensor.rank == 2 and x.tensor.rank >= 2
        if not is_matrix or np.asarray(weights.constant.array).size < LEAST_WEIGHTS:
            return None
    output = node.outputs[0]
    users = graph.users.get(output, ())
    is_inside = output not in graph.outputs and len(users) == 1
    if is_inside and users[0].op in _ACTIVATIONS and users[0].operands[0] is output:
        output = users[0].outputs[0]
    return Layer(node, weights.constant.digest[:16], output)


def observed(graph: Graph) -> tuple[Graph, list[tuple[str, str]]]:
    """Return a graph of what has to be measured, and the layer and side of each of its outputs."""
    sides = [
        (layer.key, side, value)
        for layer in layers(graph)
        for side, value in (("input", layer.input), ("output", layer.output))
    ]
    values = list(dict.fromkeys(value for _, _, value in sides))
    names = [f"value{number}" for number in range(len(values))]
    measured = Graph(graph.inputs, values, name=graph.name, output_names=names)
    place = {value: number for number, value in enumerate(values)}
    of = [""] * len(values)
    for key, side, value in sides:
        of[place[value]] += f" {key}.{side}"
    return measured, [(name, text.strip()) for name, text in zip(names, of, strict=True)]


def written(ranges: Mapping[str, LayerRanges]) -> tuple[str, ...]:
    """Write ranges as an option: plain data that records and artifacts carry."""
    rows = ((key, (*one.input, *one.output)) for key, one in ranges.items())
    return tuple(" ".join([key, *(f"{x:.9g}" for x in numbers)]) for key, numbers in rows)


def parsed(lines: object) -> dict[str, LayerRanges]:
    """Read ranges; OptionsError for what is not a tuple of such lines."""
    found: dict[str, LayerRanges] = {}
    for line in lines if isinstance(lines, tuple) else (lines,):
        match = _LINE.fullmatch(line) if isinstance(line, str) else None
        numbers = [] if match is None else list(map(float, match[2].split()))
        is_good = len(numbers) == 4 and all(map(math.isfinite, numbers))
        if match is None or not is_good or numbers[0] > numbers[1] or numbers[2] > numbers[3]:
            raise OptionsError(
                f"calibrated={line!r}: a line is the key of a layer and four numbers, as "
                "fw.compile(..., calibrate=samples) measures them."
            )
        low, high, least, most = numbers
        found[match[1]] = LayerRanges((low, high), (least, most))
    return found


def with_static_int8(
    graph: Graph, lines: object, *, codes: int = WHOLE, rounds_outputs: bool = False
) -> Graph:
    """Round weights per output channel, and what they are multiplied with in a fixed range.

    With ``rounds_outputs``, what convolutions return is rounded, too, for engines that have no
    other convolution of int8. ``codes`` is the largest code of a weight.
    """
    return _Rounding(graph, parsed(lines), codes, rounds_outputs).run()


@final
class _Rounding:
    """One graph on its way to int8."""

    def __init__(
        self, graph: Graph, ranges: Mapping[str, LayerRanges], codes: int, rounds_outputs: bool
    ) -> None:
        self._rebuild, self._ranges, self._codes = Rebuild(graph), ranges, codes
        self._layers = {x.node: x for x in layers(graph) if x.key in ranges and _is_finite(x)}
        self._ends = {
            x.output: ranges[x.key].output
            for x in self._layers.values()
            if x.is_conv and rounds_outputs and x.output not in graph.outputs
        }
        self._rounds_bias = rounds_outputs
        self._rounded: dict[Value, Value] = {}

    def run(self) -> Graph:
        for node in self._rebuild.graph.nodes:
            current = self._rebuild.copied(node)
            layer = self._layers.get(node)
            values = current.outputs if layer is None else [self._computed(layer, current)]
            self._rebuild.replace(node, values)
            for output in node.outputs:
                if output in self._ends:
                    value = self._round(self._rebuild.value(output), self._ends[output])
                    self._rebuild.stand_in([output], [value])
        return self._rebuild.finish()

    def _computed(self, layer: Layer, node: Node) -> Value:
        """Compute a layer of rounded operands."""
        x = self._round(node.operands[0], self._ranges[layer.key].input)
        weights = node.operands[1].constant
        assert weights is not None, "layers have weights"
        array, bias = np.asarray(weights.array), node.operands[2:]
        if layer.is_conv:
            steps, rounded = self._weights(array, 0)
            scale = _scale(self._ranges[layer.key].input)
            more = [self._bias(value, steps * scale) for value in bias]
            # A bias that is missing is None.
            rest = more or node.inputs[2:]
            return node.copy((x, rounded, *rest)).outputs[0]
        _, rounded = self._weights(array.T if node.op == "linear" else array, 1)
        product = matmul(x, rounded)
        return add(product, bias[0]) if bias else product

    def _weights(self, array: Array, axis: int) -> tuple[Array, Value]:
        """Round weights, with a scale for each index of an axis; returns the scales, too."""
        others = tuple(i for i in range(array.ndim) if i != axis)
        largest = np.abs(array).max(others, initial=0.0)
        steps = (np.where(largest > 0, largest, 1.0) / self._codes).astype(np.float32)
        spread = steps.reshape([-1 if i == axis else 1 for i in range(array.ndim)])
        limit = self._codes
        codes = np.clip(np.rint(array / spread), -limit, limit).astype(np.int8)
        return steps, dequantize(constant(codes), constant(steps), None, axis=axis)

    def _bias(self, bias: Value, steps: Array) -> Value:
        """Round a bias to the steps of the sums that it is added to, where an engine needs it."""
        if bias.constant is None or not self._rounds_bias:
            return bias
        codes = np.rint(np.asarray(bias.constant.array, np.float64) / steps)
        if not (np.abs(codes) < _INT32).all():
            return bias
        return dequantize(constant(codes.astype(np.int32)), constant(steps), None, axis=0)

    def _round(self, x: Value, ends: Range) -> Value:
        """Round a value to the codes of its range; what is used twice is rounded once."""
        if x not in self._rounded:
            step, low = _scale(ends), min(ends[0], 0.0)
            scale = constant(step)
            zero = constant(np.asarray(np.clip(np.rint(-low / step), 0, _CODES), np.uint8))
            codes = quantize(x, scale, zero, dtype=uint8)
            rounded = dequantize(codes, scale, zero)
            self._rounded |= {x: rounded, rounded: rounded}
        return self._rounded[x]


def _is_finite(layer: Layer) -> bool:
    weights = layer.node.operands[1].constant
    return weights is not None and bool(np.isfinite(np.asarray(weights.array)).all())


def _scale(ends: Range) -> Array:
    """Return the step of a range, which has 0 as one of its codes.

    Engines take a step that is less than the smallest normal number for 0.
    """
    step = (max(ends[1], 0.0) - min(ends[0], 0.0)) / _CODES
    return np.asarray(step if step >= np.finfo(np.float32).tiny else 1.0, np.float32)


def rounding_error(values: Array, ends: Range) -> float:
    """Return the mean square of what rounding changes; the values are of any number."""
    step, low = float(_scale(ends)), min(ends[0], 0.0)
    zero = np.clip(np.rint(-low / step), 0, _CODES)
    codes = np.clip(np.rint(values / step) + zero, 0, _CODES)
    return float(np.mean(((codes - zero) * step - values) ** 2)) if values.size else 0.0


def weight_codes(features: Iterable[str]) -> int:
    """Return the largest code of weights on a processor with these features."""
    return HALF if adds_in_16_bits(features) else WHOLE


def adds_in_16_bits(features: Iterable[str]) -> bool:
    """Tell whether engines add two products of bytes in 16 bits, where they may saturate.

    They do so on x86 without instructions for int8.
    """
    known = set(features)
    return "avx2" in known and not known & {"avx512_vnni", "avx_vnni", "amx_int8"}
