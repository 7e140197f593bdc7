"""What a bundle says is checked field by field, and only what its reader allows comes true."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.bundling.opening import BundleAbout, limited_by, opened_bundle
from fusewire.contract.backend import BackendInfo
from fusewire.errors import (
    BundleWarning,
    FormatError,
    FusewireError,
    ShapeMismatchError,
    SignatureError,
)
from fusewire.options import BUNDLED
from fusewire.planning.candidates import plan_choice
from fusewire.records.bundles import Bundle
from fusewire.records.plans import SavedTarget
from fusewire.records.recall import Recalled
from fusewire.registry import REGISTRY
from fusewire.store.disk import Store
from fusewire.system.hardware import usable_cores
from tests.bundling.conftest import SIGNER
from tests.bundling.test_bundles import write_again

WEIGHTS = np.arange(256, dtype=np.float32).reshape(16, 16)
X = np.ones((4, 16), np.float32)
pytestmark = pytest.mark.usefixtures("own_folders")


def model(x: Any) -> Any:
    return x @ WEIGHTS


def saved(path: Path, **how: Any) -> Path:
    """Save a model that the reference runs, which lies beside it as ``model.onnx``."""
    file = path.with_name("model.onnx")
    fw.save_onnx(fw.trace(model, fw.Spec(X.shape, "float32")), file)
    return saved_program(path, file, X, **how)


def saved_program(
    path: Path, source: Any, *inputs: Any, backend: str = "reference", **how: Any
) -> Path:
    with fw.compile(source, backend=backend) as program:
        program(*inputs)
        program.save(path, **how)
    return path


# -- what a header says

OPTIONS = {name: getattr(fw.Options(backend="xla"), name) for name in BUNDLED} | {
    "backend_config": {}
}
ROW = {"plan": "0" * 64, "graph": "graph/0"}
SOURCE = {"name": "m.onnx", "path": "/m.onnx", "sha256": "0" * 64}


def about(**changes: Any) -> dict[str, Any]:
    return {"name": "m", "options": OPTIONS, "programs": [ROW], "source": None, **changes}


def options(**changes: Any) -> dict[str, Any]:
    return about(options={**OPTIONS, **changes})


GOOD: dict[str, dict[str, Any]] = {
    "no source": about(),
    "a source": about(source=SOURCE),
    "as many programs as there may be": about(programs=[ROW] * 4096),
    "several backends": options(backend=["xla", "openvino"]),
    "options of a backend": options(backend_config={"sizes": "fitted"}),
    "of 0.1": about(
        options={name: x for name, x in OPTIONS.items() if name not in ("accuracy", "nan")}
    ),
}
BAD: dict[str, dict[str, Any]] = {
    "a name that is a number": about(name=1),
    "a plan that is a number": about(programs=[ROW, {**ROW, "plan": 1}]),
    "a source that is a number": about(source={**SOURCE, "path": 1}),
    "no programs": about(programs=[]),
    "more programs than there may be": about(programs=[ROW] * 4097),
    "an option that no bundle has": options(start="measured"),
    "an option less": about(options={name: x for name, x in OPTIONS.items() if name != "level"}),
    "options of a backend that are a list": options(backend_config=[]),
    "a backend that is a number": options(backend=1),
    "one backend in a list": options(backend=["xla"]),
    "a backend twice": options(backend=["xla", "xla"]),
    "a choice among a list": options(backend=["auto", "xla"]),
    "numbers among backends": options(backend=["xla", 1]),
}


@pytest.mark.parametrize("name", GOOD)
def test_header_is_read(name: str) -> None:
    assert BundleAbout.read(GOOD[name]) is not None


@pytest.mark.parametrize("name", BAD)
def test_header_is_refused_for_one_field(name: str) -> None:
    assert BundleAbout.read(BAD[name]) is None


def test_options_of_anybody_are_limits_below_those_of_the_reader() -> None:
    def limited(own: Mapping[str, Any], said: Mapping[str, Any]) -> fw.Options:
        return limited_by(fw.Options(**own), fw.Options(**said))

    cores = usable_cores()
    # As many as there are in any case is no limit.
    assert limited({}, {"threads": cores}).threads is None
    assert limited({}, {"max_crossings": 3}).max_crossings == 3
    assert limited({"max_crossings": 5}, {"max_crossings": 3}).max_crossings == 3
    assert limited({"max_crossings": 2}, {"max_crossings": 3}).max_crossings == 2
    assert limited({"max_crossings": 2}, {}).max_crossings == 2
    assert limited({"fallback": "allow"}, {"fallback": "error"}).fallback == "error"
    assert limited({"fallback": "allow"}, {"fallback": "warn"}).fallback == "allow"


# -- what is opened


def test_inputs_may_be_given_by_name(tmp_path: Path, key: Path) -> None:
    path = saved(tmp_path / "m.fw", key=key)
    (name,) = [port.name for port in fw.open(path).inputs]
    np.testing.assert_array_equal(fw.open(path)(**{name: X}), model(X))
    with pytest.raises(ShapeMismatchError, match="'q' is not one of them"):
        fw.open(path)(q=X)


def test_inputs_are_cast_if_the_reader_says_so(tmp_path: Path, key: Path) -> None:
    path = saved(tmp_path / "m.fw", key=key)
    wide = X.astype(np.float64)
    np.testing.assert_array_equal(fw.open(path, cast="same_kind")(wide), model(X))
    with pytest.raises(FusewireError):
        fw.open(path)(wide)


@pytest.mark.parametrize("release", [None, "ranker"])
def test_pickled_program_is_the_release_that_was_asked_for(
    release: str | None, tmp_path: Path, key: Path
) -> None:
    path = saved(tmp_path / "m.fw", key=key, weights=True, release="ranker", generation=1)
    pickled = pickle.dumps(fw.open(path, release=release))
    np.testing.assert_array_equal(pickle.loads(pickled)(X), model(X))
    write_again(path, None)
    if release is None:
        with pytest.warns(BundleWarning, match="not signed"):
            np.testing.assert_array_equal(pickle.loads(pickled)(X), model(X))
    else:
        with pytest.raises(SignatureError, match="as a release of ranker"):
            pickle.loads(pickled)


def test_bundle_is_opened_without_a_store_if_its_reader_wants_none(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "m.fw")
    asked: list[Store] = []

    def noted() -> Store:
        asked.append(store)
        return store

    monkeypatch.setattr("fusewire.bundling.opening.shared_store", noted)
    opened_bundle(path, {"cache": False})
    assert asked == []
    opened_bundle(path)
    assert asked == [store]


def test_signer_is_named_believed_or_not(tmp_path: Path) -> None:
    SIGNER.write(tmp_path / "signing.pem")
    signed = saved(tmp_path / "m.fw", key=tmp_path / "signing.pem")
    assert opened_bundle(signed).signer == SIGNER.id
    assert opened_bundle(signed).doubt
    assert opened_bundle(saved(tmp_path / "n.fw")).signer == ""


def test_weights_are_looked_for_where_they_are(tmp_path: Path, key: Path) -> None:
    with_weights = opened_bundle(saved(tmp_path / "with.fw", key=key, weights=True))
    without = opened_bundle(saved(tmp_path / "without.fw", key=key))
    assert without.file is not None
    assert without.graph(0).constants
    (tmp_path / "model.onnx").unlink()
    assert with_weights.file is None
    assert with_weights.graph(0).constants
    # A function has neither weights nor a file.
    of_function = saved_program(tmp_path / "function.fw", lambda x: x + x, X, key=key)
    assert opened_bundle(of_function).file is None
    assert len(opened_bundle(of_function).graph(0).nodes) == 1


def test_model_beside_a_bundle_must_be_the_one_it_was_made_of(tmp_path: Path, key: Path) -> None:
    path = saved(tmp_path / "m.fw", key=key)
    other = tmp_path / "other"
    other.mkdir()
    (other / "m.fw").write_bytes(path.read_bytes())
    fw.save_onnx(lambda x: x + 1, other / "model.onnx", (fw.Spec(X.shape, "float32"),))
    # The right one is where the bundle, which is believed, says.
    np.testing.assert_array_equal(fw.open(other / "m.fw")(X), model(X))
    assert len(opened_bundle(other / "m.fw").graph(0).constants) == 1
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(FormatError, match="is not beside it"):
        opened_bundle(other / "m.fw").graph(0)


@pytest.mark.skipif(sys.platform == "win32", reason="has no named pipes of this kind")
def test_pipe_in_the_place_of_a_model_is_not_read(tmp_path: Path, key: Path) -> None:
    """Nobody may ever write to it."""
    path = saved(tmp_path / "m.fw", key=key)
    (tmp_path / "model.onnx").unlink()
    os.mkfifo(tmp_path / "model.onnx")

    def waits(*given: Any) -> None:
        raise AssertionError("it was opened")

    before = signal.signal(signal.SIGALRM, waits)
    signal.alarm(10)
    try:
        with pytest.raises(FormatError, match="is not beside it"):
            opened_bundle(path).graph(0)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_model_that_is_replaced_while_it_is_read_is_refused(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "m.fw", key=key)
    wanted = opened_bundle(path).about.source
    assert wanted is not None
    fw.save_onnx(lambda x: x + 1, tmp_path / "model.onnx", (fw.Spec(X.shape, "float32"),))
    monkeypatch.setattr("fusewire.store.stamps.file_digest", lambda *given: wanted["sha256"])
    with pytest.raises(FormatError, match="is not beside it"):
        opened_bundle(path).graph(0)


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have keys say that this is another machine."""
    fields = (("processor", "other"),)
    monkeypatch.setattr("fusewire.records.keys.host_fields", lambda: fields)


