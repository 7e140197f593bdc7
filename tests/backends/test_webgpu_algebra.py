"""WGSL lets compilers compute as if numbers were real; our kernels do not let them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.backends.webgpu.engine import WebGpuBackend
from fusewire.contract.buffer import Buffer
from fusewire.contract.region import build, first_device
from fusewire.dtypes import float32
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.cumulative import cumlogsumexp
from fusewire.ops.elementwise import exp, negative

BACKEND = WebGpuBackend()


def run(graph: Graph, *inputs: Array) -> list[Array]:
    """Run on the device and read the outputs back."""
    found = build(BACKEND, graph, first_device(BACKEND)).run(inputs)
    return [x.read() for x in found if isinstance(x, Buffer)]


ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -1.5, 2.0, 1e30], np.float32)
WHOLE = np.array([-2, 0, 3, -(1 << 31), 7], np.int32)
SEEN: dict[str, tuple[Callable[..., Any], Array]] = {
    "times zero": (lambda x: x * np.float32(0), ODD),
    "zero over": (lambda x: np.float32(0) / x, ODD),
    "over zero": (lambda x: x / np.float32(0), ODD),
    "floor over zero": (lambda x: x // np.float32(0), ODD),
    "minus itself": (lambda x: x - x, ODD),
    "minus its equal": (lambda x: np.square(x) - x * x, ODD),
    "taken off again": (lambda x: (x + np.float32(1)) - x, ODD),
    "added again": (lambda x: (x + np.float32(1e8)) + np.float32(-1e8), ODD),
    "mean of nothing": (lambda x: x[:0].sum(keepdims=True) / np.float32(0), ODD),
    "roots": (lambda x: np.sqrt(x) * np.sqrt(x), ODD),
    "large and small": (lambda x: (x * np.float32(1e-30)) * np.float32(1e38), ODD),
    "complex": (lambda x: x - x, ODD.astype(np.complex64)),
    "double": (lambda x: x * 0.0 - x / 0.0, ODD.astype(np.float64)),
    "int64": (lambda x: (x.astype(np.int64) < 0) ^ (x.astype(np.int64) <= 2), WHOLE),
    "int64 of uint32": (lambda x: x.astype(np.int64) <= 2, WHOLE.astype(np.uint32)),
    "sign of int64": (lambda x: np.sign(x.astype(np.int64)), WHOLE),
}


@pytest.mark.parametrize("case", SEEN)
def test_compiler_does_not_compute_as_if_numbers_were_real(case: str) -> None:
    function, given = SEEN[case]
    with np.errstate(all="ignore"):
        (found,) = run(fw.trace(function, given), given)
        expected = function(given)
    assert np.allclose(found, expected, rtol=1e-6, atol=0, equal_nan=True), found


def test_temporary_of_a_kernel_that_runs_over_nothing() -> None:
    x, y = Value(TensorType(float32, (0, 3)), "x"), Value(TensorType(float32, (2,)), "y")
    summed = exp(cumlogsumexp(x, axis=0))
    given = (np.ones(shape, np.float32) for shape in ((0, 3), (2,)))
    found = run(Graph([x, y], [summed, negative(y)]), *given)
    assert [array.shape for array in found] == [(0, 3), (2,)]
