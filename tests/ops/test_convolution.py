"""Convolution against SciPy and against its own definition, place by place."""

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.signal

from fusewire import ops
from fusewire.errors import TypeRuleError
from fusewire.ir.graph import Array

RNG = np.random.default_rng(6)


def by_hand(
    x: Array,
    w: Array,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    groups: int,
) -> Array:
    x = np.pad(x, ((0, 0), (0, 0), *padding))
    inner, outer = w.shape[1], w.shape[0] // groups
    spread = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    places = [(n - e) // s + 1 for n, e, s in zip(x.shape[2:], spread, strides, strict=True)]
    y = np.zeros((x.shape[0], w.shape[0], *places))
    for filter_, *at in itertools.product(range(w.shape[0]), *map(range, places)):
        group = filter_ // outer
        channels = slice(group * inner, (group + 1) * inner)
        cut = [
            slice(i * s, i * s + e, d)
            for i, s, e, d in zip(at, strides, spread, dilations, strict=True)
        ]
        part = x[:, channels][(slice(None), slice(None), *cut)]
        place: tuple[Any, ...] = (slice(None), filter_, *at)
        y[place] = (part * w[filter_]).reshape(len(x), -1).sum(1)
    return y


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    ("spatial", "window", "strides", "dilations", "padding"),
    [
        ((9,), (3,), (2,), (2,), ((2, 1),)),
        ((6, 7), (3, 2), (1, 2), (1, 3), ((0, 1), (2, 0))),
        ((4, 5, 3), (2, 3, 2), (2, 1, 1), (1, 1, 1), ((1, 0), (0, 0), (1, 1))),
    ],
    ids=str,
)
def test_conv_sums_what_each_window_holds(
    spatial: tuple[int, ...],
    window: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    groups: int,
) -> None:
    x, w = RNG.normal(size=(2, 4, *spatial)), RNG.normal(size=(8, 4 // groups, *window))
    attrs = {"strides": strides, "dilations": dilations, "padding": padding, "groups": groups}
    exact = by_hand(x, w, strides, dilations, padding, groups)
    np.testing.assert_allclose(ops.conv(x, w, **attrs), exact, atol=1e-12)


def test_large_images_are_cut_into_rows_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusewire.ops.convolution._CHUNK", 100)
    x, w = RNG.normal(size=(3, 1, 40, 30)), RNG.normal(size=(1, 1, 3, 3))
    exact = np.stack([scipy.signal.correlate2d(plane[0], w[0, 0], "valid") for plane in x])
    np.testing.assert_allclose(ops.conv(x, w)[:, 0], exact, atol=1e-12)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [(0, 0), (1, 2), (3, 0)])
def test_conv_transpose_undoes_the_shape_and_is_the_adjoint(
    stride: int, padding: tuple[int, int]
) -> None:
    w = RNG.normal(size=(4, 3, 4))
    x = RNG.normal(size=(1, 3, 13))
    attrs = {"strides": (stride,), "padding": (padding,)}
    y = ops.conv(x, w, **attrs)
    z = RNG.normal(size=y.shape)
    lost = (13 + sum(padding) - 4) % stride
    back = ops.conv_transpose(z, w, output_padding=(lost,), **attrs)
    assert back.shape == x.shape
    np.testing.assert_allclose(np.sum(y * z), np.sum(x * back))


def test_fold_is_the_adjoint_of_unfold() -> None:
    attrs = {"window": (2, 3), "strides": (2, 1), "padding": ((1, 0), (0, 2)), "dilations": (1, 2)}
    x = RNG.normal(size=(2, 3, 6, 7))
    columns = ops.unfold(x, **attrs)
    other = RNG.normal(size=columns.shape)
    back = ops.fold(other, spatial=(6, 7), **attrs)
    np.testing.assert_allclose(np.sum(columns * other), np.sum(x * back))


def test_deformable_conv_without_moves_is_conv() -> None:
    x, w = RNG.normal(size=(2, 4, 6, 5)), RNG.normal(size=(6, 2, 3, 2))
    attrs = {"strides": (2, 1), "padding": ((1, 0), (1, 1)), "groups": 2}
    plain = ops.conv(x, w, **attrs)
    still = np.zeros((2, 24, *plain.shape[2:]))
    found = ops.deformable_conv(x, w, still, offset_groups=2, **attrs)
    np.testing.assert_allclose(found, plain, atol=1e-12)


def test_deformable_conv_reads_where_the_offsets_point() -> None:
    x, w = RNG.normal(size=(2, 4, 6, 5)), RNG.normal(size=(6, 2, 3, 2))
    attrs = {"strides": (2, 1), "groups": 2}
    moved = np.concatenate([x[..., 1:], np.zeros((2, 4, 6, 1))], axis=3)
    places = ops.conv(x, w, **attrs).shape[2:]
    right = np.zeros((2, 2, 6, 2, *places))
    right[:, :, :, 1] = 1.0
    found = ops.deformable_conv(x, w, right.reshape(2, 24, *places), offset_groups=2, **attrs)
    np.testing.assert_allclose(found, ops.conv(moved, w, **attrs), atol=1e-12)


def test_a_window_that_does_not_fit_is_refused() -> None:
    with pytest.raises(TypeRuleError, match="does not fit"):
        ops.conv(np.ones((1, 1, 3)), np.ones((1, 1, 5)))
