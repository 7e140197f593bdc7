"""Weights that PyTorch has as codes arrive as codes, and engines multiply with them packed."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the ops

import fusewire as fw
from fusewire.contract.frontend import Limits
from fusewire.dtypes import int4, int8, uint4
from fusewire.errors import TraceError
from fusewire.frontends.torch.frontend import TorchFrontend
from fusewire.rewrite.pipeline import run_pipeline

OPS = torch.ops.quantized_decomposed


class Packed(torch.nn.Module):  # type: ignore[misc] # torch is not typed here
    """A linear layer whose weights are codes."""

    def __init__(self, flow: str, low: int, high: int, dtype: torch.dtype = torch.int8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.flow, self.range, self.dtype = flow, (low, high), dtype
        shape = {"tensor": (), "channel": (24,), "group": (24, 2)}[flow]
        self.register_buffer("codes", torch.randint(low, high + 1, (24, 64)).to(dtype))
        self.register_buffer("scales", torch.rand(shape) * 0.1)
        self.register_buffer("zeros", torch.randint(low, high + 1, shape))

    def weights(self) -> Any:
        codes, scales, zeros = self.codes, self.scales, self.zeros
        if self.flow == "tensor":
            return OPS.dequantize_per_tensor(codes, 0.03, 3, *self.range, self.dtype)
        if self.flow == "channel":
            return OPS.dequantize_per_channel(codes, scales, zeros, 0, *self.range, self.dtype)
        return OPS.dequantize_per_channel_group(
            codes, scales, zeros, *self.range, self.dtype, 32, torch.float32
        )

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weights())


CASES = [
    ("tensor", -128, 127, torch.int8, int8),
    ("channel", -128, 127, torch.int8, int8),
    ("group", -8, 7, torch.int8, int4),
    ("group", 0, 15, torch.uint8, uint4),
]


@pytest.mark.parametrize(("flow", "low", "high", "dtype", "ours"), CASES)
def test_product_keeps_its_codes(flow: str, low: int, high: int, dtype: Any, ours: Any) -> None:
    module, x = Packed(flow, low, high, dtype), torch.randn(3, 64)
    reading = TorchFrontend().open(module, Limits()).convert((x,))
    (product,) = [n for n in run_pipeline(reading.graph).graph.nodes if n.op == "matmul_nbits"]
    assert product.operands[1].tensor.dtype is ours
    program = fw.compile(module, backend="onnxruntime", fallback="error")
    np.testing.assert_allclose(program(x).numpy(), module(x).numpy(), rtol=1e-4, atol=1e-4)


def test_codes_outside_of_their_range_keep_their_dtype() -> None:
    module, x = Packed("group", -8, 7), torch.randn(3, 64)
    module.codes[0, 0] = 100
    program = fw.compile(module, backend="onnxruntime", fallback="error")
    np.testing.assert_allclose(program(x).numpy(), module(x).numpy(), rtol=1e-4, atol=1e-4)


def test_zero_points_that_are_fractions_are_refused() -> None:
    module = Packed("group", -8, 7)
    module.zeros = module.zeros + 0.5
    with pytest.raises(TraceError, match="its zero points are float32: give whole numbers"):
        TorchFrontend().open(module, Limits()).convert((torch.randn(3, 64),))
