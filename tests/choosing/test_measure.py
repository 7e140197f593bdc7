"""What was measured: read back, whoever wrote it, and said with the confidence that it has."""

import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusewire.choosing.measure import Comparison, Contender, Timing, compare, interval, settle
from fusewire.errors import StoreError

FOUND = Comparison({"a": Timing((1.0, 2.0)), "b": Timing((3.0,))}, "a", ("b",), 0.1, 7)


def test_comparison_is_read_back() -> None:
    assert Comparison.from_data(json.loads(json.dumps(FOUND.to_data()))) == FOUND


@pytest.mark.parametrize(
    "change",
    [
        {"fastest": "c"},
        {"ties": ["c"]},
        {"noise": math.nan},
        {"noise": math.inf},
        {"noise": -1.0},
        {"rounds": math.inf},
        {"timings": {"a": {"samples": [], "disturbed": 0}, "b": {"samples": [1], "disturbed": 0}}},
        {"timings": {"a": {"samples": [10**400], "disturbed": 0}}, "ties": []},
        {"timings": {"a": {"samples": [0.0], "disturbed": 0}}, "ties": []},
        {"timings": []},
    ],
)
def test_comparison_that_makes_no_sense_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        Comparison.from_data({**FOUND.to_data(), **change})


@pytest.mark.parametrize("count", range(6, 60))
def test_median_lies_in_its_interval_as_often_as_it_says(count: int) -> None:
    low, high = interval(range(count))
    assert low + high == count - 1
    # Each sample is on either side of the median like a coin: too few on one side, and it is out.
    outside = 2 * sum(math.comb(count, below) for below in range(int(low) + 1)) / 2**count
    assert outside <= 0.05
    narrower = 2 * sum(math.comb(count, below) for below in range(int(low) + 2)) / 2**count
    assert narrower > 0.05


@pytest.mark.parametrize("count", [1, 3, 5])
def test_of_few_samples_the_interval_is_all_of_them(count: int) -> None:
    assert interval(range(count)) == (0, count - 1)


def test_one_sample_has_no_interval() -> None:
    assert Timing((3.0,)).interval == (None, None)
    assert Timing((3.0, 4.0)).interval == (3.0, 4.0)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="Linux tells of threads")
def test_process_with_many_threads_that_wait_is_idle() -> None:
    """Reading what each thread took is work too, of the thread that reads."""
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(150)]
    for thread in threads:
        thread.start()
    try:
        assert any(settle([os.getpid()]) for _ in range(20))
    finally:
        end.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs here that would have to end first."""
    monkeypatch.setattr("fusewire.choosing.measure.settle", lambda pids: None)


def way(
    seconds: float, spread: float, rng: np.random.Generator, *, bursts: float = 0.0
) -> Contender:
    """A way that takes so long, with noise; now and then something else disturbs it."""

    def run(count: int) -> list[float]:
        burst = 1 + rng.uniform(0.3, 2) * (rng.random() < bursts)
        return [seconds * burst * math.exp(x) for x in spread * rng.standard_normal(count)]

    return Contender(run)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("bursts", [0.0, 0.2])
def test_faster_one_is_taken_whoever_is_preferred(bursts: float) -> None:
    rng = np.random.default_rng(0)
    times = {"first": 0.011, "best": 0.010, "third": 0.013, "last": 0.020}
    chosen = [
        compare({n: way(t, 0.03, rng, bursts=bursts) for n, t in times.items()}, 1e6).fastest
        for _ in range(40)
    ]
    assert chosen.count("best") >= 38


@pytest.mark.usefixtures("quiet")
def test_of_those_that_take_as_long_the_preferred_one_is_taken() -> None:
    rng = np.random.default_rng(0)
    found = compare({n: way(t, 0.0, rng) for n, t in (("a", 0.3), ("b", 0.1), ("c", 0.1))}, 1e6)
    assert found.fastest == "b"
    assert found.ties == ("c",)
    assert found.noise == 0
    assert set(found.timings) == {"a", "b", "c"}


@pytest.mark.usefixtures("quiet")
def test_if_time_is_short_the_one_that_is_expected_to_be_quickest_is_timed() -> None:
    times = {"preferred": 1.2, "slow": 2.0, "quick": 0.9}

    def sleeping(seconds: float) -> Contender:
        def run(count: int) -> list[float]:
            time.sleep(seconds)
            return [seconds] * count

        return Contender(run)

    found = compare({n: sleeping(t) for n, t in times.items()}, 0.01, expected=times.__getitem__)
    assert found.fastest == "quick"
    assert "slow" not in found.timings


@pytest.mark.usefixtures("quiet")
def test_noise_is_that_of_a_way_against_itself() -> None:
    rng = np.random.default_rng(0)
    loud, calm = (compare({"a": way(0.1, x, rng)}, 1e6).noise for x in (0.2, 0.01))
    assert loud > 0.1
    assert calm < 0.05


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("told", [0.0, -1.0, math.nan, math.inf])
def test_clock_that_tells_no_time_gives_way_to_the_wall(told: float) -> None:
    found = compare({n: Contender(lambda count: [told] * count) for n in "ab"}, 0.01)
    assert all(0 < x < 1 for timing in found.timings.values() for x in timing.samples)
    assert Comparison.from_data(found.to_data()) == found
