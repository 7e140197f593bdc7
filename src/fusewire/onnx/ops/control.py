"""Control flow. Our bodies are closed and take operands; ONNX's see the names around them.

A condition that is known takes its branch at once. In opset 8 a Scan runs once for each element of
a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import bool_, int64
from fusewire.errors import FormatError, SizesNeededError, TypeRuleError
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, lone_symbol, symbol, symbols, unbacked
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import SequenceType, TensorType, Type, tensor_of
from fusewire.onnx.ops.reading import scalar
from fusewire.onnx.ops.writing import attrs_of, either, operand
from fusewire.onnx.types import is_unknown
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import OnnxBody, OnnxStep, Port, Ref
from fusewire.ops import container, control, creation, logic, movement, slicing
from fusewire.ops.declare import Op
from fusewire.ops.subgraph import FLAG, INDEX, alike, dims_of, result_types, with_shape

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.read.scope import ImportedBody
    from fusewire.onnx.write.model import Write

_FLAG, _INDEX = TensorType(bool_, ()), TensorType(int64, ())


def _is_one(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.size == 1


def _reshaped(outputs: list[Value], types: Sequence[Type]) -> list[Value]:
    """Give values of one element the axes they should have: files spell scalars either way."""
    found = list(outputs)
    for i, (value, type_) in enumerate(zip(outputs, types, strict=False)):
        if _is_one(value.type) and _is_one(type_) and dims_of(value.type) != dims_of(type_):
            found[i] = movement.reshape(value, shape=dims_of(type_))
    return found


def controlled(
    call: OnnxCall,
    op: Op[Any],
    before: Sequence[Value | None],
    operands: Sequence[Value],
    bodies: Mapping[str, ImportedBody],
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


def _inputs(e: Emitter, values: Sequence[Value]) -> list[Ref]:
    return [Ref(e.model.fresh("in"), tensor_of(v.type).dtype) for v in values]


def _ports(refs: Sequence[Ref], values: Sequence[Value]) -> list[Port]:
    return [Port(ref.name, v.type, False) for ref, v in zip(refs, values, strict=True)]


def _made(node: Node) -> list[Any]:
    return [tensor_of(t).dtype for t in node.types]


def _loop_body(
    e: Emitter, name: str, goes: Ref, inputs: list[Port], outputs: list[Port], steps: list[OnnxStep]
) -> OnnxBody:
    """Make the body of a Loop that reads neither its index nor its condition."""
    index, going = Port(e.model.fresh("index"), _INDEX), Port(e.model.fresh("going"), _FLAG)
    return OnnxBody(name, [index, going, *inputs], [Port(goes.name, _FLAG), *outputs], steps)


def _read_if(call: OnnxCall) -> Converted:
    known = call.ints(call[0])
    if known is not None and len(known) == 1:
        return _inlined(call, "then_branch" if known[0] else "else_branch")
    left, right = _branch(call, "then_branch"), _branch(call, "else_branch")
    if isinstance(left, FormatError):
        if isinstance(right, FormatError):
            raise left
        return _only(call, "else_branch", left)
    if isinstance(right, FormatError):
        return _only(call, "then_branch", right)
    types = _common(call, left, right)
    if types != [v.type for v in left.outputs] or types != [v.type for v in right.outputs]:
        finish = partial(_reshaped, types=types)
        left, right = (
            call.importer.body(call.needed(name), (), call.scope, finish)
            for name in ("then_branch", "else_branch")
        )
    return controlled(call, control.cond, [scalar(call[0])], [], {"then": left, "otherwise": right})


def _branch(call: OnnxCall, name: str) -> ImportedBody | FormatError:
    """Import a branch, or say why it cannot be run with these sizes."""
    try:
        return call.importer.body(call.needed(name), (), call.scope)
    except SizesNeededError:
        raise
    except FormatError as error:
        return error


def _only(call: OnnxCall, name: str, error: FormatError) -> Sequence[Value]:
    """Take the branch that can be run, and stop the run if it was not its turn.

    Files hold branches for other sizes than these. Without a choice in it, the branch is one piece
    with what is around it.
    """
    flag = scalar(call[0])
    is_due = flag if name == "then_branch" else logic.logical_not(flag)
    found = _inlined(call, name)
    if not all(isinstance(value.type, TensorType) for value in found):
        raise error
    message = f"The model took a branch that cannot be run. {error}"
    return [control.check(value, is_due, message=message) for value in found]


def _common(call: OnnxCall, left: ImportedBody, right: ImportedBody) -> list[Type]:
    """Find types for the outputs of two branches: of one element, the one with more axes."""
    types = []
    for position, (a, b) in enumerate(zip(left.outputs, right.outputs, strict=False)):
        if alike(a.type, b.type):
            types.append(a.type)
        elif _is_one(a.type) and _is_one(b.type):
            types.append(max(a.type, b.type, key=lambda t: len(dims_of(t))))
        else:
            raise SizesNeededError(
                f"its branches give {a.type} and {b.type} as output {position}: the rank "
                "follows from the sizes of inputs. Give example arrays, or Specs with sizes.",
                call.sizes_behind(call[0]),
            )
    return types


def _inlined(call: OnnxCall, name: str) -> Sequence[Value]:
    """Import a branch in the place of the node."""
    inner = call.scope.inner()
    inner.nodes = call.scope.nodes
    return call.importer.run(call.needed(name), inner)


def _write_cond(e: Emitter, node: Node, predicate: Ref, *operands: Ref) -> list[Ref]:
    """Run one of two branches."""
    branches = {}
    for theirs, ours in (("then_branch", "then"), ("else_branch", "otherwise")):
        graph = node.attrs[ours]
        assert isinstance(graph, Graph)
        outputs, steps = e.run(graph, operands)
        branches[theirs] = OnnxBody(graph.name, [], _ports(outputs, graph.outputs), steps)
    return e.raw("If", [predicate], _made(node), branches)


def settled_body(
    call: OnnxCall,
    before: Sequence[Type],
    carried: Sequence[Type],
    after: Sequence[Type],
    flags: int,
) -> ImportedBody:
    """Import a loop's body; a carried dim that a run changes is named by a symbol of the body."""
    types = list(carried)
    while True:
        inputs = [Value(t, f"input{i}") for i, t in enumerate([*before, *types, *after])]
        finish = partial(_reshaped, types=[*[FLAG] * flags, *types])
        body = call.importer.body(call.needed("body"), inputs, call.scope, finish)
        made = [v.type for v in body.outputs[flags : flags + len(types)]]
        if len(made) < len(types):
            raise FormatError(f"the body gives {len(made)} of {len(types)} carried values.")
        unused = _unused(body, range(len(before), len(before) + len(types)))
        wider = [
            b if free and (is_unknown(a) or not alike(a, b)) else _wider(call, a, b)
            for a, b, free in zip(types, made, unused, strict=True)
        ]
        if wider == types:
            return body
        types = wider