@pytest.mark.parametrize("is_known", [True, False])
def test_engine_without_its_packages_is_named(
    is_known: bool, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "m.fw", key=key)
    elsewhere(monkeypatch)
    with monkeypatch.context() as patched:
        if is_known:
            patched.setattr(BackendInfo, "is_installed", False)
        else:
            patched.setattr(REGISTRY.backends, "names", tuple)
        with pytest.warns(BundleWarning, match="reference is not installed here"):
            fw.open(path)
    # The processor is not among what the reference depends on.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(fw.open(path)(X), model(X))


def test_options_of_an_engine_do_not_differ_by_themselves(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first engine is told of them; the fallback never is."""
    path = tmp_path / "m.fw"
    options: Any = {"backend_config": {"spinning": False}}
    with fw.compile(model, backend="onnxruntime", **options) as program:
        program(X)
        program.save(path, key=key, weights=True)
    elsewhere(monkeypatch)
    monkeypatch.setattr("fusewire.backends.onnxruntime.engine.processor", lambda: "other")
    with pytest.warns(BundleWarning) as caught:
        fw.open(path)
    assert "as data: the processor is another one here. " in str(caught[0].message)


@pytest.mark.parametrize("name", ["onnxruntime", "reference"])
def test_variables_that_engines_read_are_compared(
    name: str, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.fw"
    saved_program(path, model, X, backend="onnxruntime", key=key, weights=True)

    def is_same(target: SavedTarget) -> bool:
        return name not in target.reference

    monkeypatch.setattr(SavedTarget, "is_same_environment", property(is_same))
    with pytest.warns(BundleWarning, match="variables that its engine reads differ"):
        fw.open(path)


@pytest.mark.parametrize("change", ["one", "other", "more", "fewer"])
def test_plan_names_backends_of_ours_alone(
    change: str, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class of a backend is imported by its name."""
    path = tmp_path / "m.fw"
    saved_program(path, model, X, backend="onnxruntime", key=key, weights=True)
    said = opened_bundle(path).plan(0).saved
    targets = dict(said.targets)
    first, second = sorted(targets)
    if change in ("one", "other"):
        name = first if change == "one" else second
        targets[name] = replace(targets[name], reference="elsewhere:Backend")
    elif change == "more":
        targets["more"] = targets[first]
    else:
        del targets[second]
    forged = SimpleNamespace(saved=replace(said, targets=targets))
    monkeypatch.setattr("fusewire.bundling.opening.Recalled", lambda *given: forged)
    with pytest.raises(FormatError, match="uses unknown backends"):
        fw.open(path)


def other_key(bundle: Bundle) -> str:
    """What is in a bundle beside its plan."""
    return next(key.digest for key in bundle.keys if key.kind != "plan")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (lambda bundle: {**ROW, "plan": bundle.head.about["programs"][0]["plan"], "graph": "g"},
         "has no graph 0"),
        (lambda bundle: {**bundle.head.about["programs"][0], "plan": "0" * 64}, "has no plan 0"),
        (lambda bundle: {**bundle.head.about["programs"][0], "plan": other_key(bundle)},
         "has no plan 0"),
    ],
)  # fmt: skip
def test_program_that_is_not_in_the_bundle_is_refused(
    row: Callable[[Bundle], Any], words: str, tmp_path: Path
) -> None:
    path = saved(tmp_path / "m.fw", weights=True)
    write_again(path, None, programs=[row(Bundle.open(path))])
    opened = opened_bundle(path)
    with pytest.raises(FormatError, match=words):
        (opened.graph(0), opened.plan(0).key)


