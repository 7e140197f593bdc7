"""The steps of docs/add-an-op.md, carried out on a copy: each touches one file and just works."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import blocks
from tests.docs.copies import ROOT, copied, passes, run

PLACE = re.compile(r"# not run: add to the end of (\S+)\n")
ROW = re.compile(r"# not run: a row of (\S+)\n")


def _steps() -> dict[str, str]:
    """Map the files that the page changes to what it adds to them."""
    page = (ROOT / "docs" / "add-an-op.md").read_text(encoding="utf-8")
    found = {}
    for block in blocks(page):
        if place := PLACE.match(block.code):
            found[place[1]] = block.code[place.end() :]
    return found


def _copy(folder: Path, changed: str, added: str) -> Path:
    file = copied(folder) / changed
    file.write_text(file.read_text(encoding="utf-8") + added, encoding="utf-8")
    return folder


CHECKS = {
    "src/fusewire/ops/activation.py": ("tests/conformance/test_ops.py", "serf"),
    "src/fusewire/ops/elementwise.py": ("tests/conformance/test_ops.py", "exp10"),
    "src/fusewire/rewrite/rules/algebra.py": ("tests/rewrite/test_rules.py", "square-of-negative"),
}


PRIMITIVE = "src/fusewire/ops/elementwise.py"
NATIVE = "src/fusewire/backends/xla/lowering/special.py"
BACKENDS = ("onnxruntime", "openvino", "torch", "triton", "webgpu", "xla")


def test_page_has_a_composite_a_primitive_a_native_row_and_a_rule() -> None:
    assert _steps().keys() == {*CHECKS, NATIVE}


def _conform(folder: Path, backend: str) -> dict[str, Any]:
    main = "from fusewire.cli import main; main()"
    shown: dict[str, Any] = json.loads(
        passes(folder, "-c", main, "conform", backend, "--op", "exp10", "--json")
    )
    return shown


def test_primitive_with_a_decomposition_runs_on_every_backend(tmp_path: Path) -> None:
    folder = _copy(tmp_path, PRIMITIVE, _steps()[PRIMITIVE])
    for backend in BACKENDS:
        shown = _conform(folder, backend)
        assert shown["counts"]["proven"] == 1, shown
        assert "float32" in shown["ops"][0]["proven"], shown
    suite = ("tests/ops/test_decompose.py", "-k", "exp10")
    printed = passes(folder, "pytest", "-q", "-p", "no:cacheprovider", *suite)
    assert re.search(r"\b[1-9]\d* passed", printed), printed


def test_primitive_is_native_on_an_engine_by_one_more_row(tmp_path: Path) -> None:
    folder = _copy(tmp_path, PRIMITIVE, _steps()[PRIMITIVE])
    assert "native" not in _conform(folder, "xla")["cases"]
    row = folder / NATIVE
    row.write_text(row.read_text(encoding="utf-8") + _steps()[NATIVE], encoding="utf-8")
    assert _conform(folder, "xla")["cases"].keys() == {"native"}


@pytest.mark.parametrize("changed", list(CHECKS))
def test_step_touches_one_file_and_passes_the_suite(changed: str, tmp_path: Path) -> None:
    suite, name = CHECKS[changed]
    folder = _copy(tmp_path, changed, _steps()[changed])
    done = run(folder, "pytest", "-q", "-p", "no:cacheprovider", suite, "-k", name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b[1-9]\d* passed", done.stdout), done.stdout
    # What mypy knows of the other files.
    if (known := ROOT / ".mypy_cache").is_dir():
        ignored = shutil.ignore_patterns("darwin", "win32")
        shutil.copytree(known, folder / ".mypy_cache", ignore=ignored)
    types = run(folder, "mypy", changed)
    assert types.returncode == 0, types.stdout
    style = run(folder, "ruff", "check", changed)
    assert style.returncode == 0, style.stdout


# Reads a file that says Mish, and writes a graph that has our op: what each side makes of it.
BOTH_DIRECTIONS = """
import fusewire as fw, onnx
from onnx import helper
x, y = (helper.make_tensor_value_info(n, 1, [2]) for n in "xy")
graph = helper.make_graph([helper.make_node("Mish", ["x"], ["y"])], "m", [x], [y])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
onnx.save(model, "read.onnx")
read = fw.load("read.onnx")
fw.save_onnx(fw.trace(fw.ops.mish, fw.Spec((2,), "float32")), "written.onnx")
written = onnx.load("written.onnx")
print(*(node.op for node in read.nodes), "|", *(node.op_type for node in written.graph.node))
print(fw.__file__)
"""


def _said(folder: Path) -> list[str]:
    done = run(folder, "tests.docs.said")
    assert done.returncode == 0, done.stderr
    said, file = done.stdout.splitlines()
    assert Path(file).is_relative_to(folder)
    return said.split(" | ")


def test_onnx_in_both_directions_is_one_row_of_one_file(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "add-an-op.md").read_text(encoding="utf-8")
    (found,) = (block.code for block in blocks(page) if ROW.match(block.code))
    place = ROW.match(found)
    assert place is not None
    row = found[place.end() :]
    folder = copied(tmp_path)
    (folder / "tests" / "docs" / "said.py").write_text(BOTH_DIRECTIONS, encoding="utf-8")
    file = folder / place[1]
    whole = file.read_text(encoding="utf-8")
    assert whole.count(row) == 1
    file.write_text(whole.replace(row, ""), encoding="utf-8")
    read, written = _said(folder)
    assert "mish" not in read.split()
    assert written != "Mish"
    file.write_text(whole, encoding="utf-8")
    assert _said(folder) == ["mish", "Mish"]