def _unused(body: ImportedBody, positions: Iterable[int]) -> list[bool]:
    """Tell which inputs a body has no use for."""
    used = {v for node in body.nodes for v in node.operands} | set(body.outputs)
    return [body.inputs[position] not in used for position in positions]


def _wider(call: OnnxCall, before: Type, made: Type) -> Type:
    if not alike(before, made):
        raise SizesNeededError(f"a carried value is {before} and becomes {made} in a run.")
    dims: list[Dim] = []
    for dim, other in zip(dims_of(before), dims_of(made), strict=True):
        if not isinstance(before, TensorType):
            # Of elements, which may differ from each other.
            dims.append(dim if dim == other or not isinstance(dim, int) else unbacked())
            continue
        moves = dim != other and not _is_own(dim)
        dims.append(symbol(call.importer.fresh("carried")) if moves else dim)
    return with_shape(before, tuple(dims))


def _is_own(dim: Dim) -> bool:
    """Tell whether a dim is named by the body already."""
    alone = lone_symbol(dim)
    return alone is not None and alone.name.startswith("carried")


def _read_loop(call: OnnxCall) -> Converted:
    trips, condition = scalar(call.get(0)), scalar(call.get(1))
    values = [call[i] for i in range(2, len(call.inputs))]
    body = settled_body(call, [INDEX, FLAG], [v.type for v in values], [], 1)
    starts = [
        v if alike(v.type, inner.type) and not is_unknown(v.type) else _placeholder(call, inner)
        for v, inner in zip(values, body.inputs[2:], strict=True)
    ]
    bounds = _checked_empty([trips, condition], values, starts)
    found = controlled(call, control.loop, bounds, starts, {"body": body}, carries=len(values))
    if starts == values:
        return found
    runs = _runs(trips, condition)
    pairs = itertools.zip_longest(found, starts, values)
    return [
        v if new is old or isinstance(v.type, SequenceType) else _checked_rank(v, old, runs)
        for v, new, old in pairs
    ]


