"""With samples of a user's inputs, int8 with fixed scales takes part and is judged on them."""

import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.background.job import ComparisonJob, read_job
from fusewire.calibration import Calibration
from fusewire.choosing.accuracy import AccuracyJudge, most_judged
from fusewire.choosing.calibrate import Calibrating, SeenValues
from fusewire.choosing.judge import Judge
from fusewire.choosing.measure import Comparison, Timing
from fusewire.contract.backend import CALIBRATED, Config
from fusewire.errors import BundleWarning, NotRecalledError, OptionsError
from fusewire.ops.interpret import Interpreter
from fusewire.planning.candidates import Candidate
from fusewire.planning.planner import make_plan
from fusewire.registry import REGISTRY
from fusewire.rewrite.pipeline import run_pipeline
from fusewire.rewrite.static_int8 import LayerRanges, parsed
from fusewire.session.context import CompileContext, reference_target
from fusewire.show.why import Tried, Why
from fusewire.store.disk import Store
from fusewire.store.signing import AllowedSigner, Signer, allow
from tests.toy import ToyBackend

RNG = np.random.default_rng(0)
W = RNG.standard_normal((32, 64)).astype(np.float32) / 6
V = RNG.standard_normal((64, 32)).astype(np.float32) / 8
# Positive numbers, of which normal noise is no likeness.
SAMPLES = [np.abs(RNG.standard_normal((4, 32))).astype(np.float32) for _ in range(24)]
X = SAMPLES[0] * np.float32(0.9)


def network(x: Any) -> Any:
    return np.tanh(x @ W) @ V


def likeness(right: Sequence[Any], outputs: Sequence[Any]) -> float:
    return float(1 - np.linalg.norm(right[0] - outputs[0]) / np.linalg.norm(right[0]))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(network, fw.Spec((4, 32), "float32")), path)
    return path


@pytest.fixture(autouse=True)
def backend() -> Iterator[str]:
    name = fw.register("tests.toy:calibrated")
    yield name
    fw.unregister(name)


def compiled(source: Any, samples: Any = SAMPLES, **options: Any) -> Any:
    usual = {"backend": "calibrated", "accuracy": 5e-2, "start": "measured", "isolate": "never"}
    return fw.compile(source, calibrate=samples, **{"budget_seconds": 8.0, **usual, **options})


def explained(path: Path, samples: Any = SAMPLES, **options: Any) -> Why:
    """Choose as a new process would."""
    made = compiled(path, samples, **options)
    made(X)
    why = made.why()
    assert isinstance(why, Why)
    return why


def calibrated(why: Why) -> Tried:
    return next(row for row in why.tried if CALIBRATED in row.options)


def test_int8_is_chosen_if_it_is_accurate_on_samples(store: Store, model: Path) -> None:
    why = explained(model)
    row = calibrated(why)
    assert (row.is_chosen, row.status, row.is_reduced) == (True, "right", True)
    # Half of the samples are for judging, and nothing is generated.
    kinds = ["given", "sample", *(f"sample-{number}" for number in range(2, 13))]
    assert list(row.judged_on) == kinds
    assert [one["inputs"] for one in row.deviations] == kinds
    largest = max(one["relative"] for one in row.deviations)
    assert 1e-4 < largest <= (row.expected_error or 0) < 5e-2
    note = next(note for note in why.notes if "less than the model's own dtypes" in note)
    assert f"{largest:.1e}" in note
    assert "sample" in note


def test_int8_that_errs_too_much_is_not_used_and_no_fault(store: Store, model: Path) -> None:
    why = explained(model, accuracy=1e-3)
    assert calibrated(why).status == "inaccurate"
    assert not calibrated(why).is_chosen
    assert not list(store.entries("quarantine"))


def test_without_samples_nothing_is_calibrated(store: Store, model: Path) -> None:
    assert not any(CALIBRATED in row.options for row in explained(model, None).tried)


