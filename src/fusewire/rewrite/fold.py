"""Fold constants: run what depends on no input, within a budget, and report what exceeds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fusewire.dtypes import string
from fusewire.errors import FusewireError
from fusewire.facts.known import Facts
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, Sym
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType, tensor_of
from fusewire.ops.declare import Trait
from fusewire.ops.elementwise import add, exp
from fusewire.ops.interpret import interpret
from fusewire.ops.table import get_op
from fusewire.rewrite.rule import Outcome, Rule, on


@dataclass(frozen=True)
class Budget:
    """How much one run of the pipeline may fold; ``growth`` is bytes that were not there before."""

    flops: int = 10**9
    read_bytes: int = 2**30
    growth: int = 2**24
    node_growth: int = 2**16


class ConstantFolder:
    """Folds until its budget is spent."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._flops = self._read = self._grown = 0

    @property
    def rule(self) -> Rule:
        """This folder as a rule for the engine."""
        example = on(lambda x: add(x, exp(constant(np.ones(3, np.float32)))), "float32[n, 3]")
        because = "What depends only on constants is the same in every run."
        return Rule("fold", (), because, example, self._apply)

    def _apply(self, node: Node, facts: Facts) -> Outcome:
        if any(v.constant is None for v in node.operands):
            return None
        refused = self._refusal(node)
        if refused is not None:
            return refused
        try:
            outputs = interpret(Graph((), node.outputs, (node,)), ())
        except (FusewireError, ValueError, ArithmeticError, LookupError) as error:
            return f"running it fails: {error}"
        return tuple(constant(output) for output in outputs)

    def _refusal(self, node: Node) -> str | None:
        op, budget = get_op(node.op), self._budget
        if op.not_folded is not None:
            return op.not_folded
        if op.is_(Trait.CONTROL) or not all(isinstance(t, TensorType) for t in node.types):
            return "only ops on tensors without subgraphs are folded."
        if any(tensor_of(v.type).dtype is string for v in (*node.operands, *node.outputs)):
            return "strings may have any length, and matching them may take any time."
        made, read = (_bytes(values) for values in (node.outputs, set(node.operands)))
        known = all(v.tensor.is_static for v in node.outputs)
        if not known or not isinstance(made, int) or not isinstance(read, int):
            return "its shape is not known before the run."
        growth = max(0, made - read)
        if growth > budget.node_growth:
            return f"{made:,} bytes from {read:,}: a node may add {budget.node_growth:,}."
        reasons = (get_op(inner.op).not_folded for inner in _primitives(node))
        if (reason := next(filter(None, reasons), None)) is not None:
            return reason
        work = flops_of(node)
        if not isinstance(work, int) or self._flops + work > budget.flops:
            return f"{work} flops, and {self._flops:,} of {budget.flops:,} are spent."
        if self._read + read > budget.read_bytes or self._grown + growth > budget.growth:
            return f"{read:,} bytes to read and {growth:,} to add: the budget is spent."
        self._flops, self._read, self._grown = (
            self._flops + work,
            self._read + read,
            self._grown + growth,
        )
        return None


def _bytes(values: Iterable[Value]) -> Dim:
    total: Dim = 0
    for value in values:
        total = total + value.tensor.size * value.tensor.dtype.itemsize
    return total


def _primitives(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        current = stack.pop()
        op = get_op(current.op)
        if op.expand is not None:
            stack.extend(op.expansion(current).nodes)
        else:
            yield current


def flops_of(node: Node, visit: int = 1) -> Dim:
    """Count the operations of a node: of a composite, those of its expansion.

    What computes nothing still costs a ``visit`` to each element. A body counts as often as it is
    known to run: a scan's for each row, any other once.
    """
    total: Dim = 0
    stack: list[tuple[Node, Dim]] = [(node, 1)]
    while stack:
        current, times = stack.pop()
        op = get_op(current.op)
        if op.expand is not None and op.flops is None:
            stack.extend((inner, times) for inner in op.expansion(current).nodes)
            continue
        runs = times * _rows(current)
        stack.extend((inner, runs) for _, body in current.graphs() for inner in body.nodes)
        types = current.types
        if callable(op.flops):
            inputs = [None if v is None else v.type for v in current.inputs]
            total = total + op.flops(inputs, types, current.attrs) * times
        else:
            first = types[0]
            count = first.size if isinstance(first, TensorType) else 1
            total = total + count * max(op.flops or 0, visit) * times
    return total


def _rows(node: Node) -> Dim:
    if node.op != "scan":
        return 1
    carries, length = node.attrs["carries"], node.attrs["length"]
    assert isinstance(carries, int)
    if isinstance(length, int | Sym):
        return length
    return node.operands[carries].tensor.shape[0]
