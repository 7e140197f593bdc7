"""If, Loop and Scan as our control flow; a condition that is known takes its branch at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusewire.errors import FormatError, SizesNeededError, TypeRuleError
from fusewire.frontends.onnx.call import Call, Convert, Converted
from fusewire.frontends.onnx.pieces import scalar
from fusewire.frontends.onnx.scope import Body, Scope
from fusewire.ir.dims import Dim, lone_symbol, symbol
from fusewire.ir.graph import Value
from fusewire.ir.types import Type
from fusewire.ops import control, iteration, movement, slicing
from fusewire.ops.declare import Op
from fusewire.ops.subgraph import FLAG, INDEX, alike, dims_of, result_types, with_shape


def _branch(call: Call, name: str) -> Body:
    return call.importer.body(call.needed(name), (), call.scope)


def _if(call: Call) -> Converted:
    known = call.ints(call[0])
    if known is not None and len(known) == 1:
        return _inlined(call, "then_branch" if known[0] else "else_branch")
    bodies = {"then": _branch(call, "then_branch"), "otherwise": _branch(call, "else_branch")}
    for position, (left, right) in enumerate(
        zip(bodies["then"].outputs, bodies["otherwise"].outputs, strict=False)
    ):
        if not alike(left.type, right.type):
            raise SizesNeededError(
                f"its branches give {left.type} and {right.type} as output {position}: the rank "
                "follows from the sizes of inputs. Give example arrays, or Specs with sizes."
            )
    return _control(call, control.cond, [scalar(call[0])], [], bodies)


def _inlined(call: Call, name: str) -> Sequence[Value]:
    """Import a branch in the place of the node."""
    inner = Scope(call.scope)
    inner.nodes = call.scope.nodes
    return call.importer.run(call.needed(name), inner)


def _control(
    call: Call,
    op: Op[Any],
    before: Sequence[Value | None],
    operands: Sequence[Value],
    bodies: Mapping[str, Body],
    **attrs: Any,
) -> Sequence[Value]:
    """Close bodies over what they use, and make the node."""
    carriers = call.importer.carriers
    captured = list(dict.fromkeys(v for b in bodies.values() for v in b.captured(carriers)))
    every = [*before, *operands, *captured]
    attrs |= {key: body.close(captured) for key, body in bodies.items()}
    types = [None if v is None else v.type for v in every]
    try:
        op.infer(types, op.complete(attrs))
    except TypeRuleError:
        attrs["types"] = result_types(op, types, **attrs)
    return tuple(op.make(every, attrs).outputs)


def _settled_body(
    call: Call, before: Sequence[Type], carried: Sequence[Type], after: Sequence[Type], flags: int
) -> Body:
    """Import a loop's body; a carried dim that a run changes is named by a symbol of the body."""
    types = list(carried)
    while True:
        inputs = [Value(t, f"input{i}") for i, t in enumerate([*before, *types, *after])]
        body = call.importer.body(call.needed("body"), inputs, call.scope, flags)
        made = [v.type for v in body.outputs[flags : flags + len(types)]]
        if len(made) < len(types):
            raise FormatError(f"the body gives {len(made)} of {len(types)} carried values.")
        wider = [_wider(call, a, b) for a, b in zip(types, made, strict=True)]
        if wider == types:
            return body
        types = wider


def _wider(call: Call, before: Type, made: Type) -> Type:
    if not alike(before, made):
        raise SizesNeededError(f"a carried value is {before} and becomes {made} in a run.")
    dims: list[Dim] = []
    for dim, other in zip(dims_of(before), dims_of(made), strict=True):
        moves = dim != other and not _is_own(dim)
        dims.append(symbol(call.importer.fresh("carried")) if moves else dim)
    return with_shape(before, tuple(dims))


def _is_own(dim: Dim) -> bool:
    """Tell whether a dim is named by the body already."""
    alone = lone_symbol(dim)
    return alone is not None and alone.name.startswith("carried")


def _loop(call: Call) -> Converted:
    trips, condition = scalar(call.get(0)), scalar(call.get(1))
    values = [call[i] for i in range(2, len(call.inputs))]
    body = _settled_body(call, [INDEX, FLAG], [v.type for v in values], [], 1)
    return _control(
        call, iteration.loop, [trips, condition], values, {"body": body}, carries=len(values)
    )


def _scan(call: Call) -> Converted:
    scans = call.needed("num_scan_inputs")
    operands = list(call.rest)
    if call.opset < 9:
        call.refuse("Scan before opset 9 has a batch axis. Convert the model to opset 9.")
    carries = len(operands) - scans
    added = len(call.outputs) - carries
    directions = call.attr("scan_input_directions", (0,) * scans)
    axes = call.attr("scan_input_axes", (0,) * scans)
    rows = []
    for x, axis, direction in zip(operands[carries:], axes, directions, strict=True):
        rows.append(_moved(x, axis, 0, reverse=bool(direction)))
    taken = [v.tensor.with_shape(v.tensor.shape[1:]) for v in rows]
    body = _settled_body(call, [], [v.type for v in operands[:carries]], taken, 0)
    found = list(
        _control(
            call, iteration.scan, [], [*operands[:carries], *rows], {"body": body},
            carries=carries, scans=scans,
        )
    )  # fmt: skip
    back = call.attr("scan_output_directions", (0,) * added)
    out = call.attr("scan_output_axes", (0,) * added)
    for i, (axis, direction) in enumerate(zip(out, back, strict=True), carries):
        found[i] = _moved(found[i], 0, axis, reverse=bool(direction))
    return found


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


TABLE: Mapping[str, Convert] = {"If": _if, "Loop": _loop, "Scan": _scan}
