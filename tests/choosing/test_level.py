"""Level 1: the fastest engine that is right is taken, and that is remembered."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

import fusewire as fw
from fusewire.choosing.judge import Judgement
from fusewire.choosing.measure import Comparison, Contender, Timing
from fusewire.cli import main
from fusewire.errors import FallbackWarning, MiscompileWarning, NoneRightError
from fusewire.records.entries import Records
from fusewire.registry import REGISTRY
from fusewire.store.disk import Store, shared_store

RIGHT = Judgement("right", sets=("given",))
X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)


def program(x: Any) -> Any:
    return np.exp(x) @ np.cos(x).T


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have few engines installed, so that tests are short."""
    names = ["onnxruntime", "reference"]
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: names)


def prefers(name: str) -> Any:
    """Stand for the clock: the one of this name is fastest, if it is there."""

    def compare(ways: Mapping[str, Contender], *rest: object, **more: object) -> Comparison:
        fastest = name if name in ways else next(iter(ways))
        return Comparison({way: Timing((1.0,)) for way in ways}, fastest, (), 0.0, 1)

    return compare


def choosing(*engines: str) -> Any:
    """Compile among a few engines; a graph, so that the function is not among the candidates."""
    said: list[str] = []
    graph = fw.trace(program, X)
    made = fw.compile(
        graph, start="measured", budget_seconds=60.0, progress=lambda what, share: said.append(what)
    )
    return made, said


@pytest.mark.usefixtures("few")
def test_auto_takes_an_engine_that_was_judged_right() -> None:
    made, said = choosing()
    np.testing.assert_allclose(made(X), program(X), rtol=1e-5)
    why = made.why()
    chosen = why.tried[0]
    assert chosen.is_chosen
    assert chosen.status == "right"
    assert chosen.backend == why.backend
    assert chosen.low is not None
    assert chosen.high is not None
    assert chosen.seconds is not None
    assert chosen.low <= chosen.seconds <= chosen.high
    assert {way.backend for way in why.tried} == {"onnxruntime", "reference"}
    assert any(what.startswith("timing") for what in said)
    assert said[-1] == "ready"
    verdicts = {v.backend: v for v in why.nodes[0].verdicts}
    assert verdicts[why.backend].status == "right"
    assert verdicts[why.backend].seconds == chosen.seconds


@pytest.mark.usefixtures("few")
def test_what_was_decided_is_not_decided_again(store: Store) -> None:
    made, _ = choosing()
    made(X)
    again, said = choosing()
    np.testing.assert_array_equal(again(X), made(X))
    assert said == ["ready"]
    assert again.why().tried[0].cache == "hit"
    assert {entry.key.kind for entry in store.entries()} >= {"plan", "verdict", "measurement"}


@pytest.mark.usefixtures("few")
def test_same_structure_with_other_weights_is_judged_and_not_timed(store: Store) -> None:
    def scaled(weights: Any) -> Any:
        return lambda x: np.tanh(x @ weights)

    rng = np.random.default_rng(0)
    for turn in range(2):
        said: list[str] = []
        weights = rng.normal(size=(6, 300)).astype(np.float32)
        report: Any = lambda what, share, said=said: said.append(what)  # noqa: E731 - typed
        graph = fw.trace(scaled(weights), X)
        made = fw.compile(graph, start="measured", budget_seconds=60.0, progress=report)
        made(X)
        assert any(what.startswith("checking") for what in said)
        assert any(what.startswith("timing") for what in said) == (turn == 0)


def test_wrong_engine_is_not_taken_and_not_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fw.register("fusewire.testing.chaos:element_at_run")
    try:
        names = ["chaos", "reference"]
        monkeypatch.setattr(REGISTRY.backends, "names", lambda: names)
        monkeypatch.setattr("fusewire.choosing.race.compare", prefers("chaos"))
        made, _ = choosing()
        with pytest.warns(FallbackWarning, match="all of it runs on reference") as caught:
            np.testing.assert_allclose(made(X), program(X), rtol=1e-5)
        assert len(caught) == 1
        rows = {way.backend: way for way in made.why().tried}
        assert rows["chaos"].status == "wrong"
        assert made.why().backend == "reference"
        (note,) = [note for note in made.why().notes if "chaos is wrong" in note]
        assert "The first wrong node is" in note
        (script,) = store.path.glob("repros/*/repro.py")
        assert str(script) in note
        for entry in list(store.entries("plan")):
            store.drop(entry.key)
        again, _ = choosing()
        again(X)
        rows = {way.backend: way for way in again.why().tried}
        assert rows["chaos"].status == "quarantined"
    finally:
        fw.unregister("chaos")


