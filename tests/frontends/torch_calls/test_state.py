"""Modules that write to their arguments, such as decoders with a cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fusewire as fw
from fusewire.contract.frontend import Limits
from fusewire.errors import TraceError
from fusewire.session.model_source import ModelSource

LENGTH, WIDTH = 32, 48


class Decoder(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """One step of attention over a cache that it writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys.index_copy_(1, position, self.key(x))
        values.index_copy_(1, position, self.value(x))
        scores = self.query(x) @ keys.transpose(1, 2)
        allowed = torch.arange(LENGTH) <= position
        return scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ values


def caches() -> tuple[Tensor, Tensor]:
    return torch.zeros(1, LENGTH, WIDTH), torch.zeros(1, LENGTH, WIDTH)


@pytest.mark.parametrize("backend", ["reference", "onnxruntime", "openvino"])
def test_a_cache_is_written_by_engines_as_by_the_module(backend: str) -> None:
    torch.manual_seed(0)
    module = Decoder().eval()
    program = fw.compile(module, backend=backend, start="measured")
    ours, theirs = caches(), caches()
    pointers = [tensor.data_ptr() for tensor in ours]
    with torch.no_grad():
        for step in range(5):
            x, position = torch.randn(1, 1, WIDTH), torch.tensor([step])
            found, expected = program(x, position, *ours), module(x, position, *theirs)
            torch.testing.assert_close(found, expected)
            for mine, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(mine, other)
    assert pointers == [tensor.data_ptr() for tensor in ours]
    assert program.why().backend == backend


def test_onnx_runtime_writes_the_cache_in_place() -> None:
    module = Decoder().eval()
    program = fw.compile(module, backend="onnxruntime", start="measured")
    arguments = torch.randn(1, 1, WIDTH), torch.tensor([3]), *caches()
    program(*arguments)
    (inner,) = program._state.programs.values()  # type: ignore[attr-defined]  # of a module
    arrays = tuple(tensor.numpy() for tensor in arguments)
    entry = inner.entry(arrays)
    assert entry.updates == ((1, 2), (2, 3))
    entry.run(arrays)
    outputs = entry.run(arrays)
    assert [outputs[1] is arrays[2], outputs[2] is arrays[3]] == [True, True]


def test_what_a_module_counts_in_an_argument_is_counted_once() -> None:
    class Counting(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def forward(self, x: Tensor, count: Tensor) -> Tensor:
            count.add_(1)
            return x * count

    program = fw.compile(Counting().eval(), backend="onnxruntime", start="measured")
    count = torch.zeros(1)
    for step in range(1, 6):
        np.testing.assert_array_equal(program(torch.ones(3), count), np.full(3, step))
        assert count.item() == step


def test_a_buffer_that_is_written_to_is_refused_by_name() -> None:
    class Running(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.total += x
            return self.total * 2

    with pytest.raises(TraceError, match="its buffer 'total'"):
        ModelSource(Running().eval(), Limits()).read((np.ones(3, np.float32),))


def test_an_exported_program_that_writes_to_an_argument_has_it_written_too() -> None:
    class Counting(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def forward(self, x: Tensor, factor: int, count: Tensor) -> Tensor:
            count.add_(1)
            return x * count * factor

    exported = torch.export.export(Counting().eval(), (torch.ones(3), 2, torch.zeros(1)))
    program = fw.compile(exported, backend="onnxruntime", start="measured")
    count = torch.zeros(1)
    for step in range(1, 4):
        np.testing.assert_array_equal(program(torch.ones(3), 2, count), np.full(3, 2 * step))
        assert count.item() == step
    # The number between the tensors has no place among the inputs.
    assert ModelSource(exported).read().updates == ((1, 1),)
