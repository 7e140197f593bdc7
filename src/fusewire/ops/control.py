"""Ops that run subgraphs: one of two, or one again and again; and a check that stops a run.

Dims of outputs follow from the operands. One that only the run can tell (branches that differ, a
carried value that grows, the number of runs of a loop) is named in ``types``, and then all are;
``subgraph.result_types`` makes them. ``loop`` and ``scan`` also stack what each run of their body
adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from fusewire.dtypes import ALL, DType, bool_, float32, int64
from fusewire.errors import CheckError, TypeRuleError
from fusewire.ir.dims import Dim, symbol, unbacked
from fusewire.ir.graph import Array, Graph, HostValue, Value
from fusewire.ir.types import SequenceType, TensorType, Type, tensor_of
from fusewire.ops.declare import EXACT, BodyLayout, Family, Op, Trait
from fusewire.ops.elementwise import add, multiply
from fusewire.ops.inference import require, same_dim
from fusewire.ops.logic import less
from fusewire.ops.movement import concat, expand_dims
from fusewire.ops.sample import BadSample, Sample, bad, draw, given, sample
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


def _controlling(name: str, rule: Callable[..., Types], **fields: Any) -> Op[tuple[Value, ...]]:
    """Declare an op that runs subgraphs: its reference is given ``run`` to do so."""
    traits = (Trait.CONTROL, Trait.UNBACKED)
    return FAMILY.declare(name, rule, traits=traits, tolerance=EXACT, flops=0, **fields)


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


def _cond_refuses() -> list[BadSample]:
    of = TensorType(float32, (2, symbol("n")))
    twice = subgraph(lambda x: [multiply(x, 2.0)], of)
    wide = subgraph(lambda x: [concat(x, x, axis=1)], of)
    both = subgraph(lambda x: [x, x], of)
    tall = subgraph(lambda x: [expand_dims(x, axes=(0,))], of)
    square = subgraph(lambda x: [x], TensorType(float32, (symbol("n"), symbol("n"))))
    alone: dict[str, Any] = {"then": twice, "otherwise": twice}
    x = "float32[2, 3]"
    return [
        bad("the predicate must be bool[]", "bool[1]", x, **alone),
        bad("then takes 1 values, and is given 2", "bool[]", x, x, **alone),
        bad("then takes 1 values, and is given 0", "bool[]", **alone),
        bad("then takes float32[2, n], and is given float32[3]", "bool[]", "float32[3]", **alone),
        bad("what then is given must be float32[2, 3]", "bool[]", "float32[3, 3]", **alone),
        bad("what otherwise is given must be", "bool[]", x, then=twice, otherwise=square),
        bad("the same number of outputs", "bool[]", x, then=twice, otherwise=both),
        bad("output 0 of both branches must be alike", "bool[]", x, then=twice, otherwise=tall),
        bad("only the run can tell dims [1]", "bool[]", x, then=twice, otherwise=wide),
        bad("1 outputs, found 2 types", "bool[]", x, **alone, types=(of, of)),
        bad(
            "output 0 in types must be float32[2, 3], found float32[2, 4]",
            "bool[]",
            x,
            **alone,
            types=(TensorType(float32, (2, 4)),),
        ),
    ]


cond = _controlling(
    "cond",
    _cond_type,
    doc="Run one of two subgraphs on the operands.",
    reference=_cond,
    dtypes=(bool_,),
    layout=BodyLayout(fixed=1),
    samples=_cond_samples,
    refuses=_cond_refuses,
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


def _while_refuses() -> list[BadSample]:
    x = TensorType(float32, (2,))
    test = subgraph(lambda x, go: [go], x, FLAG)
    odd = subgraph(lambda x, go: [x], x, FLAG)
    body = subgraph(lambda x, go: [x, go], x, FLAG)
    tall = subgraph(lambda x, go: [expand_dims(x, axes=(0,)), go], x, FLAG)
    long = subgraph(lambda x, go: [concat(x, x, axis=0), go], x, FLAG)
    values = ("float32[2]", "bool[]")
    return [
        bad(
            "1 values are carried, the body gives 2", *values, condition=test, body=body, carries=1
        ),
        bad("the condition takes 2 values", "float32[2]", condition=test, body=body, carries=2),
        bad("the condition must give bool[]", *values, condition=odd, body=body),
        bad("the body makes float32[1, 2] of carried", *values, condition=test, body=tall),
        bad("the body makes float32[4] of carried value 0", *values, condition=test, body=long),
    ]


while_ = _controlling(
    "while",
    _while_type,
    doc="Run the body on the carried values while the condition holds for them.",
    reference=_while,
    dtypes=ALL,
    layout=BodyLayout(),
    samples=_while_samples,
    refuses=_while_refuses,
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
    doc="Pass values on if a condition holds, else stop the run with a message.",
    reference=_check,
    tolerance=EXACT,
    flops=0,
    dtypes=ALL,
    samples=lambda: [
        sample(draw(2, 3), given(True, bool_), message="It does not hold."),
        sample(draw(), given(True, bool_), message="It does not hold."),
        sample(draw(0, 2), given(True, bool_), message="It does not hold."),
    ],
    refuses=lambda: [
        bad(
            "the condition must be bool[], found int8[]",
            "[]",
            "int8[]",
            message="It does not hold.",
        )
    ],
)


def _stacked(found: Sequence[Found], length: Dim, open_: frozenset[int]) -> list[Found]:
    """Put the axis of runs in front."""
    for type_, _ in found:
        require(isinstance(type_, TensorType), f"what each run adds is a tensor, found {type_}.")
    return [
        (tensor_of(type_).with_shape((length, *dims_of(type_))), open_ | {i + 1 for i in axes})
        for type_, axes in found
    ]


def _columns(rows: Sequence[Sequence[HostValue]], count: int) -> list[HostValue]:
    """Stack what each run added; None where there was no run, so that only the type is known."""
    return [np.stack([row[i] for row in rows]) if rows else None for i in range(count)]


def _loop_type(
    trips: TensorType | None = None,
    condition: TensorType | None = None,
    *operands: Type,
    body: Graph,
    carries: int,
    types: Types | None = None,
) -> tuple[Type, ...]:
    require(trips in (None, INDEX), f"trips must be {INDEX}, found {trips}.")
    require(condition in (None, FLAG), f"the condition must be {FLAG}, found {condition}.")
    outputs = [v.type for v in body.outputs]
    enough = len(operands) >= carries < len(outputs) and outputs[0] == FLAG
    require(enough, f"the body must give {FLAG}, then {carries} carried values.")
    taken = [INDEX, FLAG, *operands]
    found, bound, moving = carried(body, taken, 2, outputs[1 : 1 + carries])
    added = [leaving(t, bound, moving) for t in outputs[1 + carries :]]
    return settled(found + _stacked(added, 0, frozenset({0})), types)


def _loop(
    trips: Array | None,
    condition: Array | None,
    *operands: HostValue,
    body: Graph,
    carries: int,
    types: Any,
    run: Run,
) -> tuple[HostValue, ...]:
    values, rest = list(operands[:carries]), operands[carries:]
    going = np.array(True) if condition is None else condition
    added: list[list[HostValue]] = []
    while going and (trips is None or len(added) < trips):
        flag, *outputs = run(body, [np.array(len(added)), going, *values, *rest])
        values = outputs[:carries]
        added.append(outputs[carries:])
        going = going if condition is None else flag
    return (*values, *_columns(added, len(body.outputs) - 1 - carries))


def _loop_samples() -> list[Sample]:
    vector = TensorType(float32, (2,))
    types = (INDEX, FLAG, vector)
    doubled = subgraph(lambda i, go, x: [less(i, 2), add(x, x), multiply(x, 3.0)], *types)
    told: Types = (vector, TensorType(float32, (unbacked("runs"), 2)))
    # Each run makes x longer by two: a symbol of the body names its length.
    moving = TensorType(float32, (symbol("n"),))
    grown = subgraph(lambda i, go, x, y: [go, concat(x, y, axis=0)], INDEX, FLAG, moving, vector)
    longer: Types = (TensorType(float32, (unbacked("length"),)),)
    x = draw(2, dtype_=float32)
    attrs: dict[str, Any] = {"body": doubled, "carries": 1, "types": told}
    return [
        sample(given(5, int64), given(True, bool_), x, **attrs, only=(int64,)),
        sample(given(5, int64), None, x, **attrs, only=(int64,)),
        sample(given(0, int64), None, x, **attrs, only=(int64,)),
        sample(None, given(True), x, **attrs, only=(bool_,)),
        sample(
            given(3, int64),
            None,
            draw(0, dtype_=float32),
            x,
            body=grown,
            carries=1,
            types=longer,
            only=(int64,),
        ),
    ]


def _loop_refuses() -> list[BadSample]:
    vector = TensorType(float32, (2,))
    types = (INDEX, FLAG, vector)
    doubled = subgraph(lambda i, go, x: [go, add(x, x), x], *types)
    mute = subgraph(lambda i, go, x: [x, x], *types)
    x = "float32[2]"
    attrs: dict[str, Any] = {"body": doubled, "carries": 1}
    enough = "the body must give bool[], then"
    return [
        bad("trips must be int64[], found bool[]", "bool[]", "bool[]", x, **attrs),
        bad("trips must be int64[], found int64[1]", "int64[1]", None, x, **attrs),
        bad("the condition must be bool[], found int64[]", "int64[]", "int64[]", x, **attrs),
        bad(f"{enough} 3 carried values", "int64[]", None, x, x, x, body=doubled, carries=3),
        bad(f"{enough} 2 carried values", "int64[]", None, x, body=doubled, carries=2),
        bad(f"{enough} 1 carried values", "int64[]", None, x, body=mute, carries=1),
        bad("the body takes 3 values, and is given 4", "int64[]", None, x, x, **attrs),
        bad("only the run can tell dims [0] of output 1", "int64[]", None, x, **attrs),
    ]


loop = _controlling(
    "loop",
    _loop_type,
    doc="Run body(index, condition, *carried, *rest) -> condition, *carried, *added; stack added.",
    reference=_loop,
    dtypes=(int64, bool_),
    layout=BodyLayout(fixed=2, leading=(INDEX, FLAG), flags=1),
    samples=_loop_samples,
    refuses=_loop_refuses,
)


def _scan_type(
    *operands: Type,
    body: Graph,
    carries: int,
    scans: int,
    reverse: bool = False,
    length: Dim | None = None,
    types: Types | None = None,
) -> tuple[Type, ...]:
    enough = len(operands) >= carries + scans and len(body.outputs) >= carries
    require(enough, f"{carries} carried values and {scans} to scan are needed.")
    rows: list[Type] = []
    for x in operands[carries : carries + scans]:
        if not isinstance(x, TensorType) or x.rank == 0:
            raise TypeRuleError(f"what is scanned needs a first axis, found {x}.")
        length = x.shape[0] if length is None else same_dim(length, x.shape[0], "lengths")
        rows.append(x.with_shape(x.shape[1:]))
    if length is None:
        raise TypeRuleError("with nothing to scan, the length is needed.")
    taken = [*operands[:carries], *rows, *operands[carries + scans :]]
    outputs = [v.type for v in body.outputs]
    found, bound, _ = carried(body, taken, 0, outputs[:carries], moves=False)
    added = [leaving(t, bound) for t in outputs[carries:]]
    return settled(found + _stacked(added, length, frozenset()), types)


def _scan(
    *operands: HostValue,
    body: Graph,
    carries: int,
    scans: int,
    reverse: bool,
    length: int | None,
    types: Any,
    run: Run,
) -> tuple[HostValue, ...]:
    values, rest = list(operands[:carries]), operands[carries + scans :]
    xs = operands[carries : carries + scans]
    steps = range(len(xs[0]) if xs else length or 0)
    added: list[list[HostValue]] = []
    for step in reversed(steps) if reverse else steps:
        # The ellipsis keeps an element of a vector an array, whatever its dtype.
        outputs = run(body, [*values, *(x[step, ...] for x in xs), *rest])
        values = outputs[:carries]
        added.append(outputs[carries:])
    rows = added[::-1] if reverse else added
    return (*values, *_columns(rows, len(body.outputs) - carries))


def _scan_samples() -> list[Sample]:
    def last(of: DType, length: int, *shape: int, reverse: bool = False) -> Sample:
        row = TensorType(of, shape)
        body = subgraph(lambda x, y: [y, x], row, row)
        attrs: dict[str, Any] = {"body": body, "carries": 1, "scans": 1, "reverse": reverse}
        return sample(draw(*shape), draw(length, *shape), **attrs, only=(of,))

    row = TensorType(float32, (2,))
    sums = subgraph(lambda x, y, z: [add(multiply(x, z), y), x], row, row, TensorType(float32, ()))
    power = subgraph(lambda x: [add(x, x)], row)
    x = draw(2)
    return [
        *(last(of, 3, 2) for of in ALL),
        last(float32, 4, reverse=True),
        last(float32, 0, 2),
        sample(x, draw(3, 2), given(0.5), body=sums, carries=1, scans=1, only=(float32,)),
        sample(x, body=power, carries=1, scans=0, length=3, only=(float32,)),
    ]


def _scan_refuses() -> list[BadSample]:
    row = TensorType(float32, (2,))
    last = subgraph(lambda x, y: [y, x], row, row)
    power = subgraph(lambda x: [add(x, x)], row)
    nested = subgraph(lambda x: [x], SequenceType(row))
    attrs: dict[str, Any] = {"body": last, "carries": 1, "scans": 1}
    alone: dict[str, Any] = {"carries": 0, "scans": 0, "length": 1}
    needed = "carried values and 1 to scan are needed"
    return [
        bad(f"1 {needed}", "float32[2]", **attrs),
        bad(f"3 {needed}", *["float32[2]"] * 4, body=last, carries=3, scans=1),
        bad("what is scanned needs a first axis", "float32[2]", "float32[]", **attrs),
        bad("what is scanned needs a first axis", "float32[2]", "sequence<float32[2]>", **attrs),
        bad("lengths must be equal", "float32[2]", "float32[3, 2]", **attrs, length=4),
        bad("with nothing to scan, the length", "float32[2]", body=power, carries=1, scans=0),
        bad("a node needs an output", body=subgraph(list), **alone),
        bad("what each run adds is a tensor", "sequence<float32[2]>", body=nested, **alone),
    ]


scan = _controlling(
    "scan",
    _scan_type,
    doc="Run body(*carried, *rows, *rest) -> *carried, *added over the rows of what is scanned.",
    reference=_scan,
    dtypes=ALL,
    layout=BodyLayout(),
    samples=_scan_samples,
    refuses=_scan_refuses,
)
