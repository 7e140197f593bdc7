"""Every op that the table claims, on its own samples; what it does not claim, by name."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fusewire.dtypes import float32
from fusewire.errors import RefusedError
from fusewire.fusion.grouping import fuse
from fusewire.fusion.kinds import kind_of
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.kernel.interpret import interpret
from fusewire.kernel.lower.region import lower, lower_fusion
from fusewire.kernel.lower.table import (
    element_of,
    elements,
    expansion_refusal,
    refusal,
    wholes,
)
from fusewire.kernel.verify import verify_lowered
from fusewire.ops.activation import gelu
from fusewire.ops.control import scan
from fusewire.ops.declare import Kind, Op
from fusewire.ops.elementwise import add
from fusewire.ops.normalization import softmax
from fusewire.ops.subgraph import subgraph
from fusewire.ops.table import all_ops
from fusewire.rewrite.expand import expand
from fusewire.testing.conformance import Case, cases, first_cases, in_share, value_problems
from fusewire.testing.suite import is_tensor_op

OPS = {op.name: op for op in all_ops().values() if is_tensor_op(op)}
# Ops of which no sample has kernels, by what stands in the way.
REFUSED = {
    "a factorisation": (
        "det",
        "inverse",
        "solve",
        "triangular_solve",
        "cholesky",
        "qr",
        "svd",
        "eigh",
    ),
    "known only when it has run": (
        "mel_weight_matrix",
        "dense_to_coo",
        "dense_to_csr",
        "range",
        "nonzero",
        "boolean_mask",
        "compress",
        "dynamic_reshape",
        "dynamic_broadcast_to",
        "dynamic_full",
        "dynamic_tile",
        "dynamic_slice",
        "dynamic_pad",
        "dynamic_top_k",
        "unique",
        "dynamic_resize",
        "non_max_suppression",
    ),
    "has no kernel yet": ("grid_sample", "matmul_nbits"),
    "depends on the boxes": ("roi_align",),
    "the host": ("cond", "while", "loop"),
    "cannot raise": ("check",),
}
SHARE = Fraction(1, 40)


def problems(case: Case) -> list[str] | None:
    """Tell what is wrong with a case, fused and, the first, node by node; None if refused."""
    graph, inputs = case.make()
    if expansion_refusal(graph.nodes[0]) is not None:
        return None
    ways = [lower_fusion(fuse(graph, refusal))]
    if case.index == 0:
        ways.append(lower(expand(graph, refusal).graph))
    found = []
    for made in ways:
        verify_lowered(made)
        found += value_problems(graph, inputs, interpret(made, inputs))
    return found


@pytest.mark.parametrize("name", OPS)
def test_kernels_compute_what_an_op_means(name: str) -> None:
    """All samples in one dtype, and a share of those in others."""
    op: Op[Any] = OPS[name]
    shared = [case for case in cases([op]) if in_share(case.id, SHARE)]
    found = {
        case.id: problems(case)
        for case in dict.fromkeys([*first_cases(op), *shared])
        if case.is_numeric
    }
    listed = [reason for reason, names in REFUSED.items() if name in names]
    wrong = {case: what for case, what in found.items() if what}
    assert not wrong
    if all(what is None for what in found.values()):
        assert listed, f"{name} has no kernels, and is not listed as such"
        graph, _ = first_cases(op)[0].make()
        assert listed[0] in str(expansion_refusal(graph.nodes[0]))
    else:
        assert not listed, f"{name} has kernels now: take it off the list"


def test_most_tensor_ops_have_kernels() -> None:
    without = sum(len(names) for names in REFUSED.values())
    assert 1 - without / len(OPS) >= 0.8


def test_fusion_knows_the_kind_of_every_op_of_the_table() -> None:
    for op in wholes():
        sample = OPS[op].samples()[0]
        case = Case(OPS[op], 0, (sample.only or OPS[op].dtypes)[0])
        assert kind_of(case.make()[0].nodes[0]) is Kind.WHOLE
    for op in elements():
        case = next(iter(cases([OPS[op]])))
        assert kind_of(case.make()[0].nodes[0]) is not Kind.WHOLE, op


def test_composites_in_the_body_of_a_scan_have_kernels() -> None:
    row = TensorType(float32, (5,))
    body = subgraph(lambda total, x: [add(total, softmax(x)), gelu(x)], row, row)
    first, rows = Value(row, "first"), Value(TensorType(float32, (3, 5)), "rows")
    graph = Graph([first, rows], list(scan(first, rows, body=body, carries=1, scans=1)))
    assert expansion_refusal(graph.nodes[0]) is None
    inputs: list[Any] = [np.ones(5, np.float32), np.arange(15, dtype=np.float32).reshape(3, 5) / 7]
    made = lower_fusion(fuse(graph, refusal))
    verify_lowered(made)
    assert not value_problems(graph, inputs, interpret(made, inputs))


def test_scans_may_share_a_body() -> None:
    row = TensorType(float32, (2,))
    body = subgraph(lambda total, x: [add(total, x), total], row, row)
    first, second, rows = (
        Value(TensorType(float32, shape), name)
        for name, shape in (("first", (2,)), ("second", (2,)), ("rows", (3, 2)))
    )
    attrs: dict[str, Any] = {"body": body, "carries": 1, "scans": 1}
    outputs = [y for x in (first, second) for y in scan(x, rows, **attrs)]
    graph = Graph([first, second, rows], outputs)
    given: list[Any] = [(2, 2), (5, 7), ((1, 1), (2, 3), (4, 5))]
    inputs: list[Any] = [np.array(x, np.float32) for x in given]
    made = lower_fusion(fuse(graph, refusal))
    verify_lowered(made)
    assert not value_problems(graph, inputs, interpret(made, inputs))


def test_op_without_kernels_is_refused_by_name() -> None:
    assert element_of("exp") is elements()["exp"]
    with pytest.raises(RefusedError, match="No kernel computes an element of sequence_at"):
        element_of("sequence_at")
