"""A program answers at once, and settles on a plan behind its first calls."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fusewire as fw
from fusewire.background import process
from fusewire.background.job import ComparisonJob, FileSource
from fusewire.errors import NotRecalledError
from fusewire.ir.graph import Graph
from fusewire.options import Options
from fusewire.process.calls import new_page
from fusewire.session.comparer import _compare
from fusewire.session.decider import Decider
from fusewire.session.model_source import ModelSource
from fusewire.store.disk import Store
from fusewire.system.processes import descendants
from tests.comparers import comparer, comparers, has_ended, is_running

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
# A comparison takes a few seconds, and many times as long on cores that are busy.
PATIENCE = 240.0


def waves(x: Any) -> Any:
    return np.exp(x) @ np.cos(x).T


def model_file(folder: Path) -> Path:
    node = helper.make_node("Tanh", ["x"], ["y"])
    shape = [4, 6]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    graph = helper.make_graph([node], "waves", inputs, outputs)
    path = folder / "waves.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.usefixtures("brisk")
def test_function_answers_first_and_settles_behind_it() -> None:
    said: list[str] = []
    program = fw.compile(waves, budget_seconds=2.0, progress=lambda what, share: said.append(what))
    states = [program.state]
    np.testing.assert_array_equal(program(X), waves(X))
    states.append(program.state)
    assert program.why().backend == "function"
    assert "answers first, your function" in program.why().notes[0]
    assert program.wait(PATIENCE)
    assert [*states, program.state] == ["serving-first", "comparing", "settled"]
    rows = {row.name: row for row in program.why().tried}
    assert rows["your function"].here is not None
    assert rows["your function"].seconds is None
    assert rows["onnxruntime"].status == "right"
    assert any(what.startswith("timing") for what in said)
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)
    assert not comparers()


@pytest.mark.usefixtures("brisk")
def test_what_was_settled_is_recalled(store: Store) -> None:
    graph = fw.trace(waves, X)
    first = fw.compile(graph, X, budget_seconds=2.0)
    assert first.wait(PATIENCE)
    again = fw.compile(graph, X, level="recall")
    np.testing.assert_allclose(again(X), waves(X), rtol=1e-5)
    assert again.state == "settled"
    assert again.why().backend == first.why().backend
    assert again.why().tried[0].is_chosen


@pytest.mark.usefixtures("brisk")
def test_model_file_is_settled_for_the_next_process(store: Store, tmp_path: Path) -> None:
    path = model_file(tmp_path)
    with pytest.raises(NotRecalledError, match="No plan is recorded for waves"):
        fw.compile(path, level="recall")(X)
    program = fw.compile(path, budget_seconds=2.0)
    np.testing.assert_allclose(program(X), np.tanh(X), rtol=1e-5)
    assert program.state == "comparing"
    assert program.wait(PATIENCE)
    for level in (None, "recall"):
        again = fw.compile(path, budget_seconds=2.0, level=level)
        assert again.state == "settled"
        np.testing.assert_allclose(again(X), np.tanh(X), rtol=1e-5)
        assert again.why().backend == program.why().backend


def undecided(number: float) -> Graph:
    """Trace a graph that no other test has decided on: this process remembers decisions."""
    return fw.trace(lambda x: waves(x) * np.float32(number), X)


@pytest.mark.usefixtures("brisk")
def test_program_whose_comparer_was_killed_goes_on() -> None:
    program = fw.compile(undecided(2.0), budget_seconds=30.0)
    program(X)
    os.kill(comparer(), signal.SIGKILL)
    assert program.wait(PATIENCE)
    assert "ended early, with code -9" in program.why().notes[0]
    assert program.why().backend == "reference"
    np.testing.assert_allclose(program(X), waves(X) * 2, rtol=1e-5)


@pytest.mark.usefixtures("brisk")
@pytest.mark.parametrize("way", ["close", "forget"])
def test_program_that_ends_takes_its_comparer_along(way: str) -> None:
    program = fw.compile(undecided(3.0 if way == "close" else 4.0), budget_seconds=30.0)
    program(X)
    pid = comparer()
    if way == "close":
        program.close()
    else:
        del program
        gc.collect()
    assert has_ended(pid)


@pytest.mark.usefixtures("brisk", "store")
@pytest.mark.parametrize("is_file", [True, False])
def test_recalled_plan_serves_sizes_near_those_it_was_chosen_at(
    tmp_path: Path, is_file: bool
) -> None:
    source: Any = fw.trace(lambda x: np.tanh(x), fw.Spec(("n", 6), "float32"))
    if is_file:
        fw.save_onnx(source, tmp_path / "tanh.onnx")
        source = tmp_path / "tanh.onnx"
    with fw.compile(source, start="measured", budget_seconds=1.0) as measured:
        measured(X)
    recalled = fw.compile(source, level="recall")
    recalled(X)
    far = np.ones((17, 6), np.float32)
    for near in (X[:1], np.ones((16, 6), np.float32)):
        np.testing.assert_allclose(recalled(near), np.tanh(near), rtol=1e-5)
    with pytest.raises(NotRecalledError, match="chosen at n = 4" if is_file else "No plan"):
        recalled(far)
    assert recalled.state == "settled"
    example = (far,) if is_file else ()
    with fw.compile(source, *example, start="measured", budget_seconds=1.0) as measured:
        measured(far)
    np.testing.assert_allclose(recalled(far), np.tanh(far), rtol=1e-5)


def test_program_that_recalls_nothing_does_not_claim_to_serve(store: Store) -> None:
    program = fw.compile(fw.trace(lambda x: np.tanh(x), fw.Spec(("n",), "float32")), level="recall")
    with pytest.raises(NotRecalledError, match="No plan is recorded"):
        program(np.ones(3, np.float32))
    assert program.state == "settled"


@pytest.mark.usefixtures("brisk")
def test_plan_to_keep_that_cannot_be_built_leaves_the_first_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*given: object) -> None:
        raise fw.errors.RefusedError("It was built yesterday.")

    monkeypatch.setattr("fusewire.session.decider.Decider.proposal", fail)
    program = fw.compile(fw.trace(waves, X), X, budget_seconds=2.0)
    assert program.wait(PATIENCE)
    assert program.why().notes[0] == "It stays on reference: It was built yesterday."
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)


@pytest.mark.usefixtures("brisk")
@pytest.mark.parametrize(
    "options",
    [
        {"start": "measured"},
        {"deterministic": True},
        {"backend": lambda targets, graph: targets[0]},
    ],
)
def test_first_call_waits_for_the_comparison_if_it_has_to(options: dict[str, Any]) -> None:
    program = fw.compile(fw.trace(waves, X), level=1, budget_seconds=1.0, **options)
    np.testing.assert_allclose(program(X), waves(X), rtol=1e-5)
    assert program.state == "settled"
    assert program.why().tried


def test_comparer_belongs_to_the_process_that_started_it() -> None:
    program = fw.compile(waves, budget_seconds=30.0)
    program(X)
    pid = comparer()
    child = os.fork()
    if child == 0:
        os._exit(0 if program.state == "serving-first" and not program.wait(0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert program.state == "comparing"
    assert is_running(pid)
    program.close()
    assert has_ended(pid, 60.0)


SCRIPT = """
import os, sys, time
import numpy as np
import fusewire as fw
from tests.background.test_search import X, waves
from tests.comparers import comparer
from fusewire.system.processes import descendants

