"""Random ops against published vectors and the distributions they name."""

from typing import Any

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import FLOATS, DType
from fusewire.errors import TypeRuleError
from fusewire.ir.graph import Array

KEY = np.array([7, 11], np.uint32)
MANY = 40_000


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_vectors_of_random123(
    key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]
) -> None:
    words = [np.array(word, np.uint32) for word in counter]
    found = ops.threefry(np.array(key, np.uint32), *words)
    assert tuple(int(word) for word in found) == expected


def test_bits_depend_on_place_and_not_on_shape() -> None:
    long = ops.random_bits(KEY, shape=(20,))
    assert np.array_equal(ops.random_bits(KEY, shape=(3, 5)).reshape(-1), long[:15])


def test_bits_are_those_of_jax() -> None:
    # jax.random.bits(jax.random.wrap_key_data([7, 11]), (4,)) and split(..., 2), jax 0.10.2.
    assert ops.random_bits(KEY, shape=(4,)).tolist() == [
        892857190,
        1689167001,
        1295197138,
        2591979536,
    ]
    assert ops.random_split(KEY, count=2).tolist() == [
        [2598293523, 2951297909],
        [3532078725, 3056179740],
    ]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniforms_are_even_and_below_one(dtype: DType) -> None:
    drawn = ops.random_uniform(KEY, shape=(MANY,), dtype=dtype).astype(np.float64)
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    coarse = dtype.eps / 4  # rounding down to a grid of eps / 2 moves the mean by half of that
    assert abs(drawn.mean() + coarse - 0.5) < 5 * (1 / 12 / MANY) ** 0.5
    shares = np.histogram(drawn, 16, (0, 1))[0] / MANY
    assert np.abs(shares - 1 / 16).max() < 5 * (1 / 16 / MANY) ** 0.5


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normals_have_the_moments_of_a_normal(dtype: DType) -> None:
    attrs: dict[str, Any] = {"shape": (MANY,), "dtype": dtype, "mean": 0.5, "scale": 2.0}
    drawn = (ops.random_normal(KEY, **attrs).astype(np.float64) - 0.5) / 2.0
    moments = [np.mean(drawn**power) for power in (1, 2, 3, 4)]
    spreads = np.sqrt(np.array([1, 2, 15, 96]) / MANY)
    assert np.all(np.abs(np.array(moments) - [0, 1, 0, 3]) < 5 * spreads)


def test_integers_fill_their_range() -> None:
    dice = ops.random_integers(KEY, shape=(MANY,), dtype="int8", low=-2, high=4)
    values, counts = np.unique(dice, return_counts=True)
    assert values.tolist() == [-2, -1, 0, 1, 2, 3]
    assert np.abs(counts / MANY - 1 / 6).max() < 5 * (1 / 6 / MANY) ** 0.5
    wide = ops.random_integers(KEY, shape=(MANY,), low=-(2**62), high=2**62)
    assert abs(np.mean(wide / 2.0**62)) < 5 * (1 / 3 / MANY) ** 0.5
    whole = ops.random_integers(KEY, shape=(99,), dtype="int32", low=-(2**31), high=2**31)
    assert whole.min() < -(2**30)
    assert whole.max() > 2**30


def test_bernoulli_follows_its_probabilities() -> None:
    asked = np.linspace(0, 1, 5, dtype=np.float32)
    shares = ops.bernoulli(np.repeat(asked, MANY // 5), KEY).reshape(5, -1).mean(1)
    assert np.abs(shares - asked).max() < 0.03
    assert shares[0] == 0.0
    assert shares[-1] == 1.0


def test_dropout_keeps_the_mean() -> None:
    found = ops.dropout(np.ones(MANY, np.float32), KEY, rate=0.25)
    assert set(np.unique(found)) == {np.float32(0.0), np.float32(1.0 / 0.75)}
    assert abs(found.mean() - 1.0) < 0.02


def test_multinomial_draws_in_proportion() -> None:
    chances: Array = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]], np.float32)
    with np.errstate(divide="ignore"):
        drawn = ops.multinomial(np.log(chances), KEY, samples=9_000)
    shares = np.stack([np.bincount(row, minlength=3) / 9_000 for row in drawn])
    assert np.abs(shares - chances).max() < 0.02


def test_permutation_holds_every_number_once() -> None:
    found = ops.permutation(KEY, count=100)
    assert np.array_equal(np.sort(found), np.arange(100))
    assert found[0] != 0


def test_other_key_gives_other_bits() -> None:
    other = ops.random_bits(KEY + np.uint32(1), shape=(64,))
    assert not np.any(other == ops.random_bits(KEY, shape=(64,)))


def test_key_of_three_words_is_refused() -> None:
    with pytest.raises(TypeRuleError, match=r"a key is uint32\[2\], found uint32\[3\]"):
        ops.random_bits(np.zeros(3, np.uint32), shape=(2,))
