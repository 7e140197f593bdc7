"""Engines in service: right answers from several threads, whatever other calls do to the child."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fusewire.backends.reference.engine import ReferenceBackend
from fusewire.contract.backend import Config
from fusewire.contract.region import weights_of
from fusewire.errors import (
    BackendCrashed,
    BackendHung,
    EngineGarbage,
    EngineOutOfMemory,
    EngineRaised,
    ShapeMismatchError,
)
from fusewire.ir.graph import Graph
from fusewire.ir.text import constants_of
from fusewire.process.isolated import IsolatedExecutable
from fusewire.process.limits import ChildLimits
from fusewire.process.service import Service
from fusewire.testing.chaos import asking_for
from tests.process.regions import DEVICE, INPUT, PATIENT, WEIGHTS, chaos, region, workers

ASKED = chaos("asked_at_value")
BRIEF = ChildLimits(3.0, 1 << 30)


def executable(service: Service, graph: Graph | None = None) -> IsolatedExecutable:
    graph = graph or region()
    artifact = ReferenceBackend().compile(graph, DEVICE, Config())
    weights = weights_of(artifact, constants_of(graph))
    types = [value.type for value in graph.outputs]
    return IsolatedExecutable(service, artifact, DEVICE, weights, lambda: types)


def rows(count: int, first: float = 1.0) -> np.ndarray:
    """Input of some rows; the first element may ask for a fault."""
    array = np.arange(count * 32, dtype=np.float32).reshape(count, 32) / (count * 32)
    array[0, 0] = first
    return array


def right(array: np.ndarray) -> np.ndarray:
    return np.asarray(array @ WEIGHTS + 1, np.float32)


def run(served: IsolatedExecutable, array: np.ndarray) -> np.ndarray:
    (output,) = served.run([array])
    assert isinstance(output, np.ndarray)
    return output


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    made = Service(ASKED, PATIENT)
    yield made
    made.close()


@pytest.mark.parametrize("count", [1, 2, 600, 20_000])
def test_small_and_large_tensors_come_back_right(service: Service, count: int) -> None:
    served = executable(service)
    for scale in (1.0, 2.0, 3.0):
        given = rows(count) * scale
        output = run(served, given.astype(np.float32))
        np.testing.assert_allclose(output, right(given.astype(np.float32)), rtol=1e-5)
        assert output.flags.writeable


def test_inputs_of_any_layout_are_taken(service: Service) -> None:
    served = executable(service)
    for given in (rows(64)[::2], np.asfortranarray(rows(8)), rows(4).astype(">f4")):
        np.testing.assert_allclose(run(served, given), right(given), rtol=1e-5)


def test_an_output_keeps_its_memory_while_somebody_looks_at_it(service: Service) -> None:
    served = executable(service)
    kept = [run(served, rows(2000) * (i + 1)) for i in range(4)]
    views = [output[5] for output in kept]
    expected = [right(rows(2000) * (i + 1))[5] for i in range(4)]
    del kept
    for i in range(8):
        run(served, rows(2000) + i)
    for view, row in zip(views, expected, strict=True):
        np.testing.assert_allclose(view, row, rtol=1e-5)


def test_memory_is_used_again(service: Service) -> None:
    served = executable(service)
    run(served, rows(20_000))
    before = service.arena.top
    for _ in range(20):
        run(served, rows(20_000))
    assert service.arena.top == before


@pytest.mark.parametrize("fault", ["segv", "exit", "abort"])
def test_a_crash_fails_its_own_call_and_no_other(service: Service, fault: str) -> None:
    served = executable(service)
    run(served, INPUT)
    first, before = service.pid, service.deaths
    with pytest.raises(BackendCrashed, match="running a region"):
        run(served, rows(2, asking_for(fault)))
    np.testing.assert_allclose(run(served, INPUT), right(INPUT), rtol=1e-5)
    assert service.pid != first
    # Once, and once more alone.
    assert service.deaths == before + 2


def test_a_child_that_died_between_calls_is_replaced(service: Service) -> None:
    served = executable(service)
    assert service.pid is not None
    os.kill(service.pid, signal.SIGKILL)
    np.testing.assert_allclose(run(served, INPUT), right(INPUT), rtol=1e-5)


@pytest.fixture(scope="module")
def brief() -> Iterator[Service]:
    made = Service(ASKED, BRIEF)
    yield made
    made.close()


@pytest.mark.parametrize("fault", ["hang", "spin", "hang_gil"])
def test_a_hang_ends_at_the_deadline_and_is_not_repeated(brief: Service, fault: str) -> None:
    served, before = executable(brief), brief.deaths
    start = time.monotonic()
    with pytest.raises(BackendHung, match=r"limit is 3 seconds"):
        run(served, rows(2, asking_for(fault)))
    assert time.monotonic() - start < 15
    np.testing.assert_allclose(run(served, INPUT), right(INPUT), rtol=1e-5)
    assert brief.deaths == before + 1


@pytest.mark.parametrize("fault", ["oom", "oom_shared"])
def test_memory_is_limited_on_every_call(fault: str) -> None:
    service = Service(ASKED, ChildLimits(60.0, 1 << 29))
    served = executable(service)
    with pytest.raises(EngineOutOfMemory, match="limit is 512"):
        run(served, rows(2, asking_for(fault)))
    assert service.arena.strayed() == 0
    np.testing.assert_allclose(run(served, INPUT), right(INPUT), rtol=1e-5)
    assert service.deaths == 1


@pytest.mark.parametrize(
    ("fault", "kind"), [("raise", EngineRaised), ("misfit", ShapeMismatchError)]
)
def test_an_error_comes_back_and_the_child_stays(
    service: Service, fault: str, kind: type[Exception]
) -> None:
    served, before = executable(service), service.deaths
    with pytest.raises(kind, match="chaos"):
        run(served, rows(2, asking_for(fault)))
    assert service.deaths == before
    np.testing.assert_allclose(run(served, INPUT), right(INPUT), rtol=1e-5)


def test_chatter_does_not_block(service: Service) -> None:
    served = executable(service)
    given = rows(2, asking_for("chatter"))
    np.testing.assert_allclose(run(served, given), right(given), rtol=1e-5)


def test_garbage_on_the_pipes_is_noticed(service: Service) -> None:
    served = executable(service)
    with pytest.raises((EngineGarbage, BackendCrashed)):
        run(served, rows(2, asking_for("scribble")))
    np.testing.assert_allclose(run(served, INPUT), right(INPUT), rtol=1e-5)


def test_only_the_guilty_fail_among_threads(brief: Service) -> None:
    served = executable(brief)
    asked = {3: "segv", 10: "hang", 17: "abort", 24: "hang_gil"}

    def call(place: int) -> str:
        given = rows(2 + place % 3 * 900, float(place))
        if place in asked:
            given[0, 0] = asking_for(asked[place])
        try:
            output = run(served, given)
        except (BackendCrashed, BackendHung) as error:
            return type(error).__name__
        np.testing.assert_allclose(output, right(given), rtol=1e-5)
        return "right"

    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(call, range(32)))
    failed = {place: outcome for place, outcome in enumerate(outcomes) if outcome != "right"}
    assert failed == {
        3: "BackendCrashed",
        10: "BackendHung",
        17: "BackendCrashed",
        24: "BackendHung",
    }


def arenas() -> int:
    """Count the shared memory of all services."""
    return Path("/proc/self/maps").read_text().count("memfd:fusewire")


def test_nothing_is_left() -> None:
    gc.collect()
    descriptors, before = len(list(Path("/proc/self/fd").iterdir())), workers(os.getpid())
    mapped = arenas()
    service = Service(ASKED, BRIEF)
    served = executable(service)
    output = run(served, rows(20_000))
    for fault in ("segv", "hang"):
        with pytest.raises((BackendCrashed, BackendHung)):
            run(served, rows(2, asking_for(fault)))
    del service, served
    assert workers(os.getpid()) == before
    np.testing.assert_allclose(output, right(rows(20_000)), rtol=1e-5)
    del output
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert arenas() == mapped


def test_a_closed_executable_is_closed_in_the_child() -> None:
    service = Service(ASKED, PATIENT)
    first, second = executable(service), executable(service)
    run(first, INPUT)
    first.close()
    run(second, INPUT)
    assert service.loaded == 1
    assert run(second, INPUT).shape == (2, 32)


def test_a_forked_process_keeps_its_arrays_and_gets_its_own_child(service: Service) -> None:
    served, before = executable(service), service.deaths
    output = run(served, rows(20_000))
    expected = right(rows(20_000))
    hear, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            output[0] = 0.0
            again = run(served, rows(3))
            is_right = np.allclose(again, right(rows(3)), rtol=1e-5)
            is_kept = np.allclose(output[1:], expected[1:], rtol=1e-5)
            os.write(tell, f"{is_right} {is_kept} {service.pid}".encode())
            service.close()
        finally:
            os._exit(0)
    own = service.pid
    os.waitpid(pid, 0)
    told = os.read(hear, 100).decode().split()
    os.close(hear)
    os.close(tell)
    assert told[:2] == ["True", "True"]
    assert told[2] != str(own)
    np.testing.assert_allclose(output, expected, rtol=1e-5)
    np.testing.assert_allclose(run(served, rows(3)), right(rows(3)), rtol=1e-5)
    assert service.deaths == before


@pytest.mark.skipif(sys.platform == "win32", reason="limits of descriptors")
def test_too_few_descriptors_are_a_typed_error() -> None:
    code = """
    import resource
    import numpy as np
    import fusewire as fw
    from fusewire.errors import FusewireError

    for most in (12, 16, 20, 24, 28, 32):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, 4096))
        try:
            program = fw.compile(
                lambda x: np.tanh(x), backend="reference", isolate="always", cache=False
            )
            program(np.ones(4, np.float32))
        except FusewireError as error:
            print(most, type(error).__name__)
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert "20 " in found.stdout