program = fw.compile(waves, budget_seconds=30.0)
program(X)
while len(descendants(comparer())) < 2:
    time.sleep(0.01)
print(*descendants(os.getpid()), flush=True)
if sys.argv[1] == "killed":
    time.sleep(60)
"""


@pytest.mark.parametrize("way", ["returns", "killed"])
def test_nothing_is_left_of_a_process_that_ends(way: str) -> None:
    command = [sys.executable, "-c", SCRIPT, way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) >= 3
        if way == "killed":
            process.kill()
        process.wait()
        # benchmarks/leftover.py has the time that it takes.
        assert [pid for pid in pids if not has_ended(pid, 10.0)] == []


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux has this policy")
def test_comparer_and_its_children_take_the_time_that_is_left(
    priority: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "PRIORITY", priority)
    program = fw.compile(waves, budget_seconds=30.0)
    program(X)
    supervisor = comparer()
    end = time.monotonic() + 60
    while len(below := descendants(supervisor)) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    # It has to run as soon as its parent has ended.
    assert os.sched_getscheduler(supervisor) == os.SCHED_OTHER
    assert {os.sched_getscheduler(x) for x in below} == {os.SCHED_IDLE}
    pid, *children = below
    autogroup = Path(f"/proc/{children[0]}/autogroup")
    while autogroup.exists() and not autogroup.read_text().endswith("nice 19\n"):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert os.getsid(pid) == os.getsid(0)
    program.close()


@pytest.mark.usefixtures("brisk")
def test_answers_are_right_while_it_settles_under_threads() -> None:
    program = fw.compile(fw.trace(waves, X), budget_seconds=1.0)
    program(X)
    expected, wrong = waves(X), []
    is_over = threading.Event()

    def call() -> None:
        while not is_over.is_set():
            if not np.allclose(program(X), expected, rtol=1e-4):
                wrong.append(1)
            time.sleep(0.01)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert program.wait(PATIENCE)
    time.sleep(0.1)
    is_over.set()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("is_file", [True, False])
def test_faults_that_the_comparer_records_name_the_model(
    is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[str] = []
    monkeypatch.setattr(Decider, "decide", lambda decider, _: models.append(decider.records.model))
    path = model_file(tmp_path)
    reading = ModelSource(path).read()
    assert reading.digest is not None
    file = FileSource(str(path), reading.digest, has_example=False, is_open=False)
    model = file if is_file else reading.graph
    page = new_page()
    try:
        _compare(ComparisonJob(Options(), Store(tmp_path / "cache"), model, [X]), page)
    finally:
        os.close(page)
    assert models == ["waves"]
