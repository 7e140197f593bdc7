"""Which tests a change needs, and what tests need."""

from pathlib import Path

import pytest

from tests import needs
from tests.architecture.source import PROJECT
from tests.changed import TESTS, needed_tests
from tests.clocks import timing_functions
from tests.minutes import folder, seconds_of_tests, step_seconds, summed


@pytest.mark.parametrize(
    ("changed", "needed", "others"),
    [
        ("src/fusewire/serve/rest.py", "serve/test_rest.py", "ops/test_control.py"),
        ("src/fusewire/ir/dims.py", "ops/test_control.py", ""),
        ("src/fusewire/kernel/lower/table.py", "backends/test_webgpu.py", "backends/test_xla.py"),
        ("src/fusewire/backends/xla/engine.py", "backends/test_xla.py", "store/test_signing.py"),
        ("src/fusewire/plan/plan.py", "frontends/torch_calls/test_calls.py", "ir/test_dims.py"),
        ("tests/flaky.py", "plan/test_heal.py", "ops/test_control.py"),
        ("tests/toy.py", "choosing/test_fallback_share.py", "ops/test_control.py"),
        ("docs/ir.md", "docs/test_blocks.py", "ops/test_control.py"),
        ("pyproject.toml", "ops/test_control.py", ""),
    ],
)
def test_change_needs_the_rooms_above(changed: str, needed: str, others: str) -> None:
    found = [PROJECT / name for name in needed_tests([changed])]

    def has(test: str) -> bool:
        return any((TESTS / test).is_relative_to(path) for path in found)

    assert all((TESTS / test).exists() for test in (needed, others))
    assert (PROJECT / changed).exists()
    assert has(needed)
    assert not others or not has(others)


def test_change_of_a_text_that_no_test_reads_needs_none() -> None:
    assert needed_tests(["CODE_OF_CONDUCT.md"]) == []


@pytest.mark.parametrize(
    ("file", "marks"),
    [
        ("backends/test_xla.py", {"xla"}),
        ("frontends/torch/test_samples.py", {"torch"}),
        ("serve/test_protocol.py", {"server"}),
        ("ir/test_dims.py", set()),
    ],
)
def test_marks_follow_from_imports(file: str, marks: set[str]) -> None:
    found = needs.marks_of(TESTS / file)
    assert marks <= found
    assert marks or not found


CLOCKED = """
import statistics
import time

def _took(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start

def _check(run):
    assert _took(run) < 1

def test_difference():
    start = time.monotonic()
    assert time.monotonic() - start < 1

def test_names():
    begin, limit = time.process_time_ns(), 5
    took = (time.process_time_ns() - begin) / 1e9
    assert limit > took

def test_list():
    times = []
    for _ in range(3):
        times.append(_took(print))
    assert statistics.median(times) < 2 * min(times)

def test_nested():
    def seconds(run):
        return max(_took(run), 0)
    short, long = seconds(print), seconds(repr)
    assert long < 8 * short

def test_helper():
    _check(print)
"""
UNCLOCKED = """
import time

def test_waiting():
    end = time.monotonic() + 5
    while time.monotonic() < end:
        pass
    assert time.monotonic() >= end

def test_time_that_is_given_to_others():
    found = compute(deadline=time.monotonic() - 1)
    assert found < 3

def test_time_that_is_noted():
    start = time.perf_counter()
    print(time.perf_counter() - start)
    assert start is not None

def test_another_clock(clock):
    start = clock.now
    assert clock.now - start < 1
"""


def test_timing_mark_follows_from_assertions(tmp_path: Path) -> None:
    clocked, unclocked = tmp_path / "test_clocked.py", tmp_path / "test_unclocked.py"
    clocked.write_text(CLOCKED)
    unclocked.write_text(UNCLOCKED)
    assert timing_functions(clocked) == {
        "_check", "test_difference", "test_names", "test_list", "test_nested", "test_helper",
    }  # fmt: skip
    assert not timing_functions(unclocked)


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("ops/test_limits.py", "test_a_loop_without_end_meets_its_deadline"),
        ("rewrite/test_raising.py", "test_looking_for_patterns_takes_linear_time"),
        ("choosing/test_duel.py", "test_duel_of_long_calls_ends_soon"),
    ],
)
def test_tests_with_clocks_are_marked(file: str, test: str) -> None:
    assert test in timing_functions(TESTS / file)