def _checked_empty(
    bounds: Sequence[Value | None], values: Sequence[Value], starts: Sequence[Value]
) -> list[Value | None]:
    """Let a loop run only if sequences that start anew, with elements of a rank, held none."""
    found = list(bounds)
    for value, start in zip(values, starts, strict=True):
        made = value.node.op if value.node is not None else ""
        if value is start or not isinstance(value.type, SequenceType) or made == "sequence_empty":
            continue
        message = f"A loop starts with elements in {value.type} and adds those of {start.type}."
        none = logic.equal(container.sequence_length(value), 0)
        place = 0 if found[0] is not None else 1
        bound = found[place]
        found[place] = none if bound is None else control.check(bound, none, message=message)
    return found


def _placeholder(call: OnnxCall, inner: Value) -> Value:
    """Start a carried value of another rank, which no run of the body reads."""
    if isinstance(inner.type, SequenceType):
        return container.sequence_empty.new(element=inner.type.element)
    dims = [0 if _is_own(dim) else dim for dim in inner.tensor.shape]
    if any(s.unbacked for dim in dims for s in symbols(dim)):
        call.refuse(f"a carried value becomes {inner.type} in a run, of another rank than before.")
    return creation.full(constant(np.zeros((), inner.tensor.dtype.numpy)), shape=tuple(dims))


def _runs(trips: Value | None, condition: Value | None) -> Value:
    """Tell whether a loop runs at least once."""
    found = condition if condition is not None else constant(np.array(True))
    if trips is None:
        return found
    return logic.logical_and(found, logic.greater(trips, 0))


def _checked_rank(made: Value, start: Value, runs: Value) -> Value:
    message = (
        f"A loop that ran no time leaves {start.type} where the model goes on with {made.type}."
    )
    return control.check(made, runs, message=message)


def _write_loop(
    e: Emitter, node: Node, trips: Ref | None, condition: Ref | None, *operands: Ref
) -> list[Ref]:
    """Run as ONNX's Loop does; without a condition, what the body says of it is not heard."""
    body, carries = node.attrs["body"], node.attrs["carries"]
    assert isinstance(body, Graph)
    assert isinstance(carries, int)
    held = _inputs(e, body.inputs[: 2 + carries])
    outputs, steps = e.run(body, [*held, *operands[carries:]])
    if condition is None and e.target.is_cautious:
        steps.append(OnnxStep("Identity", [held[1].name], [e.model.fresh("going")], {}))
        outputs[0] = Ref(steps[-1].outputs[0], bool_)
    ports = _ports(held, body.inputs[: 2 + carries]), _ports(outputs, body.outputs)
    if condition is None and e.target.is_cautious:
        condition = e.constant(np.array(True))
    start = [trips, condition, *operands[:carries]]
    return e.raw("Loop", start, _made(node), {"body": OnnxBody(body.name, *ports, steps)})


def _write_while(e: Emitter, node: Node, *operands: Ref) -> list[Ref]:
    """Test before the first run, and at the end of each."""
    condition, body = node.attrs["condition"], node.attrs["body"]
    assert isinstance(condition, Graph)
    assert isinstance(body, Graph)
    count = len(body.outputs)
    rest = operands[count:]
    goes = e.run(condition, operands, inline=True)[0]
    held = _inputs(e, body.inputs[:count])
    inner = Emitter(e.model, e, is_trial=e.is_trial)
    outputs = inner.run(body, [*held, *rest], inline=True)[0]
    again = inner.run(condition, [*outputs, *rest], inline=True)[0]
    given = [inner.give(x) for x in outputs]
    ports = _ports(held, body.inputs[:count]), _ports(given, body.outputs)
    made = _loop_body(e, body.name, inner.give(again[0]), *ports, inner.steps)
    return e.raw("Loop", [None, *goes, *operands[:count]], _made(node), {"body": made})


