"""A hundredth of `benchmarks/wrong.py`: wrong engines are caught, right ones are not blamed."""

import pytest

from benchmarks.wrong import Record, run
from fusewire.testing.wrong import KINDS, SWAPPED


@pytest.fixture(scope="module")
def record() -> Record:
    return run(graphs=4, kinds=[*KINDS, SWAPPED], zoo_models=0, seed=40, sizes=(10.0,))


def test_engines_that_are_far_off_are_caught(record: Record) -> None:
    _, count = record.share("over 10")
    assert count >= 40
    assert record.passes(), [t for t in record.trials if t.status != "wrong" and t.off >= 10]


def test_right_engines_are_not_blamed(record: Record) -> None:
    assert len(record.honest) == 4
    assert not record.alarms
