"""Casts: rounding, the ends of ranges, and text."""

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import ALL, NARROW, DType, dtype
from fusewire.errors import TypeRuleError

WHOLE = [d for d in ALL if d.is_integer]
SMALL = [d for d in NARROW if d.is_float]


@pytest.mark.parametrize("to", WHOLE, ids=str)
@pytest.mark.parametrize("of", ["float16", "bfloat16", "float32", "float64"])
def test_floats_become_integers_toward_zero_within_range(of: str, to: DType) -> None:
    low, high = (int(end) for end in to.range)
    values = [np.nan, np.inf, -np.inf, 1.75, -1.75, 0.99, high, high + 1.0, high * 4.0, low - 1.0]
    with np.errstate(over="ignore"):
        x = np.array(values).astype(dtype(of).numpy)
    wide = x.astype(np.float64)
    exact = [0 if np.isnan(v) else int(min(max(v, low - 1), high + 1)) for v in wide]
    assert ops.cast(x, dtype=to).tolist() == [min(max(v, low), high) for v in exact]


@pytest.mark.parametrize("to", WHOLE, ids=str)
def test_integers_wrap(to: DType) -> None:
    values = [300, -300, 2**31 - 1, -(2**31), 5]
    low, high = (int(end) for end in to.range)
    exact = [(v - low) % (high - low + 1) + low for v in values]
    assert ops.cast(np.array(values, np.int32), dtype=to).tolist() == exact


@pytest.mark.parametrize("to", SMALL, ids=str)
def test_small_floats_round_as_ml_dtypes_and_saturate_when_asked(to: DType) -> None:
    x = np.random.default_rng(0).normal(0, 3, 500).astype(np.float32)
    far = np.array([1e39, -1e39, np.inf, -np.inf])
    assert np.array_equal(ops.cast(x, dtype=to).view(np.uint8), x.astype(to.numpy).view(np.uint8))
    low, high = to.range
    found = ops.cast(far, dtype=to, saturate=True).astype(np.float64)
    assert found.tolist() == [high, low, high, low]


def test_rounding_happens_once() -> None:
    # Through float32 this would land on the tie and then on 1.
    x = np.array(1 + 2.0**-11 + 2.0**-30)
    assert ops.cast(x, dtype="float16") == np.float16(1 + 2.0**-10)


def test_saturate_is_refused_where_it_means_nothing() -> None:
    with pytest.raises(TypeRuleError, match="saturate is for floats of 8 bits or fewer"):
        ops.cast(np.ones(2), dtype="float16", saturate=True)


def test_text_and_numbers() -> None:
    assert ops.cast(np.array([1.5, -0.1], np.float32), dtype="string").tolist() == ["1.5", "-0.1"]
    assert ops.cast(np.array(["7", "-2"]), dtype="int64").tolist() == [7, -2]
    assert ops.cast(np.array(["9007199254740993"]), dtype="int64").tolist() == [9007199254740993]
    assert np.isnan(ops.cast(np.array(["NaN"]), dtype="float32"))


@pytest.mark.parametrize("of", ["uint8", "uint16", "uint32", "uint64"])
def test_bits_survive_a_round_trip(of: str) -> None:
    bits = dtype(of)
    x = np.random.default_rng(1).integers(0, int(bits.range[1]), 64, bits.numpy, endpoint=True)
    for to in ops.bitcast.dtypes:
        if to.bits == bits.bits:
            assert np.array_equal(ops.bitcast(ops.bitcast(x, dtype=to), dtype=of), x), to


def test_bits_of_another_width_are_refused() -> None:
    with pytest.raises(TypeRuleError, match=r"found float32 \(32 bits\) and int64 \(64 bits\)"):
        ops.bitcast(np.ones(2, np.float32), dtype="int64")


def test_complex_numbers_lose_their_imaginary_part() -> None:
    x = np.array([1.5 + 2j, 2j])
    assert ops.cast(x, dtype="float32").tolist() == [1.5, 0.0]
    assert ops.cast(x, dtype="bool").tolist() == [True, True]
    assert ops.cast(x, dtype="int8").tolist() == [1, 0]


def test_every_small_float_value_is_kept() -> None:
    for of in SMALL:
        x = np.arange(2**of.bits, dtype=np.uint8).view(of.numpy)
        wide = ops.cast(x, dtype="float64")
        assert np.array_equal(wide, x.astype(np.float64), equal_nan=True)
