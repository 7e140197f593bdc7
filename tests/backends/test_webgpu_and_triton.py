"""Two copies of LLVM in one process: Mesa's, and Triton's, which PyTorch loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("wgpu")

CODE = """
import torch
from fusewire.backends.webgpu.context import find_adapters
if not find_adapters():
    raise SystemExit(77)
compiled = torch.compile(lambda x: x + 1, backend="eager")
print(compiled(torch.ones(1)).item())
"""


def test_torch_compiles_after_adapters_were_listed() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("there is no adapter")
    assert done.stdout.split() == ["2.0"], done.stderr
