"""Ops that run subgraphs: one of two, or one again and again. Loops that collect: iteration.py.

Dims of outputs follow from the operands. One that only the run can tell (branches that differ, a
carried value that grows, the number of runs of a loop) is named in ``types``, and then all are;
``subgraph.result_types`` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from fusewire.dtypes import ALL, DType, bool_, float32, int64
from fusewire.errors import CheckError
from fusewire.ir.dims import symbol, unbacked
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType, Type
from fusewire.ops.declare import EXACT, Family, Op, Trait
from fusewire.ops.elementwise import add, multiply
from fusewire.ops.inference import require
from fusewire.ops.logic import less
from fusewire.ops.movement import concat
from fusewire.ops.sample import HostValue, Sample, draw, given, sample
from fusewire.ops.subgraph import (
    FLAG,
    INDEX,
    Found,
    alike,
    bound_by,
    carried,
    dims_of,
    leaving,
    settled,
    subgraph,
)

FAMILY = Family("control")
Types: TypeAlias = tuple[Type, ...]
Run: TypeAlias = Callable[[Graph, Sequence[HostValue]], list[HostValue]]


def controlling(
    family: Family, name: str, rule: Callable[..., Types], **fields: Any
) -> Op[tuple[Value, ...]]:
    """Declare an op that runs subgraphs: its reference is given ``run`` to do so."""
    traits = (Trait.CONTROL, Trait.UNBACKED)
    return family.declare(name, rule, traits=traits, tolerance=EXACT, flops=0, **fields)


def _cond_type(
    predicate: TensorType,
    *operands: Type,
    then: Graph,
    otherwise: Graph,
    types: Types | None = None,
) -> tuple[Type, ...]:
    require(predicate == FLAG, f"the predicate must be {FLAG}, found {predicate}.")
    sides = []
    for what, branch in (("then", then), ("otherwise", otherwise)):
        bound = bound_by(branch, operands, what)
        sides.append([leaving(v.type, bound) for v in branch.outputs])
    require(len(sides[0]) == len(sides[1]), "both branches must have the same number of outputs.")
    found: list[Found] = []
    for position, ((left, axes), (right, more)) in enumerate(zip(*sides, strict=True)):
        what = f"output {position} of both branches must be alike but for dims"
        require(alike(left, right), f"{what}, found {left} and {right}.")
        dims = enumerate(zip(dims_of(left), dims_of(right), strict=True))
        found.append((left, axes | more | {axis for axis, (a, b) in dims if a != b}))
    return settled(found, types)


def _cond(
    predicate: Array, *operands: HostValue, then: Graph, otherwise: Graph, types: Any, run: Run
) -> tuple[HostValue, ...]:
    return tuple(run(then if predicate else otherwise, operands))


def _cond_samples() -> list[Sample]:
    of = TensorType(float32, (2, symbol("n")))
    twice = subgraph(lambda x: [multiply(x, 2.0)], of, name="twice")
    more = subgraph(lambda x: [add(x, 1.0)], of, name="more")
    wide = subgraph(lambda x: [concat(x, x, axis=1)], of, name="wide")
    told = (TensorType(float32, (2, unbacked("width"))),)
    x = draw(2, 3, dtype_=float32)
    return [
        sample(given(True), x, then=twice, otherwise=more),
        sample(given(False), x, then=twice, otherwise=more),
        sample(given(True), draw(2, 0, dtype_=float32), then=twice, otherwise=more),
        sample(given(False), x, then=twice, otherwise=wide, types=told),
    ]


cond = controlling(
    FAMILY,
    "cond",
    _cond_type,
    doc="Run one of two subgraphs on the operands.",
    reference=_cond,
    dtypes=(bool_,),
    samples=_cond_samples,
)


def _while_type(
    *operands: Type,
    condition: Graph,
    body: Graph,
    carries: int | None = None,
    types: Types | None = None,
) -> tuple[Type, ...]:
    count = len(operands) if carries is None else carries
    outputs = [v.type for v in body.outputs]
    require(len(outputs) == count, f"{count} values are carried, the body gives {len(outputs)}.")
    bound_by(condition, operands, "the condition")
    flags = [v.type for v in condition.outputs]
    require(flags == [FLAG], f"the condition must give {FLAG}, found {', '.join(map(str, flags))}.")
    return settled(carried(body, operands, 0, outputs)[0], types)


def _while(
    *operands: HostValue, condition: Graph, body: Graph, carries: int | None, types: Any, run: Run
) -> tuple[HostValue, ...]:
    count = len(operands) if carries is None else carries
    values, rest = list(operands[:count]), operands[count:]
    while run(condition, [*values, *rest])[0]:
        values = run(body, [*values, *rest])
    return tuple(values)


def _while_samples() -> list[Sample]:
    def counted(of: DType, *shape: int, limit: int = 2) -> Sample:
        types = (TensorType(of, shape), INDEX, INDEX)
        test = subgraph(lambda x, i, n: [less(i, n)], *types, name="condition")
        body = subgraph(lambda x, i, n: [x, add(i, 1)], *types)
        operands = draw(*shape), given(0, int64), given(limit, int64)
        return sample(*operands, condition=test, body=body, carries=2, only=(of,))

    return [
        *(counted(of, 3) for of in ALL),
        counted(float32),
        counted(float32, 0, 2),
        counted(float32, 2, limit=0),
    ]


while_ = controlling(
    FAMILY,
    "while",
    _while_type,
    doc="Run the body on the carried values for as long as the condition gives true of them.",
    reference=_while,
    dtypes=ALL,
    samples=_while_samples,
)


def _check_type(x: TensorType, condition: TensorType, *, message: str) -> TensorType:
    require(condition == FLAG, f"the condition must be {FLAG}, found {condition}.")
    return x


def _check(x: Array, condition: Array, message: str) -> Array:
    if not condition:
        raise CheckError(message)
    return x


check = FAMILY.declare(
    "check",
    _check_type,
    doc="Pass on if a condition holds, else stop the run with a message.",
    reference=_check,
    tolerance=EXACT,
    flops=0,
    dtypes=ALL,
    samples=lambda: [
        sample(draw(2, 3), given(True, bool_), message="It does not hold."),
        sample(draw(), given(True, bool_), message="It does not hold."),
        sample(draw(0, 2), given(True, bool_), message="It does not hold."),
    ],
)
