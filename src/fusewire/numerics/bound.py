"""The error bound of one op, from its declaration.

Both sides get the same operands, as stored. Bounds are never multiplied through a graph: in a deep
one they explode and judge nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import DType, dtype, float64
from fusewire.ir.dims import Symbol
from fusewire.ir.graph import Array, Graph, HostValue, Node
from fusewire.ir.types import TensorType, Type, tensor_of
from fusewire.numerics.noise import MOVED_IN_OP, Noise, alone, felt_inputs, is_exact
from fusewire.numerics.scale import Scales, bindings_of, rms, terms_of
from fusewire.numerics.spread import SCOUT, Expected, Runs, expect, expect_exact, floor_of
from fusewire.ops.declare import Op, Trait
from fusewire.ops.interpret import Interpreter

RUNS = 8
SCOUTS = 2
MULTIPLE = 8.0
# Any number, but always the same.
SEED = 15
Bindings = Mapping[Symbol, int]
Leaf = tuple[str, DType, Array]


def op_bound(
    op: Op[Any],
    node: Node,
    operands64: Sequence[HostValue],
    outputs64: Sequence[HostValue],
    bindings: Bindings | None = None,
) -> list[Array]:
    """Return the absolute tolerance of every output; a sequence has one per element."""
    return [e.tolerance for e in expect_op(op, node, operands64, outputs64, bindings)]


def expect_op(
    op: Op[Any],
    node: Node,
    operands64: Sequence[HostValue],
    outputs64: Sequence[HostValue],
    bindings: Bindings | None = None,
) -> list[Expected]:
    """Return what is expected of the outputs of a node with exact operands."""
    graph = alone(node)
    inputs = [x for x in operands64 if x is not None]
    known = bindings_of(graph, inputs, bindings)
    if is_exact(node):
        return [expect_exact(*leaf) for leaf in leaves(graph, outputs64)]
    kind, count = op.tolerance.kind, op.tolerance.ulps
    if kind in ("spread", "codes", "exact"):
        multiple = count if kind == "spread" else MULTIPLE
        return expect_region(graph, inputs, outputs64, known, multiple, codes=kind == "codes")
    # Integers and booleans are exact here: the operands have no noise. A float may jump where
    # the op rounds on its way, as a remainder does.
    inexact = any(tensor_of(t).dtype.is_inexact for t in node.types)
    jumpy = inexact and op.is_(Trait.DISCONTINUOUS)
    shown = expect_region(graph, inputs, outputs64, known) if jumpy else None
    factor = count * (terms_of(node, known) ** 0.5 if kind == "linear" else 1.0)
    found = []
    sizes = _sizes(kind, graph, inputs, outputs64, known)
    for index, (name, of, wide) in enumerate(leaves(graph, outputs64)):
        # The wide answer is rounded too, which counts where the dtype is as wide.
        eps = of.eps + float64.eps if of.is_inexact else 0.0
        tolerance = factor * (eps * sizes[index] + floor_of(of))
        jumps = shown[index].jumps if shown else np.zeros(wide.shape, np.bool_)
        found.append(Expected(name, of, wide, tolerance, jumps, jumps))
    return found


def expect_region(
    graph: Graph,
    inputs: Sequence[HostValue],
    outputs64: Sequence[HostValue],
    bindings: Bindings,
    multiple: float = MULTIPLE,
    *,
    codes: bool = False,
) -> list[Expected]:
    """Return what is expected of a small graph, by runs with noise; its inputs are exact."""
    felt = felt_inputs(graph)
    stored = [_stored(x, v.type) for x, v in zip(inputs, graph.inputs, strict=True)]
    scales = Scales(graph, bindings)
    noise = Noise(SEED, scales, MOVED_IN_OP)
    expansions: dict[Node, Graph] = {}
    Interpreter(graph, wide=True, before=scales.learn, expansions=expansions)(inputs, bindings)
    interpreter = Interpreter(graph, observe=noise.observe, expansions=expansions)
    runs: list[list[Leaf]] = []
    for run in range(RUNS + SCOUTS):
        noise.start(run, SCOUT if run >= RUNS else 1.0)
        runs.append(leaves(graph, interpreter(noise.inputs(felt, stored), bindings)))
    sizes = [rms(_size(x).reshape(-1)) for x in stored if isinstance(x, np.ndarray)]
    scale = max(sizes, default=0.0)
    found = []
    for index, (name, of, wide) in enumerate(leaves(graph, outputs64)):
        # A sequence that is shorter in some run has lost an element to a jump.
        same = [r[index][2] if index < len(r) else np.zeros(0) for r in runs]
        seen = Runs(same[:RUNS], same[RUNS:])
        found.append(expect(name, of, wide, seen, multiple, codes=codes, scale=scale))
    return found


def leaves(graph: Graph, outputs: Sequence[HostValue]) -> list[Leaf]:
    """List the tensors in a graph's outputs."""
    named = zip(graph.output_names, graph.outputs, outputs, strict=True)
    return [leaf for name, value, x in named for leaf in value_leaves(name, value.type, x)]


