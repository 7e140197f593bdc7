"""Less precision is used where the user accepts it, if it is faster and accurate enough."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing.accuracy import AccuracyJudge
from fusewire.choosing.judge import VARIED, Judge, Judgement, varied_sets
from fusewire.choosing.measure import compare
from fusewire.contract.backend import Config, Device
from fusewire.errors import BundleWarning, FormatError, MiscompileWarning, OptionsError
from fusewire.ops.interpret import Interpreter
from fusewire.planning.candidates import Candidate, candidates
from fusewire.planning.target import Target
from fusewire.registry import REGISTRY
from fusewire.show.why import Tried, Why
from fusewire.store.disk import Store
from fusewire.store.signing import AllowedSigner, Signer, allow
from tests import toy

X = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((24, 8)).astype(np.float32)


def program(x: Any) -> Any:
    return np.tanh(x @ W)


def is_near(right: Sequence[Any], outputs: Sequence[Any]) -> bool:
    return bool(np.abs(right[0] - outputs[0]).max() < 1e-2)


def likeness(right: Sequence[Any], outputs: Sequence[Any]) -> float:
    return 1.0 - float(np.abs(right[0] - outputs[0]).max())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(program, X), path)
    return path


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    name = fw.register("tests.toy:narrow")
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: [name, "reference"])
    yield
    fw.unregister(name)


def explained(path: Path, said: list[str] | None = None, **options: Any) -> Why:
    """Choose as a new process would."""
    progress = None if said is None else lambda what, share: said.append(what)
    options = {"budget_seconds": 8.0, "start": "measured", "isolate": "never", **options}
    made = fw.compile(path, level=1, backend="narrow", progress=progress, **options)
    made(X)
    why = made.why()
    assert isinstance(why, Why)
    return why


def row(why: Why, digits: int) -> Tried:
    return next(one for one in why.tried if one.options.get("digits") == digits)


def chosen(why: Why) -> Tried:
    return next(one for one in why.tried if one.is_chosen)


def test_exact_tries_nothing_less(store: Store, model: Path) -> None:
    assert not any(one.is_reduced for one in explained(model).tried)


def test_fastest_within_the_bound_is_chosen(store: Store, model: Path) -> None:
    why = explained(model, accuracy=1e-2)
    best = chosen(why)
    assert (best.options, best.status, best.is_reduced) == ({"digits": 12}, "right", True)
    # Four digits are an error of a few percent: not accurate enough, and no fault of the engine.
    assert row(why, 4).status in ("inaccurate", "not judged")
    assert not list(store.entries("quarantine"))
    # What was measured, and on which inputs.
    kinds = [one["inputs"] for one in best.deviations]
    assert kinds == ["given", *VARIED]
    largest = max(one["relative"] for one in best.deviations)
    assert 0 < largest <= (best.expected_error or 0) < 1e-2
    note = next(note for note in why.notes if "less than the model's own dtypes" in note)
    assert f"{largest:.1e}" in note
    assert "99.9% of other inputs" in note


def test_wider_bound_admits_fewer_digits(store: Store, model: Path) -> None:
    assert chosen(explained(model, accuracy=0.2)).options == {"digits": 4}


def test_exact_does_not_use_what_a_bound_recorded(store: Store, model: Path) -> None:
    explained(model, accuracy=0.2)
    assert not chosen(explained(model)).is_reduced
    assert chosen(explained(model, accuracy=1e-2)).options == {"digits": 12}
    # The same bound is recalled, with what was measured.
    said: list[str] = []
    why = explained(model, said, accuracy=0.2)
    assert not any("trying" in text for text in said)
    assert chosen(why).options == {"digits": 4}
    assert chosen(why).deviations


def test_less_precision_without_gain_is_not_used(store: Store, model: Path) -> None:
    # 24 digits take as long as the exact run, and the others are not accurate enough.
    why = explained(model, accuracy=1e-5)
    assert not chosen(why).is_reduced
    assert row(why, 24).status in ("right", "not judged")


@pytest.mark.parametrize(
    ("accuracy", "digits"), [(is_near, 12), ((likeness, 0.99), 12), ((likeness, 0.5), 4)]
)
def test_function_of_the_user_decides(
    store: Store, model: Path, accuracy: Any, digits: int
) -> None:
    assert chosen(explained(model, accuracy=accuracy)).options == {"digits": digits}
    # It can be imported, so that it is part of the key of what is recorded.
    said: list[str] = []
    explained(model, said, accuracy=accuracy)
    assert not any("trying" in text for text in said)
    other: Any = (likeness, 0.6) if isinstance(accuracy, tuple) else is_alike
    explained(model, said, accuracy=other)
    assert any("trying" in text for text in said)


def is_alike(right: Sequence[Any], outputs: Sequence[Any]) -> bool:
    return likeness(right, outputs) > 0.9


def test_function_without_a_name_is_not_remembered(store: Store, model: Path) -> None:
    for _ in range(2):
        said: list[str] = []
        explained(model, said, accuracy=lambda right, outputs: True)
        assert any("trying" in text for text in said)
    assert not list(store.entries("plan"))


def test_score_without_a_least_one_is_refused(store: Store, model: Path) -> None:
    with pytest.raises(OptionsError, match=r"accuracy=likeness: it returned .* least score"):
        explained(model, accuracy=likeness)


@pytest.mark.parametrize("accuracy", [0, 1.5, "about", (likeness,), (0.5, likeness), None, True])
def test_accuracy_that_means_nothing_is_refused(accuracy: Any) -> None:
    with pytest.raises(OptionsError, match=r"^accuracy="):
        fw.Options(accuracy=accuracy)


def test_named_backend_is_measured_where_less_is_accepted(store: Store, model: Path) -> None:
    made = fw.compile(
        model, backend="narrow", accuracy=1e-2, start="measured", budget_seconds=8, isolate="never"
    )
    made(X)
    assert chosen(made.why()).options == {"digits": 12}
    # Level 0 measures nothing, and stays exact.
    made = fw.compile(model, backend="narrow", accuracy=1e-2, level=0)
    np.testing.assert_allclose(made(X), program(X), rtol=1e-5)


def test_signed_bundle_keeps_the_bound(
    store: Store, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {
        "backend": "onnxruntime",
        "start": "measured",
        "budget_seconds": 4.0,
    }
    made = fw.compile(model, X, accuracy=1e-2, **options)
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "config"))
    signer = Signer.generate()
    signer.write(tmp_path / "signing.pem")
    allow(AllowedSigner(signer.id, "me"))
    made.save(tmp_path / "signed.fw", weights=True, key=tmp_path / "signing.pem")
    with fw.open(tmp_path / "signed.fw") as opened:
        assert opened.options.accuracy == 1e-2
        np.testing.assert_array_equal(opened(X), made(X))
    # Nobody vouches for this one, and its reader did not ask for less.
    made.save(tmp_path / "saved.fw", weights=True)
    with pytest.warns(BundleWarning):
        opened = fw.open(tmp_path / "saved.fw")
    assert opened.options.accuracy == "exact"
    np.testing.assert_allclose(opened(X), made(X), rtol=1e-2)
    with pytest.raises(FormatError, match="accuracy is a function"):
        fw.compile(model, X, accuracy=is_near, **options).save(tmp_path / "other.fw")


def judged(run: Any, accuracy: Any = 1e-2) -> Judgement:
    graph = fw.trace(program, X)
    return AccuracyJudge(Judge(graph, [X]), accuracy).judge(run)


def test_exact_engine_answers_for_the_reference_on_generated_inputs() -> None:
    graph = fw.trace(program, X)
    exact = Interpreter(graph)
    asked: list[Any] = []

    def yardstick(inputs: Sequence[Any]) -> list[Any]:
        asked.append(inputs)
        return [np.asarray(exact(inputs)[0]) * np.float32(1 + 5e-5)]

    def run(inputs: Sequence[Any]) -> list[Any]:
        return [np.asarray(exact(inputs)[0]) * np.float32(1.002)]

    judge = AccuracyJudge(Judge(graph, [X]), 1e-2)
    assert judge.measure_by(yardstick)
    first, second = judge.judge(run), judge.judge(run)
    assert (first.status, first.sets) == ("right", ("given", *VARIED))
    # Two where the reference answers, too, and every other set once for all candidates.
    assert len(asked) == 2 + len(VARIED) - 1
    assert second == first
    errors = {error.inputs: error.relative for error in first.errors}
    assert errors["large"] == pytest.approx(2e-3, rel=1e-2)
    # Its own error is added, and never hides that of a candidate.
    assert errors["large"] >= 2e-3 * (1 - 1e-4)


def test_yardstick_that_is_not_far_nearer_than_the_bound_is_not_used() -> None:
    graph = fw.trace(program, X)
    exact = Interpreter(graph)

    def yardstick(inputs: Sequence[Any]) -> list[Any]:
        return [np.asarray(exact(inputs)[0]) * np.float32(1.0005)]

    judge = AccuracyJudge(Judge(graph, [X]), 1e-2)
    assert not judge.measure_by(yardstick)
    assert not AccuracyJudge(Judge(graph, [X]), is_near).measure_by(exact)
    assert not AccuracyJudge(Judge(graph, [X], deadline=0.0, end=0.0), 1e-2).measure_by(exact)
    assert judge.judge(exact).status == "right"


def test_error_on_one_kind_of_generated_inputs_is_found() -> None:
    graph = fw.trace(program, X)
    exact = Interpreter(graph)

    def run(inputs: Sequence[Any]) -> list[Any]:
        outputs = exact(inputs)
        is_large = np.abs(inputs[0]).max() > 2 * np.abs(X).max()
        return [np.asarray(outputs[0]) * np.float32(1.1)] if is_large else outputs

    found = judged(run)
    assert (found.status, found.kind) == ("inaccurate", "large")
    assert "on large inputs" in found.reason


def test_error_close_to_the_bound_leaves_no_margin() -> None:
    exact = Interpreter(fw.trace(program, X))

    def run(inputs: Sequence[Any]) -> list[Any]:
        return [np.asarray(exact(inputs)[0]) * np.float32(1.0095)]

    found = judged(run)
    assert found.status == "inaccurate"
    assert "For other inputs" in found.reason
    assert max(error.relative for error in found.errors) < 1e-2
    assert judged(run, 1.5e-2).status == "right"


def test_nan_that_the_exact_answer_lacks_is_never_accurate() -> None:
    exact = Interpreter(fw.trace(program, X))

    def run(inputs: Sequence[Any]) -> list[Any]:
        outputs = np.array(exact(inputs)[0])
        outputs[0, 0] = np.nan
        return [outputs]

    assert judged(run).status == "inaccurate"
    assert judged(run).errors[0].relative == np.inf


def test_too_little_time_is_no_verdict() -> None:
    graph = fw.trace(program, X)
    late = AccuracyJudge(Judge(graph, [X], deadline=0.0, end=0.0), 1e-2)
    assert late.judge(Interpreter(graph)).status == "not judged"


def test_verdict_survives_its_record() -> None:
    found = judged(Interpreter(fw.trace(program, X)))
    assert Judgement.from_data(json.loads(json.dumps(found.to_data()))) == found


def test_kinds_of_inputs_differ_and_indices_stay_valid() -> None:
    def embed(x: Any, at: Any) -> Any:
        return np.take(W, at, axis=0) + np.sum(x)

    at = np.arange(24).reshape(4, 6)
    graph = fw.trace(embed, X, at)
    sets = varied_sets(graph, [X, at])
    assert [one.kind for one in sets] == ["given", *VARIED]
    values = {one.kind: one.values for one in sets}
    assert all(np.isin(indices, at).all() for _, indices in values.values())
    scale = {kind: float(np.std(value[0])) for kind, value in values.items()}
    assert 3 < scale["large"] / scale["normal"] < 5
    assert 3 < scale["normal"] / scale["small"] < 5
    assert len({value[0].tobytes() for value in values.values()}) == len(values)


def test_canary_sees_an_error_beyond_the_bound_and_stays_exact_from_then_on(
    store: Store, model: Path
) -> None:
    made = fw.compile(
        model,
        backend="narrow",
        accuracy=1e-2,
        start="measured",
        budget_seconds=8,
        isolate="never",
        canary=1,
    )
    made(X)
    assert chosen(made.why()).options == {"digits": 12}
    far = X.copy()
    far[0, 0] = toy.OUTLIER
    with pytest.warns(MiscompileWarning, match="beyond the accuracy"):
        found = made(far)
    np.testing.assert_allclose(found, program(far), rtol=1e-4)
    assert not list(store.entries("quarantine"))


def test_less_precision_comes_before_the_next_engine() -> None:
    graph = fw.trace(program, X)
    device = Device("cpu", "narrow")
    first, second = (Target(toy.narrow(), device) for _ in range(2))
    found = candidates(
        graph, [first, second], second, Config(), may_fall_back=True, may_reduce=True
    )
    targets = [one.target for one in found if isinstance(one, Candidate)]
    assert [target is first for target in targets[:8]] == [True] * 4 + [False] * 4


def test_less_precision_is_judged_before_the_budget_is_spent_on_timing(
    store: Store, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[str] = []

    def noting(contenders: Any, *rest: Any, **more: Any) -> Any:
        timed.extend(contenders)
        return compare(contenders, *rest, **more)

    monkeypatch.setattr("fusewire.choosing.race.compare", noting)
    assert chosen(explained(model, accuracy=1e-2)).options == {"digits": 12}
    assert "narrow digits=12" in timed
    assert "narrow digits=4" not in timed
