"""The backend test suite of ONNX: all of it on the reference and ONNX Runtime, an eighth elsewhere.

What may fail stands in onnx_failures.txt, which `benchmarks/onnx_suite.py --record` writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from fusewire.testing.conformance import in_share
from fusewire.testing.onnx_suite.crew import Crew, SuiteOutcome
from fusewire.testing.onnx_suite.record import SuiteRecord, exclusions, grouped

CASES = 2033
PARTS = 4
ALLOWED = frozenset(
    Path(__file__).with_name("onnx_failures.txt").read_text(encoding="utf-8").splitlines()
)
# The share of its cases that an engine runs by itself.
SHARES = {"onnxruntime": 0.85, "xla": 0.8, "openvino": 0.75, "webgpu": 0.1}
# The list of exclusions as it was at the start: it only shrinks.
EXCLUDED_AT_START = {
    *(
        f"Node/test_bernoulli{kind}{end}"
        for kind in ("", "_double", "_seed")
        for end in ("", "_expanded")
    ),
    *(
        f"Node/test_training_dropout{kind}{end}"
        for kind in ("", "_default")
        for end in ("", "_mask")
    ),
    *(
        f"Node/test_image_decoder_decode_{kind}"
        for kind in (
            "bmp_rgb",
            "jpeg2k_rgb",
            "jpeg_bgr",
            "jpeg_grayscale",
            "jpeg_rgb",
            "png_rgb",
            "pnm_rgb",
            "tiff_rgb",
            "webp_rgb",
        )
    ),
    "Simple/test_gradient_of_add",
    "Simple/test_gradient_of_add_and_mul",
}
WHOLE = [(name, part) for name in ("reference", "onnxruntime") for part in range(PARTS)]


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    with Crew(1) as made:
        yield made


@pytest.fixture(scope="session")
def names(crew: Crew) -> list[str]:
    return [name for name in crew.names() if name not in exclusions()]


def check(crew: Crew, backend: str, cases: list[str]) -> None:
    """Run cases without fallback, and with it those that the backend refuses."""
    found = dict(crew.run(backend, cases))
    problems = failed(backend, found)
    refused = [case for case, outcome in found.items() if outcome.status == "refused"]
    if backend == "reference":
        assert not refused
    else:
        side = f"{backend}+reference"
        problems += failed(side, dict(crew.run(side, refused)))
        passed = sum(outcome.status == "passed" for outcome in found.values())
        assert passed >= SHARES[backend] * len(cases)
    assert not problems, "\n".join(problems)


def failed(side: str, found: dict[str, SuiteOutcome]) -> list[str]:
    return [
        f"{side} {case}: {outcome.reason}"
        for case, outcome in found.items()
        if outcome.status == "failed" and f"{side} {case}" not in ALLOWED
    ]


@pytest.mark.parametrize(("backend", "part"), WHOLE)
def test_whole_suite(crew: Crew, names: list[str], backend: str, part: int) -> None:
    check(crew, backend, names[part::PARTS])


@pytest.mark.parametrize("backend", ["xla", "openvino", "webgpu"])
def test_an_eighth_of_the_suite(crew: Crew, names: list[str], backend: str) -> None:
    check(crew, backend, [name for name in names if in_share(name, Fraction(1, 8))])


def test_every_case_is_there(crew: Crew, names: list[str]) -> None:
    assert len(crew.names()) == CASES
    assert len(names) == CASES - len(exclusions())


def test_exclusions_only_shrink(crew: Crew) -> None:
    excluded = exclusions()
    assert set(excluded) <= EXCLUDED_AT_START
    assert all(excluded.values()), "a reason is missing"
    passing = [case for case, o in crew.run("reference", list(excluded)) if o.status == "passed"]
    assert not passing, f"run and pass, so they are no exclusions: {passing}"


@pytest.mark.parametrize("side", ["reference", *(f"{name}+reference" for name in SHARES)])
def test_few_failures_are_allowed(side: str) -> None:
    allowed = sum(line.startswith(f"{side} ") for line in ALLOWED)
    assert CASES - len(exclusions()) - allowed >= 1950


def test_child_that_dies_costs_the_case_it_was_at(crew: Crew) -> None:
    side = "tests.conformance.onnx_sides:faulty"
    found = dict(crew.run(side, [f"Node/test_{name}" for name in ("abs", "acos", "asin")]))
    assert {o.status for o in found.values()} == {"failed"}
    crash, raised, wrong = (found[f"Node/test_{name}"].reason for name in ("abs", "acos", "asin"))
    assert "SIGSEGV" in crash
    assert "OSError: no such engine" in raised
    assert wrong.startswith("Wrong: Not equal to tolerance")


def test_record_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    record = SuiteRecord(path)
    record.cases = ["Node/a", "Node/b", "Node/c", "Node/d"]
    wrong = SuiteOutcome("failed", "Wrong: 2 of 3 differ")
    record.sides["xla"] = {"Node/a": SuiteOutcome("passed"), "Node/b": wrong}
    record.sides["xla"]["Node/c"] = SuiteOutcome("refused", "Wrong: 3 of 4 differ")
    record.save()
    again = SuiteRecord(path)
    assert again.sides == record.sides
    assert again.counts("xla") == {"passed": 1, "failed": 2, "excluded": 0, "not run": 1}
    assert grouped("xla", again.problems("xla")) == {"Wrong: N of N differ": ["Node/b", "Node/c"]}
