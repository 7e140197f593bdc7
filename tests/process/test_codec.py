"""What crosses the boundary comes back the same, and what does not fit is refused."""

import contextlib
import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewire import dtypes
from fusewire.contract.backend import (
    Artifact,
    BackendInfo,
    Config,
    Device,
    Offer,
    Refusal,
    Slot,
    Unavailable,
)
from fusewire.errors import EngineGarbage
from fusewire.ir.dims import Dim, dim_max, floordiv, symbol, unbacked
from fusewire.ir.graph import Array
from fusewire.process.codec import RECORDS, read_record, read_value, write_record, write_value
from fusewire.process.frames import Blobs

NUMBERS = st.floats(allow_nan=False) | st.integers()
FACTS = st.dictionaries(
    st.text(),
    st.text()
    | st.booleans()
    | NUMBERS
    | st.lists(st.text()).map(tuple)
    | st.lists(st.integers()).map(tuple),
)
DIMS: st.SearchStrategy[Dim] = st.recursive(
    st.integers(0, 9) | st.sampled_from([symbol("n"), symbol("a b"), symbol("max"), unbacked("u")]),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, b: floordiv(a, b), inner, st.integers(1, 4)),
        st.builds(dim_max, inner, inner),
    ),
    max_leaves=4,
)
SHAPES = st.lists(DIMS, max_size=4).map(tuple)
PLACES = st.lists(st.integers(), max_size=4).map(tuple)
SLOTS = st.builds(
    Slot,
    role=st.sampled_from(["input", "weight", "output"]),
    name=st.text(),
    dtype=st.sampled_from(dtypes.ALL),
    dims=SHAPES,
    digest=st.none() | st.text(),
)
VALUES = st.one_of(
    SLOTS,
    st.builds(
        BackendInfo,
        *[st.text()] * 4,
        api=st.tuples(st.integers(), st.integers()),
        extra=st.none() | st.text(),
        trusted=st.booleans(),
        priority=st.integers(),
        metadata=st.dictionaries(st.text(), st.text()),
    ),
    st.builds(Device, st.text(), st.text(), st.booleans(), FACTS),
    st.builds(Unavailable, st.text(), st.text(), st.text()),
    st.builds(
        Offer,
        PLACES,
        st.sampled_from(["static", "bounded", "dynamic"]),
    ),
    st.builds(Refusal, PLACES, st.text(), st.text(), st.text()),
    st.builds(
        Artifact,
        st.sampled_from(["native", "rebuild"]),
        st.binary(),
        st.lists(SLOTS, max_size=3).map(tuple),
        st.integers(),
        FACTS,
        st.dictionaries(st.text(), NUMBERS),
        st.dictionaries(st.text(), st.text()),
        st.none() | st.binary(min_size=1).map(lambda held: memoryview(held)),
    ),
    st.builds(Config, st.none() | st.integers(), st.none() | st.integers(), st.booleans(), FACTS),
)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Draw any dtype of ours, any bits, rank 0 to 3, now and then laid out in another order."""
    of = draw(st.sampled_from(dtypes.ALL))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    count = int(np.prod(shape, dtype=np.int64))
    if of is dtypes.string:
        words = np.empty(count, object)
        words[:] = draw(st.lists(st.text(), min_size=count, max_size=count))
        return words.reshape(shape)
    size = count * of.itemsize
    bits = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    array = (bits & 1 if of.kind == "bool" else bits).view(of.numpy).reshape(shape)
    return array.T if draw(st.booleans()) else array


HOST_VALUES = st.recursive(
    st.none() | arrays(), lambda inner: st.lists(inner, max_size=3), max_leaves=4
)


def through_json(row: Any) -> Any:
    return json.loads(json.dumps(row))


def is_same(left: Any, right: Any) -> bool:
    if isinstance(left, list):
        pairs = zip(left, right, strict=True)
        return isinstance(right, list) and all(is_same(x, y) for x, y in pairs)
    if not isinstance(left, np.ndarray):
        return left is right
    if left.dtype == object:
        return bool(left.dtype == right.dtype and left.tolist() == right.tolist())
    return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())


@given(VALUES)
def test_records_come_back_the_same(value: Any) -> None:
    blobs: Blobs = []
    row = through_json(write_record(value, blobs))
    given_ = iter(blobs)
    again = read_record(row, given_, type(value))
    assert again == value
    assert type(again) is type(value)
    assert next(given_, None) is None


@given(HOST_VALUES)
def test_arrays_come_back_the_same(value: Any) -> None:
    blobs: Blobs = []
    row = through_json(write_value(value, blobs))
    assert is_same(value, read_value(row, iter([b.copy() for b in blobs])))


def test_every_field_of_every_record_is_in_the_table() -> None:
    for kind, forms in RECORDS.items():
        assert list(forms) == [field.name for field in dataclasses.fields(kind)]


def test_arrays_in_the_other_byte_order_come_back_in_ours() -> None:
    blobs: Blobs = []
    row = write_value(np.array([1, 2], ">i4"), blobs)
    found = read_value(row, iter(blobs))
    assert found.dtype == np.int32
    assert found.tolist() == [1, 2]


@given(VALUES, st.data())
def test_a_changed_record_is_a_record_or_garbage(value: Any, data: st.DataObject) -> None:
    blobs: Blobs = []
    row = through_json(write_record(value, blobs))
    key = data.draw(st.sampled_from(sorted(row)))
    row[key] = data.draw(
        st.none() | st.booleans() | NUMBERS | st.text() | st.lists(st.integers()) | st.just({})
    )
    with contextlib.suppress(EngineGarbage):
        read_record(row, iter(blobs), type(value))


@given(arrays(), st.data())
def test_a_changed_array_is_an_array_or_garbage(array: Array, data: st.DataObject) -> None:
    blobs: Blobs = []
    row = write_value(array, blobs)
    row[data.draw(st.sampled_from(sorted(row)))] = data.draw(
        st.integers(0) | st.sampled_from([d.name for d in dtypes.ALL]) | st.lists(st.integers())
    )
    with contextlib.suppress(EngineGarbage):
        read_value(row, iter(blobs))


GOOD = {"dtype": "float32", "shape": [2, 3], "bytes": 24}


@pytest.mark.parametrize(
    "row",
    [
        {**GOOD, "dtype": "float33"},
        {**GOOD, "dtype": 7},
        {**GOOD, "dtype": "string"},
        {**GOOD, "shape": [2, 4]},
        {**GOOD, "shape": [-2, -3]},
        {**GOOD, "shape": [2, 3.0]},
        {**GOOD, "shape": [True, 6]},
        {**GOOD, "shape": [1 << 62, 1 << 62, 0, 4]},
        {**GOOD, "shape": 6},
        {**GOOD, "shape": [1] * 65},
        {**GOOD, "bytes": 23},
        {**GOOD, "bytes": None},
        {**GOOD, "dtype": "bool", "shape": [24]},
        {"items": 3},
        {"items": [GOOD, GOOD]},
        {},
        [],
        "x",
    ],
)
def test_an_array_that_is_none_is_garbage(row: Any) -> None:
    with pytest.raises(EngineGarbage):
        read_value(row, iter([np.full(24, 7, np.uint8)]))


def test_an_empty_array_of_impossible_dims_is_garbage() -> None:
    row = {"dtype": "float32", "shape": [1 << 62, 1 << 62, 0, 4], "bytes": 0}
    with pytest.raises(EngineGarbage):
        read_value(row, iter([np.empty(0, np.uint8)]))


def test_lists_nested_without_end_are_garbage() -> None:
    row: Any = None
    for _ in range(50):
        row = {"items": [row]}
    with pytest.raises(EngineGarbage):
        read_value(row, iter(()))


@pytest.mark.parametrize(
    "value", [3, "x", np.array([b"x"]), np.array(["2020"], "M8[Y]"), np.array([1, None]), object()]
)
def test_what_is_no_value_of_ours_is_not_sent(value: Any) -> None:
    with pytest.raises(EngineGarbage):
        write_value(value, [])


@pytest.mark.parametrize(
    "value",
    [
        Slot("input", "x", dtypes.float32, (np.int64(3),)),  # type: ignore[arg-type]  # the fault
        Slot("door", "x", dtypes.float32, ()),  # type: ignore[arg-type]  # the fault
        Offer([0]),  # type: ignore[arg-type]  # the fault
        Artifact("native", "text", ()),  # type: ignore[arg-type]  # the fault
        Artifact("native", b"", (), weights=memoryview(b"1234")[::2]),
        Config(options={"a": {}}),  # type: ignore[dict-item]  # the fault
        object(),
    ],
)
def test_a_record_with_a_wrong_field_is_not_sent(value: Any) -> None:
    with pytest.raises(EngineGarbage, match="expected"):
        write_record(value, [])
