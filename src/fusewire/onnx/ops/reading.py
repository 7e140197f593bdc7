"""Helpers for reading that several families share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import dtypes
from fusewire.errors import FormatError, SizesNeededError, TypeRuleError
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, Shape, lone_symbol, symbol, symbols, unbacked
from fusewire.ir.graph import Graph, Value, order, uses
from fusewire.ir.types import TensorType
from fusewire.ops import control, conversion, creation, logic, movement
from fusewire.ops.declare import Op
from fusewire.ops.shape import dim_of
from fusewire.ops.subgraph import result_types, subgraph
from fusewire.ops.table import untold

if TYPE_CHECKING:
    from fusewire.onnx.read.call import OnnxCall

# How far back through joins and casts the elements of a shape are looked for.
_STEPS_BACK = 8
# Each entry becomes a size or a node.
_MOST_LISTED = 4096


def scalar(x: Value | None) -> Value | None:
    """Give a tensor of one element as a scalar: files say conditions and counts either way."""
    if x is None or x.tensor.rank == 0:
        return x
    return movement.reshape(x, shape=())


def cast(x: Value, to: dtypes.DType) -> Value:
    """Convert unless it is of the dtype already."""
    return x if x.tensor.dtype is to else conversion.cast(x, dtype=to)


def length(value: Value, what: str) -> int:
    """Count the elements of a list, which tell a rank."""
    found = value.tensor.size
    if not isinstance(found, int):
        raise SizesNeededError(
            f"{what} is {value.type}, and how many there are decides a rank. Give example arrays, "
            "or Specs with sizes."
        )
    if found > _MOST_LISTED:
        raise FormatError(f"{what} has {found:,} entries, and at most {_MOST_LISTED:,} are taken.")
    return found


def known_dims(
    call: OnnxCall, value: Value, what: str, steps: int = _STEPS_BACK
) -> list[Dim | None]:
    """Tell the elements of a list one by one, None where only the run can."""
    found = call.dims(value)
    if found is not None:
        return list(found)
    made = value.node
    if made is not None and steps:
        if made.op == "concat" and value.tensor.rank == 1:
            return [d for v in made.operands for d in known_dims(call, v, what, steps - 1)]
        if made.op in ("cast", "reshape", "expand_dims", "squeeze"):
            return known_dims(call, made.operands[0], what, steps - 1)
    return [None] * length(value, what)


def named(dims: Sequence[Dim | None]) -> Shape:
    """Name the sizes that are not known."""
    return tuple(unbacked() if dim is None else dim for dim in dims)


def is_told(found: Value, *operands: Value | None) -> bool:
    """Tell whether what leads from operands to a value names only sizes that they tell."""
    known = {v.node for v in operands if v is not None and v.node is not None}
    return not any(untold(node) for node in order([found], known))


def _dims(shape: Shape) -> Mapping[str, Any]:
    return {"dims": shape}


def with_sizes(
    call: OnnxCall,
    op: Op[Any],
    operands: Sequence[Value | None],
    shape: Shape,
    say: Callable[[Shape], Mapping[str, Any]] = _dims,
    **attrs: Any,
) -> Sequence[Value]:
    """Make an op whose shape an operand tells, or its static twin where that is known.

    ``shape`` is what is known of the first output, which ``say`` turns into attributes.
    """
    # Writers load this file too, and have no use for rewrite rules.
    from fusewire.rewrite.rules.shapes import twin

    node = op.make(operands, {**attrs, **say(shape)})
    static = twin(node, call.importer.facts)
    if static is None:
        return node.outputs
    if is_told(static[0], *operands):
        return static
    return op.make(operands, {**attrs, **say(static[0].tensor.shape)}).outputs


def chosen(
    call: OnnxCall,
    flag: Value,
    operands: Sequence[Value],
    then: Callable[..., Value],
    default: int = 0,
) -> Value:
    """Apply a function where a flag holds, else give one of the operands."""
    # Sizes that are computed get names in the branches, so that those need nothing around them.
    names: dict[Dim, Dim] = {}
    distinct = list(dict.fromkeys(operands))
    places = [distinct.index(v) for v in operands]
    types = [_renamed(call, v.tensor, names) for v in distinct]
    whole = {
        "then": subgraph(lambda *xs: [then(*(xs[p] for p in places))], *types, name="chosen"),
        "otherwise": subgraph(lambda *xs: [xs[places[default]]], *types, name="kept"),
    }
    kept = range(len(types)) if names else _read(whole.values())
    attrs: dict[str, Any] = {key: _taking(body, kept) for key, body in whole.items()}
    every = [flag, *(distinct[i] for i in kept)]
    try:
        return control.cond.make(every, attrs).outputs[0]
    except TypeRuleError:
        attrs["types"] = result_types(control.cond, [v.type for v in every], **attrs)
        return control.cond.make(every, attrs).outputs[0]


def _read(bodies: Iterable[Graph]) -> list[int]:
    """List the inputs that branches read, in the order in which they do."""
    found: dict[int, None] = {}
    for body in bodies:
        places = {v: i for i, v in enumerate(body.inputs)}
        found.update((places[v], None) for v in uses(body) if v in places)
    return list(found)


def _taking(body: Graph, kept: Sequence[int]) -> Graph:
    """Give a branch some of its inputs only."""
    inputs = [body.inputs[i] for i in kept]
    return Graph(inputs, body.outputs, name=body.name, output_names=body.output_names)


def _renamed(call: OnnxCall, type_: TensorType, names: dict[Dim, Dim]) -> TensorType:
    dims: list[Dim] = []
    for dim in type_.shape:
        if not isinstance(dim, int) and lone_symbol(dim) is None and dim not in names:
            names[dim] = symbol(call.importer.fresh("branch"))
        dims.append(names.get(dim, dim))
    return type_.with_shape(tuple(dims))


def by_axis(call: OnnxCall, axis: Value, x: Value, along: Callable[[Value, int], Value]) -> Value:
    """Apply what keeps the type of x along the axis that a scalar tells when the model runs."""
    rank, found = x.tensor.rank, x
    for place in range(rank):
        flag = logic.logical_or(logic.equal(axis, place), logic.equal(axis, place - rank))
        found = chosen(call, flag, [x, found], lambda a, b, at=place: along(a, at), default=1)
    return found


def counted(x: Value, axis: int, of: dtypes.DType = dtypes.int64) -> Value:
    """Count the places along an axis of x: a vector, also where only the run tells its size."""
    dim = x.tensor.shape[axis]
    if not any(s.unbacked for s in symbols(dim)):
        return creation.iota.new(shape=(dim,), axis=0, dtype=of)
    zero, one = (constant(np.array(n, of.numpy)) for n in (0, 1))
    return creation.range_(zero, cast(dim_of(x, axis), of), one, count=dim)
