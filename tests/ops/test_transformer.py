"""Attention and rotary embedding against onnx's reference."""

from typing import Any

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import float32
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.interpret import interpret
from fusewire.ops.table import verify
from fusewire.ops.transformer import attention
from tests.ops.onnx_oracle import run_onnx

RNG = np.random.default_rng(5)


def make(*shape: int) -> Array:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


Q, K, V = make(2, 4, 5, 8), make(2, 2, 7, 8), make(2, 2, 7, 6)
SEEN = RNG.random((2, 1, 5, 7)) > 0.3
SEEN[0, 0, 2] = False
WINDOW = {"left_window_size": 2, "right_window_size": 1}


@pytest.mark.parametrize(
    ("mask", "ours", "theirs"),
    [
        (None, {}, {}),
        (SEEN, {}, {}),
        (make(5, 7), {"scale": 0.2}, {"scale": 0.2}),
        (None, {"causal": True}, {"is_causal": 1}),
        (SEEN, {"causal": True, "softcap": 1.5}, {"is_causal": 1, "softcap": 1.5}),
        (make(2, 4, 5, 7), {"left": 2, "right": 1}, WINDOW),
    ],
)
def test_attention_with_shared_heads_is_that_of_onnx(
    mask: Array | None, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    want = run_onnx("Attention", Q, K, V, mask, opset=25, **theirs)
    np.testing.assert_allclose(ops.attention(Q, K, V, mask, **ours), want, rtol=1e-5, atol=1e-6)


def test_a_cache_of_symbolic_length_moves_the_causal_frontier() -> None:
    past, new = symbol("past"), symbol("new")
    types = [(2, 4, new, 8), (2, 2, past + new, 8), (2, 2, past + new, 6)]
    # Lone dims bind the symbols; the rest of the cache's shape follows.
    cache = Value(TensorType(float32, (past,)), "cache")
    values = [Value(TensorType(float32, t), n) for t, n in zip(types, "qkv", strict=True)]
    y = attention(*values, causal=True, offset=past)
    graph = Graph([cache, *values], [y], output_names=["y"])
    verify(graph)
    keys, old = np.concatenate([make(2, 2, 3, 8), K[:, :, :5]], 2), make(2, 2, 3, 6)
    content = np.concatenate([old, V[:, :, :5]], 2)
    (got,) = interpret(graph, [np.zeros(3, np.float32), Q, keys, content])
    past_inputs = (keys[:, :, :3], content[:, :, :3])
    inputs = (Q, keys[:, :, 3:], content[:, :, 3:], None, *past_inputs)
    want = run_onnx("Attention", *inputs, outputs=3, opset=23, is_causal=1)
    np.testing.assert_allclose(got, want[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("turned", [8, 4])
def test_rotary_is_that_of_onnx(interleaved: bool, turned: int) -> None:
    x, cos, sin = make(2, 3, 5, 8), make(10, turned // 2), make(10, turned // 2)
    places = RNG.integers(0, 10, (2, 5))
    attrs = {"interleaved": int(interleaved), "rotary_embedding_dim": turned % 8}
    want = run_onnx("RotaryEmbedding", x, cos, sin, places, opset=23, **attrs)
    got = ops.rotary(x, cos[places][:, None], sin[places][:, None], interleaved=interleaved)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
