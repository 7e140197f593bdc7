"""From a program to a module of PyTorch, and from a module to an ONNX file."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fusewire as fw
from fusewire.errors import GraphError


def test_a_module_is_saved_as_onnx(tmp_path: Path) -> None:
    module, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval(), torch.randn(2, 3)
    path = tmp_path / "model.onnx"
    fw.save_onnx(module, path, x)
    program = fw.compile(path, backend="reference")
    with torch.no_grad():
        np.testing.assert_allclose(program(x.numpy()), module(x).numpy(), rtol=1e-5, atol=1e-6)


def test_open_sizes_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    fw.save_onnx(nn.Linear(3, 4).eval(), path, (fw.Spec(("batch", 3)),))
    assert str(fw.load(path).inputs[0].type) == "float32[batch, 3]"


def test_a_program_becomes_a_module(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    fw.save_onnx(lambda x, y: (x * 2, x + y), path, (fw.Spec(("n",)), fw.Spec(("n",))))
    module = fw.compile(path, backend="reference").to_torch()
    x, y = torch.arange(3.0), torch.ones(3)
    double, total = nn.Sequential(module)[0](x, y)
    assert double.tolist() == [0.0, 2.0, 4.0]
    assert total.tolist() == [1.0, 2.0, 3.0]
    assert module(x=x, y=y)[0].tolist() == double.tolist()
    assert list(module.parameters()) == []
    with pytest.raises(GraphError, match="no gradients"):
        module(x.requires_grad_(), y)


def test_a_program_of_a_module_becomes_one() -> None:
    module, x = nn.Linear(3, 3).eval(), torch.randn(2, 3)
    back = fw.compile(module, backend="reference").to_torch()
    torch.testing.assert_close(back(x), module(x).detach())
    assert "Linear" in repr(back)
