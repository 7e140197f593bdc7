"""Scans: repeat the kernels of the body, with carried values in two alternating rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fusewire.ir.graph import Graph, Node
from fusewire.kernel.form import Repeat
from fusewire.kernel.index import Axis, Index, at
from fusewire.kernel.lower.body import Located
from fusewire.kernel.lower.lowering import Lowering, Whole
from fusewire.kernel.lower.shapes import shape_of, whole


def refusal(node: Node, refuses: Callable[[Node], str | None]) -> str | None:
    """Refuse a scan with something in its body that has no kernel."""
    for inner in _body(node).nodes:
        reason = refuses(inner)
        if reason is None and inner.op == "scan":
            reason = "a scan inside a scan has no kernels"
        if reason is not None:
            return f"In the body of {node.op}: {reason}"
    return None


def _body(node: Node) -> Graph:
    body = node.attrs["body"]
    assert isinstance(body, Graph)
    return body


def _scan(lowering: Lowering, node: Node) -> None:
    body, carries, scans = _body(node), whole(node, "carries"), whole(node, "scans")
    length = node.attrs["length"]
    if scans:
        length = shape_of(node.operands[carries])[0]
    assert isinstance(length, int)
    step = Axis(f"step{len(lowering.steps)}", length)
    here = at(step)
    row = here * -1 + (length - 1) if node.attrs["reverse"] else here
    rows = [lowering.temporary(v.tensor.dtype, (2, *shape_of(v))) for v in body.inputs[:carries]]
    for value, buffer in zip(node.operands[:carries], rows, strict=True):
        lowering.store_in([value], [Located(buffer, (Index(),))])
    where = [Located(buffer, (here % 2,)) for buffer in rows]
    for place, value in enumerate(node.operands[carries:]):
        found = lowering.stored(value)
        where.append(_row(found, row) if place < scans else found)
    added = [lowering.target(v) for v in node.outputs[carries:]]
    targets = [Located(buffer, ((here + 1) % 2,)) for buffer in rows]
    targets += [_row(target, row) for target in added]
    _repeat(lowering, step, body, where, targets)
    for value, buffer in zip(node.outputs, rows, strict=False):
        lowering.keep(value, Located(buffer, (at(length % 2),)))
    for value, target in zip(node.outputs[carries:], added, strict=True):
        lowering.keep(value, target)


def _row(of: Located, row: Index) -> Located:
    return replace(of, rows=(*of.rows, row))


def _repeat(
    lowering: Lowering, step: Axis, body: Graph, where: list[Located], targets: list[Located]
) -> None:
    """Add a repeat of the kernels of a body, given where its inputs are and its outputs go."""
    outer, lowering.steps, lowering.around = lowering.steps, [], (step,)
    for value, located in zip(body.inputs, where, strict=True):
        lowering.keep(value, located)
    lowering.aim(body.outputs, targets)
    lowering.run(body)
    lowering.settle(body.outputs, targets)
    lowering.forget(body)
    kernels = tuple(k for k in lowering.steps if not isinstance(k, Repeat))
    lowering.steps, lowering.around = [*outer, Repeat(step, kernels)], ()


WHOLES: dict[str, Whole] = {"scan": _scan}
