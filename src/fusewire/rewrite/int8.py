"""Products with int8 weights, of what is rounded to 8 bits as it comes: a graph of less precision.

Not a rule of the pipeline: it changes the values. Backends use it where a user accepts the error.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from fusewire.dtypes import float32
from fusewire.ir.builder import Rebuild, constant
from fusewire.ir.graph import Array, Graph, Node, Value
from fusewire.ops.conversion import cast
from fusewire.ops.elementwise import add, multiply
from fusewire.ops.quantization import dynamic_quantize
from fusewire.ops.quantized import matmul_integer

# Weights with fewer rows or columns gain nothing.
LEAST_SIZE = 64
_CODES = 127


def weights_of_product(node: Node) -> Array | None:
    """Return the weights (inputs, outputs) of a product that is worth int8; None of any other."""
    if node.op not in ("matmul", "linear"):
        return None
    x, weights = node.operands[:2]
    if weights.constant is None or weights.tensor.dtype is not float32 or weights.tensor.rank != 2:
        return None
    if x.tensor.rank < 2 or min(map(int, weights.tensor.shape)) < LEAST_SIZE:  # type: ignore[arg-type]  # a constant's
        return None
    array = np.asarray(weights.constant.array)
    return array.T if node.op == "linear" else array


def has_int8_products(graph: Graph) -> bool:
    """Tell whether a graph, bodies included, has products that are worth int8."""
    return any(weights_of_product(node) is not None for part in graph.walk() for node in part.nodes)


def int8_places(graph: Graph) -> list[int]:
    """List the places of the products that are worth int8, without those of bodies."""
    nodes = enumerate(graph.nodes)
    return [place for place, node in nodes if weights_of_product(node) is not None]


def with_int8_products(graph: Graph, exact: Collection[Node] = (), codes: int = _CODES) -> Graph:
    """Round weights per output, and what they are multiplied with per tensor, at every run.

    Bodies of control flow stay as they are, and so do nodes that are to be exact. ``codes`` is the
    largest code of a weight.
    """
    rebuild = Rebuild(graph)
    for node in graph.nodes:
        current = rebuild.copied(node)
        weights = None if node in exact else weights_of_product(current)
        if weights is None or not np.isfinite(weights).all():
            rebuild.replace(node, current.outputs)
            continue
        product = _product(current.operands[0], weights, codes)
        # A dense layer may have a bias.
        bias = current.operands[2:]
        rebuild.replace(node, [add(product, bias[0]) if bias else product])
    return rebuild.finish()


def _product(x: Value, weights: Array, most: int) -> Value:
    largest = np.abs(weights).max(0)
    steps = (np.where(largest > 0, largest, 1.0) / most).astype(np.float32)
    codes = np.clip(np.rint(weights / steps), -most, most).astype(np.int8)
    rounded, scale, zero = dynamic_quantize(x)
    sums = matmul_integer(rounded, constant(codes), zero, None)
    return multiply(cast(sums, dtype=float32), multiply(scale, constant(steps)))