def _read_scan(call: OnnxCall) -> Converted:
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
    found = _scan_first_axis(call, operands, carries)
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
    outputs = call.importer.settle(_scan_first_axis(call, given, carries), inner, call.label)
    body = call.importer.collected("batch", rows, outputs, inner)
    return controlled(
        call, control.scan, [], operands, {"body": body}, carries=0, scans=len(operands)
    )


def _scan_first_axis(call: OnnxCall, operands: Sequence[Value], carries: int) -> list[Value]:
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


def _write_scan(e: Emitter, node: Node, *operands: Ref) -> list[Ref]:
    """Run over rows; without rows, as often as the length says."""
    attrs = attrs_of(node)
    carries, scans = attrs["carries"], attrs["scans"]
    taken = carries + scans
    if not scans:
        return _repeat(e, node, operands[:carries], operands[taken:])
    length, first = operand(node, carries).tensor.shape[0], operands[:carries]
    if length == 0:
        return _unrun(e, node, first)
    if isinstance(length, int):
        return _scan_node(e, node, operands)
    # Engines stop at a Scan over nothing, which only the run can tell.
    any_ = e("Greater", e.scalar(length), e.scalar(0), dtype=bool_)
    return either(
        e,
        node,
        any_,
        lambda inner: _scan_node(inner, node, operands),
        lambda inner: _unrun(inner, node, first),
    )


def _scan_node(e: Emitter, node: Node, operands: Sequence[Ref]) -> list[Ref]:
    """Write a Scan over rows of which there is at least one."""
    attrs = attrs_of(node)
    body, carries, scans = attrs["body"], attrs["carries"], attrs["scans"]
    taken = carries + scans
    held = _inputs(e, body.inputs[:taken])
    outputs, steps = e.run(body, [*held, *operands[taken:]])
    ports = _ports(held, body.inputs[:taken]), _ports(outputs, body.outputs)
    added, flag = len(body.outputs) - carries, int(bool(attrs["reverse"]))
    return e.raw(
        "Scan",
        operands[:taken],
        _made(node),
        {
            "body": OnnxBody(body.name, *ports, steps),
            "num_scan_inputs": scans,
            "scan_input_directions": [flag] * scans,
            "scan_output_directions": [flag] * added if added else None,
        },
    )


def _unrun(e: Emitter, node: Node, carried: Sequence[Ref]) -> list[Ref]:
    """Give what a scan over nothing gives: what it began with, and no rows."""
    rows = [v.tensor.with_shape((0, *v.tensor.shape[1:])) for v in node.outputs[len(carried) :]]
    return [*carried, *(e.nothing(row) for row in rows)]


def _repeat(e: Emitter, node: Node, carried: Sequence[Ref], rest: Sequence[Ref]) -> list[Ref]:
    """Write a scan over nothing as a Loop; what it stacks is turned round if it runs backwards."""
    attrs = attrs_of(node)
    graph, goes = attrs["body"], e.constant(np.array(True))
    held = _inputs(e, graph.inputs[: len(carried)])
    outputs, steps = e.run(graph, [*held, *rest])
    steps.append(OnnxStep("Identity", [goes.name], [e.model.fresh("going")], {}))
    again = Ref(steps[-1].outputs[0], bool_)
    ports = _ports(held, graph.inputs[: len(carried)]), _ports(outputs, graph.outputs)
    body = _loop_body(e, graph.name, again, *ports, steps)
    found = e.raw("Loop", [e.scalar(attrs["length"]), goes, *carried], _made(node), {"body": body})
    if not attrs["reverse"]:
        return found
    ends = (e.integers(-1), e.integers(-(2**62)), e.integers(0), e.integers(-1))
    first = len(carried)
    return [*found[:first], *(e("Slice", x, *ends) for x in found[first:])]


READERS: Mapping[str, Read] = {
    "If": _read_if,
    "Loop": _read_loop,
    "Scan": _read_scan,
}


WRITERS: Mapping[str, Write] = {
    "cond": _write_cond,
    "while": _write_while,
    "loop": _write_loop,
    "scan": _write_scan,
}
