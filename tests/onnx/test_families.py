"""Ops whose forms changed between opsets, and operands that are known in part."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import fusewire as fw
from fusewire.onnx.frontend import OnnxFrontend
from tests.onnx.models import Inputs, graph, model, run, single


def learning(op: str, opset: int, x: Any, **attrs: Any) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], ["y"], domain="ai.onnx.ml", **attrs)
    inputs: Inputs = {"x": (str(x.dtype), list(x.shape))}
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", opset)]
    return helper.make_model(graph([node], inputs, ["y"]), opset_imports=imports, ir_version=8)


X = np.array([3, 1, 7, 2], np.int64)


def test_label_encoder_of_opset_1_has_classes() -> None:
    source = learning(
        "LabelEncoder", 1, X, classes_strings=["a", "b", "c", "d"], default_string="?"
    )
    (found,) = run(source, X)
    assert found.tolist() == ["d", "b", "?", "c"]


@pytest.mark.parametrize("opset", [2, 4])
def test_label_encoder_has_keys_and_values_from_opset_2_on(opset: int) -> None:
    attrs: dict[str, Any] = {
        "keys_int64s": [1, 2, 3],
        "values_floats": [0.5, 1.5, 2.5],
        "default_float": -9.0,
    }
    (found,) = run(learning("LabelEncoder", opset, X, **attrs), X)
    np.testing.assert_array_equal(found, np.array([2.5, 0.5, -9, 1.5], np.float32))
    attrs = {"keys_int64s": [1, 2, 3, 1], "values_int64s": [10, 20, 30, 40]}
    (found,) = run(learning("LabelEncoder", opset, X, **attrs), X)
    # Of keys that are repeated the last counts, and -1 stands for those that are not there.
    np.testing.assert_array_equal(found, [30, 40, -1, 20])


def test_label_encoder_of_opset_4_takes_tensors() -> None:
    keys = helper.make_tensor("k", onnx.TensorProto.INT64, [2], [3, 7])
    values = helper.make_tensor("v", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    default = helper.make_tensor("d", onnx.TensorProto.FLOAT, [1], [5.0])
    attrs = {"keys_tensor": keys, "values_tensor": values, "default_tensor": default}
    (found,) = run(learning("LabelEncoder", 4, X, **attrs), X)
    np.testing.assert_array_equal(found, np.array([1, 5, 2, 5], np.float32))


@pytest.mark.parametrize("side", ["low", "high", "both", "none"])
def test_pads_may_come_from_a_shape_in_part(side: str) -> None:
    """Some pads follow from the size of an input, some from its values."""
    ends = {"low": ("n", "v"), "high": ("v", "n"), "both": ("n", "n"), "none": ("v", "v")}[side]
    nodes = [
        helper.make_node("Shape", ["like"], ["n"]),
        helper.make_node("Concat", list(ends), ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["y"]),
    ]
    inputs: Inputs = {"x": ("float32", [3]), "like": ("float32", ["k"]), "v": ("int64", [1])}
    source = model(graph(nodes, inputs, ["y"]), 18)
    found = OnnxFrontend().read(source).outputs[0].tensor.shape[0]
    assert str(found) == ("2*k+3" if side == "both" else str(found))
    x, like, v = np.ones(3, np.float32), np.ones(2, np.float32), np.array([1])
    (got,) = run(source, x, like, v)
    wanted = tuple({"n": 2, "v": 1}[end] for end in ends)
    np.testing.assert_array_equal(got, np.pad(x, wanted))


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_half_pixels_of_tensorflow_are_for_nearest(mode: str) -> None:
    attrs: dict[str, Any] = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "mode": mode}
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    source, inputs = single(
        "Resize", 18, [x, None, np.array([1, 1, 2], np.float32)], constant=True, **attrs
    )
    if mode == "linear":
        with pytest.raises(fw.FusewireError, match="is for mode nearest"):
            run(source, *inputs)
    else:
        (found,) = run(source, *inputs)
        np.testing.assert_array_equal(found.reshape(-1), [0, 1, 1, 2, 2, 3, 3, 3])