def ranges(samples: Any, most: float = 8.0) -> list[LayerRanges]:
    graph = run_pipeline(fw.trace(network, X)).graph
    calibration, fallback = Calibration.of(samples), reference_target()
    assert calibration is not None
    finder = CompileContext(fw.Options(isolate="never")).finder
    calibrating = Calibrating(graph, calibration, fallback, Config(), finder, most)
    target = next(iter(finder.targets("calibrated")))
    candidate = Candidate(target, make_plan(graph, [target], fallback))
    (options,) = calibrating.options(candidate)
    return list(parsed(options[CALIBRATED]).values())


def test_ranges_are_those_of_the_samples() -> None:
    first, second = ranges(SAMPLES)
    largest = max(float(x.max()) for x in SAMPLES[::2])
    assert 0.7 * largest < first.input[1] <= largest * (1 + 1e-6)
    assert first.input[0] >= 0
    # What tanh returns.
    assert -1 <= second.input[0] < 0 < second.input[1] <= 1
    wide, _ = ranges([10 * x for x in SAMPLES])
    assert wide.input[1] == pytest.approx(10 * first.input[1], rel=1e-3)


def test_ranges_ignore_the_samples_that_are_for_judging() -> None:
    moved = [x * np.float32(100) if number % 2 else x for number, x in enumerate(SAMPLES)]
    assert ranges(moved) == ranges(SAMPLES)


def test_rare_outliers_are_left_out_of_a_range() -> None:
    values = np.random.default_rng(3).standard_normal(1 << 21)
    values[7] = 400.0
    # One of two million is worth leaving out, and one of a thousand is not.
    many, few = SeenValues(), SeenValues()
    many.add(values, 1 << 16)
    few.add(values[: 1 << 10], 1 << 16)
    assert 3.0 < many.range[1] < 10.0
    assert few.range[1] == 400.0


def test_ranges_of_tiny_values_are_numbers() -> None:
    tiny = [np.full((4, 32), 1e-44, np.float32)] * 24
    for one in ranges(tiny):
        assert 0 <= one.input[1] <= 1e-40


def judge_of(samples: Any, accuracy: Any) -> tuple[AccuracyJudge, Interpreter]:
    graph = fw.trace(network, X)
    values = [[x] for x in samples]
    return AccuracyJudge(Judge(graph, [X]), accuracy, samples=values), Interpreter(graph)


def wrong_on(exact: Interpreter, bad: Sequence[Any], factor: float) -> Callable[..., list[Any]]:
    def run(inputs: Sequence[Any]) -> list[Any]:
        is_bad = any(inputs[0] is x for x in bad)
        return [np.asarray(exact(inputs)[0]) * np.float32(factor if is_bad else 1.0)]

    return run


