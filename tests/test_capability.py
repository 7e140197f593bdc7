"""Flags follow from what was recorded, and what was recorded is about what is here."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.region import first_device
from fusewire.errors import FormatError, RegistryError
from fusewire.ops.table import all_ops
from fusewire.options import FirstWith
from fusewire.planning.claims import ask
from fusewire.planning.target import Target
from fusewire.registry import REGISTRY
from fusewire.registry.capability import (
    FILE,
    FLAGS,
    OPS,
    ConformanceRecord,
    Shown,
    capabilities,
    read_records,
    record_of,
    with_record,
    write_records,
)
from fusewire.testing.conformance import cases
from fusewire.testing.demonstration import demonstrate

OURS = ("onnxruntime", "openvino", "reference", "triton", "webgpu", "xla")
SHOWN = {"JIT": Shown(True, "16 steps take 1.4 times as long as one.")}


def _record(**statuses: str) -> ConformanceRecord:
    proven = dict.fromkeys(all_ops(), "proven")
    return ConformanceRecord("some", "1", "cpu", "2026-11-15", proven | statuses, SHOWN)


def _held(record: ConformanceRecord | None) -> set[str]:
    found = capabilities(record, "1", opens_table=False)
    assert tuple(found) == FLAGS
    return {flag for flag, capability in found.items() if capability.is_held}


def test_there_are_twelve_flags_and_each_has_a_reason() -> None:
    assert len(FLAGS) == 12
    for record in (_record(), None):
        assert all(x.reason for x in capabilities(record, "1", opens_table=True).values())


def test_ops_that_are_proven_hold_their_flags() -> None:
    assert _held(_record()) == {*OPS, "JIT"}
    assert _held(None) == set()


@pytest.mark.parametrize("status", ["partial", "gap", "failed"])
def test_op_that_is_not_proven_takes_its_flag_away(status: str) -> None:
    found = capabilities(_record(gru=status), "1", opens_table=False)
    assert found["recurrent"].reason == f"Gru is {status}."
    assert _held(_record(gru=status)) == {*OPS, "JIT"} - {"recurrent"}


def test_flag_does_not_fall_for_a_dtype_that_few_ask_about() -> None:
    some = replace(_record(gru="partial"), dtypes={"gru": ("float16", "float32")})
    found = capabilities(some, "1", opens_table=False)["recurrent"]
    assert found.is_held
    assert "gru in float16, float32." in found.reason
    assert read_records(write_records([some])) == [some]
    none = replace(some, dtypes={"gru": ("float64",)})
    assert not capabilities(none, "1", opens_table=False)["recurrent"].is_held


def test_another_version_of_the_engine_is_named() -> None:
    found = capabilities(_record(), "2", opens_table=False)
    assert "Shown with 1; 2 is installed." in found["convolution"].reason


def test_record_comes_back_from_its_text() -> None:
    record = replace(_record(gru="partial"), device_id="cpu", dtypes={"add": ("int8", "float32")})
    assert read_records(write_records([record])) == [record]
    for text in ('{"ops": []}', "[]", "garbage"):
        with pytest.raises(FormatError, match="not a record"):
            read_records(text)


def test_every_device_has_a_record_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = replace(_record(), device_id="cpu")
    other = replace(_record(gru="partial"), device_id="cpu:openvino")
    records = with_record([], first, is_first=True)
    records = with_record(records, replace(other, date="2026-01-01"), is_first=False)
    records = with_record(records, other, is_first=False)
    assert with_record(records, first, is_first=True) == records == [first, other]
    (tmp_path / "some_engine.py").write_text("")
    (tmp_path / FILE).write_text(write_records(records))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert record_of("some", "some_engine:Some") == first
    assert record_of("some", "some_engine:Some", "cpu:openvino") == other
    assert record_of("some", "some_engine:Some", "cuda:0") is None


def test_record_lies_beside_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_engine.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert record_of("some", "some_engine:Some") is None
    for text, found in ((write_records([_record()]), _record()), ("garbage", None)):
        (tmp_path / FILE).write_text(text)
        assert record_of("some", "some_engine:Some") == found
    assert record_of("other", "some_engine:Some") is None


@pytest.mark.parametrize("name", OURS)
def test_record_is_about_the_engine_and_the_ops_that_are_here(name: str) -> None:
    backend = REGISTRY.get(name)
    record = record_of(name, REGISTRY.backends.describe(name).reference)
    assert record is not None
    assert record.version == backend.info.version
    assert "failed" not in record.ops.values()
    home = Target(backend, first_device(backend))
    for op in (op for op, status in record.ops.items() if status == "proven"):
        claims = (ask(home, case.make()[0]) for case in cases([all_ops()[op]]))
        assert any(claimed.takes_all() for claimed in claims), f"{op} is refused: record it again"


def test_measurements_tell_what_an_engine_saves() -> None:
    plain = REGISTRY.get("reference")
    shown = demonstrate(plain, first_device(plain))
    assert not shown["JIT"].is_held, shown
    assert shown["memory optimisation"].is_held, shown


def test_backends_are_found_by_what_they_were_shown_to_do() -> None:
    names = [backend.info.name for backend in REGISTRY.capable("recurrent", "JIT")]
    assert "xla" in names
    assert "reference" not in names
    with pytest.raises(RegistryError, match="basic ops, linear algebra"):
        REGISTRY.capable("flying")


def test_policy_asks_for_capabilities() -> None:
    x = np.ones(3, np.float32)
    program = fw.compile(np.sin, x, backend=FirstWith(capabilities=("JIT", "recurrent")))
    assert program.run(x).metadata["backend"] in ("openvino", "xla")
    with pytest.raises(RegistryError, match="autograd"):
        fw.compile(np.sin, x, backend=FirstWith(capabilities=("autograd",)))
