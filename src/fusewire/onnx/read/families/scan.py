"""Scan as our own scan; in opset 8, one for each element of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewire.ir.graph import Value
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.onnx.read.families.control import controlled, settled_body
from fusewire.ops import control, movement, slicing


def _scan(call: OnnxCall) -> Converted:
    if call.opset < 9:
        return _batched(call)
    operands = list(call.rest)
    scans = call.within(call.needed("num_scan_inputs"), len(operands), "num_scan_inputs")
    carries = len(operands) - scans
    added = len(call.outputs) - carries
    directions = call.attr("scan_input_directions", (0,) * scans)
    axes = call.attr("scan_input_axes", (0,) * scans)
    for i, (axis, direction) in enumerate(zip(axes, directions, strict=True), carries):
        operands[i] = _moved(operands[i], axis, 0, reverse=bool(direction))
    found = _scanned(call, operands, carries)
    back = call.attr("scan_output_directions", (0,) * added)
    out = call.attr("scan_output_axes", (0,) * added)
    for i, (axis, direction) in enumerate(zip(out, back, strict=True), carries):
        found[i] = _moved(found[i], 0, axis, reverse=bool(direction))
    return found


def _batched(call: OnnxCall) -> Converted:
    """Scan the second axis, for each element of the first."""
    if call.get(0) is not None:
        call.refuse("sequence_lens of opset 8 are not read. Convert the model to opset 9.")
    operands = [call[i] for i in range(1, len(call.inputs))]
    scans = call.within(call.needed("num_scan_inputs"), len(operands), "num_scan_inputs")
    carries = len(operands) - scans
    rows = [Value(v.tensor.with_shape(v.tensor.shape[1:]), v.name) for v in operands]
    given = list(rows)
    for i, direction in enumerate(call.attr("directions", (0,) * scans), carries):
        given[i] = _moved(given[i], 0, 0, reverse=bool(direction))
    inner = call.scope.inner()
    outputs = call.importer.settle(_scanned(call, given, carries), inner, call.label)
    body = call.importer.collected("batch", rows, outputs, inner)
    return controlled(
        call, control.scan, [], operands, {"body": body}, carries=0, scans=len(operands)
    )


def _scanned(call: OnnxCall, operands: Sequence[Value], carries: int) -> list[Value]:
    """Make the node that scans the first axis."""
    taken = [v.tensor.with_shape(v.tensor.shape[1:]) for v in operands[carries:]]
    body = settled_body(call, [], [v.type for v in operands[:carries]], taken, 0)
    scans = len(operands) - carries
    return list(
        controlled(call, control.scan, [], operands, {"body": body}, carries=carries, scans=scans)
    )


def _moved(x: Value, source: int, target: int, *, reverse: bool) -> Value:
    """Reverse an axis if asked, and move it."""
    rank = x.tensor.rank
    source, target = source % rank, target % rank
    if reverse:
        x = slicing.flip(x, axes=(source,))
    if source == target:
        return x
    perm = [axis for axis in range(rank) if axis != source]
    perm.insert(target, source)
    return movement.transpose(x, perm=tuple(perm))


TABLE: Mapping[str, Read] = {"Scan": _scan}
