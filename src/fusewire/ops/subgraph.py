"""Types across the border of a subgraph: what goes in, what comes out, what a loop carries.

A subgraph is closed: what it captures from around it is an operand. It may name the dims of its
inputs by symbols of its own, which every run of it binds anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from fusewire.dtypes import bool_, int64
from fusewire.ir.dims import Dim, Shape, Symbol, is_equal, lone_symbol, substitute, unbacked
from fusewire.ir.dims import symbols as symbols_of
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType, Type, tensor_of
from fusewire.ops.declare import FRESH, Op
from fusewire.ops.inference import require

# A type, and the axes of it whose size only the run can tell.
Found: TypeAlias = tuple[Type, frozenset[int]]
Bound: TypeAlias = Mapping[Symbol, Dim]
FLAG, INDEX = TensorType(bool_, ()), TensorType(int64, ())


def subgraph(function: Callable[..., Sequence[Value]], *types: Type, name: str = "body") -> Graph:
    """Close what a function makes of values of these types into a graph."""
    inputs = [Value(type_, f"input{i}") for i, type_ in enumerate(types)]
    outputs = list(function(*inputs))
    names = [f"output{i}" for i in range(len(outputs))]
    return Graph(inputs, outputs, name=name, output_names=names)


def with_shape(type_: Type, shape: Shape) -> Type:
    """Change the dims of the tensors in a type."""
    if isinstance(type_, TensorType):
        return type_.with_shape(shape)
    return type(type_)(with_shape(type_.element, shape))


def dims_of(type_: Type) -> Shape:
    """Find the dims of the tensors in a type."""
    return tensor_of(type_).shape


def alike(left: Type, right: Type) -> bool:
    """Tell whether two types differ in dims at most."""
    same_rank = len(dims_of(left)) == len(dims_of(right))
    return same_rank and left == with_shape(right, dims_of(left))


def require_fit(wanted: Type, found: Type, what: str) -> None:
    """Refuse a type that cannot be the one wanted."""
    pairs = zip(dims_of(wanted), dims_of(found), strict=False)
    fits = alike(wanted, found) and all(is_equal(a, b) is not False for a, b in pairs)
    require(fits, f"{what} must be {wanted}, found {found}.")


def settled(found: Sequence[Found], types: tuple[Type, ...] | None) -> tuple[Type, ...]:
    """Take the types given if they fit what was found, else those found if nothing is open."""
    require(len(found) > 0, "a node needs an output, found none.")
    if types is FRESH:
        return tuple(_named(type_, axes) for type_, axes in found)
    if types is None:
        for position, (type_, axes) in enumerate(found):
            told = f"only the run can tell dims {sorted(axes)} of output {position}, {type_}"
            require(not axes, f"{told}: name them in types, which subgraph.result_types makes.")
        return tuple(type_ for type_, _ in found)
    require(len(types) == len(found), f"{len(found)} outputs, found {len(types)} types for them.")
    for position, ((type_, axes), given) in enumerate(zip(found, types, strict=True)):
        wanted = type_
        if alike(type_, given):
            dims = enumerate(zip(dims_of(type_), dims_of(given), strict=True))
            wanted = with_shape(type_, tuple(b if i in axes else a for i, (a, b) in dims))
        require_fit(wanted, given, f"output {position} in types")
    return types


def _named(type_: Type, axes: frozenset[int]) -> Type:
    dims = enumerate(dims_of(type_))
    return with_shape(type_, tuple(unbacked() if i in axes else dim for i, dim in dims))


def result_types(op: Op[Any], inputs: Sequence[Type | None], **attrs: Any) -> tuple[Type, ...]:
    """Give what ``types`` of a node should be: dims that only the run can tell get fresh names."""
    return op.infer(inputs, {**op.complete(attrs), "types": FRESH})


def bound_by(body: Graph, given: Sequence[Type], what: str) -> Bound:
    """Check what a subgraph is given, and find what its symbols stand for."""
    count = len(body.inputs)
    require(count == len(given), f"{what} takes {count} values, and is given {len(given)}.")
    bound: dict[Symbol, Dim] = {}
    for value, type_ in zip(body.inputs, given, strict=True):
        require(alike(value.type, type_), f"{what} takes {value.type}, and is given {type_}.")
        for dim, actual in zip(dims_of(value.type), dims_of(type_), strict=True):
            alone = lone_symbol(dim)
            if alone is not None and isinstance(type_, TensorType):
                bound.setdefault(alone, actual)
    for value, type_ in zip(body.inputs, given, strict=True):
        dims = tuple(substitute(dim, bound) for dim in dims_of(value.type))
        require_fit(with_shape(value.type, dims), type_, f"what {what} is given")
    return bound


def leaving(type_: Type, bound: Bound, moving: frozenset[Symbol] = frozenset()) -> Found:
    """Say the type of an output in the dims of the operands, as far as they tell."""
    axes = set()
    for axis, dim in enumerate(dims_of(type_)):
        if any(s in moving or (s.unbacked and s not in bound) for s in symbols_of(dim)):
            axes.add(axis)
    dims = tuple(substitute(dim, bound) for dim in dims_of(type_))
    return with_shape(type_, dims), frozenset(axes)


def carried(
    body: Graph, given: Sequence[Type], first: int, outputs: Sequence[Type], *, moves: bool = True
) -> tuple[list[Found], Bound, frozenset[Symbol]]:
    """Find the types of carried values after any number of runs, and the symbols that move.

    ``outputs`` are the body's for its inputs from ``first`` on. A dim moves if its input names it
    by a symbol and its output is another size, or follows from a dim that moves; unless it
    ``moves``, what the run may find equal is taken to be.
    """
    bound = bound_by(body, given, "the body")
    pairs = [(v.type, after) for v, after in zip(body.inputs[first:], outputs, strict=False)]
    moving: set[Symbol] = set()
    for position, (before, after) in enumerate(pairs):
        sentence = f"the body makes {after} of carried value {position}, {before}."
        require(alike(before, after), sentence)
        for dim, other in zip(dims_of(before), dims_of(after), strict=True):
            alone, now, then = lone_symbol(dim), substitute(dim, bound), substitute(other, bound)
            if alone is None or not moves:
                require(is_equal(now, then), sentence)
            elif now != then:
                moving.add(alone)
    dims = [d for b, a in pairs for d in zip(dims_of(b), dims_of(a), strict=True)]
    steps = [(s, {*symbols_of(other)}) for dim, other in dims if (s := lone_symbol(dim))]
    while more := {s for s, sources in steps if s not in moving and moving & sources}:
        moving |= more
    still = frozenset(moving)
    return [leaving(before, bound, still) for before, _ in pairs], bound, still
