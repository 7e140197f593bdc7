"""Recurrent layers against onnx's reference, and lengths against running each sequence alone."""

from typing import Any

import numpy as np
import pytest

from fusewire import ops
from fusewire.ir.graph import Array
from tests.ops.onnx_oracle import run_onnx

TIME, BATCH, SIZE, HIDDEN = 5, 3, 4, 2
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
RNG = np.random.default_rng(3)


def make(*shape: int) -> Array:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def weights(gates: int, directions: int) -> list[Array]:
    rows = gates * HIDDEN
    return [
        make(directions, rows, SIZE),
        make(directions, rows, HIDDEN),
        make(directions, 2 * rows),
    ]


def require_close(got: Any, want: Any) -> None:
    for found, wanted in zip(got, want, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_lstm_has_the_gates_states_and_peepholes_of_onnx(direction: str) -> None:
    directions = DIRECTIONS[direction]
    x, (w, r, bias) = make(TIME, BATCH, SIZE), weights(4, directions)
    h0, c0 = make(directions, BATCH, HIDDEN), make(directions, BATCH, HIDDEN)
    inputs = [x, w, r, bias, None, h0, c0, make(directions, 3 * HIDDEN)]
    attrs: dict[str, Any] = {"hidden_size": HIDDEN, "direction": direction}
    want = run_onnx("LSTM", *inputs, outputs=3, **attrs)
    require_close(ops.lstm(*inputs, direction=direction), want)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("linear", [False, True])
def test_gru_resets_before_or_after_the_product_as_onnx(direction: str, linear: bool) -> None:
    directions = DIRECTIONS[direction]
    x, (w, r, bias) = make(TIME, BATCH, SIZE), weights(3, directions)
    h0 = make(directions, BATCH, HIDDEN)
    attrs: dict[str, Any] = {"hidden_size": HIDDEN, "direction": direction}
    for given in (bias, None):
        inputs = [x, w, r, given, None, h0]
        want = run_onnx("GRU", *inputs, outputs=2, **attrs, linear_before_reset=int(linear))
        got = ops.gru(*inputs, direction=direction, linear_before_reset=linear)
        require_close(got, want)


def test_rnn_is_the_recurrence_of_onnx() -> None:
    x, (w, r, bias) = make(TIME, BATCH, SIZE), weights(1, 1)
    inputs = [x, w, r, bias, None, make(1, BATCH, HIDDEN)]
    require_close(ops.rnn(*inputs), run_onnx("RNN", *inputs, outputs=2, hidden_size=HIDDEN))


@pytest.mark.parametrize(("name", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_shorter_sequence_is_run_as_if_it_were_alone(
    name: str, gates: int, direction: str
) -> None:
    op = getattr(ops, name)
    directions = DIRECTIONS[direction]
    x, layer = make(TIME, BATCH, SIZE), weights(gates, directions)
    first = [make(directions, BATCH, HIDDEN) for _ in range(2 if name == "lstm" else 1)]
    lengths = np.array([TIME, 2, 3], np.int32)
    y, *last = op(x, *layer, lengths, *first, direction=direction)
    for place, length in enumerate(lengths):
        one = np.s_[:, place : place + 1]
        states = [state[one] for state in first]
        alone, *ends = op(x[:length][one], *layer, None, *states, direction=direction)
        require_close([y[:length, :, place : place + 1]], [alone])
        require_close([state[one] for state in last], ends)
        assert not y[length:, :, place].any()


def test_clip_limits_what_activations_are_given() -> None:
    x, (w, r, bias) = 100 * make(TIME, BATCH, SIZE), weights(4, 1)
    y, _, c = ops.lstm(x, w, r, bias, clip=0.5)
    gate = 1 / (1 + np.exp(-0.5))
    assert np.abs(y).max() <= gate * np.tanh(0.5) + 1e-6
    # Each step adds at most gate * tanh(0.5), and keeps at most gate of the cell.
    assert np.abs(c).max() <= gate * np.tanh(0.5) / (1 - gate)


def test_activations_may_differ_by_direction_and_have_numbers() -> None:
    x, (w, r, _) = make(TIME, BATCH, SIZE), weights(1, 2)
    kinds = (("affine", 0.5, 0.1), ("leaky_relu", 0.2))
    y, _ = ops.rnn(x, w, r, direction="bidirectional", activations=kinds)
    h = np.zeros((BATCH, HIDDEN), np.float32)
    for step in range(TIME):
        h = 0.5 * (x[step] @ w[0].T + h @ r[0].T) + 0.1
        np.testing.assert_allclose(y[step, 0], h, rtol=1e-5, atol=1e-6)
    h = np.zeros((BATCH, HIDDEN), np.float32)
    for step in reversed(range(TIME)):
        z = x[step] @ w[1].T + h @ r[1].T
        h = np.where(z < 0, 0.2 * z, z)
        np.testing.assert_allclose(y[step, 1], h, rtol=1e-5, atol=1e-6)
