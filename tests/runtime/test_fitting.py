"""An engine that is faster at known sizes compiles for those that are called often."""

import threading
import time
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.runtime import fitting
from fusewire.runtime.plan import Region
from fusewire.runtime.regions import RegionRunner
from fusewire.trials.build import PlanBuilder
from tests.choosing.test_race import CPU

SIZES = [((n, 3),) for n in range(2, 9)]


def _norm(x: Any) -> Any:
    return np.tanh(x) / (1 + np.sum(x * x, axis=1, keepdims=True))


def _rows(count: int) -> Any:
    return np.linspace(-1, 1, 3 * count, dtype=np.float32).reshape(count, 3)


def _program() -> Any:
    fitted = {"sizes": "fitted"}
    spec = fw.Spec(("n", 3), "float32")
    return fw.compile(_norm, spec, backend="openvino", level=0, backend_config=fitted)


def _region(program: Any, count: int) -> RegionRunner:
    entry, _ = program.prepared((_rows(count),))
    (region,) = entry.runner._runners
    assert isinstance(region, RegionRunner)
    return region


def _wait(*, seconds: float = 60.0) -> None:
    for thread in threading.enumerate():
        if thread.name == "fusewire-fitting":
            thread.join(seconds)
            assert not thread.is_alive()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "FITTING_CALLS", 3)
    monkeypatch.setattr(fitting, "MOST_FITTED", 2)


@pytest.mark.usefixtures("soon")
def test_sizes_that_are_called_often_get_an_executable_of_their_own() -> None:
    program = _program()
    for count in (4, 4, 4):
        np.testing.assert_allclose(program(_rows(count)), _norm(_rows(count)), rtol=1e-5)
    made = _region(program, 4)._made
    assert list(made) == [((4, 3),)]
    for count in (5, 6, 7, 5):
        np.testing.assert_allclose(program(_rows(count)), _norm(_rows(count)), rtol=1e-5)
    # One for any size, since none of them came often.
    assert set(made) == {((4, 3),), ()}
    for _ in range(3):
        program(_rows(6))
    _wait()
    assert made[((6, 3),)] is not made[()]
    np.testing.assert_allclose(program(_rows(6)), _norm(_rows(6)), rtol=1e-5)
    for _ in range(5):
        program(_rows(8))
    # So many are fitted, and no more.
    assert made[((8, 3),)] is made[()]
    program.close()


@pytest.mark.usefixtures("soon", "store")
def test_both_forms_are_recorded() -> None:
    with _program() as program:
        for count in (4, 4, 5, 5):
            program(_rows(count))
    with _program() as program:
        for count in (4, 5):
            np.testing.assert_allclose(program(_rows(count)), _norm(_rows(count)), rtol=1e-5)
        found = [x.cache for x in program.why().contacts]
        assert found == ["hit", "hit"]


@pytest.mark.usefixtures("soon")
def test_sizes_stay_open_if_the_engine_cannot_be_told_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = _program()
    for count in (4, 4, 5):
        program(_rows(count))
    region = _region(program, 4)
    monkeypatch.setattr(PlanBuilder, "runs_as_planned", lambda builder, region: False)
    for _ in range(4):
        program(_rows(5))
    _wait()
    assert region._made[((5, 3),)] is region._made[()]
    program.close()


def test_calls_are_counted_by_sizes() -> None:
    graph = fw.trace(_norm, fw.Spec(("n", 3), "float32"))
    found = fitting.fitting_of(Region.of(graph, "openvino", CPU, "dynamic"), lambda region: True)
    assert found is not None
    assert [found.is_first(sizes) for sizes in (SIZES[0], SIZES[0], SIZES[1])] == [
        True,
        True,
        False,
    ]
    said = [found.count(SIZES[1]) for _ in range(fitting.FITTING_CALLS)]
    assert said == ["wait"] * (fitting.FITTING_CALLS - 1) + ["fit"]
    for sizes in SIZES[2 : fitting.MOST_FITTED]:
        assert [found.count(sizes) for _ in range(fitting.FITTING_CALLS)][-1] == "fit"
    assert found.count(SIZES[-1]) == "leave"


@pytest.mark.parametrize(
    ("shape", "shapes", "fits"),
    [((4, 3), "dynamic", True), (("n", 3), "static", True), (("n", 3), "dynamic", False)],
)
def test_regions_without_open_sizes_are_not_fitted(shape: Any, shapes: Any, fits: bool) -> None:
    region = Region.of(fw.trace(_norm, fw.Spec(shape, "float32")), "openvino", CPU, shapes)
    assert fitting.fitting_of(region, lambda region: fits) is None


def test_many_threads_get_right_answers_while_sizes_are_fitted() -> None:
    program, wrong = _program(), list[int]()
    program(_rows(2))
    end = time.monotonic() + 4

    def work(seed: int) -> None:
        order = np.random.default_rng(seed)
        while time.monotonic() < end:
            count = int(order.integers(2, 9))
            if not np.allclose(program(_rows(count)), _norm(_rows(count)), rtol=1e-5):
                wrong.append(count)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _wait()
    assert not wrong
    program.close()