@pytest.mark.parametrize(
    ("form", "has_weights", "explained"),
    [
        ("file", False, "file"),
        # The file is not asked for: what a call needs is in the bundle.
        ("file", True, "native"),
        ("expanded", True, "expanded"),
        ("native", False, "native"),
    ],
)
@pytest.mark.parametrize("fallback", ["error", "allow"])
def test_plan_is_explained_in_the_form_that_was_chosen(
    form: Any,
    has_weights: bool,
    explained: str,
    fallback: Any,
    tmp_path: Path,
    key: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = saved(tmp_path / "m.fw", key=key, weights=has_weights)
    said = opened_bundle(path).plan(0).saved
    chosen = replace(said, choice=replace(said.choice, form=form))
    monkeypatch.setattr(Recalled, "saved", property(lambda recalled: chosen))
    found: list[tuple[str, bool, bool]] = []

    def noted(
        choice: Any, graph: Any, targets: Any, last: Any, may_fall_back: bool, file: Any
    ) -> Any:
        found.append((choice.form, may_fall_back, file is not None))
        native = replace(choice, form="native")
        return plan_choice(native, graph, targets, last, may_fall_back, file)

    monkeypatch.setattr("fusewire.planning.candidates.plan_choice", noted)
    fw.open(path, fallback=fallback).why()
    assert found[0] == (explained, fallback != "error", not has_weights)


def test_what_was_compiled_and_judged_here_is_recalled(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.fw", weights=True)
    with pytest.warns(BundleWarning, match="not signed"):
        program = fw.open(path)
    with program:
        for _ in range(2):
            np.testing.assert_array_equal(program(X), model(X))
        program.wait(30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(fw.open(path)(X), model(X))
