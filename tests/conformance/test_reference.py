"""The reference behind the contract: every op, and gaps that must really fail."""

from typing import Any

import pytest

from fusewire.contract.region import first_device
from fusewire.ops.declare import Op
from fusewire.ops.table import all_ops
from fusewire.registry import REGISTRY
from fusewire.testing.conformance import first_cases
from fusewire.testing.suite import reports

OPS = [pytest.param(op, id=name) for name, op in all_ops().items()]


@pytest.mark.parametrize("op", OPS)
def test_reference_runs_what_it_claims(op: Op[Any]) -> None:
    backend = REGISTRY.backends.get("reference")
    (row,), problems = reports(backend, first_device(backend), first_cases(op))
    assert not problems
    assert row.status == "proven"