def value_leaves(name: str, type_: Type, value: HostValue) -> list[Leaf]:
    """List the tensors in a value: the elements of a sequence, nothing if absent."""
    if isinstance(type_, TensorType):
        return [(name, type_.dtype, np.asarray(value))]
    if isinstance(value, list):
        parts = [(f"{name}[{i}]", item) for i, item in enumerate(value)]
    else:
        parts = [] if value is None else [(name, value)]
    return [leaf for part, item in parts for leaf in value_leaves(part, type_.element, item)]


def _sizes(
    kind: str,
    graph: Graph,
    inputs: Sequence[HostValue],
    outputs64: Sequence[HostValue],
    bindings: Bindings,
) -> list[Array]:
    """Return what an error is relative to, for each output."""
    sizes = [_size(x) for _, _, x in leaves(graph, outputs64)]
    run = Interpreter(graph, wide=True)
    if kind == "linear":
        found = leaves(graph, run([_magnitude(x) for x in inputs], bindings))
        return [np.maximum(s, _size(x)) for s, (_, _, x) in zip(sizes, found, strict=True)]
    if kind == "ranged":
        return [np.maximum(s, 1.0) for s in sizes]
    if kind == "scaled":
        # A stable algorithm is right for operands that differ in the last place of the largest.
        types = [tensor_of(v.type).dtype for v in graph.inputs]
        eps = max(of.eps for of in types)
        largest = [float(s.max(initial=0.0)) for s in sizes]
        changes = [0.0] * len(sizes)
        noise = Noise(SEED, Scales(graph))
        for seed in range(4):
            noise.start(seed)
            near = [noise.moved(x, of, 1.0, rms(x)) for x, of in zip(inputs, types, strict=True)]
            for i, (_, _, x) in enumerate(leaves(graph, run(near, bindings))):
                changes[i] = max(changes[i], float(_size(x - outputs64[i]).max(initial=0.0)))
        return [
            np.full(s.shape, top + change / eps)
            for s, top, change in zip(sizes, largest, changes, strict=True)
        ]
    return sizes


def _size(x: Array) -> Array:
    """Take magnitudes; 0 where there is none."""
    if x.dtype == object or not dtype(x.dtype).is_inexact:
        return np.zeros(x.shape)
    magnitude = np.abs(x.astype(np.complex128 if x.dtype.kind == "c" else np.float64))
    return np.where(np.isfinite(magnitude), magnitude, 0.0)


def _magnitude(x: HostValue) -> HostValue:
    if isinstance(x, list):
        return [_magnitude(item) for item in x]
    return np.abs(x).astype(x.dtype) if x is not None and x.dtype.kind in "fc" else x


def _stored(value: HostValue, type_: Type) -> HostValue:
    if isinstance(type_, TensorType):
        return np.asarray(value).astype(type_.dtype.numpy, copy=False)
    if isinstance(value, list):
        return [_stored(item, type_.element) for item in value]
    return None if value is None else _stored(value, type_.element)
