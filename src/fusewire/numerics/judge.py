"""Judge what an engine computed: right, wrong, or cannot say.

Only the oracle is compared with, never another engine. Classes (NaN, +Inf, -Inf, finite) must
agree; integers and booleans exactly, codes within the steps that noise takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fusewire import dtypes
from fusewire.ir.graph import Array, Graph
from fusewire.numerics.bound import bindings_of, expect_op, expect_region, leaves
from fusewire.numerics.spread import Expected, classes, is_code
from fusewire.ops.interpret import Interpreter
from fusewire.ops.sample import HostValue
from fusewire.ops.table import get_op

UNJUDGED = 0.05
# Codes may differ this much more often than in runs of the reference.
RATE = 3.0


@dataclass(frozen=True)
class Verdict:
    """What is known about an answer; ``error`` is the worst ratio of error to tolerance."""

    status: Literal["right", "wrong", "cannot say"]
    error: float = 0.0
    unjudged: float = 0.0
    reason: str = ""
    jumps: int = 0
    codes_differ: int = 0


def judge_op(graph: Graph, inputs: Sequence[HostValue], got: Sequence[HostValue]) -> Verdict:
    """Judge one node, or a small region, on inputs as stored."""
    outputs64 = Interpreter(graph, wide=True)(inputs)
    if len(graph.nodes) == 1 and graph.outputs == graph.nodes[0].outputs:
        (node,) = graph.nodes
        wide = Interpreter(graph, wide=True)
        fed = dict(zip(graph.inputs, inputs, strict=True))
        operands = [
            None if v is None
            else wide.store(fed[v] if v.constant is None else v.constant.array, v.type)
            for v in node.inputs
        ]  # fmt: skip
        known = bindings_of(graph, inputs)
        found = expect_op(get_op(node.op), node, operands, outputs64, known)
        names = [name for name, _, _ in leaves(graph, outputs64)]
    else:
        found = expect_region(graph, inputs, outputs64, bindings_of(graph, inputs))
        names = [e.name for e in found]
    return judge_leaves(found, names, [x for _, _, x in leaves(graph, got)])


def judge_leaves(
    expected: Sequence[Expected], names: Sequence[str], got: Sequence[Array]
) -> Verdict:
    """Judge tensors one by one and sum up."""
    if len(got) != len(expected):
        return Verdict("wrong", np.inf, 0.0, f"{len(expected)} tensors expected, found {len(got)}.")
    return summary(
        [judge_tensor(e, x, name) for e, name, x in zip(expected, names, got, strict=True)]
    )


def summary(verdicts: Sequence[Verdict]) -> Verdict:
    """Join the verdicts on several values: the worst counts."""
    order = {"wrong": 2, "cannot say": 1, "right": 0}
    if not verdicts:
        return Verdict("right")
    worst = max(verdicts, key=lambda v: (order[v.status], v.error))
    return Verdict(
        worst.status,
        max(v.error for v in verdicts),
        max(v.unjudged for v in verdicts),
        worst.reason,
        sum(v.jumps for v in verdicts),
        sum(v.codes_differ for v in verdicts),
    )


def judge_tensor(expected: Expected, got: Array, name: str) -> Verdict:
    """Judge one tensor."""
    wide, of = expected.wide, expected.dtype
    unjudged = float(expected.masked.mean()) if expected.masked.size else 0.0
    if got.dtype != of.numpy:
        return Verdict("wrong", np.inf, unjudged, f"{name} is {got.dtype}, expected {of.name}.")
    if got.shape != wide.shape:
        if not expected.is_shaped:
            return Verdict("cannot say", 0.0, 1.0, f"{name}: its shape depends on a jump.")
        reason = f"{name} has shape {list(got.shape)}, expected {list(wide.shape)}."
        return Verdict("wrong", np.inf, unjudged, reason)
    ratio = _ratio(expected, got)
    differ = int(np.sum(ratio > 0)) if is_code(of) else 0
    error = float(ratio.max(initial=0.0))
    status: Literal["right", "wrong", "cannot say"] = "right"
    reason = ""
    if error > 1.0:
        status, reason = "wrong", _sentence(expected, got, ratio, name)
    elif differ > 1 + RATE * expected.differing * wide.size:
        status, error = "wrong", differ / (1 + RATE * expected.differing * wide.size)
        reason = f"{name}: {differ} of {wide.size} codes differ, more than noise explains."
    elif unjudged > UNJUDGED:
        status = "cannot say"
        reason = f"{name}: {unjudged:.0%} of its elements lie near a jump or have no digits."
    return Verdict(status, error, unjudged, reason, int(expected.jumps.sum()), differ)


def _ratio(expected: Expected, got: Array) -> Array:
    """Divide each error by its tolerance; Inf where a class or an exact value differs."""
    wide, tolerance = expected.wide, expected.tolerance
    if expected.dtype is dtypes.string:
        return np.where(got == wide, 0.0, np.inf)
    if not expected.dtype.is_inexact:
        apart = _integer_distance(got, wide)
    else:
        apart = _float_distance(expected, got)
    with np.errstate(all="ignore"):
        ratio = np.where(apart == 0, 0.0, apart / tolerance)
    return np.where(expected.masked, 0.0, ratio)


def _integer_distance(got: Array, wide: Array) -> Array:
    """Measure exactly: int64 and uint64 have more digits than float64."""
    if got.dtype.kind == "b":
        return np.where(got != wide, 1.0, 0.0)
    widest = np.uint64 if got.dtype == np.uint64 else np.int64
    high, low = np.maximum(got, wide).astype(widest), np.minimum(got, wide).astype(widest)
    apart: Array = (high.view(np.uint64) - low.view(np.uint64)).astype(np.float64)
    return apart


def _float_distance(expected: Expected, got: Array) -> Array:
    wide, tolerance = expected.wide, expected.tolerance
    work = np.complex128 if wide.dtype.kind == "c" else np.float64
    of = expected.dtype.numpy
    with np.errstate(all="ignore"):
        near = [wide, wide - tolerance, wide + tolerance] if not _is_coded(expected) else [wide]
        kinds = [classes(x.astype(of)) for x in near]
        apart = np.abs(got.astype(work) - wide.astype(work))
    found = classes(got)
    allowed = np.logical_or.reduce([found == kind for kind in kinds])
    apart = np.where((found == 0) & (kinds[0] == 0), apart, 0.0)
    return np.where(allowed, apart, np.inf)


def _is_coded(expected: Expected) -> bool:
    return expected.dtype.is_narrow


def _sentence(expected: Expected, got: Array, ratio: Array, name: str) -> str:
    index = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    place = f"[{', '.join(str(int(i)) for i in index)}]" if index else ""
    wide = expected.stored[index]
    off = int(np.sum(ratio > 1))
    return (
        f"{name}{place} is {got[index]!s}, expected {wide!s} within "
        f"{float(expected.tolerance[index]):.2g}; {off} of {ratio.size} elements are off."
    )
