"""Nodes that are to be one kernel, as one node: what it means is its body."""

from __future__ import annotations

from fusewire.dtypes import STORED, float32
from fusewire.ir.builder import inline
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType, Type
from fusewire.ops.declare import Family
from fusewire.ops.elementwise import add, exp, multiply
from fusewire.ops.inference import require
from fusewire.ops.reduction import reduce_sum
from fusewire.ops.sample import Sample, bad, draw, sample
from fusewire.ops.subgraph import subgraph

FAMILY = Family("fused")


def _fused_type(*operands: Type, body: Graph, pattern: str = "") -> tuple[Type, ...]:
    """``pattern`` is what fusion called it."""
    wanted = [v.type for v in body.inputs]
    require(list(operands) == wanted, f"the body takes {wanted}, found {list(operands)}.")
    return tuple(v.type for v in body.outputs)


def _samples() -> list[Sample]:
    def of(*shapes: tuple[int, ...]) -> Sample:
        types = [TensorType(float32, shape) for shape in shapes]
        body = subgraph(_chain, *types)
        return sample(*(draw(*shape) for shape in shapes), body=body, only=(float32,))

    def only(value: Value) -> list[Value]:
        return [value]

    moved = [sample(draw(2), body=subgraph(only, TensorType(d, (2,))), only=(d,)) for d in STORED]
    return [of((3, 4), (3, 4)), of((), ()), of((0, 3), (0, 3)), of((2, 3), (1, 3)), *moved]


def _chain(x: Value, y: Value) -> list[Value]:
    scaled = multiply(exp(x), y)
    return [add(scaled, x), reduce_sum(scaled)]


fused = FAMILY.declare(
    "fused",
    _fused_type,
    doc="Run a fused body: one kernel on backends with our kernels.",
    expand=lambda *operands, body, pattern: inline(body, operands),
    dtypes=STORED,
    samples=_samples,
    refuses=lambda: [
        bad("the body takes", "[3]", body=subgraph(_chain, *[TensorType(float32, (3,))] * 2)),
        bad(
            "the body takes", "[2]", "[3]", body=subgraph(_chain, *[TensorType(float32, (3,))] * 2)
        ),
    ],
)
