"""Sequences and optionals: values that hold tensors. Only the reference runs them.

In the type of a sequence a dim that is unbacked may differ from element to element. What comes
out of one has a size of its own, which ``types`` names (``subgraph.result_types`` makes it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from fusewire.dtypes import ALL, DType, float32, int32, int64
from fusewire.errors import ShapeMismatchError
from fusewire.ir.dims import Dim, symbols, unbacked
from fusewire.ir.graph import Array, HostValue, Value
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type, tensor_of
from fusewire.ops.creation import NO_OPERANDS
from fusewire.ops.declare import EXACT, Family, Op, Trait
from fusewire.ops.inference import axis_of, require
from fusewire.ops.intervals import check_elements
from fusewire.ops.sample import Sample, bad, draw, given, sample, unary_samples
from fusewire.ops.subgraph import FLAG, INDEX, Found, alike, dims_of, settled

FAMILY = Family("container")
Types: TypeAlias = tuple[Type, ...]
HOLDS = {"scalar": "the first operand holds tensors and is not one"}


def _holding(name: str, rule: Callable[..., Type], **fields: Any) -> Op[Value]:
    return FAMILY.declare(
        name, rule, dtypes=ALL, traits=(Trait.HOST,), tolerance=EXACT, flops=0, **fields
    )


def _element(s: Type) -> Type:
    require(isinstance(s, SequenceType), f"a sequence is needed, found {s}.")
    return s.element if isinstance(s, SequenceType) else s


def _varying(type_: Type) -> frozenset[int]:
    dims = enumerate(dims_of(type_))
    return frozenset(axis for axis, dim in dims if any(s.unbacked for s in symbols(dim)))


def _joined(types: Sequence[Type]) -> Found:
    """Find the type of a sequence of these, and the dims in which they differ."""
    first, *rest = types
    open_: set[int] = set()
    for other in rest:
        require(alike(first, other), f"elements must be alike, found {first} and {other}.")
        pairs = enumerate(zip(dims_of(first), dims_of(other), strict=True))
        open_ |= {axis for axis, (a, b) in pairs if a != b}
    return SequenceType(first), frozenset(open_ - _varying(first))


def _require_position(position: TensorType | None) -> None:
    fits = position is None or (position.rank == 0 and position.dtype in (int32, int64))
    require(fits, f"a position is an int32 or int64 scalar, found {position}.")


def _construct_type(*xs: Type, types: Types | None = None) -> Type:
    require(len(xs) > 0, "without elements use sequence_empty, which names their type.")
    return settled([_joined(xs)], types)[0]


def _empty_type(*, element: Type) -> Type:
    return SequenceType(element)


def _at_type(s: Type, position: TensorType, *, types: Types | None = None) -> Type:
    _require_position(position)
    element = _element(s)
    return settled([(element, _varying(element))], types)[0]


def _insert_type(
    s: Type, x: Type, position: TensorType | None = None, *, types: Types | None = None
) -> Type:
    _require_position(position)
    return settled([_joined([_element(s), x])], types)[0]


def _insert(
    s: list[HostValue], x: HostValue, position: Array | None, types: Any
) -> list[HostValue]:
    place = len(s) if position is None else int(position)
    return [*s[:place], x, *s[place:]]


def _erase_type(s: Type, position: TensorType | None = None) -> Type:
    _require_position(position)
    return SequenceType(_element(s))


def _at(s: list[HostValue], position: Array, types: Any) -> HostValue:
    return s[_existing("sequence_at", s, position)]


def _existing(op: str, s: list[HostValue], position: Array | None) -> int:
    """Check a position in a sequence, whose length is in no type; the last by default."""
    place = -1 if position is None else int(position)
    check_elements(np.array(place), [(-len(s), len(s) - 1)], None, op, "position")
    return place % len(s)


def _erase(s: list[HostValue], position: Array | None) -> list[HostValue]:
    place = _existing("sequence_erase", s, position)
    return [*s[:place], *s[place + 1 :]]


def _concat_type(s: Type, *, axis: int, new_axis: bool = False, types: Types | None = None) -> Type:
    element = tensor_of(_element(s))
    place = axis_of(axis, element.rank + new_axis)
    before, after = element.shape[:place], element.shape[place if new_axis else place + 1 :]
    found = element.with_shape((*before, 0, *after))
    return settled([(found, _varying(found) | {place})], types)[0]


def _concat(s: list[Array], axis: int, new_axis: bool, types: Any) -> Array:
    return np.stack(s, axis) if new_axis else np.concatenate(s, axis)


def _split_type(
    x: TensorType,
    sizes: TensorType | None = None,
    *,
    axis: int = 0,
    keepdims: bool = True,
    types: Types | None = None,
) -> Type:
    place = axis_of(axis, x.rank)
    if sizes is not None:
        fits = sizes.rank < 2 and sizes.dtype in (int32, int64)
        require(fits, f"sizes are int32 or int64, one or a vector of them, found {sizes}.")
    kept = (1,) if keepdims or sizes is not None else ()
    found = SequenceType(x.with_shape((*x.shape[:place], *kept, *x.shape[place + 1 :])))
    return settled([(found, frozenset() if sizes is None else frozenset({place}))], types)[0]


def _split(x: Array, sizes: Array | None, axis: int, keepdims: bool, types: Any) -> list[Array]:
    if sizes is None:
        parts = np.split(x, x.shape[axis], axis) if x.shape[axis] else []
        return parts if keepdims else [np.squeeze(part, axis) for part in parts]
    if sizes.ndim:
        return np.split(x, np.cumsum(sizes)[:-1], axis)
    return np.split(x, range(int(sizes), x.shape[axis], int(sizes)), axis)


def _optional_type(x: Type) -> Type:
    return OptionalType(x)


def _absent_type(*, element: Type) -> Type:
    return OptionalType(element)


def _get_type(x: Type) -> Type:
    return x.element if isinstance(x, OptionalType) else x


def _get(x: HostValue) -> HostValue:
    if x is None:
        raise ShapeMismatchError(
            "optional_get found an absent value. Test it with optional_has first."
        )
    return x


def _length_type(s: Type) -> TensorType:
    _element(s)
    return INDEX


def _has_type(x: Type) -> TensorType:
    return FLAG


PAIR, NOTHING = draw(2, 3, sequence=True), draw(2, 0, sequence=True)
FIRST, LAST = given(0, int64), given(-1, int32)


def _typed(make: Callable[[DType], Sample]) -> list[Sample]:
    """Make a sample for each dtype, whose types name it."""
    return [replace(make(of), only=(of,)) for of in ALL]


def _construct_samples() -> list[Sample]:
    told = (SequenceType(TensorType(float32, (unbacked("each"),))),)
    return [
        sample(draw(2, 3), draw(2, 3)),
        sample(draw(), draw()),
        sample(draw(0), draw(2), types=told, only=(float32,)),
    ]


def _concat_samples() -> list[Sample]:
    def joined(of: DType, *shape: Dim) -> Types:
        return (TensorType(of, shape),)

    many = unbacked("many")
    return [
        *_typed(lambda of: sample(PAIR, axis=0, types=joined(of, many))),
        *_typed(lambda of: sample(PAIR, axis=-1, new_axis=True, types=joined(of, 3, many))),
        *_typed(lambda of: sample(NOTHING, axis=0, new_axis=True, types=joined(of, many, 0))),
    ]


def _split_samples() -> list[Sample]:
    def parts(of: DType) -> Types:
        return (SequenceType(TensorType(of, (3, unbacked("each")))),)

    return [
        sample(draw(3, 2)),
        sample(draw(3, 2), axis=-1, keepdims=False),
        sample(draw(0, 2)),
        *_typed(lambda of: sample(draw(3, 5), given(2, int64), axis=1, types=parts(of))),
        *_typed(lambda of: sample(draw(3, 5), given([4, 1], int32), axis=-1, types=parts(of))),
    ]


sequence_construct = _holding(
    "sequence_construct",
    _construct_type,
    doc="Make a sequence of values of one type.",
    reference=lambda *xs, types: list(xs),
    samples=_construct_samples,
    refuses=lambda: [
        bad("elements must be alike, found bool[] and float32[]", "bool[]", "[]"),
        bad("without elements use sequence_empty"),
    ],
)
sequence_empty = _holding(
    "sequence_empty",
    _empty_type,
    doc="Make an empty sequence of a type.",
    reference=lambda element: [],
    lacks=NO_OPERANDS,
    samples=lambda: _typed(lambda of: sample(element=TensorType(of, (2,)))),
)
sequence_at = _holding(
    "sequence_at",
    _at_type,
    doc="Take the element at a position; negative ones count from the end.",
    reference=_at,
    samples=lambda: [sample(PAIR, FIRST), sample(PAIR, LAST), sample(NOTHING, FIRST)],
    refuses=lambda: [
        bad(
            "a position is an int32 or int64 scalar, found bool[]", "sequence<float32[3]>", "bool[]"
        )
    ],
    index_operands=("position",),
    lacks=HOLDS,
)
sequence_insert = _holding(
    "sequence_insert",
    _insert_type,
    doc="Insert a value before a position, or at the end.",
    reference=_insert,
    index_operands=("position",),
    lacks=HOLDS,
    samples=lambda: [
        sample(PAIR, draw(3)),
        sample(PAIR, draw(3), LAST),
        sample(NOTHING, draw(0), FIRST),
    ],
    refuses=lambda: [
        bad(
            "a position is an int32 or int64 scalar, found bool[]",
            "sequence<float32[3]>",
            "[3]",
            "bool[]",
        )
    ],
)
sequence_erase = _holding(
    "sequence_erase",
    _erase_type,
    doc="Remove the element at a position, or the last.",
    reference=_erase,
    index_operands=("position",),
    lacks=HOLDS,
    samples=lambda: [sample(PAIR), sample(PAIR, FIRST), sample(NOTHING, LAST)],
    refuses=lambda: [
        bad(
            "a position is an int32 or int64 scalar, found bool[]", "sequence<float32[3]>", "bool[]"
        )
    ],
)
sequence_length = _holding(
    "sequence_length",
    _length_type,
    doc="Count the elements.",
    reference=lambda s: np.array(len(s)),
    lacks=HOLDS,
    samples=lambda: [sample(PAIR), sample(NOTHING)],
    refuses=lambda: [bad("a sequence is needed, found float32[3]", "[3]")],
)
concat_from_sequence = _holding(
    "concat_from_sequence",
    _concat_type,
    doc="Join the elements along an axis, or a new one.",
    reference=_concat,
    samples=_concat_samples,
    refuses=lambda: [
        bad(
            "only the run can tell dims [0] of output 0, bool[0]: name",
            "sequence<bool[3]>",
            axis=0,
            types=None,
        ),
        bad("1 outputs, found 0 types for them", "sequence<bool[3]>", axis=0, types=()),
        bad("axis 1 is outside a tensor of rank 1", "sequence<float32[3]>", axis=1),
    ],
    lacks=HOLDS,
)
split_to_sequence = _holding(
    "split_to_sequence",
    _split_type,
    doc="Split along an axis into parts of one size, of given sizes, or of one element.",
    reference=_split,
    index_operands=("sizes",),
    samples=_split_samples,
    refuses=lambda: [
        bad("sizes are int32 or int64, one or a vector of them, found", "[3, 2]", "[]"),
        bad(
            "only the run can tell dims [1] of output 0",
            "bool[3, 5]",
            "int64[]",
            axis=1,
            types=None,
        ),
        bad("axis 0 is outside a tensor of rank 0", "[]"),
    ],
    lacks={"scalar": "a scalar has no axis to split"},
)
optional_of = _holding(
    "optional_of",
    _optional_type,
    doc="Make an optional that holds a value.",
    reference=lambda x: x,
    samples=unary_samples(),
)
optional_empty = _holding(
    "optional_empty",
    _absent_type,
    doc="Make an empty optional of a type.",
    reference=lambda element: None,
    lacks=NO_OPERANDS,
    samples=lambda: _typed(lambda of: sample(element=TensorType(of, (2,)))),
)
optional_has = _holding(
    "optional_has",
    _has_type,
    doc="Test whether an optional holds a value.",
    reference=lambda x: np.array(x is not None),
    samples=unary_samples(),
)
optional_get = _holding(
    "optional_get",
    _get_type,
    doc="Take the value of an optional; the run fails if it is absent.",
    reference=_get,
    samples=unary_samples(),
)
