"""Layers, random numbers and sequences of ONNX where neither the suite nor an engine has a case."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fusewire as fw
from fusewire.errors import CheckError, FormatError
from fusewire.onnx.frontend import OnnxFrontend
from tests.onnx.models import graph, model, run, single

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4, 3, 5)).astype(np.float32)
VECTORS = [RNG.standard_normal(4).astype(np.float32) for _ in range(3)]
SPREAD = np.abs(VECTORS[0]) + np.float32(0.5)


def _run(op: str, opset: int, *operands: Any, outputs: int = 1, **attrs: Any) -> list[Any]:
    source, given = single(op, opset, operands, outputs=outputs, **attrs)
    return run(source, *given)


def _column(vector: Any) -> Any:
    return vector.reshape(-1, 1, 1)


def _standard(x: Any, axes: tuple[int, ...]) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def test_batch_norm_without_spatial_has_a_number_for_each_place() -> None:
    scale, bias, mean, spread = (np.abs(v).astype(np.float32) for v in (X[0], X[1], -X[0], X[1]))
    (found,) = _run("BatchNormalization", 6, X, scale, bias, mean, spread, spatial=0, is_test=1)
    wanted = (X - mean) / np.sqrt(spread + 1e-5) * scale + bias
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_batch_norm_before_14_trains_when_statistics_are_asked_for() -> None:
    scale, bias, mean = VECTORS
    operands = (X, scale, bias, mean, SPREAD)
    y, moved, spread, *now = _run("BatchNormalization", 9, *operands, outputs=5, momentum=0.8)
    wanted = _standard(X, (0, 2, 3)) * _column(scale) + _column(bias)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
    means, spreads = X.mean((0, 2, 3)), X.var((0, 2, 3))
    np.testing.assert_allclose(moved, mean * 0.8 + means * 0.2, rtol=1e-5)
    np.testing.assert_allclose(spread, SPREAD * 0.8 + spreads * 0.2, rtol=1e-5)
    np.testing.assert_allclose(now, [means, spreads], rtol=1e-4, atol=1e-6)


def test_group_norm_18_has_a_scale_for_each_group() -> None:
    scale, bias = VECTORS[0][:2], VECTORS[1][:2]
    (found,) = _run("GroupNormalization", 18, X, scale, bias, num_groups=2)
    wanted = _standard(X.reshape(2, 2, -1), (2,)) * scale[:, None] + bias[:, None]
    np.testing.assert_allclose(found, wanted.reshape(X.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("opset", "of"), [(7, np.float32), (10, np.bool_), (13, np.bool_)])
def test_mask_of_dropout_is_bool_from_opset_10_on(opset: int, of: Any) -> None:
    y, mask = _run("Dropout", opset, X, outputs=2)
    assert np.array_equal(y, X)
    assert mask.dtype == of
    assert mask.all()


@pytest.mark.parametrize("training", [False, True])
def test_dropout_drops_when_it_is_told_to_train(training: bool) -> None:
    x = np.ones((200, 100), np.float32)
    operands = (x, np.float32(0.25), np.array(training))
    y, mask = _run("Dropout", 13, *operands, outputs=2, seed=3)
    assert np.array_equal(y != 0, mask)
    assert mask.mean() == pytest.approx(0.75 if training else 1.0, abs=0.01)
    assert y.mean() == pytest.approx(1.0, abs=0.01)


def test_upsample_1_has_two_scales() -> None:
    (found,) = _run("Upsample", 1, X, height_scale=2.0, width_scale=3.0)
    assert np.array_equal(found, X.repeat(2, 2).repeat(3, 3))


def test_layout_of_a_recurrent_layer_puts_batches_first() -> None:
    shapes = (2, 16, 5), (2, 16, 4), (2, 32)
    weights = [RNG.standard_normal(shape).astype(np.float32) for shape in shapes]
    states = [RNG.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(2)]
    x = RNG.standard_normal((7, 3, 5)).astype(np.float32)
    attrs: dict[str, Any] = {"hidden_size": 4, "direction": "bidirectional", "outputs": 3}
    y, h, c = _run("LSTM", 14, x, *weights, None, *states, **attrs)
    swapped = [state.swapaxes(0, 1).copy() for state in states]
    batches = x.swapaxes(0, 1).copy()
    found = _run("LSTM", 14, batches, *weights, None, *swapped, layout=1, **attrs)
    wanted = y.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)
    for left, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def test_scales_of_named_sizes_stay_symbols() -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    inputs = {"x": ("float32", ["batch", 3, "height", "width"])}
    scales = np.array([1, 1, 2, 0.5], np.float32)
    found = OnnxFrontend().read(model(graph([node], inputs, ["y"], {"scales": scales}), 13))
    assert str(found.outputs[0].type) == "float32[batch, 3, 2*height, floordiv(width, 2)]"


def test_ratio_of_named_axes_is_kept_when_the_run_tells_them() -> None:
    attrs: dict[str, Any] = {"keep_aspect_ratio_policy": "not_larger", "axes": [2, 3]}
    operands = (X, None, None, np.array([7, 7]))
    source, given = single("Resize", 18, operands, constant=True, named=True, **attrs)
    (found,) = run(source, *given)
    assert found.shape == (2, 4, 4, 7)


def _drawn(*ops: str, **attrs: Any) -> list[Any]:
    nodes = [helper.make_node(op, [], [f"y{i}"], **attrs) for i, op in enumerate(ops)]
    return run(model(graph(nodes, {}, [f"y{i}" for i in range(len(ops))]), 13))


def test_random_numbers_are_the_same_in_every_program_and_differ_by_node() -> None:
    shape = [50]
    first, second = _drawn("RandomUniform", "RandomUniform", shape=shape)
    again, _ = _drawn("RandomUniform", "RandomUniform", shape=shape)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_seed_decides_what_is_drawn() -> None:
    attrs = {"shape": [4000], "mean": 2.0, "scale": 3.0}
    (one,), (same,), (other,) = (
        _drawn("RandomNormal", seed=seed, **attrs) for seed in (1.0, 1.0, 2.0)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert (one.mean(), one.std()) == pytest.approx((2.0, 3.0), abs=0.15)


def test_multinomial_draws_by_its_probabilities() -> None:
    chances = np.log(np.array([[0.1, 0.6, 0.3]], np.float32))
    (found,) = _run("Multinomial", 7, chances, sample_size=5000, dtype=TensorProto.INT64)
    assert found.dtype == np.int64
    shares = np.bincount(found[0], minlength=3) / 5000
    np.testing.assert_allclose(shares, [0.1, 0.6, 0.3], atol=0.03)


@pytest.mark.parametrize("backend", ["reference", "xla", "onnxruntime"])
def test_random_numbers_of_a_size_that_the_run_tells(backend: str) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Cast", ["places"], ["like"], to=TensorProto.FLOAT),
        helper.make_node("RandomUniformLike", ["like"], ["y"], seed=5.0),
    ]
    source = model(graph(nodes, {"x": ("float32", ["n"])}, ["y"]), 13)
    # XLA is told the size by another, and so the rest runs on it.
    program = fw.compile(source, backend=backend, fallback="allow", isolate=False)
    found = [program(np.ones(n, np.float32)) for n in (3, 7)]
    assert [y.shape for y in found] == [(1, 3), (1, 7)]
    assert np.array_equal(found[0][0], found[1][0, :3])


def _sequence_model(*nodes: onnx.NodeProto, rank: int | None = None) -> onnx.ModelProto:
    shape = None if rank is None else [None] * rank
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, shape)
    info = helper.make_value_info("s", helper.make_sequence_type_proto(tensor))
    made = [onnx.ValueInfoProto(name="y")]
    return model(helper.make_graph(list(nodes), "g", [info], made), 13)


def test_sequence_without_a_rank_takes_it_from_the_first_call() -> None:
    node = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    program = fw.compile(_sequence_model(node), backend="reference", isolate=False)
    parts = [X[0, 0], X[0, 1, :2]]
    assert np.array_equal(program(parts), np.concatenate(parts))


def _collecting(start: onnx.NodeProto | None) -> onnx.ModelProto:
    """A loop that puts rows of growing length into a sequence, and joins them."""
    inside = [
        helper.make_node("Identity", ["going"], ["on"]),
        helper.make_node("Add", ["place", "one"], ["end"]),
        helper.make_node("Reshape", ["end", "flat"], ["ends"]),
        helper.make_node("Slice", ["row", "zero", "ends"], ["part"]),
        helper.make_node("SequenceInsert", ["held", "part"], ["more"]),
    ]
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    of = helper.make_sequence_type_proto(tensor)
    body = graph(inside, {"place": ("int64", []), "going": ("bool", [])}, ["on", "more"])
    body.input.append(helper.make_value_info("held", of))
    nodes = [
        helper.make_node("Loop", ["trips", "", "s"], ["all"], body=body),
        helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=0),
    ]
    constants = {"one": 1, "flat": [1], "zero": [0], "row": X[0, 0, 0], "trips": 3}
    whole = graph(nodes if start is None else [start, *nodes], {}, ["y"], constants)
    if start is None:
        whole.input.append(helper.make_value_info("s", of))
    return model(whole, 13)


@pytest.mark.parametrize("is_empty", [True, False])
def test_loop_fills_a_sequence_that_starts_without_elements(is_empty: bool) -> None:
    start = helper.make_node("SequenceEmpty", [], ["s"]) if is_empty else None
    (found,) = run(_collecting(start), *([] if is_empty else [[]]))
    assert np.array_equal(found, X[0, 0, 0][[0, 0, 1, 0, 1, 2]])


def test_loop_refuses_elements_of_another_rank_when_it_runs() -> None:
    with pytest.raises(CheckError, match="A loop starts with elements"):
        run(_collecting(None), [np.float32(1.0)])


REFUSALS = [
    (("Resize", 13, X), {}, "either scales or sizes are needed"),
    (("Resize", 13, X, None, np.ones(4, "f4")), {"mode": "lanczos"}, "nearest, linear"),
    (("Conv", 11, X, X[:, :, :2, :2]), {"auto_pad": "SAME"}, "SAME_UPPER or SAME_LOWER"),
    (("Conv", 11, X, X[:, :, :2, :2]), {"strides": [1]}, "there are 2 spatial axes"),
    (("GroupNormalization", 18, X, VECTORS[0], VECTORS[0]), {}, "num_groups is needed"),
    (("RNN", 7, X[0], X[0], X[0]), {"activations": ["Sine"]}, "scaledtanh"),
]


@pytest.mark.parametrize(("call", "attrs", "sentence"), REFUSALS, ids=lambda part: "")
def test_refusal_says_what_would_do(call: Any, attrs: dict[str, Any], sentence: str) -> None:
    source, _ = single(call[0], call[1], call[2:], **attrs)
    with pytest.raises(FormatError, match=sentence) as caught:
        OnnxFrontend().read(source)
    assert f"({call[0]}, opset {call[1]})" in str(caught.value)
