"""Weights that are codes of 4 and 8 bits: kept packed where an engine has it, refused elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fusewire as fw
from fusewire import dtypes
from fusewire.contract.frontend import Spec
from fusewire.contract.region import first_device
from fusewire.errors import RefusedError
from fusewire.ir.builder import constant
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ops.contraction import matmul
from fusewire.ops.movement import transpose
from fusewire.ops.quantization import dequantize, quantize
from fusewire.ops.quantized import matmul_nbits
from fusewire.planning.claims import ask
from fusewire.planning.target import Target
from fusewire.registry import REGISTRY
from fusewire.rewrite.pipeline import run_pipeline

PACKING = ("onnxruntime", "openvino")


def codes_of(name: str, *shape: int) -> Array:
    low, high = (int(limit) for limit in dtypes.dtype(name).range)
    drawn = np.random.default_rng(0).integers(low, high + 1, shape)
    return drawn.astype(dtypes.dtype(name).numpy)


def scales_of(*shape: int) -> Array:
    return np.random.default_rng(1).uniform(0.01, 0.1, shape).astype(np.float32)


def product(name: str, inputs: int, block: int, *, zero: bool) -> Graph:
    blocks = -(-inputs // block)
    x = Value(Spec(("n", inputs), "float32").type, "x")
    zeros = constant(codes_of(name, 24, blocks)) if zero else None
    weights = constant(codes_of(name, 24, inputs)), constant(scales_of(24, blocks)), zeros
    return Graph([x], [matmul_nbits(x, *weights, block=block)], name="packed", output_names=["y"])


@pytest.mark.parametrize("backend", PACKING)
@pytest.mark.parametrize("name", ["int4", "uint4", "int8", "uint8"])
@pytest.mark.parametrize(("inputs", "block"), [(64, 32), (48, 48), (576, 576)])
@pytest.mark.parametrize("zero", [False, True])
def test_packed_products_are_right(
    backend: str, name: str, inputs: int, block: int, zero: bool
) -> None:
    graph = product(name, inputs, block, zero=zero)
    x = np.random.default_rng(2).standard_normal((3, inputs)).astype(np.float32)
    program = fw.compile(graph, backend=backend, fallback="error", isolate="never")
    exact = fw.compile(graph, backend="reference")(x)
    np.testing.assert_allclose(program(x), exact, atol=4e-6 * float(np.abs(exact).max()))


def test_a_block_that_does_not_divide_is_refused_where_blocks_have_one_size() -> None:
    graph = product("int4", 40, 16, zero=False)
    x = np.ones((2, 40), np.float32)
    assert fw.compile(graph, backend="onnxruntime", fallback="error")(x).shape == (2, 24)
    with pytest.raises(RefusedError, match="40 is not a multiple of 16"):
        fw.compile(graph, backend="openvino", fallback="error", level=0)


@pytest.mark.parametrize("backend", ["xla", "webgpu", "triton"])
def test_others_refuse_to_unfold_the_weights(backend: str) -> None:
    found = REGISTRY.backends.get(backend)
    device = first_device(found)
    claimed = ask(Target(found, device), product("int4", 64, 32, zero=True))
    (refusal,) = claimed.refusals.values()
    assert [node.op for node in claimed.graph.nodes] == ["matmul_nbits"]
    assert "its weights would be floats" in refusal.reason


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("kind", ["block", "row", "tensor"])
def test_products_with_dequantized_constants_become_one_op(is_turned: bool, kind: str) -> None:
    shape = (24, 64) if is_turned else (64, 24)
    summed = 1 if is_turned else 0
    attrs: dict[str, Any] = {
        "block": {"axis": summed, "block": 32},
        "row": {"axis": 1 - summed, "block": None},
        "tensor": {"axis": None, "block": None},
    }[kind]  # type: ignore[assignment]  # a row of a table
    scale_shape = {"block": (24, 2) if is_turned else (2, 24), "row": (24,), "tensor": ()}[kind]
    x = Value(Spec(("n", 64), "float32").type, "x")
    made = dequantize(
        constant(codes_of("int8", *shape)), constant(scales_of(*scale_shape)), **attrs
    )
    y = matmul(x, transpose(made, perm=(1, 0)) if is_turned else made)
    graph = Graph([x], [y], name="dequantized", output_names=["y"])
    rewritten = run_pipeline(graph).graph
    assert [node.op for node in rewritten.nodes] == ["matmul_nbits"]
    given = np.random.default_rng(3).standard_normal((2, 64)).astype(np.float32)
    before, after = (fw.compile(g, backend="reference")(given) for g in (graph, rewritten))
    np.testing.assert_array_equal(before, after)


def test_products_of_codes_with_codes_stay_what_engines_know() -> None:
    x = Value(Spec(("n", 64), "float32").type, "x")
    step = constant(np.float32(0.1))
    own = dequantize(quantize(x, step, dtype=dtypes.int8), step)
    weights = dequantize(constant(codes_of("int8", 64, 24)), step)
    graph = Graph([x], [matmul(own, weights)], name="both", output_names=["y"])
    assert "matmul_nbits" not in [node.op for node in run_pipeline(graph).graph.nodes]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", [False, True])
def test_the_op_of_a_file_is_read(tmp_path: Path, bits: int, zero: bool) -> None:
    packed = codes_of("uint8", 24, 2, 32 * bits // 8)
    zeros = codes_of("uint8", 24, bits // 4)
    names = ["x", "codes", "scale"] + ["zero"] * zero
    arrays = {"codes": packed, "scale": scales_of(24 * 2), "zero": zeros.reshape(-1)}
    attrs = {"K": 64, "N": 24, "bits": bits, "block_size": 32, "accuracy_level": 1}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **attrs)
    edges = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 64), ("y", 24))
    ]
    kept = [numpy_helper.from_array(arrays[name], name) for name in names[1:]]
    graph = helper.make_graph([node], "packed", edges[:1], edges[1:], kept)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "packed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    import onnxruntime

    x = np.random.default_rng(4).standard_normal((3, 64)).astype(np.float32)
    (exact,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    found = fw.compile(path, backend="reference")(x)
    np.testing.assert_allclose(found, exact, atol=4e-6 * float(np.abs(exact).max()))
    saved = tmp_path / "saved.onnx"
    fw.save_onnx(fw.load(path), saved)
    np.testing.assert_array_equal(fw.compile(saved, backend="reference")(x), found)
