"""Views share memory as NumPy's do: random views and assignments, against NumPy itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewire.contract.frontend import Spec
from fusewire.errors import TraceError
from fusewire.frontends.trace import TraceFrontend
from fusewire.ops.interpret import interpret

# A step of a random program: it is given the arrays made so far, and may make one more.
ViewStep = Callable[[list[Any]], None]


@st.composite
def index(draw: Any, size: int) -> Any:
    """Draw an index of one axis."""
    if size and draw(st.booleans()):
        return draw(st.integers(-size, size - 1))
    ends = st.none() | st.integers(-size - 1, size + 1)
    return slice(draw(ends), draw(ends), draw(st.sampled_from([None, 1, 2, 3, -1, -2])))


@st.composite
def key(draw: Any, shape: tuple[int, ...]) -> Any:
    """Draw a basic key, perhaps with new axes and an ellipsis."""
    count = draw(st.integers(0, len(shape)))
    items = [draw(index(size)) for size in shape[:count]]
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), None)
    if draw(st.booleans()):
        items.append(...)
    return tuple(items)


@st.composite
def shapes(draw: Any, size: int) -> tuple[int, ...]:
    """Draw a shape of so many elements."""
    if size == 0:
        empty: tuple[int, ...] = draw(st.sampled_from([(0,), (2, 0), (0, 3)]))
        return empty
    found: list[int] = []
    while size > 1 and len(found) < 3:
        found.append(draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0])))
        size //= found[-1]
    return (*found, size)


def fancy(draw: Any, shape: tuple[int, ...]) -> Any:
    """Draw an index array of one axis, or a mask of all."""
    if draw(st.booleans()) and all(shape):
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        return rng.random(shape) < 0.5
    axis = draw(st.sampled_from([i for i, size in enumerate(shape) if size]))
    places = draw(st.lists(st.integers(-shape[axis], shape[axis] - 1), min_size=1, max_size=3))
    return (slice(None),) * axis + (np.array(places),)


def one_step(draw: Any, arrays: list[Any]) -> ViewStep:
    """Draw a step that is valid for the arrays there are; the shapes are taken from them."""
    at = draw(st.integers(0, len(arrays) - 1))
    x = arrays[at]
    number = draw(st.integers(-9, 9))
    kinds = ["view", "transpose", "reshape", "ravel", "squeeze", "assign", "add", "copy", "between"]
    kind = draw(st.sampled_from([*kinds, *(["fancy", "flip"] if x.ndim and x.size else [])]))
    if kind in ("view", "assign", "add", "between"):
        k = draw(key(x.shape))
        if kind == "view":
            return lambda xs: xs.append(xs[at][(*k, ...)] if ... not in k else xs[at][k])
        if kind == "assign":
            return lambda xs: xs[at].__setitem__(k, number)
        if kind == "add":
            return lambda xs: xs[at].__setitem__(k, xs[at][k] * 2 + number)
        return lambda xs: xs[at].__setitem__(k, xs[0].sum() + xs[at][k])
    if kind == "transpose":
        perm = draw(st.permutations(range(x.ndim)))
        return lambda xs: xs.append(xs[at].transpose(perm))
    if kind == "reshape":
        shape = draw(shapes(x.size))
        return lambda xs: xs.append(xs[at].reshape(shape))
    if kind == "fancy":
        k = fancy(draw, x.shape)
        return lambda xs: xs[at].__setitem__(k, xs[at][k] * 3 + number)
    if kind == "flip":
        return lambda xs: xs.append(np.flip(xs[at], 0))
    if kind == "ravel":
        return lambda xs: xs.append(np.ravel(xs[at]))
    if kind == "squeeze":
        return lambda xs: xs.append(np.squeeze(xs[at]))
    return lambda xs: xs.append(xs[at].copy())


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_random_views_and_assignments(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(6,), (4, 3), (2, 3, 4), (1, 5), (2, 1, 3)]))
    known = data.draw(st.booleans())
    start = np.arange(np.prod(shape)).reshape(shape)
    arrays: list[Any] = [start.copy()]
    if known:
        arrays.append(np.zeros((3, 4), int))
    steps: list[ViewStep] = []
    for _ in range(data.draw(st.integers(1, 7))):
        step = one_step(data.draw, arrays)
        step(arrays)
        steps.append(step)

    def program(x: Any) -> list[Any]:
        found = [x, np.zeros((3, 4), int)] if known else [x]
        for step in steps:
            step(found)
        return found

    graph = TraceFrontend().read(program, [start])
    for found, wanted in zip(interpret(graph, [start]), arrays, strict=True):
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == wanted.dtype


def run(function: Any, *arrays: Any) -> Any:
    before = [np.array(x) for x in arrays]
    graph = TraceFrontend().read(function, arrays)
    found = interpret(graph, arrays)
    np.testing.assert_equal(list(arrays), before)
    wanted = function(*(np.array(x) for x in arrays))
    for left, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == np.asarray(right).dtype
    return graph


def test_a_view_of_a_view_writes_through_both() -> None:
    def function(x: Any) -> Any:
        y = x[1:]
        z = y.T.reshape(-1)[::2] if x.ndim == 1 else y.T
        z[0] = 100
        return x, y, z

    run(function, np.arange(6))
    run(function, np.arange(12).reshape(4, 3))


def test_a_known_array_becomes_unknown_for_all_its_views() -> None:
    def function(x: Any) -> Any:
        table = np.zeros((2, 3))
        row, column = table[0], table[:, 1]
        row[1] = x[0]
        column *= 2
        table.ravel()[-1] = x[1]
        return table, row, column

    run(function, np.array([3.0, 4.0]))


def test_scalars_are_copies() -> None:
    def function(x: Any) -> Any:
        first = x[0]
        kept = first
        first += 1
        x[0] = 50
        return x, first, kept

    run(function, np.arange(3))


def test_slices_may_overlap() -> None:
    def function(x: Any) -> Any:
        x[1:] = x[:-1]
        x[::2] += x[::-1][::2]
        return (x,)

    run(function, np.arange(7))


def test_a_copy_shares_nothing() -> None:
    def function(x: Any) -> Any:
        y, z = x.copy(), np.array(x)
        y[0] = 1
        z += 5
        w = np.asarray(x)
        w[1] = 9
        return x, y, z, w

    run(function, np.arange(4))


def test_the_shape_of_a_view_can_be_set() -> None:
    def function(x: Any) -> Any:
        y = x[:]
        y.shape = (2, 3)
        y[1, 1] = 70
        return x, y

    run(function, np.arange(6))


def test_arrays_of_globals_are_not_written() -> None:
    table = np.zeros(3)

    def function(x: Any) -> Any:
        table[0] = x[0]
        return (table + x,)

    graph = TraceFrontend().read(function, [np.ones(3)])
    assert table.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(interpret(graph, [np.ones(3)])[0], [2, 1, 1])


def test_broadcast_views_are_read_only() -> None:
    def function(x: Any) -> Any:
        y = np.broadcast_to(x, (2, 3))
        y[0] = 1
        return y

    with pytest.raises(TraceError, match=r"test_views.py:\d+: `y\[0\] = 1`\n.*read-only"):
        TraceFrontend().read(function, [np.ones(3)])


def test_views_of_open_sizes_are_written_through() -> None:
    def function(x: Any) -> Any:
        y = x[1:-1]
        y[::2] = 0
        x[-1] += x[0]
        z = x.reshape(-1)
        z[0] = 5
        return x, y

    graph = TraceFrontend().read(function, [Spec(("n",), "int64")])
    for n in (4, 7):
        found, wanted = interpret(graph, [np.arange(n)]), function(np.arange(n))
        for left, right in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(left, right)


@st.composite
def advanced_key(draw: Any, shape: tuple[int, ...]) -> list[Any]:
    """Draw a key of anything: places, slices, index arrays that broadcast, masks, new axes."""
    common = draw(st.sampled_from([(2,), (3, 1), (1, 3), (3, 3)]))
    items: list[Any] = []
    axis = 0
    while axis < len(shape) and draw(st.integers(0, 5)):
        size, kind = shape[axis], draw(st.sampled_from(["slice", "place", "array", "mask", "new"]))
        if kind == "new":
            items.append(None)
            continue
        axis += 1
        if kind == "array":
            one = draw(st.sampled_from([common, common[-1:], (1,)]))
            places = draw(st.lists(st.integers(-size, size - 1), min_size=9, max_size=9))
            items.append(np.array(places)[: np.prod(one)].reshape(one))
        elif kind == "mask":
            mask = np.arange(size) % 2 == 0
            mask[common[-1] :] = False
            items.append(mask)
        else:
            items.append(draw(index(size)) if kind == "slice" else draw(st.integers(0, size - 1)))
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), ...)
    return items


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_random_keys_with_index_arrays(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(5,), (4, 3), (3, 4, 5)]))
    key = data.draw(advanced_key(shape))
    start = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    try:
        part = start[tuple(key)]
    except IndexError:
        return
    is_input = [isinstance(item, np.ndarray) and data.draw(st.booleans()) for item in key]
    inputs = [item for item, given_ in zip(key, is_input, strict=True) if given_]
    full = np.arange(part.size, dtype=np.float64).reshape(part.shape)
    new = data.draw(st.sampled_from([7.5, full, full[..., :1] if part.ndim else 2.5]))

    def program(x: Any, *places: Any) -> Any:
        rest = iter(places)
        whole = tuple(next(rest) if g else k for k, g in zip(key, is_input, strict=True))
        y, z = x.copy(), x * 1.0
        y[whole] = new
        z[whole] = z[whole] * 2 + 1
        return x[whole], y, z

    graph = TraceFrontend().read(program, [start, *inputs])
    found = interpret(graph, [start, *inputs])
    for left, right in zip(found, program(start, *inputs), strict=True):
        np.testing.assert_array_equal(left, right)
