"""Judge what an engine computed: right, doubtful, wrong, or cannot say.

Answers are compared with the oracle's, never with another engine's. Classes (NaN, +Inf, -Inf,
finite) must agree; integers and booleans exactly, codes within the steps that noise takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fusewire import dtypes
from fusewire.ir.graph import Array, Graph, HostValue
from fusewire.numerics.bound import Leaf, expect_op, expect_region, leaves
from fusewire.numerics.scale import bindings_of
from fusewire.numerics.spread import Expected, classes, is_code, slice_rms
from fusewire.ops.interpret import Interpreter
from fusewire.ops.table import get_op

# From the best to the worst.
Status = Literal["right", "cannot say", "doubtful", "wrong"]
UNJUDGED = 0.05
# How much more often codes may differ than in runs of the reference.
RATE = 3.0
# About this share of an engine's jumps appears in none of our runs.
UNSEEN = 0.25


@dataclass(frozen=True)
class Verdict:
    """The judgement of an answer; ``error`` is the worst ratio of error to tolerance.

    ``off`` counts the elements beyond their tolerance: 0 if only a norm over many is. A verdict is
    "doubtful" only if the oracle of a whole graph says so: see ``Oracle.verdict``.
    """

    status: Status
    error: float = 0.0
    unjudged: float = 0.0
    reason: str = ""
    jumps: int = 0
    codes_differ: int = 0
    off: int = 0


class Alone:
    """The answers of one node, or of a small region, on inputs as stored."""

    def __init__(self, graph: Graph, inputs: Sequence[HostValue]) -> None:
        wide = Interpreter(graph, wide=True)
        outputs64 = wide(inputs)
        known = bindings_of(graph, inputs)
        self.graph = graph
        if len(graph.nodes) == 1 and graph.outputs == graph.nodes[0].outputs:
            (node,) = graph.nodes
            fed = dict(zip(graph.inputs, inputs, strict=True))
            operands = [
                None
                if v is None
                else wide.store(fed[v] if v.constant is None else v.constant.array, v.type)
                for v in node.inputs
            ]
            self.expected = expect_op(get_op(node.op), node, operands, outputs64, known)
        else:
            self.expected = expect_region(graph, inputs, outputs64, known)

    def judge(self, got: Sequence[HostValue]) -> Verdict:
        """Judge the outputs of a run."""
        return judge_leaves(self.expected, leaves(self.graph, got))


def judge_op(graph: Graph, inputs: Sequence[HostValue], got: Sequence[HostValue]) -> Verdict:
    """Judge one node, or a small region, on inputs as stored."""
    return Alone(graph, inputs).judge(got)


def judge_leaves(expected: Sequence[Expected], got: Sequence[Leaf]) -> Verdict:
    """Judge tensors one by one and sum up."""
    if len(got) != len(expected):
        return Verdict("wrong", np.inf, 0.0, f"{len(expected)} tensors expected, found {len(got)}.")
    return summary(
        [judge_tensor(e, x, name) for e, (name, _, x) in zip(expected, got, strict=True)]
    )


def summary(verdicts: Sequence[Verdict]) -> Verdict:
    """Combine the verdicts on several values: the worst counts."""
    if not verdicts:
        return Verdict("right")
    order = get_args(Status)
    worst = max(verdicts, key=lambda v: (order.index(v.status), v.error))
    return Verdict(
        worst.status,
        max(v.error for v in verdicts),
        max(v.unjudged for v in verdicts),
        worst.reason,
        sum(v.jumps for v in verdicts),
        sum(v.codes_differ for v in verdicts),
        sum(v.off for v in verdicts),
    )


def judge_tensor(expected: Expected, got: Array, name: str) -> Verdict:
    """Judge one tensor."""
    wide, of = expected.wide, expected.dtype
    if got.dtype != of.numpy:
        return Verdict("wrong", np.inf, 0.0, f"{name} is {got.dtype}, expected {of.name}.")
    if got.shape != wide.shape:
        if not expected.is_shaped:
            return Verdict("cannot say", 0.0, 1.0, f"{name}: its shape depends on a jump.")
        reason = f"{name} has shape {list(got.shape)}, expected {list(wide.shape)}."
        return Verdict("wrong", np.inf, 0.0, reason)
    apart = _distance(expected, got)
    # The exact answer is right, however near a jump it lies.
    missed = expected.masked & (apart > expected.near)
    ratio = np.where(expected.masked, 0.0, _ratio(expected, apart))
    differ = int(np.sum(ratio > 0)) if is_code(of) else 0
    ratio, forgiven = _forgiven(expected, ratio)
    jumps = int(expected.jumps.sum()) + forgiven
    unjudged = (int(missed.sum()) + forgiven) / max(wide.size, 1)
    error, reason = _worst(expected, got, ratio, name)
    if is_code(of):
        most = 1 + RATE * expected.jumping * wide.size
        if differ > most:
            if error <= 1.0:
                reason = f"{name}: {differ} of {wide.size} codes differ, expected {most:.0f}."
            error = max(error, differ / most)
    if error > 1.0:
        off = int(np.sum(ratio > 1))
        return Verdict("wrong", error, unjudged, reason, jumps, differ, off)
    if unjudged > UNJUDGED:
        reason = f"{name}: {unjudged:.0%} of its elements lie near a jump or have no digits."
        return Verdict("cannot say", error, unjudged, reason, jumps, differ)
    return Verdict("right", error, unjudged, "", jumps, differ)


def _distance(expected: Expected, got: Array) -> Array:
    """Measure errors; Inf if a class or a string differs."""
    if expected.dtype is dtypes.string:
        return np.where(got == expected.wide, 0.0, np.inf)
    if expected.dtype.is_inexact:
        return _float_distance(expected, got)
    return _integer_distance(got, expected.wide)


def _ratio(expected: Expected, apart: Array) -> Array:
    """Divide each error by its tolerance; Inf if it should be exact."""
    with np.errstate(all="ignore"):
        return np.where(apart == 0, 0.0, apart / expected.tolerance)


def _forgiven(expected: Expected, ratio: Array) -> tuple[Array, int]:
    """Forgive a few elements that jumped where no run did, if runs jump at many places."""
    off = ratio > 1
    count = int(off.sum())
    if not 0 < count <= UNSEEN * expected.jumping * ratio.size:
        return ratio, 0
    return np.where(off, 0.0, ratio), count


def _worst(expected: Expected, got: Array, ratio: Array, name: str) -> tuple[float, str]:
    """Find the worst ratio, of an element or of a slice, and say what is wrong with it."""
    error = float(ratio.max(initial=0.0))
    element = sentence = _sentence(expected, got, ratio, name) if ratio.size else ""
    if error > 1.0 or not expected.slices:
        return error, sentence
    for axis, (limit, found) in enumerate(zip(expected.slices, slice_rms(ratio), strict=True)):
        place = int(np.argmax(found))
        excess = float(found[place]) / limit if limit else 0.0
        if excess > error:
            error = excess
            where = f"slice {place} of axis {axis - 1}" if axis else "all elements"
            sentence = (
                f"the root-mean-square error over {where} of {name} is {excess:.2f} times what "
                f"rounding explains; the worst element, {element}"
            )
    return error, sentence


def _integer_distance(got: Array, wide: Array) -> Array:
    """Measure exactly: int64 and uint64 have more digits than float64."""
    if got.dtype.kind == "b":
        return np.where(got != wide, 1.0, 0.0)
    widest = np.uint64 if got.dtype == np.uint64 else np.int64
    high, low = np.maximum(got, wide).astype(widest), np.minimum(got, wide).astype(widest)
    with np.errstate(over="ignore"):
        # Of a negative number the upper bit is set, and the difference wraps around to what it is.
        apart: Array = (high.view(np.uint64) - low.view(np.uint64)).astype(np.float64)
    return apart


def _float_distance(expected: Expected, got: Array) -> Array:
    wide, tolerance = expected.wide, expected.tolerance
    work = np.complex128 if wide.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        # Near the largest number both classes are right.
        near = [wide] if expected.dtype.is_narrow else [wide, wide - tolerance, wide + tolerance]
        kinds = [classes(x.astype(expected.dtype.numpy)) for x in near]
        apart = np.abs(got.astype(work) - wide.astype(work))
    found = classes(got)
    allowed = np.logical_or.reduce([found == kind for kind in kinds])
    apart = np.where((found == 0) & (kinds[0] == 0), apart, 0.0)
    return np.where(allowed, apart, np.inf)


def _sentence(expected: Expected, got: Array, ratio: Array, name: str) -> str:
    index = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    place = f"[{', '.join(str(int(i)) for i in index)}]" if index else ""
    off = int(np.sum(ratio > 1))
    return (
        f"{name}{place} is {got[index]!s}, expected {expected.stored[index]!s} within "
        f"{float(expected.tolerance[index]):.2g}; {off} of {ratio.size} elements are off."
    )
