"""A profile: what calls do on one clock, as data and as files, and nothing once it has ended."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.backends.webgpu.executable import placed
from fusewire.errors import GraphError, OptionsError
from fusewire.events import EVENTS, EventList
from fusewire.profiling.profiling import Profile, ProfileEvent
from tests.chromium import executable, tab

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
READY = "document.documentElement?.dataset.ready"
HOSTILE = "</script><img src=x onerror=window.hacked=1>"


def _compiled(backend: str = "reference", **options: Any) -> Any:
    return fw.compile(lambda x: np.tanh(x @ x) + x, X, backend=backend, **options)


def _kinds(profile: Profile) -> list[str]:
    return [event.kind for event in profile.events]


def _inside(inner: ProfileEvent, outer: ProfileEvent) -> bool:
    end, outer_end = inner.start + inner.seconds, outer.start + outer.seconds
    return outer.start <= inner.start and end <= outer_end and inner.thread_id == outer.thread_id


def test_calls_and_regions_are_noted_and_nested() -> None:
    program = _compiled()
    program(X)
    with fw.profile() as p:
        for _ in range(3):
            program(X)
    calls = [event for event in p.events if event.kind == "call"]
    regions = [event for event in p.events if event.kind == "region"]
    assert len(calls) == len(regions) == 3
    assert all(_inside(*pair) for pair in zip(regions, calls, strict=True))
    assert {event.backend for event in regions} == {"reference"}
    assert all(0 <= event.start <= p.seconds for event in p.events)


def test_nothing_is_noted_before_and_after() -> None:
    program = _compiled()
    program(X)
    before = dict(program._calls)
    with fw.profile() as p:
        program(X)
        assert dict(program._calls) != before
    program(X)
    assert _kinds(p).count("call") == 1
    # The very objects of before: a call does what it did, and nothing more.
    assert dict(program._calls) == before
    assert not EVENTS.is_on


def test_what_runs_a_region_is_its_own_again_after_a_profile() -> None:
    program = _compiled("onnxruntime", level=0)
    program(X)
    program(X)
    runner = program.entry((X,)).runner._runners[0]
    (loaded,) = runner._made.values()
    before = loaded.parts
    with fw.profile():
        assert loaded.parts is not before
    assert loaded.parts is before


@pytest.mark.usefixtures("store")
def test_program_that_is_compiled_inside_tells_what_that_took() -> None:
    with fw.profile() as p:
        program = fw.compile(lambda x: np.tanh(x @ x), backend="onnxruntime", level=0)
        program(X)
        program(X)
    kinds = _kinds(p)
    assert {"call", "prepare", "compile", "load", "cache", "region"} <= {*kinds}
    compiled = next(event for event in p.events if event.kind == "compile")
    assert compiled.backend == "onnxruntime"
    assert compiled.details["compile_seconds"] > 0
    again = fw.compile(lambda x: np.tanh(x @ x), backend="onnxruntime", level=0)
    with fw.profile() as p:
        again(X)
    outcomes = {x.details.get("outcome") for x in p.events if x.kind == "cache"}
    assert "hit" in outcomes
    assert "compile" not in _kinds(p)


def test_call_that_raises_is_noted_with_the_error() -> None:
    program = fw.compile(lambda x, i: np.take(x, i, axis=0), X, np.int64(0), backend="reference")
    with fw.profile() as p, pytest.raises(fw.FusewireError):
        program(X, np.int64(9))
    call = next(event for event in p.events if event.kind == "call")
    assert call.details["error"] == "CheckError"


def test_checks_before_an_engine_are_noted() -> None:
    program = fw.compile(lambda x, i: np.take(x, i, axis=0), X, np.int64(0), backend="xla", level=0)
    program(X, np.int64(1))
    with fw.profile() as p:
        program(X, np.int64(2))
    check, region = (next(x for x in p.events if x.kind == kind) for kind in ("check", "region"))
    assert check.start + check.seconds <= region.start


def test_threads_are_told_apart() -> None:
    program = _compiled()
    program(X)
    with fw.profile() as p:
        threads = [threading.Thread(target=program, args=(X,), name=f"t{i}") for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    calls = [event for event in p.events if event.kind == "call"]
    assert {event.thread for event in calls} == {"t0", "t1", "t2"}


def test_profiles_nest() -> None:
    program = _compiled()
    program(X)
    with fw.profile() as outer:
        program(X)
        with fw.profile() as inner:
            program(X)
        program(X)
    assert _kinds(inner).count("call") == 1
    assert _kinds(outer).count("call") == 3


def test_profile_is_used_once() -> None:
    p = fw.profile()
    with p:
        pass
    with pytest.raises(GraphError, match="has been used"), p:
        pass


def test_run_is_noted_like_a_call() -> None:
    program = _compiled()
    with fw.profile() as p:
        result = program.run(X)
    call = next(event for event in p.events if event.kind == "call")
    assert call.seconds <= result.seconds


def test_function_that_answers_itself_is_one_region() -> None:
    program = fw.compile(lambda x: x + x)
    program(X)
    with fw.profile() as p:
        program(X)
    assert [event.backend for event in p.events if event.kind == "region"]


def test_module_is_noted_like_a_program() -> None:
    torch = pytest.importorskip("torch", reason="pip install 'fusewire[torch]'")
    module = torch.nn.Linear(8, 4).eval()
    program = fw.compile(module, backend="reference")
    x = torch.ones(2, 8)
    program(x)
    with fw.profile() as p:
        program(x)
    program(x)
    assert _kinds(p).count("call") == 1


def test_hand_overs_tell_their_bytes(webgpu: Callable[..., Any]) -> None:
    program = webgpu(lambda x: np.tanh(x) * 2)
    program(X)
    with fw.profile() as p:
        program(X)
    moved = [event for event in p.events if event.kind == "hand-over"]
    assert [event.details["bytes"] for event in moved] == [X.nbytes]
    assert moved[0].name == "webgpu:0 to host"


@pytest.fixture
def webgpu() -> Callable[..., Any]:
    if find_spec("wgpu") is None:
        pytest.skip("WebGPU is not installed: pip install 'fusewire[webgpu]'")
    return lambda function: fw.compile(function, X, backend="webgpu", level=0, isolate=False)


def test_kernels_of_webgpu_lie_in_their_region(webgpu: Callable[..., Any]) -> None:
    program = webgpu(lambda x: np.cumsum(np.tanh(x @ x), axis=1))
    program(X)
    with fw.profile(kernels=True) as p:
        program(X)
    region = next(event for event in p.events if event.kind == "region")
    kernels = [event for event in p.events if event.kind == "kernel"]
    assert kernels
    assert all(_inside(kernel, region) for kernel in kernels)
    assert sum(kernel.seconds for kernel in kernels) <= region.seconds
    with fw.profile() as p:
        program(X)
    assert "kernel" not in _kinds(p)


def test_kernels_of_onnxruntime_lie_in_their_regions() -> None:
    x = np.ones((256, 256), np.float32)
    program = fw.compile(
        lambda x: np.cumsum(np.tanh(x @ x), axis=1), x, backend="onnxruntime", level=0
    )
    program(x)
    program(x)
    with fw.profile(kernels=True) as p:
        outputs = [program(x) for _ in range(3)]
    assert np.allclose(outputs[2], np.cumsum(np.tanh(x @ x), axis=1), rtol=1e-4)
    regions = [event for event in p.events if event.kind == "region"]
    kernels = [event for event in p.events if event.kind == "kernel"]
    assert len(regions) == 3
    for region in regions:
        mine = [kernel for kernel in kernels if _inside(kernel, region)]
        assert any("CumSum" in kernel.name for kernel in mine)
        assert 0 < sum(kernel.seconds for kernel in mine) <= region.seconds
    with fw.profile() as p:
        program(x)
    assert "kernel" not in _kinds(p)


def test_profile_that_ends_beside_a_call_leaves_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    x = np.ones((128, 128), np.float32)
    program = fw.compile(lambda x: np.tanh(x @ x), x, backend="onnxruntime", level=0)
    program(x)
    program(x)
    is_over = threading.Event()

    def call() -> None:
        while not is_over.is_set():
            program(x)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    profiles = [fw.profile(kernels=True) for _ in range(20)]
    for profile in profiles:
        with profile:
            program(x)
    is_over.set()
    for thread in threads:
        thread.join()
    assert any("kernel" in _kinds(profile) for profile in profiles)
    assert list(tmp_path.glob("fusewire-profile-*")) == []
    runner: Any = program.entry((x,)).runner
    (loaded,) = runner._runners[0]._made.values()
    assert loaded._executable.profiler._opened is None


def test_kernels_of_a_profile_around_another_lie_in_their_own_regions() -> None:
    x = np.ones((128, 128), np.float32)
    program = fw.compile(lambda x: np.tanh(x @ x), x, backend="onnxruntime", level=0)
    program(x)
    program(x)
    with fw.profile(kernels=True) as p:
        program(x)
        with fw.profile(kernels=True):
            program(x)
        program(x)
    regions = [event for event in p.events if event.kind == "region"]
    kernels = [event for event in p.events if event.kind == "kernel"]
    for region in regions:
        mine = [kernel for kernel in kernels if _inside(kernel, region)]
        assert sum("MatMul" in kernel.name for kernel in mine) == 1


def test_kernels_of_openvino_lie_in_their_regions() -> None:
    x = np.ones((256, 256), np.float32)
    program = fw.compile(lambda x: np.tanh(x @ x) @ x, x, backend="openvino", level=0)
    program(x)
    program(x)
    with fw.profile(kernels=True) as p:
        outputs = [program(x) for _ in range(3)]
    assert np.allclose(outputs[2], np.tanh(x @ x) @ x, rtol=1e-4)
    regions = [event for event in p.events if event.kind == "region"]
    kernels = [event for event in p.events if event.kind == "kernel"]
    for region in regions:
        mine = [kernel for kernel in kernels if _inside(kernel, region)]
        assert any("MatMul" in kernel.name for kernel in mine)
        assert 0 < sum(kernel.seconds for kernel in mine) <= region.seconds
    runner: Any = program.entry((x,)).runner
    (loaded,) = runner._runners[0]._made.values()
    assert loaded._executable._counting is None


def test_dispatches_are_placed_before_the_end_of_their_run() -> None:
    ticks = np.array([1000, 3000, 4000, 6000, 9, 3], np.uint64)
    first, second = placed(["a", "b", "c"], ticks, 1.0)
    assert (first.name, second.name) == ("a", "b")
    assert first.start == pytest.approx(1.0 - 5e-6)
    assert first.seconds == second.seconds == pytest.approx(2e-6)
    assert second.start + second.seconds == pytest.approx(1.0)


def test_rows_share_the_time_of_calls() -> None:
    program = _compiled()
    program(X)
    with fw.profile() as p:
        program(X)
    rows = {row.kind: row for row in p.rows()}
    region, call = rows["region"], rows["call"]
    assert call.share == 1.0
    assert region.share == pytest.approx(region.total / call.total)


def test_table_fits_eighty_columns() -> None:
    long = "a_function_with_a_name_that_is_much_longer_than_any_column_of_a_table_should_ever_be"
    function: Any = lambda x: x * 2  # noqa: E731 - it gets another name
    function.__name__ = function.__qualname__ = long
    program = fw.compile(function, X, backend="reference")
    with fw.profile() as p:
        program(X)
    table = p.table()
    assert max(map(len, table.splitlines())) <= 80
    assert "region" in table
    assert str(p) == table


def test_chrome_trace_has_complete_events_in_microseconds(tmp_path: Path) -> None:
    program = _compiled()
    program(X)
    with fw.profile() as p:
        program(X)
    p.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    named = {event["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert named == {"process_name", "thread_name"}
    assert [event["cat"] for event in complete] == _kinds(p)
    for event, ours in zip(complete, p.events, strict=True):
        assert event["ts"] == pytest.approx(ours.start * 1e6, abs=1e-3)
        assert event["dur"] == pytest.approx(ours.seconds * 1e6, abs=1e-3)
        assert {"pid", "tid", "args"} <= event.keys()


def test_trace_tells_compiling_a_region_from_running_it(tmp_path: Path) -> None:
    with fw.profile() as p:
        _compiled()(X)
    p.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["name"]: event["cat"] for event in events if event["ph"] == "X"}
    assert names["region0"] == "region"
    assert names["compile region0"] == "compile"


def test_profile_is_written_by_the_end_of_its_name(tmp_path: Path) -> None:
    with fw.profile() as p:
        pass
    with pytest.raises(OptionsError, match=r"end its name in \.json, \.html"):
        p.save(tmp_path / "trace.txt")


def test_events_beyond_the_limit_are_counted() -> None:
    events = EventList(most=1)
    EVENTS.begin(events)
    for _ in range(3):
        EVENTS.note("call", "f", 0.0, 1.0)
    EVENTS.end(events)
    assert (len(events.events), events.dropped) == (1, 2)


def test_page_shows_a_profile_in_a_browser(tmp_path: Path) -> None:
    if executable() is None:
        pytest.skip("there is no browser here: apt-get install chromium")
    program = fw.compile(fw.trace(lambda x: np.tanh(x @ x), X), backend="reference")
    program.name = HOSTILE
    program(X)
    with fw.profile() as p:
        for _ in range(20):
            program(X)
    p.save(tmp_path / "profile.html")
    with tab() as browser:
        browser.resize(1000, 700)
        browser.open(tmp_path / "profile.html", READY)
        assert not browser.problems()
        assert browser.evaluate("document.getElementById('canvas').drawn") == len(p.events)
        assert not browser.evaluate("window.hacked")
        rows = browser.evaluate("document.querySelectorAll('#totals tbody tr').length")
        assert rows == len(p.rows())
        number = next(i for i, event in enumerate(p.events) if event.kind == "call")
        x, y = browser.evaluate(f"document.getElementById('canvas').whereIs({number})")
        browser.move(x, y)
        browser.wait("!document.getElementById('tip').hidden")
        said = browser.evaluate("document.getElementById('tip').innerText")
        assert HOSTILE in said


def test_profile_is_sent_to_opentelemetry() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="pip install opentelemetry-sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    program = _compiled()
    program(X)
    with fw.profile() as p:
        program(X)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert {*spans} == {"fusewire.profile", "fusewire.call", "fusewire.region"}
    assert spans["fusewire.region"].parent.span_id == spans["fusewire.call"].context.span_id
    assert spans["fusewire.call"].parent.span_id == spans["fusewire.profile"].context.span_id
    length = spans["fusewire.call"].end_time - spans["fusewire.call"].start_time
    call = next(event for event in p.events if event.kind == "call")
    assert length == pytest.approx(call.seconds * 1e9, abs=2)
