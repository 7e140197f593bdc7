"""The conformance suite: every declared op, sample and dtype; no case is written by hand.

Each check returns problems as sentences, so that a test can show them, and another test can plant a
fault and see them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from fusewire.contract.backend import Gap
from fusewire.dtypes import ALL, DType, dtype, float32, string
from fusewire.errors import FusewireError, TypeRuleError
from fusewire.ir.graph import Graph, HostValue
from fusewire.ir.hash import exact_hash, structural_hash
from fusewire.ir.text import constants_of, parse_graph, print_graph
from fusewire.ir.types import TensorType, Type
from fusewire.numerics.judge import judge_op
from fusewire.ops.declare import Op
from fusewire.ops.interpret import graph_of, interpret
from fusewire.ops.sample import BadSample, Sample
from fusewire.ops.table import all_ops, verify

REQUIRED = ("empty", "scalar", "broadcast")


@cache
def samples_of(op: Op[Any]) -> Sequence[Sample]:
    """Make the samples of an op once."""
    return op.samples()


@dataclass(frozen=True)
class Case:
    """One sample of one op in one dtype."""

    op: Op[Any]
    index: int
    dtype: DType

    @property
    def id(self) -> str:
        return f"{self.op.name}-{self.index}-{self.dtype.name}"

    @property
    def dtypes(self) -> str:
        """The dtype under test, and others that the sample names, such as the target of a cast."""
        drawn = samples_of(self.op)[self.index]
        named = [*(x.dtype for x in drawn.operands if x), drawn.attrs.get("dtype")]
        others = {dtype(x).name for x in named if x is not None} - {self.dtype.name}
        return " ".join([self.dtype.name, *sorted(others)])

    @property
    def is_numeric(self) -> bool:
        """Whether engines can run it: none of them has tensors of strings."""
        return string.name not in self.dtypes.split()

    def make(self) -> tuple[Graph, list[HostValue]]:
        """Make the graph of the one node, and its inputs."""
        drawn = samples_of(self.op)[self.index]
        return graph_of(self.op, drawn.make(self.dtype, zlib.crc32(self.id.encode())), drawn.attrs)


def cases(ops: Iterable[Op[Any]] | None = None) -> Iterator[Case]:
    """List every case of every op."""
    for op in all_ops().values() if ops is None else ops:
        for index, drawn in enumerate(samples_of(op)):
            for of in op.dtypes if drawn.only is None else drawn.only:
                yield Case(op, index, of)


def first_cases(op: Op[Any]) -> list[Case]:
    """List the samples of an op in one dtype: float32 if it has it."""
    found = list(cases([op]))
    of = float32 if any(c.dtype is float32 for c in found) else op.dtypes[0]
    return [case for case in found if case.dtype is of] or found


def declaration_problems(op: Op[Any]) -> list[str]:
    """Check the declaration of an op."""
    problems = []
    samples = op.samples()
    covered = {case for drawn in samples for case in drawn.covers()}
    for required in REQUIRED:
        if required not in covered and required not in op.lacks:
            problems.append(f"{op.name} has no {required} sample and does not say why")
        if required in covered and required in op.lacks:
            problems.append(f"{op.name} says that it has no {required} sample, but has one")
    for index, drawn in enumerate(samples):
        strangers = [d.name for d in drawn.only or () if d not in op.dtypes]
        if strangers:
            problems.append(f"sample {index} of {op.name} is for {strangers}, which it refuses")
    tested = {case.dtype for case in cases([op])}
    untested = [d.name for d in op.dtypes if d not in tested]
    if untested:
        problems.append(f"{op.name} takes {untested}, but no sample covers them")
    if not op.doc.endswith(".") or not op.doc[:1].isupper():
        problems.append(f"the doc of {op.name} is not a sentence: {op.doc!r}")
    return problems


def case_problems(case: Case) -> list[str]:
    """Check that a case type-checks, prints and parses back, hashes, runs, and is right."""
    try:
        graph, inputs = case.make()
        verify(graph)
        problems = text_problems(graph) + value_problems(graph, inputs, interpret(graph, inputs))
        if case.op.is_composite:
            expansion = case.op.expansion(graph.nodes[0])
            verify(expansion)
            problems += text_problems(expansion)
            problems += value_problems(graph, inputs, interpret(expansion, inputs))
    except FusewireError as error:
        problems = [f"{type(error).__name__}: {error}"]
    return [f"{case.id}: {problem}" for problem in problems]


def refused(op: Op[Any], drawn: BadSample) -> TypeRuleError | None:
    """Infer the types of a bad sample, and return the error that it is refused with."""
    try:
        op.infer(padded(op, drawn.types(op.dtypes)), op.complete(drawn.attrs))
    except TypeRuleError as error:
        return error
    return None


def padded(op: Op[Any], types: Sequence[Type | None]) -> list[Type | None]:
    """Add the optional operands that are absent."""
    operands, variadic, _ = op.parameters
    return [*types, *([None] * (0 if variadic else len(operands) - len(types)))]


def refusal_problems(op: Op[Any]) -> list[str]:
    """Check that an op refuses its bad samples for the reasons declared, and strange dtypes."""
    problems = []
    for drawn in op.refuses() if op.refuses else ():
        shown = f"{op.name}({', '.join(map(str, drawn.operands))}, {dict(drawn.attrs)})"
        error = refused(op, drawn)
        if error is None:
            problems.append(f"{shown} is accepted; expected: {drawn.reason}")
        elif drawn.reason not in str(error):
            problems.append(f"{shown} is refused with {error}; expected: {drawn.reason}")
    return problems + _signature_problems(op)


def _signature_problems(op: Op[Any]) -> list[str]:
    """Check what any op must refuse: strange dtypes, operands and attributes of another op."""
    graph, _ = first_cases(op)[0].make()
    (node,) = graph.nodes
    types = [None if v is None else v.type for v in node.inputs]
    uses: dict[str, tuple[Sequence[Type | None], Mapping[str, Any]]] = {
        "an attribute of another op": (types, {**node.attrs, "no_such_attribute": 1}),
        "the absence of an attribute": (types, dict(list(node.attrs.items())[1:])),
    }
    if not node.attrs:
        del uses["the absence of an attribute"]
    if not op.parameters[1]:
        uses["one operand too many"] = ([*types, TensorType(float32, ())], node.attrs)
    if types and isinstance(first := types[0], TensorType):
        for of in set(ALL) - set(op.dtypes):
            uses[of.name] = ([TensorType(of, first.shape), *types[1:]], node.attrs)
    problems = []
    for what, (operands, attrs) in uses.items():
        try:
            op.infer(operands, attrs)
        except TypeRuleError:
            continue
        problems.append(f"{op.name} accepts {what}")
    return problems


def text_problems(graph: Graph) -> list[str]:
    """Check that a graph is the same after printing and parsing."""
    text = print_graph(graph)
    again = parse_graph(text, constants_of(graph))
    problems = []
    if print_graph(again) != text:
        problems.append("printing, parsing and printing again gives another text")
    for hashed in (structural_hash, exact_hash):
        if hashed(again) != hashed(graph):
            problems.append(f"the {hashed.__name__} differs after printing and parsing")
    return problems


def value_problems(
    graph: Graph, inputs: Sequence[HostValue], got: Sequence[HostValue]
) -> list[str]:
    """Check outputs against the oracle, within the bound of the op."""
    verdict = judge_op(graph, inputs, got)
    return [] if verdict.status == "right" else [f"{verdict.status}: {verdict.reason}"]


def gap_of(gaps: Iterable[Gap], case: Case) -> Gap | None:
    """Find the gap that covers a case."""
    for gap in gaps:
        if gap.op == case.op.name and gap.dtype in (None, case.dtype.name):
            return gap
    return None


def in_share(name: str, part: Fraction) -> bool:
    """Return whether a case belongs to a share; the same everywhere."""
    return zlib.crc32(name.encode()) % 1000 < 1000 * part


def sliced(found: Sequence[Case], part: Fraction) -> list[Case]:
    """Keep a share of the cases by hash, the same everywhere, and the first one in float32."""
    if part >= 1:
        return list(found)
    kept = [case for case in found if in_share(case.id, part)]
    first = next((case for case in found if case.dtype is float32), None)
    return kept if first is None or first in kept else [first, *kept]
