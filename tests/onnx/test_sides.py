"""Both directions of an op stand in one file, and neither side makes the other's machinery load."""

import subprocess
import sys

import pytest


def loaded(*modules: str) -> set[str]:
    """Import modules in a fresh process, and list what of ours that loads."""
    script = f"import sys, {', '.join(modules)}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return {name for name in done.stdout.split() if name.startswith("fusewire.")}


@pytest.mark.parametrize(
    "writer",
    [
        "fusewire.onnx.saving",
        "fusewire.onnx.write.writer",
        "fusewire.backends.onnxruntime.lowering",
    ],
)
def test_writing_loads_no_reader(writer: str) -> None:
    assert not {name for name in loaded(writer) if name.startswith("fusewire.onnx.read")}


def test_reading_loads_no_writer_of_files() -> None:
    writing = {"writer", "local_functions", "proto"}
    found = loaded("fusewire.onnx.frontend", "fusewire.onnx.read.importer")
    assert "fusewire.onnx.read.survey" in found
    assert not found & {f"fusewire.onnx.write.{name}" for name in writing}


def test_asking_for_one_family_of_ops_loads_no_others() -> None:
    script = "from fusewire.ops import activation\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "fusewire.ops.activation" in done.stdout.split()
    assert "fusewire.ops.strings" not in done.stdout.split()