def test_engine_that_crashes_while_it_is_timed_is_not_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fw.register("fusewire.testing.chaos:segv_at_rerun")
    try:
        monkeypatch.setattr(REGISTRY.backends, "names", lambda: ["chaos", "reference"])
        for status in ("refused", "quarantined"):
            made, _ = choosing()
            np.testing.assert_allclose(made(X), program(X), rtol=1e-5)
            rows = {way.backend: way for way in made.why().tried}
            assert rows["chaos"].status == status
            for entry in list(store.entries("plan")):
                store.drop(entry.key)
    finally:
        fw.unregister("chaos")


def test_engine_that_crashed_in_this_race_is_refused_and_not_in_quarantine(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fw.register("fusewire.testing.chaos:segv_at_run")
    try:
        monkeypatch.setattr(REGISTRY.backends, "names", lambda: ["chaos"])
        for status in ("refused", "quarantined"):
            graph = fw.trace(program, X)
            made = fw.compile(graph, start="measured", budget_seconds=60.0, fallback="allow")
            np.testing.assert_allclose(made(X), program(X), rtol=1e-5)
            (row,) = [row for row in made.why().tried if row.backend == "chaos"]
            assert row.status == status
    finally:
        fw.unregister("chaos")


def test_records_without_a_store_keeps_what_this_process_made() -> None:
    from fusewire.store.key import Key

    records, key = Records(None), Key.of("plan", graph="a")
    assert records.get(key) is None
    records.put(key, b"kept")
    assert records.get(key) == b"kept"
    records.drop(key)
    assert records.get(key) is None


def test_shared_store_is_off_in_tests() -> None:
    assert shared_store() is None


@pytest.mark.parametrize("level", [0, 1])
def test_canary_finds_an_engine_that_goes_wrong_later(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fw.register("fusewire.testing.chaos:second_at_run")
    try:
        monkeypatch.setattr(REGISTRY.backends, "names", lambda: ["chaos", "reference"])
        monkeypatch.setattr("fusewire.choosing.judge.Judge.judge", lambda *_, **__: RIGHT)
        made = fw.compile(
            program,
            X,
            backend="chaos" if level == 0 else "auto",
            level=level,
            canary=1,
            fallback="allow",
            start="measured",
            budget_seconds=60.0,
        )
        made(X)
        if made.why().backend == "chaos":
            with pytest.warns(MiscompileWarning, match="gave a wrong answer"):
                # The first answer may be that of a child, the next two are not.
                answers = [made(X) for _ in range(2)]
            np.testing.assert_allclose(answers, [program(X)] * 2, rtol=1e-5)
        for _ in range(4):
            np.testing.assert_allclose(made(X), program(X), rtol=1e-5)
    finally:
        fw.unregister("chaos")


def test_canary_replaces_a_plan_of_several_regions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fw.register("tests.toy:wrong", "split")
    try:
        monkeypatch.setattr(REGISTRY.backends, "names", lambda: ["split", "reference"])
        monkeypatch.setattr("fusewire.choosing.judge.Judge.judge", lambda *_, **__: RIGHT)
        monkeypatch.setattr("fusewire.choosing.race.compare", prefers("split"))
        options = fw.Options(
            level=1, canary=1, fallback="allow", start="measured", budget_seconds=1.0
        )
        made = fw.compile(fw.trace(waves, X), X, options=options)
        assert len(made.plan.steps) == 3
        with pytest.warns(MiscompileWarning, match="gave a wrong answer") as said:
            found = made(X)
        assert len(said) == 1
        np.testing.assert_allclose(found, np.exp(np.cos(np.exp(X))), rtol=1e-5)
        # The plan, and its one region on the engine.
        assert len(list(store.entries("quarantine"))) == 2
    finally:
        fw.unregister("split")


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("given", [[1.0, 2.0], np.array([1.0, 2.0], ">f8")])
def test_arguments_that_are_no_plain_arrays_are_decided_on(given: Any) -> None:
    graph = fw.trace(lambda x: np.exp(x) + 1, fw.Spec((2,), "float64"))
    found = fw.compile(graph, start="measured", budget_seconds=60.0)(given)
    np.testing.assert_allclose(found, np.exp([1.0, 2.0]) + 1)


@pytest.mark.usefixtures("few")
def test_scalar_of_numpy_is_decided_on() -> None:
    graph = fw.trace(lambda x: np.exp(x), fw.Spec((), "float32"))
    assert fw.compile(graph, start="measured", budget_seconds=60.0)(np.float32(0)) == 1


@pytest.mark.usefixtures("few", "store")
def test_decision_that_time_cut_short_is_made_again_when_there_is_more(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(program, X), path)
    hasty = fw.compile(path, level=1, start="measured", budget_seconds=0)
    hasty(X)
    assert hasty.why().tried[0].status == "not judged"
    again = fw.compile(path, level=1, start="measured", budget_seconds=0)
    again(X)
    assert again.why().tried[0].cache == "hit"
    # Enough for all engines on a machine that others use.
    patient = fw.compile(path, level=1, start="measured", budget_seconds=20)
    patient(X)
    assert patient.why().tried[0].status == "right"
    assert all(way.status != "not tried" for way in patient.why().tried)


@pytest.mark.usefixtures("few", "store")
@pytest.mark.parametrize("level", [1, "recall"])
@pytest.mark.parametrize("is_file", [True, False])
def test_recalled_plan_says_what_time_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: Any, is_file: bool
) -> None:
    source: Any = fw.trace(program, X)
    if is_file:
        fw.save_onnx(source, tmp_path / "model.onnx")
        source = tmp_path / "model.onnx"
    hasty = fw.compile(source, level=1, start="measured", budget_seconds=0)
    hasty(X)
    (left_out,) = [note for note in hasty.why().notes if "candidates were compared" in note]
    caplog.set_level("INFO", "fusewire")
    again = fw.compile(source, level=level, start="measured", budget_seconds=0)
    again(X)
    assert again.why().notes == hasty.why().notes
    assert left_out in str(again.why())
    (said,) = [x.getMessage() for x in caplog.records if "cut short" in x.getMessage()]
    assert left_out in said


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One engine, which does not take all of ``waves``."""
    name = fw.register("tests.toy:split", "split")
    names = [name]
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: names)
    yield
    fw.unregister(name)


def waves(x: Any) -> Any:
    return np.exp(np.cos(np.exp(x)))


@pytest.mark.usefixtures("split")
def test_plan_in_pieces_that_was_chosen_is_warned_of() -> None:
    with pytest.warns(FallbackWarning, match="1 of 3 nodes do not run on split"):
        made = fw.compile(fw.trace(waves, X), X, level=1, start="measured", budget_seconds=1.0)
    assert len(made.plan.steps) == 3


@pytest.mark.usefixtures("split")
def test_plan_that_hands_over_too_much_is_not_chosen() -> None:
    made = fw.compile(
        fw.trace(waves, X),
        X,
        level=1,
        start="measured",
        budget_seconds=1.0,
        max_crossings=2,
        fallback="allow",
    )
    assert made.why().backend == "split"
    with pytest.warns(FallbackWarning, match="would hand over 2 tensors, and 1 are allowed"):
        made = fw.compile(
            fw.trace(waves, X), X, level=1, start="measured", budget_seconds=1.0, max_crossings=1
        )
    np.testing.assert_allclose(made(X), waves(X), rtol=1e-6)
    assert made.why().backend == "reference"
    with pytest.raises(NoneRightError, match="split"):
        fw.compile(
            fw.trace(waves, X),
            X,
            level=1,
            start="measured",
            budget_seconds=1.0,
            max_crossings=1,
            fallback="error",
        )


@pytest.mark.usefixtures("few")
def test_function_that_chooses_is_asked_when_engines_are_compared() -> None:
    def policy(homes: Sequence[Any], graph: object) -> Any:
        return next(home for home in homes if home.name == "reference")

    made = fw.compile(
        fw.trace(program, X), X, backend=policy, level=1, start="measured", budget_seconds=1.0
    )
    assert [way.backend for way in made.why().tried] == ["reference"]


def save_loop(path: Path, rounds: int) -> Path:
    """Write a model that is one loop, as files of recurrent models are."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["goes_on"]),
            helper.make_node("Add", ["v", "v"], ["doubled"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("round", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", onnx.TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("goes_on", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("doubled", onnx.TensorProto.FLOAT, [4]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["rounds", "", "x"], ["y"], body=body)],
        "loop",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])],
        [numpy_helper.from_array(np.array(rounds), "rounds")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    return save_loop(tmp_path / "loop.onnx", 5)


@pytest.mark.parametrize("level", [None, 1])
def test_loop_alone_is_compared_on_engines_that_run_its_body_only(
    loop: Path, level: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: ["webgpu", "reference"])
    made = fw.compile(loop, level=level, start="measured", budget_seconds=60.0)
    np.testing.assert_array_equal(made(np.ones(4, np.float32)), np.full(4, 32, np.float32))
    assert {way.backend for way in made.why().tried} == {"webgpu", "reference"}


def test_loop_alone_is_benched_on_engines_that_run_its_body_only(loop: Path) -> None:
    command = ["bench", str(loop), "--budget", "30", "--backends", "webgpu,reference", "--json"]
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = {row["backend"]: row["status"] for row in json.loads(done.stdout)["rows"]}
    assert rows == {"webgpu": "right", "reference": "right"}


@pytest.mark.usefixtures("few")
def test_interrupt_in_a_comparison_ends_the_work_of_the_oracle(tmp_path: Path) -> None:
    endless = save_loop(tmp_path / "endless.onnx", 2**62)
    before = {*threading.enumerate()}

    def interrupt(what: str, share: float) -> None:
        if what.startswith("trying"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fw.compile(endless, start="measured", progress=interrupt)(np.ones(4, np.float32))
    for thread in {*threading.enumerate()} - before:
        thread.join(5.0)
    assert not {*threading.enumerate()} - before
