"""Slices, borders and shifts against NumPy, with sizes known and not."""

import itertools
from typing import Any

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import float32
from fusewire.errors import TypeRuleError
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.interpret import interpret
from fusewire.ops.movement import resolve_shape
from fusewire.ops.slicing import PAD_MODES, flip, normalize_slice, pad_array, roll, slice_axis
from fusewire.ops.table import verify

BOUNDS = [None, -9, -3, -1, 0, 1, 3, 9]
N = symbol("n")


def unknown(*shape: int) -> Value:
    return Value(TensorType(float32, (N, *shape)), "x")


@pytest.mark.parametrize("step", [None, 1, 2, 3, -1, -2, -3])
def test_slices_of_any_axis_are_those_of_python(step: int | None) -> None:
    for start, stop in itertools.product(BOUNDS, BOUNDS):
        index = slice(start, stop, step)
        x = unknown()
        graph = Graph([x], [slice_axis(x, 0, index)])
        verify(graph)
        for size in (0, 1, 2, 5):
            array = np.arange(size, dtype=np.float32)
            first, limit, stride = normalize_slice(index, size)
            known = ops.slice(array, starts=(first,), limits=(limit,), strides=(stride,))
            assert known.tolist() == array[index].tolist(), (index, size)
            assert interpret(graph, [array])[0].tolist() == array[index].tolist(), (index, size)


@pytest.mark.parametrize(
    ("index", "type_"),
    [
        (slice(None, None, -1), "float32[n]"),
        (slice(None, None, 2), "float32[-floordiv(-n, 2)]"),
        (slice(None, -1), "float32[max(0, n-1)]"),
        (slice(2, None), "float32[-min(2, n)+n]"),
    ],
    ids=str,
)
def test_sizes_of_slices_stay_short(index: slice, type_: str) -> None:
    assert str(slice_axis(unknown(), 0, index).type) == type_


def test_slice_that_leaves_its_axis_is_refused() -> None:
    with pytest.raises(TypeRuleError, match="0:7:1 of 5 leaves the axis"):
        ops.slice(np.zeros(5), starts=(0,), limits=(7,), strides=(1,))


@pytest.mark.parametrize("shift", [-7, -1, 0, 2, 9])
def test_roll_and_flip_work_on_any_size(shift: int) -> None:
    x = unknown(3)
    graph = Graph([x], [roll(x, shifts=(shift,), axes=(0,)), flip(x)])
    verify(graph)
    for size in (0, 1, 4):
        array = np.arange(size * 3, dtype=np.float32).reshape(size, 3)
        rolled, flipped = interpret(graph, [array])
        np.testing.assert_array_equal(rolled, np.roll(array, shift, 0))
        np.testing.assert_array_equal(flipped, np.flip(array))


@pytest.mark.parametrize("mode", PAD_MODES)
def test_borders_are_those_of_numpy(mode: str) -> None:
    for size, low, high in itertools.product((1, 2, 5), (0, 1, 4, 9), (0, 2, 7)):
        x = np.arange(size * 3.0).reshape(size, 3)
        sides = ((low, high), (high, low))
        kind: str = mode
        expected = np.pad(x, sides, mode=kind)  # type: ignore[call-overload]  # modes as a str
        np.testing.assert_array_equal(ops.pad(x, padding=sides, mode=mode), expected)


def test_negative_side_is_cut_before_the_rest_is_repeated() -> None:
    x = np.arange(5.0)
    found = ops.pad(x, padding=((2, -2),), mode="reflect")
    assert found.tolist() == np.pad(x[:3], (2, 0), mode="reflect").tolist()


@pytest.mark.parametrize("sides", list(itertools.product((-9, -5, -4, -1, 0, 2, 9), repeat=2)))
def test_sides_that_cut_more_than_there_is_cut_what_the_other_side_adds(
    sides: tuple[int, int],
) -> None:
    x = np.arange(1.0, 5.0)
    low, high = sides
    if len(x) + low + high < 0:
        with pytest.raises(TypeRuleError, match="leaves less than nothing"):
            ops.pad(x, padding=(sides,))
        return
    wide = np.pad(x, (max(low, 0), max(high, 0)))
    expected = wide[max(-low, 0) : len(wide) - max(-high, 0)]
    np.testing.assert_array_equal(ops.pad(x, padding=(sides,)), expected)


@pytest.mark.parametrize("mode", PAD_MODES[1:])
def test_nothing_is_left_to_repeat_if_all_is_cut(mode: str) -> None:
    for sides in ((-4, 6), (5, -4), (2, -5), (-9, 9)):
        with pytest.raises(TypeRuleError, match="needs elements to repeat"):
            ops.pad(np.arange(4.0), padding=(sides,), mode=mode)
        with pytest.raises(ValueError, match="needs elements to repeat"):
            pad_array(np.arange(4.0), None, (sides,), mode)


def test_minus_one_becomes_what_is_left() -> None:
    assert resolve_shape((4, -1), N * 8) == (4, N * 2)
    with pytest.raises(TypeRuleError, match="one -1"):
        resolve_shape((-1, -1), 4)
    with pytest.raises(TypeRuleError, match="do not fill"):
        resolve_shape((-1, 3), 4)


def test_shape_with_an_open_dim_must_be_filled() -> None:
    with pytest.raises(TypeRuleError, match="could be any size: another dim is 0"):
        resolve_shape((0, -1), 0)
    with pytest.raises(TypeRuleError, match="5 elements do not fill"):
        resolve_shape((2, -1), 5)
    assert resolve_shape((2, -1), 6) == (2, 3)


@pytest.mark.parametrize("stride", [0, 1.5, "2"])
def test_stride_of_a_slice_is_an_int_but_zero(stride: Any) -> None:
    with pytest.raises(TypeRuleError, match="a stride must be an int"):
        normalize_slice(slice(None, None, stride), 4)
