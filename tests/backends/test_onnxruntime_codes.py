"""Products of codes of 8 bits, as large as they can be: without int8 instructions they saturate."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.backends.onnxruntime.engine import OnnxRuntimeBackend
from fusewire.contract.region import build, first_device
from fusewire.dtypes import dtype
from fusewire.ir.builder import constant
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.contraction import matmul
from fusewire.ops.interpret import interpret
from fusewire.ops.quantization import dequantize, quantize
from fusewire.ops.quantized import conv_integer, matmul_integer, qlinear_conv, qlinear_matmul

BACKEND = OnnxRuntimeBackend()
RNG = np.random.default_rng(0)
SCALE = np.float32(0.01)


def codes(of: str, *shape: int) -> Any:
    ends = np.iinfo(of)
    return RNG.integers(ends.min, ends.max, shape, of, endpoint=True)


def value(array: Any) -> Value:
    return Value(TensorType(dtype(array.dtype), array.shape), "x")


def wrong(graph: Graph, *inputs: Any, by: int = 0) -> float:
    """Return the share of elements that are further from the reference."""
    (found,) = build(BACKEND, graph, first_device(BACKEND)).run(list(inputs))
    (right,) = interpret(graph, list(inputs))
    assert isinstance(found, np.ndarray)
    assert found.dtype == right.dtype
    return float(np.mean(np.abs(found.astype(np.int64) - right.astype(np.int64)) > by))


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("right", ["int8", "uint8"])
@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("op", ["matmul", "conv", "qlinear_matmul", "qlinear_conv"])
def test_codes_of_any_size_are_multiplied_exactly(
    op: str, left: str, right: str, is_constant: bool
) -> None:
    if op.startswith("qlinear") and (left, right) == ("int8", "uint8"):
        pytest.skip("ONNX Runtime has no kernel for it, and says so")
    is_conv = op.endswith("conv")
    a, b = (
        codes(left, *((1, 8, 6, 6) if is_conv else (9, 64))),
        codes(right, *((5, 8, 3, 3) if is_conv else (64, 7))),
    )
    x, w = value(a), constant(b) if is_constant else value(b)
    zeros = np.array(3, left), np.array(-5 if right == "int8" else 250, right)
    made = SCALE, zeros[0], w, SCALE, zeros[1], np.float32(0.2), np.array(7, left)
    y = {
        "matmul": lambda: matmul_integer(x, w, *zeros),
        "conv": lambda: conv_integer(x, w, *zeros),
        "qlinear_matmul": lambda: qlinear_matmul(x, *made),
        "qlinear_conv": lambda: qlinear_conv(x, *made),
    }[op]()
    graph = Graph([x] if is_constant else [x, w], [y])
    assert wrong(graph, *([a] if is_constant else [a, b]), by=op.startswith("qlinear")) == 0


@pytest.mark.parametrize("given", ["int8", "uint8"])
def test_products_that_the_engine_fuses_are_exact(given: str) -> None:
    a, b = codes(given, 9, 64), codes("int8", 64, 7)
    x = value(a)
    left = dequantize(x, SCALE, np.array(3, given))
    right = dequantize(constant(b), SCALE, np.array(0, np.int8))
    zero = np.array(7, given)
    y = quantize(matmul(left, right), np.float32(0.2), zero, dtype=dtype(given))
    assert wrong(Graph([x], [y]), a, by=1) == 0


@pytest.mark.parametrize(
    ("elements", "scale"), [([1.0, np.nan, -2.0], 3.0 / 255.0), ([np.nan, np.nan], 1.0)]
)
def test_dynamic_scale_is_that_of_the_elements_that_are_no_nan(
    elements: list[float], scale: float
) -> None:
    # docs/choosing.md says so.
    x = np.array(elements, np.float32)
    graph = fw.trace(lambda x: ops.dynamic_quantize(x)[1], x)
    program = fw.compile(graph, backend="onnxruntime", nan="exact", isolate=False, cache=False)
    np.testing.assert_allclose(program(x), scale, rtol=1e-6)
