"""Ops that exporters spell out become ops again, in every spelling, and only where it is right."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusewire.ir.builder import constant
from fusewire.ir.dims import Symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType, concrete_shape
from fusewire.numerics.oracle import Oracle
from fusewire.ops import activation as a
from fusewire.ops import elementwise as e
from fusewire.ops.channels import instance_norm
from fusewire.ops.contraction import matmul
from fusewire.ops.conversion import cast
from fusewire.ops.elementwise import clip
from fusewire.ops.interpret import interpret
from fusewire.ops.logic import isnan, where
from fusewire.ops.movement import broadcast_to, concat, reshape, transpose
from fusewire.ops.normalization import layer_norm, softmax
from fusewire.ops.reduction import reduce_max, reduce_sum
from fusewire.ops.slicing import slice_axis, split
from fusewire.ops.statistics import reduce_mean
from fusewire.ops.transformer import attention
from fusewire.rewrite.engine import simplify
from fusewire.rewrite.pipeline import RULES, run_pipeline
from fusewire.rewrite.rule import on
from fusewire.rewrite.rules.raise_activation import SHARED

N = Symbol("n")


def raised(graph: Graph) -> list[str]:
    return [node.op for node in run_pipeline(graph).graph.nodes]


def check(graph: Graph, size: int = 3) -> None:
    """Compare what a graph computes before and after, on ordinary numbers."""
    rng = np.random.default_rng(7)
    inputs = []
    for value in graph.inputs:
        assert isinstance(value.type, TensorType)
        shape = concrete_shape(value.type, {N: size})
        drawn = rng.normal(size=shape) if value.type.dtype.is_float else rng.integers(0, 2, shape)
        inputs.append(drawn.astype(value.type.dtype.numpy))
    verdict = Oracle(graph, inputs).judge(interpret(run_pipeline(graph).graph, inputs))
    assert verdict.status == "right", verdict.reason


def _erf(x: Value) -> Value:
    return e.erf(e.divide(x, math.sqrt(2)))


def _cube(x: Value) -> Value:
    return e.multiply(e.power(x, 3.0), 0.044715)


def _tanh(inner: Value) -> Value:
    return e.add(e.tanh(e.multiply(inner, math.sqrt(2 / math.pi))), 1.0)


def _centred(x: Value) -> Value:
    return e.subtract(x, reduce_mean(x, axes=(-1,), keepdims=True))


def _variance(centred: Value, epsilon: float = 1e-5) -> Value:
    return e.add(reduce_mean(e.multiply(centred, centred), axes=(2,), keepdims=True), epsilon)


def _grown(x: Value) -> Value:
    return e.exp(e.subtract(x, reduce_max(x, axes=(1,), keepdims=True)))


SPELLINGS: dict[str, tuple[str, Callable[[Value], Value]]] = {
    "gelu, half last": ("gelu", lambda x: e.multiply(e.multiply(x, e.add(_erf(x), 1.0)), 0.5)),
    "gelu, half inside": ("gelu", lambda x: e.multiply(x, e.multiply(e.add(_erf(x), 1.0), 0.5))),
    "gelu, half first": ("gelu", lambda x: e.multiply(e.multiply(0.5, x), e.add(1.0, _erf(x)))),
    "gelu, halved": ("gelu", lambda x: e.divide(e.multiply(x, e.add(_erf(x), 1.0)), 2.0)),
    "gelu, two halves": (
        "gelu",
        lambda x: e.multiply(x, e.add(e.multiply(_erf(x), 0.5), 0.5)),
    ),
    "gelu by tanh, power": (
        "gelu",
        lambda x: e.multiply(e.multiply(x, 0.5), _tanh(e.add(x, _cube(x)))),
    ),
    "gelu by tanh, products": (
        "gelu",
        lambda x: e.multiply(
            x,
            e.multiply(_tanh(e.add(x, e.multiply(x, e.multiply(x, e.multiply(x, 0.044715))))), 0.5),
        ),
    ),
    "gelu by tanh, x outside": (
        "gelu",
        lambda x: e.multiply(
            e.multiply(x, _tanh(e.multiply(x, e.add(e.multiply(e.square(x), 0.044715), 1.0)))),
            0.5,
        ),
    ),
    "silu": ("silu", lambda x: e.multiply(x, a.sigmoid(x))),
    "quick gelu": ("quick_gelu", lambda x: e.multiply(x, a.sigmoid(e.multiply(1.702, x)))),
    "swish": ("swish", lambda x: e.multiply(a.sigmoid(e.multiply(x, 0.5)), x)),
    "hard sigmoid": (
        "hard_sigmoid",
        lambda x: clip(e.add(e.multiply(x, 0.2), 0.5), 0.0, 1.0),
    ),
    "hard sigmoid, sixth": (
        "hard_sigmoid",
        lambda x: e.divide(e.minimum(a.relu(e.add(x, 3.0)), 6.0), 6.0),
    ),
    "hard swish, sixth last": (
        "hard_swish",
        lambda x: e.divide(e.multiply(x, clip(e.add(x, 3.0), 0.0, 6.0)), 6.0),
    ),
    "hard swish, sixth inside": (
        "hard_swish",
        lambda x: e.multiply(x, e.multiply(a.relu6(e.add(x, 3.0)), 1 / 6)),
    ),
    "hard swish, whole": (
        "hard_swish",
        lambda x: e.multiply(x, a.hard_sigmoid(x, alpha=1 / 6, beta=0.5)),
    ),
    "softmax": (
        "softmax",
        lambda x: e.divide(_grown(x), reduce_sum(_grown(x), axes=(1,), keepdims=True)),
    ),
    "layer norm, divided": (
        "layer_norm",
        lambda x: e.divide(_centred(x), e.sqrt(_variance(_centred(x)))),
    ),
    "layer norm, reciprocal": (
        "layer_norm",
        lambda x: e.multiply(e.reciprocal(e.sqrt(_variance(_centred(x)))), _centred(x)),
    ),
    "layer norm, rsqrt": (
        "layer_norm",
        lambda x: e.multiply(_centred(x), e.rsqrt(_variance(_centred(x)))),
    ),
    "layer norm, power": (
        "layer_norm",
        lambda x: e.divide(_centred(x), e.power(_variance(_centred(x)), 0.5)),
    ),
    "rms norm": ("rms_norm", lambda x: e.divide(x, e.sqrt(_variance(x)))),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling_becomes_one_op(name: str) -> None:
    wanted, build = SPELLINGS[name]
    graph = on(build, "float32[n, 5, 6]")()
    assert raised(graph) == [wanted]
    check(graph)


def test_approximate_gelu_stays_approximate() -> None:
    exact, rough = (
        run_pipeline(on(SPELLINGS[name][1], "float32[n]")()).graph.nodes[0].attrs["approximate"]
        for name in ("gelu, half last", "gelu by tanh, power")
    )
    assert (exact, rough) == (False, True)


@pytest.mark.parametrize("name", SPELLINGS)
def test_nothing_is_raised_over_a_result_that_is_given_out(name: str) -> None:
    wanted, build = SPELLINGS[name]
    graph = on(build, "float32[n, 5, 6]")()
    for node in graph.nodes[:-1]:
        outputs = [*graph.outputs, node.outputs[0]]
        found = run_pipeline(Graph(graph.inputs, outputs, output_names=["first", "second"])).graph
        assert found.outputs[0].node is not None
        assert found.outputs[0].node.op != wanted, node


def test_refusal_says_what_is_shared() -> None:
    def build(x: Value) -> tuple[Value, Value]:
        step = a.sigmoid(x)
        return e.multiply(x, step), step

    done = simplify(on(build, "float32[n]")(), RULES)
    assert [(r.rule, r.reason) for r in done.report.refused] == [("raise-silu", SHARED)]


@pytest.mark.parametrize(
    "build",
    [
        # Epsilon beside the root, no epsilon, and a mean over other axes than the last.
        lambda x: e.divide(
            _centred(x),
            e.add(e.sqrt(reduce_mean(e.square(_centred(x)), axes=(2,), keepdims=True)), 1e-5),
        ),
        lambda x: e.divide(
            _centred(x),
            e.sqrt(reduce_mean(e.square(_centred(x)), axes=(2,), keepdims=True)),
        ),
        lambda x: e.divide(
            x,
            e.sqrt(e.add(reduce_mean(e.square(x), axes=(1,), keepdims=True), 1e-5)),
        ),
        # The root of a mean, but not of squares of the same.
        *(
            lambda x, power=power: e.divide(
                x, e.sqrt(e.add(reduce_mean(power(x), axes=(2,), keepdims=True), 1e-5))
            )
            for power in (
                e.abs_,
                lambda x: e.power(x, 3.0),
                lambda x: e.multiply(x, e.abs_(x)),
                lambda x: e.multiply(x, 2.0),
                lambda x: e.power(x, x),
            )
        ),
        # The exponentials may overflow, which those of softmax do not.
        lambda x: e.divide(e.exp(x), reduce_sum(e.exp(x), axes=(1,), keepdims=True)),
        # Not the numbers that the ops have.
        lambda x: e.multiply(e.multiply(x, 0.5), e.add(e.erf(e.divide(x, 1.4)), 1.0)),
        lambda x: e.divide(e.multiply(x, clip(e.add(x, 3.0), 0.0, 6.0)), 5.0),
        lambda x: e.multiply(x, a.sigmoid(e.add(x, 1.0))),
    ],
)
def test_what_only_looks_like_it_stays(build: Callable[[Value], Value]) -> None:
    known = {wanted for wanted, _ in SPELLINGS.values()}
    assert not known & {*raised(on(build, "float32[n, 5, 6]")())}


def test_statistics_of_sixteen_bits_stay() -> None:
    _, build = SPELLINGS["layer norm, divided"]
    assert "layer_norm" not in raised(on(build, "float16[n, 5, 6]")())


# Scale and bias


def _weights(*shape: int) -> Value:
    rng = np.random.default_rng(1)
    return constant(rng.normal(size=shape).astype(np.float32))


def test_scale_and_bias_go_into_the_norm() -> None:
    def build(x: Value) -> Value:
        plain = e.divide(_centred(x), e.sqrt(_variance(_centred(x))))
        return e.add(e.multiply(_weights(1, 1, 6), plain), _weights(6))

    graph = on(build, "float32[n, 5, 6]")()
    (node,) = run_pipeline(graph).graph.nodes
    assert (node.op, len(node.operands)) == ("layer_norm", 3)
    check(graph)


def test_scale_of_channels_makes_it_an_instance_norm() -> None:
    def build(x: Value) -> Value:
        scaled = e.multiply(layer_norm(x, axis=2), _weights(5, 1, 1))
        return e.add(scaled, _weights(1, 5, 1, 1))

    graph = on(build, "float32[n, 5, 6, 2]")()
    (node,) = run_pipeline(graph).graph.nodes
    assert (node.op, len(node.operands)) == ("instance_norm", 3)
    check(graph)


def test_gate_of_another_shape_stays_outside() -> None:
    graph = on(lambda x, y: e.multiply(layer_norm(x), y), "float32[n, 6]", "float32[n, 6]")()
    assert raised(graph) == ["layer_norm", "multiply"]


def test_group_norm_by_instance_norm() -> None:
    def build(x: Value) -> Value:
        ones, zeros = constant(np.ones(2, np.float32)), constant(np.zeros(2, np.float32))
        rows = instance_norm(reshape(x, shape=(x.tensor.shape[0], 2, 18)), ones, zeros)
        plain = reshape(rows, shape=x.tensor.shape)
        return e.add(e.multiply(plain, _weights(4, 1, 1)), _weights(4, 1, 1))

    graph = on(build, "float32[n, 4, 3, 3]")()
    (node,) = run_pipeline(graph).graph.nodes
    assert (node.op, node.attrs["groups"], len(node.operands)) == ("group_norm", 2, 3)
    check(graph)


# Attention

QKV = ("float32[n, 5, 2, 4]", "float32[n, 7, 2, 4]", "float32[n, 7, 2, 4]")
HEADS, TURNED = (0, 2, 1, 3), (0, 2, 3, 1)


def _scores(q: Value, k: Value, scale: Any = None) -> Value:
    q = transpose(q if scale is None else e.multiply(q, scale), perm=HEADS)
    k = transpose(k if scale is None else e.multiply(k, scale), perm=TURNED)
    return matmul(q, k)


def _average(weights: Value, v: Value) -> Value:
    return transpose(matmul(weights, transpose(v, perm=HEADS)), perm=HEADS)


def _visible(mask: Value) -> Value:
    seen = cast(reshape(mask, shape=(mask.tensor.shape[0], 1, 1, 7)), dtype="float32")
    return e.multiply(e.subtract(constant(np.float32(1)), seen), -1e4)


@pytest.mark.parametrize(
    ("scores", "scale"),
    [
        (lambda q, k: e.divide(_scores(q, k), 2.0), 0.5),
        (lambda q, k: e.multiply(0.3, _scores(q, k)), 0.3),
        (lambda q, k: _scores(q, k), 1.0),
        (lambda q, k: _scores(q, k, 0.5), 0.25),
        (
            lambda q, k: matmul(
                e.add(e.multiply(transpose(q, perm=HEADS), 0.5), 0.0),
                e.multiply(transpose(k, perm=TURNED), 0.5),
            ),
            0.25,
        ),
    ],
)
def test_attention_is_found_however_it_is_scaled(scores: Any, scale: float) -> None:
    graph = on(lambda q, k, v: _average(softmax(scores(q, k)), v), *QKV)()
    (node,) = [n for n in run_pipeline(graph).graph.nodes if n.op == "attention"]
    assert node.attrs["scale"] == pytest.approx(scale)
    assert {n.op for n in run_pipeline(graph).graph.nodes} == {"attention", "transpose"}
    check(graph)


def test_mask_that_is_finite_is_added_by_attention() -> None:
    def build(q: Value, k: Value, v: Value, mask: Value) -> Value:
        return _average(softmax(e.add(e.divide(_scores(q, k), 2.0), _visible(mask))), v)

    graph = on(build, *QKV, "int8[n, 7]")()
    (node,) = [n for n in run_pipeline(graph).graph.nodes if n.op == "attention"]
    assert node.inputs[3] is not None
    check(graph)


def test_mask_that_may_hide_every_key_needs_a_guard() -> None:
    def build(q: Value, k: Value, v: Value, mask: Value) -> Value:
        seen = reshape(mask, shape=(mask.tensor.shape[0], 1, 1, 7))
        hidden = where(seen, np.float32(0), np.float32(-math.inf))
        return _average(softmax(e.add(_scores(q, k), hidden)), v)

    def guarded(q: Value, k: Value, v: Value, mask: Value) -> Value:
        hidden = reshape(mask, shape=(mask.tensor.shape[0], 1, 1, 7))
        scores = _scores(q, k)
        shown = broadcast_to(hidden, shape=scores.tensor.shape)
        weights = softmax(where(shown, scores, -math.inf))
        return _average(where(isnan(weights), 0.0, weights), v)

    graph = on(build, *QKV, "bool[n, 7]")()
    done = run_pipeline(graph)
    assert "attention" not in {n.op for n in done.graph.nodes}
    assert any("NaN" in r.reason for r in done.report.refused if r.rule == "raise-attention")
    safe = on(guarded, *QKV, "bool[n, 7]")()
    assert "attention" in raised(safe)
    check(safe)


def test_softmax_over_another_axis_is_no_attention() -> None:
    graph = on(lambda q, k, v: _average(softmax(_scores(q, k), axis=2), v), *QKV)()
    assert "attention" not in raised(graph)


# Rotary


def _rotated(x: Value, angles: Value, *, doubled: bool = True, by_split: bool = False) -> Value:
    whole = concat(angles, angles if doubled else e.negative(angles), axis=-1)
    whole = reshape(whole, shape=(1, *whole.tensor.shape))
    if by_split:
        low, high = split(x, axis=-1, sizes=(2, 2))
    else:
        low, high = slice_axis(x, 2, slice(0, 2)), slice_axis(x, 2, slice(2, None))
    turned = concat(e.negative(high), low, axis=-1)
    return e.add(e.multiply(turned, e.sin(whole)), e.multiply(e.cos(whole), x))


@pytest.mark.parametrize("by_split", [False, True])
def test_rotary_is_found(by_split: bool) -> None:
    graph = on(
        lambda x, angles: _rotated(x, angles, by_split=by_split),
        "float32[2, n, 4]",
        "float32[n, 2]",
    )()
    assert "rotary" in raised(graph)
    check(graph)


def test_angles_that_differ_between_halves_are_no_rotary() -> None:
    graph = on(
        lambda x, angles: _rotated(x, angles, doubled=False), "float32[2, n, 4]", "float32[n, 2]"
    )()
    done = run_pipeline(graph)
    assert "rotary" not in {n.op for n in done.graph.nodes}
    assert any("halves" in r.reason for r in done.report.refused)


# Time


def test_looking_for_patterns_takes_linear_time() -> None:
    def chain(count: int) -> float:
        x = y = Value(_weights(3).type, "x")
        for _ in range(count):
            y = e.multiply(y, x)
        graph = Graph([x], [y], output_names=["y"])
        start = time.perf_counter()
        simplify(graph, RULES)
        return time.perf_counter() - start

    chain(200)
    short, long = chain(1_000), chain(4_000)
    assert long < 12 * short


def _repeated(x: Value, groups: int) -> Value:
    batch, heads, positions, width = x.tensor.shape
    apart = reshape(x, shape=(batch, heads, 1, positions, width))
    each = broadcast_to(apart, shape=(batch, heads, groups, positions, width))
    return reshape(each, shape=(batch, heads * groups, positions, width))


SHARED_HEADS = ("float32[n, 6, 3, 4]", "float32[n, 2, 5, 4]", "float32[n, 2, 5, 6]", "bool[3, 5]")


def test_repeated_heads_are_shared() -> None:
    graph = on(
        lambda q, k, v, mask: attention(q, _repeated(k, 3), _repeated(v, 3), mask, scale=0.3),
        *SHARED_HEADS,
    )()
    assert raised(graph) == ["attention"]
    check(graph)


@pytest.mark.parametrize("is_turned", [False, True])
def test_heads_that_are_repeated_otherwise_stay(is_turned: bool) -> None:
    """The values are tiled: query head 1 reads head 1, not head 0; or only the keys are shared."""

    def tiled(x: Value) -> Value:
        return concat(x, x, x, axis=1)

    graph = on(
        lambda q, k, v, mask: attention(
            q, tiled(k) if is_turned else _repeated(k, 3), tiled(v), mask
        ),
        *SHARED_HEADS,
    )()
    assert "concat" in raised(graph)
    check(graph)
