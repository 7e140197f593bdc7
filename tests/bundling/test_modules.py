"""A module of PyTorch is saved with its weights, as a program on arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import FormatError, GraphError

torch: Any = pytest.importorskip("torch")
X = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def module() -> Any:
    torch.manual_seed(0)
    # Weights that are large enough to be apart from the text of the graph.
    return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh()).eval()


@pytest.mark.filterwarnings("ignore::fusewire.errors.BundleWarning")
def test_module_is_saved_with_its_weights(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "module.fw"
    with fw.compile(module, backend="onnxruntime") as program:
        expected = program(torch.from_numpy(X)).numpy()
        with pytest.raises(FormatError, match="weights=True"):
            program.save(path)
        program.save(path, weights=True)
    with fw.open(path) as opened:
        np.testing.assert_allclose(opened(X), expected, rtol=1e-5, atol=1e-6)


def test_module_that_has_no_one_program_says_what_to_do(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "module.fw"
    with fw.compile(module, backend="onnxruntime") as program:
        with pytest.raises(GraphError, match="Call it"):
            program.save(path, weights=True)
        program(torch.from_numpy(X))
        with torch.no_grad():
            module[0].weight.add_(1.0)
        with pytest.raises(GraphError, match="has changed since"):
            program.save(path, weights=True)
        assert not path.exists()
