"""Six faults, each planted in a copy of the project: the suite must turn red, and say where."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Fault:
    """Text to change in a file, the part of the suite that must notice, and what it must say."""

    file: str
    old: str
    new: str
    suite: tuple[str, ...]
    says: str


FAULTS = {
    "wrong rule": Fault(
        "src/fusewire/rewrite/rules/signs.py",
        "return found.inputs[0] if found else None",
        "return node.inputs[0] if found else None",
        ("tests/rewrite/test_rules.py",),
        "negative-twice",
    ),
    "wrong expansion": Fault(
        "src/fusewire/ops/activation.py",
        "0.044715",
        "0.04715",
        ("tests/ops/test_normalization.py",),
        "Gelu",
    ),
    "wrong type rule": Fault(
        "src/fusewire/ops/movement.py",
        "x.with_shape(tuple(x.shape[axis] for axis in perm))",
        "x.with_shape(tuple(x.shape[axis] for axis in perm[::-1]))",
        ("tests/conformance/test_ops.py", "-k", "transpose"),
        "by its type rule",
    ),
    "upward import": Fault(
        "src/fusewire/ops/inference.py",
        "from fusewire.dtypes import DType\n",
        "from fusewire.dtypes import DType\nfrom fusewire.rewrite.rule import Rule\n",
        ("tests/architecture/test_layers.py",),
        "fusewire/ops/inference.py",
    ),
    "stale gap": Fault(
        "src/fusewire/backends/reference/gaps.py",
        "GAPS: tuple[Gap, ...] = ()",
        'GAPS: tuple[Gap, ...] = (Gap("add", "todo", "adds wrongly", "float32"),)',
        ("tests/conformance/test_reference.py", "-k", "add"),
        "a gap for add that passes",
    ),
    "lying sample": Fault(
        "src/fusewire/ops/linalg.py",
        '_LACKS = {"scalar": ',
        '_LACKS = {"empty": "a matrix has elements", "scalar": ',
        ("tests/conformance/test_ops.py", "-k", "cholesky"),
        "says that it has no empty sample, but has one",
    ),
}


@pytest.mark.parametrize("name", list(FAULTS))
def test_planted_fault_turns_the_suite_red(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    for part in ("src", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / fault.file
    text = file.read_text(encoding="utf-8")
    assert fault.old in text, "the fault no longer fits the file"
    file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *fault.suite],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert fault.says in done.stdout
