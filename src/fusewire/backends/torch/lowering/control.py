"""Ops that run subgraphs: loops of Python over programs of the bodies.

``run(body, operands)`` runs one, and ``run.size(dim)`` tells a size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch

from fusewire.backends.torch.lowering.signature import output
from fusewire.backends.torch.storage import CARRIERS, Tensor
from fusewire.errors import CheckError
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Graph, Node


class Run(Protocol):
    """Runs a subgraph of a node, and tells sizes."""

    def __call__(self, graph: Graph, operands: Sequence[Tensor]) -> Sequence[Tensor]: ...

    def size(self, dim: Dim) -> int: ...

    @property
    def place(self) -> Any: ...


Control: TypeAlias = Callable[..., Sequence[Tensor]]


def _graph(node: Node, key: str) -> Graph:
    body = node.attrs[key]
    assert isinstance(body, Graph)
    return body


def _cond(run: Run, node: Node, predicate: Tensor, *operands: Tensor) -> Sequence[Tensor]:
    return run(_graph(node, "then" if bool(predicate) else "otherwise"), operands)


def _while(run: Run, node: Node, *operands: Tensor) -> Sequence[Tensor]:
    condition, body = _graph(node, "condition"), _graph(node, "body")
    carries: Any = node.attrs["carries"]
    count = len(operands) if carries is None else carries
    values, rest = operands[:count], operands[count:]
    while bool(run(condition, (*values, *rest))[0]):
        values = tuple(run(body, (*values, *rest)))
    return values


def _stacked(run: Run, node: Node, rows: Sequence[Sequence[Tensor]], carries: int) -> list[Tensor]:
    """Stack what each run added; of no runs there is only the type."""
    if rows:
        return [torch.stack(column) for column in zip(*rows, strict=True)]
    found = []
    for place in range(carries, len(node.outputs)):
        of = output(node, place)
        shape = [run.size(dim) for dim in of.shape]
        found.append(torch.zeros((0, *shape[1:]), dtype=CARRIERS[of.dtype], device=run.place))
    return found


def _scan(run: Run, node: Node, *operands: Tensor) -> Sequence[Tensor]:
    body = _graph(node, "body")
    attrs: Any = node.attrs
    carries, last = attrs["carries"], attrs["carries"] + attrs["scans"]
    values, scanned, rest = operands[:carries], operands[carries:last], operands[last:]
    length = scanned[0].shape[0] if scanned else run.size(attrs["length"])
    order = range(length - 1, -1, -1) if attrs["reverse"] else range(length)
    rows: list[Sequence[Tensor]] = []
    for place in order:
        found = run(body, (*values, *(x[place] for x in scanned), *rest))
        values = tuple(found[:carries])
        rows.append(found[carries:])
    return (*values, *_stacked(run, node, rows[::-1] if attrs["reverse"] else rows, carries))


def _loop(
    run: Run, node: Node, trips: Tensor | None, condition: Tensor | None, *operands: Tensor
) -> Sequence[Tensor]:
    body = _graph(node, "body")
    carries: Any = node.attrs["carries"]
    values, rest = operands[:carries], operands[carries:]
    most = None if trips is None else int(trips)
    going = torch.tensor(True, device=run.place) if condition is None else condition
    rows: list[Sequence[Tensor]] = []
    while bool(going) and (most is None or len(rows) < most):
        trip = torch.tensor(len(rows), device=run.place)
        flag, *found = run(body, (trip, going, *values, *rest))
        values = tuple(found[:carries])
        rows.append(found[carries:])
        going = going if condition is None else flag
    return (*values, *_stacked(run, node, rows, carries))


def _check(run: Run, node: Node, x: Tensor, condition: Tensor) -> Sequence[Tensor]:
    if not bool(condition):
        raise CheckError(str(node.attrs["message"]))
    return (x,)


CONTROL: dict[str, Control] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    "loop": _loop,
    "check": _check,
}
