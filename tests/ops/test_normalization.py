"""Normalization, activations and losses against onnx's reference, and at their edges."""

from typing import Any

import numpy as np
import pytest

from fusewire import ops
from fusewire.ir.graph import Array
from tests.ops.onnx_oracle import run_onnx

RNG = np.random.default_rng(9)


def make(*shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    return RNG.uniform(low, high, shape).astype(np.float32)


def require_close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


X = make(6, 6, 4, 5)
SCALE, BIAS, MEAN, VARIANCE = make(6), make(6), make(6), make(6, low=0.2)


@pytest.mark.parametrize(
    ("got", "op", "inputs", "attrs"),
    [
        (ops.softmax(X, axis=1), "Softmax", [X], {"axis": 1}),
        (ops.log_softmax(X, axis=2), "LogSoftmax", [X], {"axis": 2}),
        (ops.hardmax(X, axis=1), "Hardmax", [X], {"axis": 1}),
        (ops.layer_norm(X, X[0, 0], axis=2), "LayerNormalization", [X, X[0, 0]], {"axis": 2}),
        (ops.rms_norm(X, BIAS[:5]), "RMSNormalization", [X, BIAS[:5]], {}),
        (
            ops.group_norm(X, SCALE, BIAS, groups=3),
            "GroupNormalization",
            [X, SCALE, BIAS],
            {"num_groups": 3},
        ),
        (ops.instance_norm(X, SCALE, BIAS), "InstanceNormalization", [X, SCALE, BIAS], {}),
        (
            ops.batch_norm(X, SCALE, BIAS, MEAN, VARIANCE),
            "BatchNormalization",
            [X, SCALE, BIAS, MEAN, VARIANCE],
            {},
        ),
        (ops.mean_variance_norm(X), "MeanVarianceNormalization", [X], {}),
        (ops.lp_normalize(X, axis=1), "LpNormalization", [X], {"axis": 1, "p": 2}),
        (
            ops.local_response_norm(X, window=4, alpha=0.2, beta=0.6, bias=1.5),
            "LRN",
            [X],
            {"size": 4, "alpha": 0.2, "beta": 0.6, "bias": 1.5},
        ),
        (ops.gelu(X), "Gelu", [X], {}),
        (ops.gelu(X, approximate=True), "Gelu", [X], {"approximate": "tanh"}),
        (ops.elu(X, alpha=0.7), "Elu", [X], {"alpha": 0.7}),
        (ops.celu(X, alpha=0.7), "Celu", [X], {"alpha": 0.7}),
        (ops.selu(X), "Selu", [X], {}),
        (ops.mish(X), "Mish", [X], {}),
        (ops.softplus(X), "Softplus", [X], {}),
        (ops.hard_swish(X), "HardSwish", [X], {}),
        (ops.thresholded_relu(X), "ThresholdedRelu", [X], {}),
        (ops.shrink(X, limit=0.4, bias=0.3), "Shrink", [X], {"lambd": 0.4, "bias": 0.3}),
    ],
)
def test_it_is_what_onnx_says(
    got: Array, op: str, inputs: list[Array], attrs: dict[str, Any]
) -> None:
    require_close(got, run_onnx(op, *inputs, opset=23, **attrs))


def test_batch_norm_in_training_gives_its_statistics() -> None:
    y, mean, variance = ops.batch_norm_training(X, SCALE, BIAS)
    require_close(mean, X.mean((0, 2, 3)))
    require_close(variance, X.var((0, 2, 3)))
    require_close(y, ops.batch_norm(X, SCALE, BIAS, mean, variance))


def test_nothing_normalized_to_length_one_is_nothing() -> None:
    assert not ops.lp_normalize(np.zeros((2, 3), np.float32)).any()


def test_half_precision_does_not_overflow_inside_a_norm() -> None:
    x = np.full((1, 8), 3e4, np.float16)
    x[0, :4] = 1e4
    assert np.isfinite(ops.layer_norm(x)).all()
    assert np.isfinite(ops.rms_norm(x)).all()


LABELS = RNG.integers(0, 6, (6, 4, 5))
WEIGHTS = make(6, low=0.1)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("ignored", [None, 2, -9])
def test_losses_weigh_and_ignore_as_onnx(
    reduction: str, weights: Array | None, ignored: int | None
) -> None:
    labels = np.where(LABELS == 3, -9, LABELS) if ignored == -9 else LABELS
    attrs: dict[str, Any] = {} if ignored is None else {"ignore_index": ignored}
    attrs["reduction"] = reduction
    inputs = [X, labels, weights]
    want = run_onnx("NegativeLogLikelihoodLoss", *inputs, **attrs)
    require_close(ops.nll_loss(*inputs, **attrs), want)
    want = run_onnx("SoftmaxCrossEntropyLoss", *inputs, **attrs)
    require_close(ops.cross_entropy(*inputs, **attrs), want)


def test_an_ignored_label_costs_nothing_however_wrong() -> None:
    x = np.array([[0.0, -np.inf], [0.0, -1.0]], np.float32)
    labels = np.array([1, 1])
    assert ops.nll_loss(x, np.where([True, False], 9, labels), ignore_index=9) == 1.0
    assert ops.nll_loss(x, labels) == np.inf


def test_probabilities_of_zero_cost_much_and_not_everything() -> None:
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    assert ops.binary_cross_entropy(zero, one) == 100.0
    assert ops.kl_divergence(zero, zero) == 0.0
