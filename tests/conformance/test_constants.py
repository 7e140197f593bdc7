"""Constants of every dtype and size on every engine: none is lost on its way."""

import json
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from click.testing import CliRunner

import fusewire as fw
from fusewire.cli import main
from fusewire.contract.backend import Gap
from fusewire.contract.region import first_device
from fusewire.dtypes import ALL, bool_
from fusewire.errors import RegistryError
from fusewire.registry import REGISTRY
from fusewire.testing.constants import SIZES, constant_cases, constant_outcomes, constant_problems
from tests import toy

# The cases that each engine runs by itself: they may become more.
LEAST = {
    "reference": 710,
    "onnxruntime": 385,
    "openvino": 450,
    "xla": 695,
    "torch": 690,
    "webgpu": 441,
    "triton": 285,
}


def test_every_dtype_is_a_constant_of_every_size() -> None:
    cases = list(constant_cases())
    assert {(case.dtype, case.size) for case in cases} == {(x, size) for x in ALL for size in SIZES}
    assert len(cases) == LEAST["reference"]
    assert {0, 1, 1_000, 100_000} <= set(SIZES)


@pytest.mark.parametrize("name", LEAST)
def test_constants_reach_the_engine(name: str) -> None:
    try:
        backend = REGISTRY.backends.get(name)
        device = first_device(backend)
    except RegistryError as error:
        pytest.skip(str(error))
    outcomes = constant_outcomes(backend, device)
    problems = constant_problems(backend, device, outcomes)
    assert not problems, "\n".join(problems[:20])
    counts = Counter(outcome.status for outcome in outcomes.values())
    assert len(outcomes) - counts["refused"] >= LEAST[name]


@pytest.mark.parametrize("size", [31, 32, 1000])
def test_mask_is_a_constant_of_any_size(size: int) -> None:
    mask = np.tri(size, dtype=bool)

    def masked(x: np.ndarray) -> np.ndarray:
        return np.where(mask, x, np.float32(-1))

    x = np.ones((size, size), np.float32)
    program = fw.compile(masked, backend="onnxruntime", fallback="error", isolate="never")
    np.testing.assert_array_equal(program(x), masked(x))


@pytest.fixture
def forgetful() -> Iterator[str]:
    name = REGISTRY.register("tests.toy:forgetful")
    yield name
    REGISTRY.unregister(name)


def test_conform_finds_the_constants_that_a_plugin_loses(forgetful: str) -> None:
    words = ["conform", forgetful, "--op", "where", "--json"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    assert report["counts"]["proven"] == 1
    sizes = [size for size in SIZES if size >= 1_000]
    lost = [f"forgetful on the constant where-bool-{size}" for size in sizes]
    assert [problem.split(":")[0] for problem in report["problems"]] == lost
    of = sum(case.reader == "where" for case in constant_cases())
    assert report["constants"] == {"native": of - len(lost), "failed": len(lost)}


def test_constant_in_a_known_gap_is_no_problem() -> None:
    backend = toy.forgetful(gaps=[Gap("where", "todo", "It forgets what is true.", dtype="bool")])
    device = first_device(backend)
    found = [case for case in constant_cases([bool_]) if case.reader == "where"]
    outcomes = constant_outcomes(backend, device, found)
    assert any(outcome.status == "failed" for outcome in outcomes.values())
    assert not constant_problems(backend, device, outcomes)
