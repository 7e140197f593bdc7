"""A program saved to a file gives the same answers elsewhere, and no file is believed blindly."""

import hashlib
import json
import mmap
import os
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fusewire as fw
from fusewire.bundling.locking import stanzas_of
from fusewire.bundling.opening import opened_bundle
from fusewire.bundling.rebuilding import _Rebuilding
from fusewire.contract.backend import Artifact
from fusewire.errors import (
    BudgetError,
    BundleWarning,
    FormatError,
    FusewireError,
    GraphError,
    OptionsError,
    SignatureError,
)
from fusewire.program.program import Program
from fusewire.records.bundles import (
    Bundle,
    NewSection,
    Section,
    header_of,
    statement_of,
    write_bundle,
)
from fusewire.records.entries import artifact_of, artifact_payload
from fusewire.records.framing import framed, unframed
from fusewire.records.plans import Choice
from fusewire.store.disk import Store
from fusewire.store.key import Key
from fusewire.store.signing import AllowedSigner, AllowedSigners, Signer
from tests.bundling.conftest import SIGNER

WEIGHTS = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(4, 16)).astype(np.float32)
pytestmark = pytest.mark.usefixtures("own_folders")


def model(x: Any) -> Any:
    return np.tanh(x @ WEIGHTS) @ WEIGHTS


def saved(path: Path, engine: str = "onnxruntime", **how: Any) -> Any:
    """Save a program; returns its answer."""
    file = path.with_suffix(".onnx")
    fw.save_onnx(fw.trace(model, fw.Spec(X.shape, "float32")), file)
    with fw.compile(file, backend=engine) as program:
        answer = program(X)
        program(X)
        program.save(path, **how)
    return answer


