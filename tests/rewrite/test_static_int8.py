"""Layers are rounded to int8 by channel, in ranges that were measured."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.dtypes import float32
from fusewire.errors import OptionsError
from fusewire.ir.builder import constant
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.interpret import Interpreter
from fusewire.process.machine import features
from fusewire.rewrite.static_int8 import (
    HALF,
    WHOLE,
    LayerRanges,
    layers,
    observed,
    parsed,
    rounding_error,
    weight_codes,
    with_static_int8,
    written,
)

RNG = np.random.default_rng(0)
# Channels of very different sizes: one scale for all of them, or for the other axis, would lose the
# small ones.
SIZES = np.float32(10.0) ** np.arange(-3, 5, dtype=np.float32)


def drawn(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def graph_of(made: Any, *shape: int) -> Graph:
    x = Value(TensorType(float32, shape), "x")
    return Graph([x], [made(x)], name="layers", output_names=["y"])


def conv_graph() -> Graph:
    w, more, bias = drawn(8, 3, 3, 3), drawn(16, 8, 3, 3), drawn(8)

    def made(x: Value) -> Any:
        y = ops.relu(ops.conv(x, constant(w), constant(bias)))
        scaled = ops.multiply(y, constant(np.float32(3)))
        return ops.reduce_mean(ops.conv(scaled, constant(more)), axes=(2, 3))

    return graph_of(made, 2, 3, 10, 10)


def measured(graph: Graph, *inputs: Any) -> tuple[str, ...]:
    """Take the ends of what was seen as ranges."""
    inner, names = observed(graph)
    sides: dict[str, dict[str, tuple[float, float]]] = {}
    for (_, places), found in zip(names, Interpreter(inner)(inputs), strict=True):
        for place in places.split():
            key, _, side = place.partition(".")
            array = np.asarray(found)
            sides.setdefault(key, {})[side] = float(array.min()), float(array.max())
    return written({key: LayerRanges(**own) for key, own in sides.items()})


def errors(graph: Graph, other: Graph, x: Any, axis: int = -1) -> Any:
    """Return the relative error of each channel."""
    right, found = (np.asarray(Interpreter(one)([x])[0]) for one in (graph, other))
    rows, apart = (np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1) for x in (right, found))
    return np.linalg.norm(apart - rows, axis=1) / np.linalg.norm(rows, axis=1)


def test_weights_of_products_have_a_scale_for_each_output() -> None:
    # Square, so that the wrong axis would fit, too.
    weights = drawn(64, 64) * np.repeat(SIZES, 8)
    x = drawn(32, 64)
    plain = graph_of(lambda x: ops.matmul(x, constant(weights)), 32, 64)
    dense = graph_of(lambda x: ops.linear(x, constant(weights.T.copy()), None), 32, 64)
    for graph in (plain, dense):
        rounded = with_static_int8(graph, measured(graph, x))
        assert errors(graph, rounded, x).max() < 0.02
        assert "dequantize" in {node.op for node in rounded.nodes}


def test_weights_of_convolutions_have_a_scale_for_each_filter() -> None:
    w = drawn(8, 3, 3, 3) * SIZES.reshape(-1, 1, 1, 1)
    bias, x = drawn(8) * SIZES, drawn(2, 3, 10, 10)
    graph = graph_of(lambda x: ops.conv(x, constant(w), constant(bias)), 2, 3, 10, 10)
    rounded = with_static_int8(graph, measured(graph, x))
    assert errors(graph, rounded, x, 1).max() < 0.02


def test_fewer_codes_of_weights_err_more() -> None:
    weights, x = drawn(256, 64), drawn(64, 256)
    graph = graph_of(lambda x: ops.matmul(x, constant(weights)), 64, 256)
    lines = measured(graph, x)
    whole, half = (
        np.linalg.norm(errors(graph, with_static_int8(graph, lines, codes=codes), x))
        for codes in (WHOLE, HALF)
    )
    assert whole < half < 3 * whole


def test_what_lies_outside_of_the_range_is_clipped() -> None:
    weights = np.eye(64, dtype=np.float32)
    graph = graph_of(lambda x: ops.matmul(x, constant(weights)), 1, 64)
    key = layers(graph)[0].key
    rounded = with_static_int8(graph, written({key: LayerRanges((-1.0, 2.0), (0.0, 0.0))}))
    x = np.linspace(-4, 4, 64, dtype=np.float32)[None]
    found = np.asarray(Interpreter(rounded)([x])[0])
    np.testing.assert_allclose(found, np.clip(x, -1, 2), atol=0.02)


def test_layers_without_a_range_stay_as_they_are() -> None:
    graph = conv_graph()
    assert len(layers(graph)) == 2
    x = drawn(2, 3, 10, 10)
    first = measured(graph, x)[:1]
    assert [node.op for node in with_static_int8(graph, first).nodes].count("quantize") == 1


def test_outputs_of_convolutions_are_rounded_after_their_activation() -> None:
    graph = conv_graph()
    x = drawn(2, 3, 10, 10)
    rounded = with_static_int8(graph, measured(graph, x), rounds_outputs=True)
    kinds = {v: node.op for node in rounded.nodes for v in node.outputs}
    rounds = [kinds.get(x.operands[0], "input") for x in rounded.nodes if x.op == "quantize"]
    assert sorted(rounds) == ["conv", "input", "multiply", "relu"]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_engines_compute_what_the_rounded_graph_says(backend: str) -> None:
    # Whole bytes saturate in the sums of engines on processors without instructions for int8.
    graph, x = conv_graph(), drawn(2, 3, 10, 10)
    lines, codes = measured(graph, x), weight_codes(features())
    rounded = with_static_int8(graph, lines, codes=codes, rounds_outputs=backend == "onnxruntime")
    right = np.asarray(Interpreter(rounded)([x])[0])
    made = fw.compile(graph, backend=backend, level=0, backend_config={"calibrated": lines})
    found = made(x)
    assert np.linalg.norm(found - right) / np.linalg.norm(right) < 3e-3
    exact = np.asarray(Interpreter(graph)([x])[0])
    assert 1e-4 < np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.1


@pytest.mark.parametrize(
    "lines",
    [
        ("nonsense",),
        ("0123456789abcdef 1 0 0 0",),
        ("0123456789abcdef 0 nan 0 1",),
        ("0123456789abcdef 0 1.2.3 0 1",),
        (3,),
        "a",
    ],
)
def test_lines_that_say_nothing_are_refused(lines: Any) -> None:
    with pytest.raises(OptionsError, match=r"^calibrated="):
        parsed(lines)


def test_ranges_survive_being_written() -> None:
    ranges = {"0123456789abcdef": LayerRanges((-1.5e-7, 3.25e9), (0.0, 0.125))}
    assert parsed(written(ranges)) == ranges


def test_steps_are_never_nothing() -> None:
    graph = graph_of(lambda x: ops.matmul(x, constant(np.eye(64, dtype=np.float32))), 1, 64)
    lines = written({layers(graph)[0].key: LayerRanges((0.0, 1e-44), (0.0, 0.0))})
    x = np.full((1, 64), 1e-44, np.float32)
    found = np.asarray(Interpreter(with_static_int8(graph, lines))([x])[0])
    assert (found == 0).all()
    assert rounding_error(np.asarray([1e-44]), (0.0, 1e-44)) < 1e-80


def test_layers_whose_weights_are_no_numbers_stay_as_they_are() -> None:
    weights = drawn(64, 64)
    weights[3, 5] = np.nan
    graph = graph_of(lambda x: ops.matmul(x, constant(weights)), 1, 64)
    lines = written({layers(graph)[0].key: LayerRanges((-1.0, 1.0), (-1.0, 1.0))})
    assert [node.op for node in with_static_int8(graph, lines).nodes] == ["matmul"]


def test_rounding_error_is_least_in_a_range_that_fits() -> None:
    values = drawn(4096).astype(np.float64)
    assert rounding_error(values, (-4, 4)) < rounding_error(values, (-40, 40))
    assert rounding_error(values, (-4, 4)) < rounding_error(values, (-1, 1))


def test_processors_without_bytes_have_half_of_the_codes() -> None:
    assert weight_codes(["avx2", "avx512f"]) == HALF
    assert weight_codes(["avx2", "avx512f", "avx512_vnni"]) == WHOLE
    assert weight_codes(["asimd"]) == WHOLE
