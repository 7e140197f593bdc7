"""Gathers, scatters and masks against onnx's reference and NumPy."""

import numpy as np
import pytest

from fusewire import ops
from tests.ops.onnx_oracle import run_onnx

RNG = np.random.default_rng(4)
X = RNG.normal(size=(4, 3, 5)).astype(np.float32)
REDUCTIONS = [("add", "add"), ("multiply", "mul"), ("max", "max"), ("min", "min")]


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_gather_nd_is_that_of_onnx(batch: int) -> None:
    indices = RNG.integers(-3, 3, (*X.shape[:batch], 6, 1))
    expected = run_onnx("GatherND", X, indices, batch_dims=batch)
    np.testing.assert_array_equal(ops.gather_nd(X, indices, batch_dims=batch), expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements_takes_fewer_than_there_are(axis: int) -> None:
    indices = RNG.integers(-X.shape[axis], X.shape[axis], (2, 2, 2))
    found = ops.gather_elements(X, indices, axis=axis)
    for place in np.ndindex(2, 2, 2):
        at = list(place)
        at[axis] = indices[place]
        assert found[place] == X[tuple(at)]


@pytest.mark.parametrize(("ours", "theirs"), REDUCTIONS, ids=str)
def test_scatters_are_those_of_onnx(ours: str, theirs: str) -> None:
    for axis in (0, 1, -1):
        indices = RNG.integers(-X.shape[axis], X.shape[axis], (2, 2, 2))
        updates = RNG.normal(size=(2, 2, 2)).astype(np.float32)
        expected = run_onnx("ScatterElements", X, indices, updates, axis=axis, reduction=theirs)
        found = ops.scatter_elements(X, indices, updates, axis=axis, reduction=ours)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    indices = np.array([[0, 1], [3, -1], [0, 1]])
    updates = RNG.normal(size=(3, 5)).astype(np.float32)
    expected = run_onnx("ScatterND", X, indices, updates, reduction=theirs)
    found = ops.scatter_nd(X, indices, updates, reduction=ours)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_one_hot_counts_negative_indices_from_the_end(axis: int) -> None:
    indices, values = np.array([[0, -3], [2, -1]]), np.array([2.0, 7.0], np.float32)
    expected = run_onnx("OneHot", indices, np.array(4), values, axis=axis)
    np.testing.assert_array_equal(ops.one_hot(indices, values, depth=4, axis=axis), expected)


def test_one_hot_of_an_index_outside_is_off_everywhere() -> None:
    found = ops.one_hot(np.array([4, -5]), np.array([0, 1], np.int32), depth=4)
    assert not found.any()


def test_masks_select_as_numpy_does() -> None:
    mask = X > 0
    np.testing.assert_array_equal(ops.boolean_mask(X, mask), X[mask])
    np.testing.assert_array_equal(ops.boolean_mask(X, mask[..., 0]), X[mask[..., 0]])
    np.testing.assert_array_equal(ops.nonzero(mask), np.stack(np.nonzero(mask)))
    assert ops.nonzero(np.array(3.0)).shape == (0, 1)
    keep = np.array([True, False, True])
    np.testing.assert_array_equal(ops.compress(X, keep, axis=1), np.compress(keep, X, 1))


def test_cache_write_wraps_only_when_circular() -> None:
    cache = np.zeros((2, 5, 1), np.float32)
    update = np.arange(1, 5, dtype=np.float32).reshape(2, 2, 1)
    starts = np.array([4, 1])
    for circular in (False, True):
        first = starts - (0 if circular else [1, 0])
        mode = "circular" if circular else "linear"
        expected = run_onnx("TensorScatter", cache, update, first, opset=24, mode=mode)
        found = ops.tensor_scatter(cache, update, first, circular=circular)
        np.testing.assert_array_equal(found, expected)


def test_update_that_starts_outside_is_moved_inside() -> None:
    x = np.zeros((4, 4), np.int32)
    found = ops.dynamic_update_slice(x, np.ones((2, 2), np.int32), np.array([3, -1]))
    assert found[2:, :2].all()
    assert found.sum() == 4


def test_diagonals_and_triangles_are_those_of_numpy() -> None:
    for offset in range(-4, 5):
        for first, second in ((0, 1), (1, 0), (-1, 0), (1, 2)):
            found = ops.diagonal(X, offset=offset, axis1=first, axis2=second)
            np.testing.assert_array_equal(found, np.diagonal(X, offset, first, second))
        np.testing.assert_array_equal(ops.tril(X, offset=offset), np.tril(X, offset))
        np.testing.assert_array_equal(ops.triu(X, offset=offset), np.triu(X, offset))
        np.testing.assert_array_equal(
            ops.eye(rows=3, columns=5, offset=offset), np.eye(3, 5, offset)
        )


@pytest.mark.parametrize("mode", ["dcr", "crd"])
def test_blocks_come_back_from_depth(mode: str) -> None:
    x = RNG.normal(size=(2, 12, 2, 3)).astype(np.float32)
    spread = ops.depth_to_space(x, block=2, mode=mode)
    expected = run_onnx("DepthToSpace", x, blocksize=2, mode=mode.upper())
    np.testing.assert_array_equal(spread, expected)
    np.testing.assert_array_equal(ops.space_to_depth(spread, block=2, mode=mode), x)