def many(count: int) -> list[Any]:
    return [x.copy() for _ in range(count // len(SAMPLES) + 1) for x in SAMPLES][:count]


def agrees(right: Sequence[Any], found: Sequence[Any]) -> float:
    return float(np.allclose(right[0], found[0], rtol=0.1))


def test_scores_of_samples_count_on_average() -> None:
    samples = many(100)
    judge, exact = judge_of(samples, (likeness, 0.9))
    # One of a hundred is off by half: 0.995 on average.
    found = judge.judge(wrong_on(exact, samples[:1], 0.5))
    assert found.status == "right"
    assert "likeness is 0.995 on average of 100 samples, and of others at least 0.9" in found.reason
    found = judge.judge(wrong_on(exact, samples[:30], 0.5))
    assert found.status == "inaccurate"
    assert "0.9 is asked for" in found.reason


def test_score_leaves_a_margin_for_other_inputs() -> None:
    # 62 of 64 agree, which is 0.969; as many do in one case of ten if 0.92 of all inputs do.
    samples = many(64)
    judge, exact = judge_of(samples, (agrees, 0.92))
    found = judge.judge(wrong_on(exact, samples[-2:], 0.5))
    assert found.status == "inaccurate"
    assert "0.9688 on average of 64 samples, but of others it may be 0.9049" in found.reason
    judge, exact = judge_of(samples, (agrees, 0.9))
    assert judge.judge(wrong_on(exact, samples[-2:], 0.5)).status == "right"


def test_samples_too_few_to_show_a_score_judge_nothing() -> None:
    judge, exact = judge_of(many(64), (agrees, 0.99))
    found = judge.judge(exact)
    assert found.status == "not judged"
    assert "takes 299 at least" in found.reason
    # It is known before all have run.
    assert len(found.sets) < 20
    judge, exact = judge_of(many(300), (agrees, 0.99))
    assert judge.judge(exact).status == "right"
    judge, exact = judge_of(many(64), (agrees, 1.0))
    assert "returns True or False" in judge.judge(exact).reason


def test_judging_ends_when_the_rest_could_not_show_the_score() -> None:
    samples = many(200)
    judge, exact = judge_of(samples, (agrees, 0.98))
    found = judge.judge(wrong_on(exact, samples[:4], 0.5))
    assert found.status == "inaccurate"
    assert len(found.sets) < 20


def test_as_many_samples_are_judged_as_may_show_the_score() -> None:
    assert most_judged(1e-2) == 64
    assert most_judged((agrees, 0.5)) == 64
    assert most_judged((agrees, 0.95)) == 4 * 59
    assert most_judged((agrees, 0.999)) == most_judged((agrees, 1.0)) == 1024


def test_ranges_are_measured_on_few_of_many_samples_and_the_rest_is_judged() -> None:
    samples = [np.full_like(SAMPLES[0], number) for number in range(1000)]
    graph, calibration = fw.trace(network, X), Calibration.of(samples)
    assert calibration is not None
    finder = CompileContext(fw.Options(isolate="never")).finder
    fallback = reference_target()
    calibrating = Calibrating(graph, calibration, fallback, Config(), finder, 8.0)
    judged = [float(sample[0].flat[0]) for sample in calibrating.judged(2000)]
    assert len(judged) == len(set(judged)) == 1000 - 128
    few = [float(sample[0].flat[0]) for sample in calibrating.judged(64)]
    # From all over them, in another order: one that is cut short has seen them all.
    assert max(few) > 900
    assert max(few[:16]) - min(few[:16]) > 500


def test_one_call_is_no_average() -> None:
    judge, exact = judge_of(SAMPLES[:10], (likeness, 0.8))
    known = judge._exact_outputs

    def late(inputs: Any) -> Any:
        return known(inputs) if inputs.kind == "given" else "no time was left"

    judge._exact_outputs = late  # type: ignore[method-assign]  # as if the reference took long
    found = judge.judge(exact)
    assert found.status == "not judged"
    assert found.reason.startswith("sample: no time was left")


def test_bound_holds_for_every_sample() -> None:
    judge, exact = judge_of(SAMPLES[:10], 5e-2)
    found = judge.judge(wrong_on(exact, SAMPLES[4:5], 0.5))
    assert (found.status, found.kind) == ("inaccurate", "sample-5")


def test_exact_engine_answers_for_the_reference_on_samples() -> None:
    judge, exact = judge_of(SAMPLES, (likeness, 0.8))
    asked: list[Any] = []

    def yardstick(inputs: Sequence[Any]) -> list[Any]:
        asked.append(inputs)
        return exact(inputs)

    assert judge.measure_by(yardstick)
    assert judge.judge(exact).status == "right"
    assert len(asked) == 2 + len(SAMPLES) - 1
    judge, exact = judge_of(SAMPLES, (likeness, 0.8))
    assert not judge.measure_by(wrong_on(exact, SAMPLES[:1], 0.5))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no samples"),
        (3, "give samples"),
        ({"x": X}, "give samples"),
        ("missing.npz", "not an .npz file"),
        ([None] * 8, "a NoneType of object"),
        ([[X, [[1], [2, 3]]]] * 8, "what is no array"),
    ],
)
def test_what_has_no_samples_is_refused(samples: Any, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        fw.Options(accuracy=1e-2, calibrate=samples)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (SAMPLES[:4], "at least 8"),
        ([(x, x) for x in SAMPLES], "2 arrays"),
        ([{"y": x} for x in SAMPLES], "has y, and the model takes x"),
        ([x.astype(np.float64) for x in SAMPLES], "float64"),
        ([x[:3] for x in SAMPLES], r"\[3, 32\]"),
    ],
)
def test_samples_that_do_not_fit_are_refused_at_once(
    model: Path, samples: Any, message: str
) -> None:
    with pytest.raises(OptionsError, match=message):
        fw.compile(model, backend="onnxruntime", accuracy=1e-2, calibrate=samples)


