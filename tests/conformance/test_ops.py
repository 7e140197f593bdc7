"""Every declared op, sample and dtype on the reference. Cases come from the declarations alone."""

import json
import subprocess
import sys
from typing import Any

import pytest

from fusewire import dtypes
from fusewire.ir.hash import exact_hash, structural_hash
from fusewire.ops.declare import Op
from fusewire.ops.table import all_ops
from fusewire.testing.conformance import (
    case_problems,
    cases,
    declaration_problems,
    refusal_problems,
)

OPS = [pytest.param(op, id=name) for name, op in all_ops().items()]


@pytest.mark.parametrize("op", OPS)
def test_declaration_is_complete(op: Op[Any]) -> None:
    assert not declaration_problems(op)


@pytest.mark.parametrize("op", OPS)
def test_every_sample_is_right(op: Op[Any]) -> None:
    problems = [problem for case in cases([op]) for problem in case_problems(case)]
    assert not problems, "\n".join(problems[:20])


@pytest.mark.parametrize("op", OPS)
def test_every_bad_sample_is_refused_for_its_reason(op: Op[Any]) -> None:
    problems = refusal_problems(op)
    assert not problems, "\n".join(problems[:20])


def test_there_are_170_ops() -> None:
    assert len(all_ops()) >= 170


def test_every_dtype_is_taken_by_some_op() -> None:
    taken = {d for op in all_ops().values() for d in op.dtypes}
    assert taken == set(dtypes.ALL)


HASHES = """
import json, sys
from fusewire.testing.conformance import cases
from fusewire.ir.hash import exact_hash, structural_hash
graphs = ((case.id, case.make()[0]) for case in cases())
json.dump({key: [structural_hash(g), exact_hash(g)] for key, g in graphs}, sys.stdout)
"""


def test_hashes_are_the_same_in_another_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HASHES], capture_output=True, text=True, check=True
    )
    theirs = json.loads(done.stdout)
    graphs = ((case.id, case.make()[0]) for case in cases())
    ours = {key: [structural_hash(g), exact_hash(g)] for key, g in graphs}
    assert ours == theirs