def test_import_that_fails_names_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "_absent", lambda: frozenset({"wgpu"}))
    error = RuntimeError("cannot be collected")
    error.__cause__ = ModuleNotFoundError("No module named 'wgpu.utils'", name="wgpu.utils")
    assert needs.missing_import(error) == "wgpu"
    # Of what is installed, it is a failure, and so is one that only says what is missing.
    assert needs.missing_import(ModuleNotFoundError("No module", name="openvino")) is None
    assert needs.missing_import(RuntimeError("No module named 'wgpu'")) is None


NAMING = """
from tests.flaky import FlakyBackend
from fusewire.backends.webgpu.engine import WebGpuBackend

ENGINE = "openvino"

@pytest.fixture
def engine():
    return ENGINE

def test_by_a_fixture(engine): ...
def test_by_itself(): return "webgpu:0"
def test_by_a_list(): return "reference,xla"
def test_by_code(): return "fw.compile(f, backends='xla')"
def test_by_a_command(): return "fusewire run model.onnx --backend xla"
def test_by_an_import():
    import torch
def test_by_an_import_of_the_file(): return WebGpuBackend
def test_by_prose(): return "xla is listed twice"
def test_by_another_file(): return FlakyBackend
@pytest.mark.parametrize("engine", ["xla", "reference"])
def test_by_parameters(engine): ...
"""


@pytest.mark.parametrize(
    ("test", "parameters", "marks"),
    [
        ("test_by_itself", "", {"webgpu"}),
        ("test_by_a_list", "", {"xla"}),
        ("test_by_code", "", {"xla"}),
        ("test_by_a_command", "", {"xla"}),
        ("test_by_an_import", "", {"torch"}),
        ("test_by_an_import_of_the_file", "", {"webgpu"}),
        ("test_by_prose", "", set()),
        ("test_by_another_file", "", set()),
        ("test_by_parameters", "reference", set()),
        ("test_by_parameters", "int8-inductor-3", {"torch"}),
    ],
)
def test_needs_follow_from_the_code_of_a_test(
    tmp_path: Path, test: str, parameters: str, marks: set[str]
) -> None:
    file = tmp_path / "test_naming.py"
    file.write_text(NAMING)
    assert needs.needs_of(file, [test], parameters) == marks


def test_needs_of_a_fixture_are_those_of_its_tests(tmp_path: Path) -> None:
    file = tmp_path / "test_naming.py"
    file.write_text(NAMING)
    assert needs.needs_of(file, ["test_by_a_fixture", "engine"]) == {"openvino"}


def test_needs_of_code_are_its_imports_and_engines() -> None:
    assert needs.marks_of_code("import jax\n\n  webgpu:0  3 ms") == {"xla", "webgpu"}


def test_marks_stand_for_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "_absent", lambda: frozenset({"wgpu"}))
    assert needs.missing_of(["xla", "webgpu", "slow"]) == "wgpu"
    assert needs.missing_of(["xla", "slow"]) is None


def test_every_mark_is_registered(pytestconfig: pytest.Config) -> None:
    lines = pytestconfig.getini("markers")
    assert {*needs.MARKS, "timing"} <= {str(line).split(":")[0] for line in lines}


def test_all_modules_that_marks_name_exist() -> None:
    ours = [x for names in needs.MARKS.values() for x in names if x.startswith("fusewire.")]
    for name in ours:
        path = Path(PROJECT / "src", *name.split("."))
        assert path.is_dir() or path.with_suffix(".py").exists(), name


JUNIT = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite>
<testcase classname="tests.ir.test_dims" name="test_a[1]" time="1.5" />
<testcase classname="tests.ir.test_dims" name="test_a[2]" time="0.5"><skipped /></testcase>
<testcase classname="tests.test_host" name="test_b" time="4.0" />
<testcase classname="" name="tests.ops.test_numpy" time="0.0"><skipped /></testcase>
</testsuite></testsuites>"""
PRINTED = """
== lint took 3 s
============================= slowest durations ==============================
1.00s setup    tests/ir/test_dims.py::test_a[1]
0.50s call     tests/ir/test_dims.py::test_a[1]
0.50s call     tests/ir/test_dims.py::test_a[2]
4.00s call     tests/test_host.py::test_b
== full took 60 s
"""


@pytest.mark.parametrize("text", [JUNIT, PRINTED])
def test_time_of_a_run_is_added_up(text: str) -> None:
    seconds = seconds_of_tests(text)
    assert seconds["tests/ir/test_dims.py::test_a[1]"] == 1.5
    host, ir, *rest = summed(seconds, map(folder, seconds))
    assert (host, ir) == (("test_host.py", 4.0, 1), ("ir", 2.0, 2))
    assert {name for name, _, _ in rest} <= {"ops"}
    assert step_seconds(text) in ({}, {"lint": 3.0, "full": 60.0})
