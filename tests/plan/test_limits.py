"""Limits hold on every call: what values ask for is refused, and the program works afterwards."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from benchmarks.bombs import BOMBS
from fusewire.errors import BudgetError
from fusewire.ops.interpret import interpret
from fusewire.ops.limits import RunLimits, limited

ENGINES = ("onnxruntime", "openvino")
# Memory by a size, a size computed in the graph, rounds, a condition, and a branch not taken yet.
SAMPLE = ("expand", "expand_computed", "loop_collect", "while", "if_branch")


def compiled(folder: Path, name: str, backend: str, **options: Any) -> tuple[Any, Path]:
    path = folder / "bomb.onnx"
    path.write_bytes(BOMBS[name].make())
    return fw.compile(path, backend=backend, **options), path


@pytest.mark.parametrize("backend", ENGINES)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_bomb_is_refused_after_an_honest_call_and_then_the_program_works(
    name: str, backend: str, tmp_path: Path
) -> None:
    program, path = compiled(tmp_path, name, backend)
    bomb = BOMBS[name]
    assert bomb.honest is not None
    (expected,) = interpret(fw.load(path), list(bomb.honest))
    np.testing.assert_allclose(program(*bomb.honest), expected, 1e-5)
    with limited(RunLimits(0.5, 2**28)), pytest.raises(BudgetError):
        program(*bomb.bad)
    np.testing.assert_allclose(program(*bomb.honest), expected, 1e-5)


@pytest.mark.parametrize("backend", ["reference", *ENGINES])
def test_less_than_no_rounds_are_no_rounds(backend: str, tmp_path: Path) -> None:
    program, _ = compiled(tmp_path, "loop", backend)
    assert program(np.array([3])) == 3.0
    assert program(np.array([-1])) == 0.0


def test_what_a_child_was_stopped_for_does_not_run_here() -> None:
    def total(x: Any) -> Any:
        return np.exp(np.broadcast_to(x, (1 << 20, 1 << 11))).sum()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    program = fw.compile(total, backend="onnxruntime", memory_limit=1 << 30, cache=False)
    with pytest.raises(BudgetError, match="memory_limit"):
        program(np.ones(1 << 11, np.float32))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300_000
