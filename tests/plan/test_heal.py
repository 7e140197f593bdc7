"""The benchmark of bad calls, in small: the same error each time, and the engine stays."""

from typing import Any

import pytest

from benchmarks.heal import ENGINES, measure, model_of, problems, spoiled
from fusewire.backends.onnxruntime import executable
from fusewire.errors import CheckError
from tests.flaky import compiled


@pytest.mark.parametrize("engine", ENGINES)
def test_every_bad_call_has_the_same_error_and_every_good_one_its_answer(engine: str) -> None:
    row = measure("computed", engine, 40, 0)
    # A busy machine says nothing about time; the next test does, without a clock.
    assert not problems({**row, "ratio": 1.0})


def test_engine_makes_nothing_again_after_a_bad_call(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, make = [], executable.bound_small

    def counted(session: Any, edges: Any) -> Any:
        bound.append(session)
        return make(session, edges)

    monkeypatch.setattr(executable, "bound_small", counted)
    source, good, place = model_of("computed")
    program = compiled(source, backend="onnxruntime", fallback="error")
    for seed in range(3):
        program(*good)
        with pytest.raises(CheckError):
            program(*spoiled(good, place, seed))
    assert len(bound) == 1