def test_sizes_of_a_sample_fit_each_other() -> None:
    graph = fw.trace(lambda x, y: x + y, fw.Spec(("n", 2)), fw.Spec(("n", 2)))
    good = [(np.ones((n, 2), np.float32),) * 2 for n in range(3, 12)]
    calibration = Calibration.of([*good, (good[0][0], good[1][0])])
    assert calibration is not None
    with pytest.raises(OptionsError, match=r"\[4, 2\] for y, and the model takes .* with n=3"):
        calibration.values(graph.inputs)


def test_samples_of_an_array_are_taken_from_all_over_it() -> None:
    sorted_ = np.arange(1000, dtype=np.float32)[:, None]
    calibration = Calibration.of(sorted_)
    assert calibration is not None
    assert calibration == Calibration.of(list(sorted_))
    assert calibration.samples[-1][0][0] == 999  # type: ignore[index]  # it is no dict
    with pytest.raises(OptionsError, match="give samples"):
        Calibration.of(np.float32(3) + np.zeros((), np.float32))


def test_files_that_are_no_samples_are_refused(tmp_path: Path) -> None:
    archive, path = tmp_path / "samples.npz", tmp_path / "other.npz"
    np.savez(archive, x=np.stack(SAMPLES))
    whole = archive.read_bytes()
    np.save(tmp_path / "single.npy", X)
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as file:
        file.writestr("x", b"no array")
    huge = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': "
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as file:
        file.writestr("x.npy", (huge + b"(1000000000000000,)}").ljust(127) + b"\n")
    damaged = [b"", b"PK\x03\x04", whole[:100], whole[:-30], b"\x80\x04."]
    for number, content in enumerate(damaged):
        (tmp_path / f"damaged{number}.npz").write_bytes(content)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :])
    for file_ in tmp_path.iterdir():
        if file_ != archive:
            with pytest.raises(OptionsError, match="it is not an"):
                Calibration.of(file_)


def test_numbers_may_be_samples_in_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", x=np.stack(SAMPLES), by=np.arange(24, dtype=np.float32))
    graph = fw.trace(lambda x, by: x * by, X, np.float32(1))
    calibration = Calibration.of(tmp_path / "samples.npz")
    assert calibration is not None
    assert [by.shape for _, by in calibration.values(graph.inputs)] == [()] * 24


def test_calls_of_other_sizes_than_the_samples_are_answered(store: Store) -> None:
    made = compiled(network, budget_seconds=4.0)
    for rows in (4, 1):
        np.testing.assert_allclose(made(X[:rows]), network(X[:rows]), atol=5e-2)
    assert not any(CALIBRATED in row.options for row in made.why().tried)
    # Samples that fit nothing yet are a mistake.
    with pytest.raises(OptionsError, match=r"float32\[4, 32\] for x"):
        compiled(network)(X[:1])


def test_samples_that_a_model_does_not_allow_are_named(store: Store) -> None:
    places = [np.full(4, 99) for _ in SAMPLES]
    table = RNG.standard_normal((50, 32)).astype(np.float32)
    with pytest.raises(OptionsError, match=r"A sample of calibrate cannot be run\. .* 99"):
        compiled(lambda at: table[at] @ W, places)(np.arange(4))


def test_samples_without_a_bound_are_refused(model: Path) -> None:
    with pytest.raises(OptionsError, match="the accuracy is exact"):
        fw.compile(model, calibrate=SAMPLES)


