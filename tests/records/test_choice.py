"""A choice as plain data: written, read back the same, and refused if it is anything else."""

import json
from typing import Any

import pytest

from fusewire.contract.backend import Config
from fusewire.errors import StoreError
from fusewire.records.plans import Choice

CHOICE = Choice(
    "webgpu", "webgpu:0", "expanded", {"tile": (8, 4), "threads": 2, "mode": "x", "on": True}
)


def test_choice_is_read_back_as_it_was() -> None:
    again = Choice.from_data(json.loads(json.dumps(CHOICE.to_data())))
    assert again == CHOICE
    assert again.options["tile"] == (8, 4)


@pytest.mark.parametrize(
    "change",
    [
        {"backend": 1},
        {"device": None},
        {"form": "odd"},
        {"options": []},
        {"more": 1},
    ],
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        Choice.from_data({**CHOICE.to_data(), **change})
    with pytest.raises(StoreError):
        Choice.from_data([CHOICE.to_data()])
    with pytest.raises(StoreError):
        Choice.from_data({"backend": "webgpu"})


def test_options_of_a_choice_come_before_those_of_the_user() -> None:
    config = CHOICE.config(Config(options={"threads": 4, "other": 1}))
    assert dict(config.options) == {**CHOICE.options, "other": 1}
