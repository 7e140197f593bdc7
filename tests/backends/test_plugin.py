"""A backend from outside the tree: one small file and one entry point."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.region import first_device
from fusewire.ops.table import all_ops
from fusewire.registry import REGISTRY
from fusewire.testing.conformance import cases
from fusewire.testing.suite import is_tensor_op, reports

NAME = "torch-eager"
FILE = Path(__file__).parents[1] / "plugin" / "src" / "fusewire_torch" / "__init__.py"


def test_backend_takes_sixty_lines_or_fewer() -> None:
    lines = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) <= 60


def test_backend_is_found_by_its_entry_point() -> None:
    assert NAME in REGISTRY.backends.names()
    assert REGISTRY.backends.describe(NAME).distribution == "fusewire-torch"


def test_backend_passes_the_suite_for_what_it_claims() -> None:
    backend = REGISTRY.backends.get(NAME)
    found = [case for op in all_ops().values() if is_tensor_op(op) for case in cases([op])]
    taken = [case for case in found if case.dtype.name in ("float32", "int64")]
    rows, problems = reports(backend, first_device(backend), taken)
    assert not problems
    assert sum(row.status in ("proven", "partial") for row in rows) >= 10


def test_program_runs_on_it_and_falls_back_for_the_rest() -> None:
    def f(x: Any) -> Any:
        return np.cumsum(np.tanh(x) * 2)

    x = np.linspace(-1, 1, 5, dtype=np.float32)
    with pytest.warns(fw.FallbackWarning, match="cumsum"):
        program = fw.compile(f, x, backend=NAME)
    np.testing.assert_allclose(program(x), f(x), rtol=1e-6)
    assert [region.backend for region in program.plan.regions()] == [NAME, "reference"]
