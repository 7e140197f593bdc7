"""If and Loop as our control flow; a condition that is known takes its branch at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fusewire.errors import FormatError, SizesNeededError, TypeRuleError
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, lone_symbol, symbol, symbols, unbacked
from fusewire.ir.graph import Value
from fusewire.ir.types import SequenceType, TensorType, Type
from fusewire.onnx.ops.reading import scalar
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.onnx.read.scope import ImportedBody
from fusewire.onnx.types import is_unknown
from fusewire.ops import container, control, creation, logic, movement
from fusewire.ops.declare import Op
from fusewire.ops.subgraph import FLAG, INDEX, alike, dims_of, result_types, with_shape


def _if(call: OnnxCall) -> Converted:
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


def _is_one(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.size == 1


def _reshaped(outputs: list[Value], types: Sequence[Type]) -> list[Value]:
    """Give values of one element the axes they should have: files spell scalars either way."""
    found = list(outputs)
    for i, (value, type_) in enumerate(zip(outputs, types, strict=False)):
        if _is_one(value.type) and _is_one(type_) and dims_of(value.type) != dims_of(type_):
            found[i] = movement.reshape(value, shape=dims_of(type_))
    return found


def _inlined(call: OnnxCall, name: str) -> Sequence[Value]:
    """Import a branch in the place of the node."""
    inner = call.scope.inner()
    inner.nodes = call.scope.nodes
    return call.importer.run(call.needed(name), inner)


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


def _loop(call: OnnxCall) -> Converted:
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


TABLE: Mapping[str, Read] = {"If": _if, "Loop": _loop}