def elsewhere(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Store:
    """Have programs use an empty store, as on another machine."""
    other = Store(folder / "elsewhere")
    monkeypatch.setattr("fusewire.session.context.shared_store", lambda: other)
    return other


def contacts(program: Program) -> list[str]:
    return [contact.cache for contact in program.why().contacts]


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "xla", "reference"])
def test_signed_bundle_is_loaded_as_it_is(
    engine: str, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = saved(tmp_path / "model.fw", engine, weights=True, key=key)
    other = elsewhere(monkeypatch, tmp_path)
    (tmp_path / "model.onnx").unlink()
    monkeypatch.setattr("fusewire.trials.build.PlanBuilder._compile", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fw.open(tmp_path / "model.fw")
        np.testing.assert_array_equal(program(X), answer)
    assert program.name == "model"
    assert program.state == "settled"
    assert program.why().backend == engine
    assert contacts(program) == ["hit"]
    assert {entry.key.kind for entry in other.entries()} <= {"stamp"}


def test_unsigned_bundle_is_compiled_and_judged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = saved(tmp_path / "model.fw", weights=True)
    elsewhere(monkeypatch, tmp_path)
    with pytest.warns(BundleWarning, match="not signed"):
        program = fw.open(tmp_path / "model.fw")
    np.testing.assert_array_equal(program(X), answer)
    assert "a bundle: it is not signed" in " ".join(program.why().notes)
    monkeypatch.setattr("fusewire.trials.build.PlanBuilder._compile", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = fw.open(tmp_path / "model.fw")
        np.testing.assert_array_equal(again(X), answer)
    assert contacts(again) == ["hit"]


def rewritten(
    path: Path, change: Callable[[NewSection], NewSection], signer: Signer | None
) -> None:
    """Write a bundle again with other sections, with right digests, as whoever forges one can."""
    bundle = Bundle.open(path)
    sections = []
    for section in bundle.head.sections:
        payload = bytes(bundle._view(section))
        sections.append(change(NewSection(section.name, section.key, payload)))
    header = header_of(bundle.head.about, sections)
    plans = [row["plan"] for row in bundle.head.about["programs"]]
    statement = statement_of(hashlib.sha256(header).hexdigest(), plans)
    signature = bundle.head.signature if signer is None else signer.sign(statement)
    write_bundle(path, header, signature, sections)


def with_other_code(section: NewSection) -> NewSection:
    if section.key is None or section.key.kind != "artifact":
        return section
    artifact: Artifact = artifact_of(section.payload)
    return NewSection.entry(
        section.key, artifact_payload(replace(artifact, payload=b"evil" + artifact.payload))
    )


def test_code_of_a_stranger_is_never_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = saved(tmp_path / "model.fw", "xla", weights=True)
    rewritten(tmp_path / "model.fw", with_other_code, Signer.generate())
    elsewhere(monkeypatch, tmp_path)
    read: list[str] = []
    entry = Bundle.entry

    def noted(bundle: Bundle, key: Key) -> memoryview | None:
        read.append(key.kind)
        return entry(bundle, key)

    monkeypatch.setattr(Bundle, "entry", noted)
    with pytest.warns(BundleWarning, match="not in allowed_signers"):
        program = fw.open(tmp_path / "model.fw")
    np.testing.assert_array_equal(program(X), answer)
    assert set(read) == {"plan"}


def test_changed_code_under_an_old_signature_is_refused(tmp_path: Path, key: Path) -> None:
    saved(tmp_path / "model.fw", weights=True, key=key)
    rewritten(tmp_path / "model.fw", with_other_code, None)
    with pytest.raises(SignatureError, match="payload"):
        fw.open(tmp_path / "model.fw")


def test_stranger_cannot_put_other_weights_under_a_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "model.fw", weights=True)

    def with_other_weights(section: NewSection) -> NewSection:
        if section.name != "constants":
            return section
        header, blobs = unframed(section.payload)
        return NewSection("constants", None, framed(header, [blob + 1 for blob in blobs]))

    rewritten(tmp_path / "model.fw", with_other_weights, None)
    elsewhere(monkeypatch, tmp_path)
    with pytest.warns(BundleWarning):
        program = fw.open(tmp_path / "model.fw")
    with pytest.raises(GraphError, match="another digest"):
        program(X)


def test_expired_and_revoked_and_older_bundles_are_refused(tmp_path: Path, key: Path) -> None:
    saved(tmp_path / "model.fw", weights=True, key=key, expires=1)
    with pytest.raises(SignatureError, match="expired"):
        fw.open(tmp_path / "model.fw")
    saved(tmp_path / "new.fw", weights=True, key=key, generation=2)
    saved(tmp_path / "old.fw", weights=True, key=key, generation=1)
    fw.open(tmp_path / "old.fw")
    fw.open(tmp_path / "new.fw")
    with pytest.raises(SignatureError, match="2 was seen"):
        fw.open(tmp_path / "old.fw")
    path = tmp_path / "config" / "allowed_signers"
    path.write_text(AllowedSigner(SIGNER.id, "me", is_revoked=True).line())
    with pytest.raises(SignatureError, match="key of me, who signed it, is revoked"):
        fw.open(tmp_path / "new.fw")
    assert AllowedSigners.read().signers[0].is_revoked


def test_release_that_is_asked_for_never_becomes_older(tmp_path: Path, key: Path) -> None:
    """Another program of the same signer is another key, and still the same release."""
    release: Any = {"weights": True, "key": key, "release": "ranker"}
    saved(tmp_path / "first.fw", **release, generation=1)
    saved(tmp_path / "second.fw", "reference", **release, generation=2)
    place = tmp_path / "model.fw"
    for name in ("first", "second", "second"):
        shutil.copy(tmp_path / f"{name}.fw", place)
        fw.open(place, release="ranker")
    shutil.copy(tmp_path / "first.fw", place)
    with pytest.raises(SignatureError, match="generation 1, and 2 was seen here before"):
        fw.open(place, release="ranker")
    # Who does not ask opens any that is signed.
    fw.open(place)
    with pytest.raises(SignatureError, match="as a release of ranker, and a release of other"):
        fw.open(place, release="other")
    with pytest.raises(SignatureError, match="there is no cache"):
        fw.open(tmp_path / "second.fw", release="ranker", cache=False)


def test_bundle_that_nobody_signed_as_a_release_is_refused_where_one_is_asked_for(
    tmp_path: Path, key: Path
) -> None:
    saved(tmp_path / "unsigned.fw", weights=True)
    with pytest.raises(SignatureError, match="nobody who is believed says so: it is not signed"):
        fw.open(tmp_path / "unsigned.fw", release="ranker")
    saved(tmp_path / "signed.fw", weights=True, key=key)
    with pytest.raises(SignatureError, match="signed without a release"):
        fw.open(tmp_path / "signed.fw", release="ranker")
    with pytest.raises(OptionsError, match="give the private key"):
        saved(tmp_path / "none.fw", weights=True, release="ranker")


def test_weights_come_from_the_model_beside_the_bundle(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = saved(tmp_path / "model.fw", "reference", key=key)
    elsewhere(monkeypatch, tmp_path)
    np.testing.assert_array_equal(fw.open(tmp_path / "model.fw")(X), answer)
    (tmp_path / "model.onnx").write_bytes(b"another model")
    with pytest.raises(FormatError, match=r"model\.onnx .* is not beside it"):
        fw.open(tmp_path / "model.fw")(X)


def test_only_a_believed_signer_has_a_file_elsewhere_opened(tmp_path: Path, key: Path) -> None:
    answer = saved(tmp_path / "model.fw", "reference", key=key)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(tmp_path / "model.fw", other)
    # The bundle names the path of the model, which is there.
    np.testing.assert_array_equal(fw.open(other / "model.fw")(X), answer)
    with_options(other / "model.fw", None)
    with (
        pytest.warns(BundleWarning, match="not signed"),
        pytest.raises(FormatError, match=r"model\.onnx .* is not beside it"),
    ):
        fw.open(other / "model.fw")


def test_bundle_for_another_machine_says_what_differs_and_is_compiled(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = saved(tmp_path / "model.fw", weights=True, key=key)
    elsewhere(monkeypatch, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("fusewire.records.keys.host_fields", lambda: (("processor", "other"),))
        patched.setattr("fusewire.backends.onnxruntime.engine.processor", lambda: "other")
        with pytest.warns(BundleWarning, match="the processor is another one here"):
            program = fw.open(tmp_path / "model.fw")
        np.testing.assert_array_equal(program(X), answer)


def test_engine_that_is_not_there_is_named_and_another_serves(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = saved(tmp_path / "model.fw", weights=True, key=key)
    elsewhere(monkeypatch, tmp_path)
    from fusewire.registry import REGISTRY

    names = [name for name in REGISTRY.backends.names() if name != "onnxruntime"]
    monkeypatch.setattr("fusewire.records.keys.host_fields", lambda: (("processor", "other"),))
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: names)
    monkeypatch.setattr("fusewire.bundling.rebuilding.targets_of", lambda choice, finder: None)
    with pytest.warns(BundleWarning, match="onnxruntime is not installed here"):
        program = fw.open(tmp_path / "model.fw", start="measured", backend="reference")
    with pytest.warns(BundleWarning, match="Engines are compared instead"):
        np.testing.assert_allclose(program(X), answer, rtol=1e-4, atol=1e-5)


def test_function_saves_the_best_engine_and_says_so(tmp_path: Path, key: Path) -> None:
    program = fw.compile(lambda x: x + 1, start="measured", budget_seconds=2)
    answer = program(X)
    notes = program.save(tmp_path / "model.fw", key=key)
    if program.why().backend == "function":
        assert "your own function" in notes[0]
    np.testing.assert_array_equal(fw.open(tmp_path / "model.fw")(X), answer)


def test_every_signature_is_saved(tmp_path: Path, key: Path) -> None:
    program = fw.compile(np.exp, backend="onnxruntime")
    shapes = (3,), (2, 2)
    answers = [program(np.ones(shape, np.float32)) for shape in shapes]
    program.save(tmp_path / "model.fw", key=key)
    opened = fw.open(tmp_path / "model.fw")
    for shape, answer in zip(shapes, answers, strict=True):
        np.testing.assert_array_equal(opened(np.ones(shape, np.float32)), answer)
    with pytest.raises(FusewireError):
        opened(np.ones((5, 5, 5), np.float32))


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.fw"
    with pytest.raises(GraphError, match="not been called"):
        fw.compile(np.exp).save(path)
    program = fw.compile(lambda x: {"y": x + 1}, backend="onnxruntime")
    program(X)
    with pytest.raises(FormatError, match="take and return arrays"):
        program.save(path)
    heavy = fw.compile(model, backend="onnxruntime")
    heavy(X)
    with pytest.raises(FormatError, match="weights=True"):
        heavy.save(path)
    assert not path.exists()


def test_every_mutated_bundle_is_refused(tmp_path: Path, key: Path) -> None:
    path = tmp_path / "model.fw"
    saved(path, weights=True, key=key)
    good, random_ = path.read_bytes(), random.Random(0)
    for _ in range(100):
        bad = bytearray(good)
        place = random_.randrange(len(bad))
        match random_.randrange(4):
            case 0:
                bad[place] ^= 1 << random_.randrange(8)
            case 1:
                del bad[place : place + random_.randrange(1, 99)]
            case 2:
                bad[place:place] = random_.randbytes(random_.randrange(1, 99))
            case _:
                bad = bad[:place]
        path.write_bytes(bad)
        with pytest.raises(FormatError):
            fw.open(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"programs": []},
        {"programs": [{"plan": 1, "graph": "graph/0"}]},
        {"programs": [{"plan": "0" * 64, "graph": "graph/0"}]},
        {"options": {}},
        {"source": {"name": "../../etc/passwd"}},
        {"name": ["x"]},
    ],
)
def test_header_that_lies_is_refused(tmp_path: Path, key: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "model.fw"
    saved(path, weights=True, key=key)
    bundle = Bundle.open(path)
    sections = [
        NewSection(section.name, section.key, bytes(bundle._view(section)))
        for section in bundle.head.sections
    ]
    header = header_of({**bundle.head.about, **changes}, sections)
    write_bundle(path, header, b"", sections)
    with pytest.raises((FormatError, OptionsError)):
        fw.open(path)


def with_options(path: Path, signer: Signer | None, **changes: Any) -> None:
    """Write a bundle again with other options."""
    write_again(path, signer, options={**Bundle.open(path).head.about["options"], **changes})


def write_again(path: Path, signer: Signer | None, **changes: Any) -> None:
    """Write a bundle that says something else, with right digests, as whoever forges one can."""
    bundle = Bundle.open(path)
    sections = [
        NewSection(section.name, section.key, bytes(bundle._view(section)))
        for section in bundle.head.sections
    ]
    about = {**bundle.head.about, **changes}
    header = header_of(about, sections)
    plans = [row["plan"] for row in about["programs"]]
    statement = statement_of(hashlib.sha256(header).hexdigest(), plans)
    write_bundle(path, header, b"" if signer is None else signer.sign(statement), sections)


LOOSER: dict[str, Any] = {
    "accuracy": 0.5,
    "backend_config": {"sizes": "fitted"},
    "budget_seconds": 1e9,
    "cast": "same_kind",
    "deterministic": True,
    "fallback": "allow",
    "level": 3,
    "max_crossings": 7,
    "max_fallback_share": 0.5,
    "memory_limit": 1 << 62,
    "threads": 4096,
}
# What is a limit, and has no value of the reader's own, is smaller than none.
SMALLER: dict[str, Any] = {
    "budget_seconds": 1.0,
    "fallback": "error",
    "max_crossings": 7,
    "max_fallback_share": 0.5,
    "memory_limit": 1 << 20,
    "threads": 1,
}


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("name", sorted(LOOSER))
def test_bundle_without_a_believed_signer_loosens_no_option_of_its_reader(
    name: str, is_signed: bool, tmp_path: Path, key: Path
) -> None:
    saved(tmp_path / "model.fw", "reference", weights=True)
    changes = {"backend": "onnxruntime", name: LOOSER[name]}
    with_options(tmp_path / "model.fw", SIGNER if is_signed else None, **changes)
    found = getattr(opened_bundle(tmp_path / "model.fw").options, name)
    is_kept = is_signed or SMALLER.get(name) == LOOSER[name]
    assert found == (LOOSER[name] if is_kept else getattr(fw.Options(), name))


@pytest.mark.parametrize("name", sorted(SMALLER))
def test_bundle_of_anybody_makes_limits_smaller_and_its_reader_decides(
    name: str, tmp_path: Path
) -> None:
    saved(tmp_path / "model.fw", "reference", weights=True)
    with_options(tmp_path / "model.fw", None, **{name: SMALLER[name]})
    assert getattr(opened_bundle(tmp_path / "model.fw").options, name) == SMALLER[name]
    given = {name: LOOSER[name]}
    assert getattr(opened_bundle(tmp_path / "model.fw", given).options, name) == LOOSER[name]


def test_size_that_the_reader_refuses_is_refused_whatever_the_bundle_says(tmp_path: Path) -> None:
    path = tmp_path / "model.fw"
    nodes = [
        helper.make_node("Expand", ["one", "n"], ["e"]),
        helper.make_node("ReduceSum", ["e"], ["y"], keepdims=0),
    ]
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    ends = [
        helper.make_tensor_value_info("n", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, []),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [one])
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "e.onnx")
    with fw.compile(tmp_path / "e.onnx", backend="reference") as program:
        program(np.array([4]))
        program.save(path, weights=True)
    with_options(path, None, memory_limit=1 << 62)
    with pytest.warns(BundleWarning, match="not signed"):
        program = fw.open(path, cache=False)
    assert program(np.array([4])) == 4
    with pytest.raises(BudgetError):
        program(np.array([1 << 40]))


@pytest.mark.parametrize(
    "change", [{"offset": 1}, {"size": 2**60}, {"size": -1}, {"name": "graph/0"}]
)
def test_section_that_lies_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "model.fw"
    saved(path, weights=True)
    bundle = Bundle.open(path)
    sections = [
        NewSection(section.name, section.key, bytes(bundle._view(section)))
        for section in bundle.head.sections
    ]
    header = json.loads(header_of(bundle.head.about, sections))
    header["sections"][-1] |= change
    write_bundle(path, json.dumps(header).encode(), b"", sections)
    with pytest.raises(FormatError):
        fw.open(path)


def test_file_that_was_checked_and_did_not_change_is_not_checked_again(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.fw"
    saved(path, weights=True)
    checked: list[str] = []
    check = Bundle._check

    def noted(bundle: Bundle, section: Section, view: memoryview) -> None:
        checked.append(section.name)
        check(bundle, section, view)

    monkeypatch.setattr(Bundle, "_check", noted)
    Bundle.open(path, store)
    count = len(checked)
    Bundle.open(path, store)
    assert len(checked) == 2 * count, "a file that may still change is checked each time"
    monkeypatch.setattr("fusewire.store.stamps._is_old", lambda *given: True)
    Bundle.open(path, store)
    checked.clear()
    Bundle.open(path, store)
    assert not checked
    about = path.stat()
    held = bytearray(path.read_bytes())
    held[-1] ^= 1
    path.write_bytes(held)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    with pytest.raises(FormatError, match="digest"):
        Bundle.open(path, store)


def test_what_was_checked_is_a_copy_of_a_file_that_others_may_write_to(tmp_path: Path) -> None:
    path = tmp_path / "model.fw"
    saved(path, weights=True)
    for mode, is_mapped in ((0o644, True), (0o664, False)):
        path.chmod(mode)
        bundle = Bundle.open(path)
        (key,) = (key for key in bundle.keys if key.kind == "artifact")
        view = bundle.entry(key)
        assert view is not None
        assert isinstance(view.obj, mmap.mmap) is is_mapped
        weights: Any = next(iter(bundle.constants.values()))
        while isinstance(weights, np.ndarray):
            weights = weights.base
        assert isinstance(memoryview(weights).obj, mmap.mmap) is is_mapped


@pytest.mark.skipif(sys.platform == "win32", reason="files that are open are not cut short")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_file_that_others_cut_short_is_refused_and_ends_no_process(
    moment: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.fw"
    saved(path, weights=True)
    path.chmod(0o666)
    code = """
import os, sys
from fusewire.errors import FormatError
from fusewire.records import bundles
path, moment = sys.argv[1:]
read = bundles._read_head
def cut(held):
    os.truncate(path, 0)
    return read(held)
if moment == "before":
    bundles._read_head = cut
try:
    bundle = bundles.Bundle.open(path)
    os.truncate(path, 0)
    bundle.verify()
except FormatError as error:
    print(error)
"""
    command = [sys.executable, "-c", code, str(path), moment]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    assert "became shorter" in child.stdout


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.fw"
    for held in (b"", b"FUSEWIRB", bytes(100), b"FUSEWIRB" + b"\xff" * 100):
        path.write_bytes(held)
        with pytest.raises(FormatError, match="not a bundle"):
            fw.open(path)
    with pytest.raises(FormatError, match="cannot be read"):
        fw.open(tmp_path / "none.fw")


def test_what_does_not_fit_is_said_once(tmp_path: Path) -> None:
    saved(tmp_path / "model.fw", weights=True)
    code = "import sys, fusewire as fw; fw.open(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path / "model.fw")]
    variables = {**os.environ, "FUSEWIRE_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert ended.stderr.count("is used as data") == 1


@pytest.mark.parametrize(("saved_with", "allowed"), [(512, 3), (2, 2), (None, None)])
def test_threads_of_a_stranger_are_no_more_than_asked_for(
    saved_with: int | None, allowed: int | None
) -> None:
    context = SimpleNamespace(options=fw.Options(threads=3))
    rebuilding: Any = SimpleNamespace(decider=SimpleNamespace(context=context))
    choice = Choice("a", "cpu", threads=saved_with)
    assert _Rebuilding._allowed_threads(rebuilding, choice) == allowed


def of_an_earlier_version(name: str, value: Any) -> Callable[[NewSection], NewSection]:
    """Give the choice of each plan a field that earlier versions wrote; the plan itself, turns."""

    def change(section: NewSection) -> NewSection:
        if section.key is None or section.key.kind != "plan":
            return section
        data = json.loads(section.payload)
        row = data["row"]
        row["plan" if name == "turns" else "choice"][name] = value
        if name == "placing" and value:
            # One engine was in a plan twice.
            row["choice"]["others"] = [["onnxruntime", "cpu", {"spinning": False}]]
            row["targets"]["onnxruntime spinning=False"] = row["targets"]["onnxruntime"]
        return NewSection(section.name, section.key, json.dumps(data).encode())

    return change


SUPERSEDED = {"placing": [[1, 0], [2, 0]], "is_concurrent": True, "turns": ["onnxruntime"]}


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("name", sorted(SUPERSEDED))
def test_bundle_with_a_split_of_an_earlier_version_is_compared_again(
    name: str, is_signed: bool, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = saved(tmp_path / "model.fw", weights=True, key=key)
    change = of_an_earlier_version(name, SUPERSEDED[name])
    rewritten(tmp_path / "model.fw", change, SIGNER if is_signed else Signer.generate())
    elsewhere(monkeypatch, tmp_path)
    with pytest.raises(FormatError, match=r"which Fusewire no longer does\. Save it again"):
        stanzas_of(tmp_path / "model.fw", tmp_path)
    program = fw.open(tmp_path / "model.fw")
    with pytest.warns(BundleWarning, match=r"which Fusewire no longer does\. Engines are compared"):
        np.testing.assert_allclose(program(X), answer, rtol=1e-5)
    np.testing.assert_allclose(program(X), answer, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(SUPERSEDED))
def test_bundle_of_an_earlier_version_with_a_plan_as_of_today_is_loaded(
    name: str, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = saved(tmp_path / "model.fw", weights=True, key=key)
    rewritten(tmp_path / "model.fw", of_an_earlier_version(name, type(SUPERSEDED[name])()), SIGNER)
    elsewhere(monkeypatch, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fw.open(tmp_path / "model.fw")
        np.testing.assert_array_equal(program(X), answer)
    assert contacts(program) == ["hit"]
