"""A choice as plain data: written, read back the same, and refused if it is anything else."""

import json
from typing import Any

import pytest

from fusewire.contract.backend import Config
from fusewire.errors import StoreError
from fusewire.records.plans import Choice, TargetPlace, superseded

CHOICE = Choice(
    "webgpu",
    "webgpu:0",
    "expanded",
    {"tile": (8, 4), "threads": 2, "mode": "x", "on": True},
    (TargetPlace("openvino", "cpu"),),
    threads=2,
)
# What earlier versions wrote of plans that are as those of today.
UNUSED: dict[str, Any] = {"placing": [], "is_concurrent": False}


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
        {"others": [["openvino", "cpu", {}, 1]]},
        {"others": [["openvino", "cpu", {"a": 1}]]},
        {"others": [["openvino", "cpu", []]]},
        {"others": [["webgpu", "cpu", {}]]},
        {"threads": 0},
        {"threads": True},
        {"threads": 10**6},
    ],
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        Choice.from_data({**CHOICE.to_data(), **change})
    with pytest.raises(StoreError):
        Choice.from_data([CHOICE.to_data()])
    with pytest.raises(StoreError):
        Choice.from_data({"backend": "webgpu"})


def test_choices_of_earlier_versions_are_read() -> None:
    others = [[*place, {}] for place in CHOICE.to_data()["others"]]
    assert Choice.from_data({**CHOICE.to_data(), "others": others, **UNUSED}) == CHOICE
    # Those of 0.1 have one engine, which is exact.
    row = {"backend": "onnxruntime", "device": "cpu", "form": "native", "options": {}}
    assert Choice.from_data(row) == Choice("onnxruntime", "cpu")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"placing": [[3, 0], [2, 1]]}, "It places nodes on engines one by one"),
        ({"placing": "11"}, "It places nodes on engines one by one"),
        ({"is_concurrent": True}, "It runs regions at the same time"),
    ],
)
def test_choice_of_level_2_of_earlier_versions_is_refused_with_a_sentence(
    change: dict[str, Any], sentence: str
) -> None:
    row = {**CHOICE.to_data(), **UNUSED, **change}
    assert superseded(row).startswith(sentence)
    with pytest.raises(StoreError, match=f"{sentence}, which Fusewire no longer does"):
        Choice.from_data(row)


def test_options_of_a_choice_come_before_those_of_the_user() -> None:
    config = CHOICE.config(Config(threads=4, options={"threads": 4, "other": 1}))
    assert dict(config.options) == {**CHOICE.options, "other": 1}
    # They are for the first engine.
    assert CHOICE.config(config, "openvino").options == {}
    assert config.threads == 2
