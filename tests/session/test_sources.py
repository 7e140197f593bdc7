"""What is said of sources, devices and classes that cannot be used: what to do instead."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import RegistryError, SourceError
from fusewire.registry import REGISTRY
from fusewire.testing.null import NullBackend

# PyTorch is imported in a process of its own: beside other engines it ends some of them.
_MODULES = """
import fusewire as fw, numpy as np, torch
for source in (torch.nn.Linear(2, 2).forward, torch.ones(2)):
    try:
        fw.compile(source, np.ones((1, 2), np.float32))
    except fw.FusewireError as error:
        print(type(error).__name__, "Give a module" in str(error))
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_parts_of_pytorch_that_are_not_modules_are_refused() -> None:
    done = subprocess.run([sys.executable, "-c", _MODULES], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["SourceError True"] * 2, done.stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("model.pt", "torch.onnx.export"),
        (Path("model.PT2"), "torch.onnx.export"),
        ("weights.safetensors", "weights and no program"),
        ("model.tflite", "tf2onnx"),
        ("model", "onnx files"),
        (b"model", "path of its file"),
        (dict, "is a class"),
        (3, "Give a Python function"),
        (None, "Give a Python function"),
    ],
    ids=str,
)
def test_a_source_that_nothing_reads(source: object, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        fw.compile(source, np.ones((1, 2), np.float32))


@pytest.mark.parametrize("backend", ["auto", "onnxruntime"])
@pytest.mark.parametrize("level", [0, 1])
def test_a_device_that_is_not_here(backend: str, level: int) -> None:
    program = fw.compile(lambda x: x + 1, backend=backend, level=level, device="cuda")
    with pytest.raises(RegistryError, match=r"cuda.* cpu"):
        program(np.ones(3, np.float32))


def test_a_class_given_to_register() -> None:
    with pytest.raises(RegistryError, match=r"register\('fusewire\.testing\.null:NullBackend'\)"):
        REGISTRY.register(NullBackend)  # type: ignore[arg-type]  # the mistake that is tested
    here = type("Mine", (NullBackend,), {"__module__": "__main__"})
    with pytest.raises(RegistryError, match="into a module"):
        REGISTRY.register(here)  # type: ignore[arg-type]  # the mistake that is tested


def test_asking_whether_extensions_fit_imports_no_engine() -> None:
    assert REGISTRY.get("openvino").is_extensible
    assert not REGISTRY.get("reference").is_extensible
