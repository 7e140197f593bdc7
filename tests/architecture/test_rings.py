"""Which tests a change needs, and what tests need."""

from pathlib import Path

import pytest

from tests import needs
from tests.architecture.source import PROJECT
from tests.changed import TESTS, needed_tests


@pytest.mark.parametrize(
    ("changed", "needed", "others"),
    [
        ("src/fusewire/serve/rest.py", "serve/test_rest.py", "ops/test_control.py"),
        ("src/fusewire/ir/dims.py", "ops/test_control.py", ""),
        ("src/fusewire/kernel/lower/table.py", "backends/test_webgpu.py", "backends/test_xla.py"),
        ("src/fusewire/backends/xla/engine.py", "backends/test_xla.py", "store/test_signing.py"),
        ("src/fusewire/runtime/plan.py", "frontends/torch_calls/test_calls.py", "ir/test_dims.py"),
        ("tests/flaky.py", "runtime/test_heal.py", "ops/test_control.py"),
        ("tests/toy.py", "choosing/test_split.py", "ops/test_control.py"),
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


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "_absent", lambda: frozenset({"wgpu"}))
    error = RuntimeError("webgpu did not start")
    error.__cause__ = ModuleNotFoundError("No module named 'wgpu'")
    assert needs.missing(error) == "wgpu"
    # Of what is installed, it is a failure.
    said = "openvino needs the package openvino, which is not installed."
    assert needs.missing(RuntimeError(said)) is None
    assert needs.missing(RuntimeError("wrong")) is None


def test_every_mark_is_registered(pytestconfig: pytest.Config) -> None:
    lines = pytestconfig.getini("markers")
    assert set(needs.MARKS) <= {str(line).split(":")[0] for line in lines}


def test_all_modules_that_marks_name_exist() -> None:
    ours = [x for names in needs.MARKS.values() for x in names if x.startswith("fusewire.")]
    for name in ours:
        path = Path(PROJECT / "src", *name.split("."))
        assert path.is_dir() or path.with_suffix(".py").exists(), name
