"""Codes: rounding, saturation, blocks, and sums that must be exact."""

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import DType, dtype
from fusewire.errors import TypeRuleError
from fusewire.ir.graph import Array
from fusewire.ops.quantization import CODE_FLOATS, CODE_INTEGERS

RNG = np.random.default_rng(9)


def exact_codes(x: Array, scale: Array, zero: Array, of: DType) -> Array:
    low, high = (int(end) for end in of.range)
    rounded = np.rint((x / scale).astype(np.float32)).astype(np.float64)
    return np.clip(rounded + zero.astype(np.int64), low, high).astype(of.numpy)


@pytest.mark.parametrize("of", CODE_INTEGERS, ids=str)
@pytest.mark.parametrize(
    ("shape", "axis", "block", "spread"),
    [((), None, None, ()), ((3,), 1, None, (3, 1)), ((2, 3, 3), 2, 2, (2, 3, 3))],
    ids=["tensor", "axis", "block"],
)
def test_codes_round_half_to_even_and_saturate(
    of: DType, shape: tuple[int, ...], axis: int | None, block: int | None, spread: tuple[int, ...]
) -> None:
    x = (RNG.normal(size=(2, 3, 5)) * 40).astype(np.float32)
    x[0, 0] = [0.5, 1.5, 2.5, -1e30, 1e30]
    scale = RNG.choice(np.array([0.5, 1.0, 2.0], np.float32), shape)
    zero = RNG.integers(0, 2, shape).astype(of.numpy)
    wide = [np.reshape(p, spread) for p in (scale, zero.astype(np.int64))]
    if block is not None:
        wide = [np.repeat(p, block, 2)[..., :5] for p in wide]
    attrs = {"axis": axis, "block": block}
    codes = ops.quantize(x, scale, zero, dtype=of, **attrs)
    assert np.array_equal(codes, exact_codes(x, wide[0], wide[1], of))
    back = ops.dequantize(codes, scale, zero, **attrs)
    assert np.array_equal(back, (codes.astype(np.int64) - wide[1]).astype(np.float32) * wide[0])


@pytest.mark.parametrize("of", CODE_FLOATS, ids=str)
def test_small_floats_saturate_and_come_back(of: DType) -> None:
    x = np.array([0.0, 1.0, -1.5, 1e9, -1e9, np.inf], np.float32)
    codes = ops.quantize(x * 4, np.float32(4.0), dtype=of)
    assert codes.astype(np.float32).tolist() == np.clip(x, *of.range).tolist()
    assert ops.dequantize(codes, np.float32(0.5)).tolist() == (np.clip(x, *of.range) / 2).tolist()


def test_wide_codes_of_half_floats_keep_their_last_digit() -> None:
    x = np.array([100.0, 1000.0, 2000.0], np.float16)
    codes = ops.quantize(x, np.float16(0.0625), np.int16(1), dtype="int16")
    assert codes.tolist() == [1601, 16001, 32001]


def test_dynamic_scales_hold_all_numbers_and_zero() -> None:
    for x in ([0, 2, -3, -2.5, 1.34, 0.5], [1.0, 2.1, 4.0], [-1.0, -2.1, -4.0], [0.0, 0.0]):
        codes, scale, zero = ops.dynamic_quantize(np.array(x, np.float32))
        back = (codes.astype(np.float64) - zero) * scale
        assert np.abs(back - x).max() <= scale / 2 * (1 + 1e-4)
        assert scale > 0


@pytest.mark.parametrize(
    ("left", "right"), [("uint8", "int8"), ("int8", "int8"), ("uint4", "int4")]
)
def test_products_of_codes_are_exact(left: str, right: str) -> None:
    def drawn(of: str, *shape: int) -> Array:
        low, high = dtype(of).range
        return RNG.integers(int(low), int(high), shape, endpoint=True).astype(dtype(of).numpy)

    a, b, rows, columns = drawn(left, 4, 90), drawn(right, 90, 5), drawn(left, 4), drawn(right, 5)
    found = ops.matmul_integer(a, b, rows, columns)
    exact = (a.astype(int) - rows.astype(int)[:, None]) @ (b.astype(int) - columns.astype(int))
    assert found.dtype == np.int32
    assert np.array_equal(found, exact)


def test_padding_of_codes_is_their_zero_point() -> None:
    x, w = RNG.integers(0, 255, (1, 2, 4, 4)), RNG.integers(-128, 127, (3, 2, 3, 3))
    zero, per_filter = np.uint8(7), np.array([1, -2, 3], np.int8)
    padding = ((1, 0), (2, 1))
    found = ops.conv_integer(
        x.astype(np.uint8), w.astype(np.int8), zero, per_filter, padding=padding
    )
    centred = (w - per_filter[:, None, None, None]).astype(np.float64)
    exact = ops.conv((x - 7).astype(np.float64), centred, padding=padding)
    assert np.array_equal(found, exact)


def test_floats_have_no_zero_point() -> None:
    zero = np.zeros((), dtype("float8_e4m3fn").numpy)
    with pytest.raises(TypeRuleError, match="no zero point"):
        ops.quantize(np.ones(3, np.float32), np.float32(1), zero, dtype="float8_e4m3fn")