def test_samples_may_come_in_any_form(store: Store, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", x=np.stack(SAMPLES))
    named = calibrated(explained(model, [{"x": x} for x in SAMPLES]))
    filed = calibrated(explained(model, tmp_path / "samples.npz", cache=False))
    assert named.options == filed.options


def int8_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have int8 be faster than it is here: this machine may have no instructions for it."""

    def compare(contenders: Any, *rest: Any, **more: Any) -> Comparison:
        times = {name: 1.0 if CALIBRATED in name else 2.0 for name in contenders}
        timings = {name: Timing((x, x, x)) for name, x in times.items()}
        return Comparison(timings, min(times, key=lambda x: times[x]), (), 0.01, 3)

    monkeypatch.setattr("fusewire.choosing.race.compare", compare)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_engines_here_compute_in_int8_within_the_bound(
    store: Store, model: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    int8_wins(monkeypatch)
    made = compiled(model, backend=engine, budget_seconds=20.0)
    found = made(X)
    assert calibrated(made.why()).is_chosen
    error = np.linalg.norm(found - network(X)) / np.linalg.norm(network(X))
    assert 1e-4 < error < 5e-2


def test_backend_is_the_one_of_these_tests() -> None:
    assert isinstance(REGISTRY.backends.get("calibrated"), ToyBackend)


def test_digest_recalls_what_the_samples_decided(
    store: Store, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    int8_wins(monkeypatch)
    digest = fw.Options(accuracy=1e-2, calibrate=SAMPLES).calibrate.digest
    for start in ("measured", "now"):
        with pytest.raises(NotRecalledError, match="Give the samples"):
            compiled(model, digest, backend="onnxruntime", start=start)(X)
    made = compiled(model, backend="onnxruntime", budget_seconds=20.0)
    right = made(X)
    said: list[str] = []
    again = compiled(
        model, digest, backend="onnxruntime", progress=lambda what, share: said.append(what)
    )
    np.testing.assert_array_equal(again(X), right)
    assert calibrated(again.why()).is_chosen
    assert not any("trying" in text for text in said)
    # Other samples are another question.
    other = [x * np.float32(2) for x in SAMPLES]
    with pytest.raises(NotRecalledError):
        compiled(model, Calibration.of(other).digest, backend="onnxruntime")(X)  # type: ignore[union-attr]  # samples have one


def test_signed_bundle_computes_in_int8_without_samples(
    store: Store, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "config"))
    int8_wins(monkeypatch)
    signer = Signer.generate()
    signer.write(tmp_path / "signing.pem")
    allow(AllowedSigner(signer.id, "me"))
    made = compiled(model, backend="onnxruntime", budget_seconds=20.0)
    right = made(X)
    made.save(tmp_path / "signed.fw", weights=True, key=tmp_path / "signing.pem")
    made.save(tmp_path / "data.fw", weights=True)
    with fw.open(tmp_path / "signed.fw") as opened:
        np.testing.assert_array_equal(opened(X), right)
        assert calibrated(opened.why()).is_chosen
        assert opened.options.calibrate is None
    # What nobody vouches for is data, and computes exactly.
    with pytest.warns(BundleWarning), fw.open(tmp_path / "data.fw") as opened:
        np.testing.assert_allclose(opened(X), network(X), rtol=1e-4, atol=1e-5)


def test_job_of_the_comparer_carries_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", x=np.stack(SAMPLES))
    forms: list[Any] = [SAMPLES, [{"x": x} for x in SAMPLES], tmp_path / "samples.npz", None]
    graph = fw.trace(network, X)
    for form in forms:
        options = fw.Options(accuracy=1e-2, calibrate=form)
        sent = ComparisonJob(options, Store(tmp_path / "store"), graph, [X]).written()
        read = read_job(sent).options.calibrate
        assert read == options.calibrate
        if form is not None:
            np.testing.assert_equal(
                read.values(graph.inputs), options.calibrate.values(graph.inputs)
            )
