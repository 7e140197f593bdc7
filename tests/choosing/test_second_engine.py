"""Several engines in one plan, in the order that the user gives: real ones, and bad ones."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fusewire as fw
from fusewire.bundling.locking import drifts, lock_bundle
from fusewire.choosing.measure import Comparison, Contender, Timing
from fusewire.cli import main
from fusewire.errors import (
    FallbackWarning,
    OptionsError,
    RefusedError,
    RegistryError,
    UnavailableError,
)
from fusewire.program.program import Program
from fusewire.records.keys import file_key
from fusewire.records.quarantine import confined
from fusewire.registry import REGISTRY
from fusewire.store.disk import Store

X = np.random.default_rng(0).normal(size=(3, 4, 4)).astype(np.float32)


def determinants(x: Any) -> Any:
    """Neither WebGPU nor OpenVINO takes the determinant, in the middle."""
    return np.exp(np.linalg.det(np.tanh(x))) * 2


def found(x: Any) -> Any:
    """XLA does not take what decides a size."""
    return np.exp(x[np.nonzero(x > 0)]) * 2


def waves(x: Any) -> Any:
    return np.exp(np.cos(np.exp(x)))


def compiled(function: Any, order: list[str], *specs: fw.Spec, **options: Any) -> Program:
    return fw.compile(fw.trace(function, *specs), backend=order, **options)


@pytest.fixture(params=["error", "allow"])
def silent(request: pytest.FixtureRequest) -> Iterator[str]:
    """What does not warn, and must be as good as nothing at all while engines take all."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        yield request.param


@pytest.mark.parametrize("first", ["webgpu", "openvino"])
def test_second_engine_runs_what_the_first_refuses(first: str, silent: str) -> None:
    order = [first, "onnxruntime"]
    program = compiled(determinants, order, fw.Spec(X.shape, "float32"), fallback=silent)
    for scale in (1.0, 0.5):
        np.testing.assert_allclose(program(X * scale), determinants(X * scale), rtol=1e-4)
    why = program.why()
    assert why.backend == f"{first} + onnxruntime"
    assert why.counts()["data"] == {first: len(why.nodes) - 1, "onnxruntime": 1}
    assert [region.backend for region in why.regions] == [first, "onnxruntime", first]
    assert why.crossings == 2
    assert why.to_data()["crossings"] == 2
    assert {contact.outcome for contact in why.contacts} == {"ready"}
    (node,) = [node for node in why.nodes if node.op == "det"]
    refusal, offer = node.verdicts
    assert (refusal.backend, refusal.is_offered) == (first, False)
    assert refusal.reason
    assert (offer.backend, offer.is_offered) == ("onnxruntime", True)


def test_engines_that_stay_in_children_have_one_each() -> None:
    order = ["openvino", "onnxruntime"]
    spec = fw.Spec(X.shape, "float32")
    program = compiled(determinants, order, spec, fallback="error", isolate="always")
    np.testing.assert_allclose(program(X), determinants(X), rtol=1e-4)
    assert {contact.is_isolated for contact in program.why().contacts} == {True}
    assert program.why().backend == "openvino + onnxruntime"


def test_sizes_that_values_decide_go_to_the_second_engine() -> None:
    order = ["xla", "onnxruntime"]
    program = compiled(found, order, fw.Spec(("n",), "float32"), fallback="error")
    for n in (5, 9):
        x = np.linspace(-1, 2, n, dtype=np.float32)
        np.testing.assert_allclose(program(x), found(x), rtol=1e-5)
    counts = program.why().counts()["data"]
    assert counts.keys() == {"xla", "onnxruntime"}
    assert "reference" not in counts


def test_what_all_refuse_is_an_error_that_names_all_of_them() -> None:
    graph = fw.trace(lambda x: np.unique(np.exp(x)), fw.Spec((8,), "float32"))
    with pytest.raises(RefusedError, match=r"none of openvino, xla\..*openvino:.*xla:"):
        fw.compile(graph, backend=["openvino", "xla"], fallback="error")
    with pytest.warns(FallbackWarning, match="none of openvino and xla and run on reference"):
        program = fw.compile(graph, backend=("openvino", "xla"))
    np.testing.assert_allclose(program(np.ones(8, np.float32)), np.exp([1.0]), rtol=1e-6)
    # Listed last, the reference is wanted: nothing is warned of, or refused.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fw.compile(graph, backend=["openvino", "xla", "reference"], fallback="error")


def test_too_many_crossings_leave_the_first_engine_out(silent: str) -> None:
    del silent
    spec, order = fw.Spec(X.shape, "float32"), ["openvino", "onnxruntime"]
    few = compiled(determinants, order, spec, max_crossings=0, fallback="allow")
    np.testing.assert_allclose(few(X), determinants(X), rtol=1e-4)
    assert few.why().backend == "onnxruntime"
    assert few.why().crossings == 0
    assert few.why().notes == (
        "openvino and onnxruntime would hand over 2 tensors, and 0 are allowed. "
        "It runs on onnxruntime.",
    )
    many = compiled(determinants, order, spec, max_crossings=2, fallback="error")
    assert many.why().backend == "openvino + onnxruntime"


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ([], "the list is empty"),
        (["xla", "xla"], "xla is listed twice"),
        (["auto", "xla"], "'auto' stands alone"),
        (["reference", "xla"], "Put it last, or leave it out"),
        (["xla", 3], "a list has names of backends"),
        ([["xla"], "openvino"], "a list has names of backends"),
        ({"xla"}, "give a name, a list of names"),
    ],
)
def test_list_that_is_not_an_order_is_refused(order: Any, said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        fw.Options(backend=order)


def test_list_of_one_is_the_name() -> None:
    assert fw.Options(backend=["xla"]) == fw.Options(backend="xla")
    assert fw.Options(backend=["xla", "reference"]) == fw.Options(backend="xla", fallback="allow")
    assert fw.Options(backend=["xla", "openvino"]).backend == ("xla", "openvino")
    assert fw.Options(backend=["xla", "openvino"]).backend_names == ("xla", "openvino")
    assert fw.Options().backend_names == ()


def test_unknown_name_and_missing_package_name_the_fix() -> None:
    graph = fw.trace(waves, fw.Spec((4,), "float32"))
    with pytest.raises(RegistryError, match=r"openvin.*openvino"):
        fw.compile(graph, backend=["xla", "openvin"])
    name = fw.register("tests.toy:absent", "absent")
    try:
        # Whatever the fallback is: the package is asked for by name.
        for fallback in ("error", "warn", "allow"):
            with pytest.raises(UnavailableError, match=r"pip install.*leave absent out.*'xla'"):
                fw.compile(graph, backend=["xla", name], fallback=fallback)
    finally:
        fw.unregister(name)


def test_engine_without_a_device_is_passed_over_unless_that_is_an_error() -> None:
    graph = fw.trace(waves, fw.Spec((4,), "float32"))
    name = fw.register("tests.toy:blind", "blind")
    try:
        with pytest.warns(FallbackWarning, match="blind has no device here.*runs on onnxruntime"):
            program = fw.compile(graph, backend=[name, "onnxruntime"])
        x = np.ones(4, np.float32)
        np.testing.assert_allclose(program(x), waves(x), rtol=1e-5)
        assert program.why().backend == "onnxruntime"
        with pytest.raises(UnavailableError, match=r"no device here.*leave blind out"):
            fw.compile(graph, backend=[name, "onnxruntime"], fallback="error")
    finally:
        fw.unregister(name)


def test_device_is_that_of_the_first() -> None:
    graph = fw.trace(determinants, fw.Spec(X.shape, "float32"))
    with pytest.raises(RegistryError, match="webgpu was asked to run on cpu and has webgpu:0"):
        fw.compile(graph, backend=["webgpu", "onnxruntime"], device="cpu")
    program = fw.compile(graph, backend=["webgpu", "onnxruntime"], device="webgpu:0")
    np.testing.assert_allclose(program(X), determinants(X), rtol=1e-4)
    assert [region.device for region in program.why().regions] == ["webgpu:0", "cpu", "webgpu:0"]


@pytest.mark.parametrize("fault", ["segv_at_compile", "segv_at_run", "hang_at_run"])
def test_next_engine_takes_the_place_of_one_that_fails(fault: str) -> None:
    fw.register(f"fusewire.testing.chaos:{fault}", "chaos")
    try:
        graph = fw.trace(waves, fw.Spec((4,), "float32"))
        order = ["chaos", "onnxruntime"]
        x = np.linspace(-1, 1, 4, dtype=np.float32)
        program = fw.compile(graph, backend=order, deadline=5.0)
        with pytest.warns(FallbackWarning, match="nodes run on onnxruntime instead"):
            answer = program(x)
        np.testing.assert_allclose(answer, waves(x), rtol=1e-5)
        failed, ready = program.why().contacts
        assert (failed.backend, failed.runs_on) == ("chaos", "onnxruntime")
        assert failed.outcome != "ready"
        assert failed.reason
        assert (ready.backend, ready.outcome, ready.runs_on) == (
            "onnxruntime",
            "ready",
            "onnxruntime",
        )
    finally:
        fw.unregister("chaos")


CHILD = """
import sys, warnings
import numpy as np
import fusewire as fw
warnings.simplefilter("error")
path, order, out = sys.argv[1:4]
program = fw.compile(path, backend=order.split(","), fallback="error")
np.save(out, program(np.load(path + ".npy")))
print("onnx" in sys.modules, "fusewire.planning.planner" in sys.modules)
print(*[f"{c.backend} {c.cache == 'hit'}" for c in program.why().contacts], sep=", ")
"""


def test_second_process_recalls_the_plan_of_both_engines(tmp_path: Path) -> None:
    path, cache = tmp_path / "model.onnx", tmp_path / "cache"
    fw.save_onnx(fw.trace(determinants, fw.Spec(X.shape, "float32")), path)
    np.save(f"{path}.npy", X)

    def run(order: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(path), order, str(tmp_path / "out.npy")],
            env={
                "FUSEWIRE_CACHE": str(cache),
                "FUSEWIRE_CONFIG": os.environ["FUSEWIRE_CONFIG"],
                "PATH": "/usr/bin:/bin",
                "HOME": str(tmp_path),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        np.testing.assert_allclose(np.load(tmp_path / "out.npy"), determinants(X), rtol=1e-4)
        return done.stdout.splitlines()

    _, cold = run("openvino,onnxruntime")
    assert cold == "openvino False, onnxruntime False, openvino False"
    said, warm = run("openvino,onnxruntime")
    assert said == "False False"
    assert warm == "openvino True, onnxruntime True, openvino True"
    # Another order is another plan.
    _, other = run("onnxruntime,openvino")
    assert other.startswith("onnxruntime ")
    assert "openvino" not in other


def test_key_of_a_plan_names_the_engines_in_order() -> None:
    orders: list[Any] = [["xla", "openvino"], ["openvino", "xla"], "xla", ["xla", "webgpu"]]
    keys = [file_key("0", (), False, fw.Options(backend=order)) for order in orders]
    assert len({key and key.digest for key in keys}) == len(orders)


@pytest.mark.usefixtures("store")
def test_bundle_of_two_engines_is_opened_with_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "config"))
    file, bundle = tmp_path / "model.onnx", tmp_path / "model.fw"
    fw.save_onnx(fw.trace(determinants, fw.Spec(X.shape, "float32")), file)
    with fw.compile(file, backend=["openvino", "onnxruntime"]) as program:
        answer = program(X)
        program(X)
        program.save(bundle, weights=True)
    other = Store(tmp_path / "elsewhere")
    monkeypatch.setattr("fusewire.session.context.shared_store", lambda: other)
    with pytest.warns(fw.errors.BundleWarning, match=r"openvino \+ onnxruntime compiles it here"):
        opened = fw.open(bundle)
    np.testing.assert_allclose(opened(X), answer, rtol=1e-6)
    assert opened.why().backend == "openvino + onnxruntime"
    # It was judged, and is recalled from now on.
    again = fw.open(bundle)
    np.testing.assert_allclose(again(X), answer, rtol=1e-6)
    assert [x.cache for x in again.why().contacts] == ["hit"] * 3
    (stanza,) = lock_bundle(tmp_path / "a.lock", bundle)
    versions = [REGISTRY.backends.get(x).info.version for x in ("openvino", "onnxruntime")]
    assert stanza.fields["engine"] == "openvino + onnxruntime"
    assert stanza.fields["version"] == " + ".join(versions)
    assert list(drifts(tmp_path / "a.lock")) == []


def test_commands_take_a_list(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(determinants, fw.Spec(X.shape, "float32")), path)
    given = ["explain", str(path), "--backend", "openvino,onnxruntime", "--fallback", "error"]
    told = CliRunner().invoke(main, [*given, "--json"])
    assert told.exit_code == 0, told.output
    data = json.loads(told.output)
    assert data["backend"] == "openvino + onnxruntime"
    assert data["crossings"] == 2
    shown = CliRunner().invoke(main, given)
    assert "openvino + onnxruntime (cpu)" in shown.output
    assert "1 on onnxruntime" in shown.output
    assert "2 tensors are handed over between backends" in shown.output
    wrong = CliRunner().invoke(main, ["explain", str(path), "--backend", "xla,openvin"])
    assert wrong.exit_code
    assert "openvin" in wrong.output


def test_error_forbids_the_reference_and_not_the_next_engine() -> None:
    fw.register("fusewire.testing.chaos:segv_at_compile", "chaos")
    try:
        graph, x = fw.trace(waves, fw.Spec((4,), "float32")), np.ones(4, np.float32)
        with pytest.raises(RefusedError, match="Fallback is not allowed"):
            fw.compile(graph, backend="chaos", fallback="error")(x)
        program = fw.compile(graph, backend=["chaos", "onnxruntime"], fallback="error")
        np.testing.assert_allclose(program(x), waves(x), rtol=1e-5)
    finally:
        fw.unregister("chaos")


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An engine that does not take ``cos``, beside a real one."""
    names = [fw.register("tests.toy:split", "split"), "onnxruntime", "reference"]
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: names)
    yield names
    fw.unregister("split")


def prefers(part: str) -> Any:
    """Stand for the clock: the one with this in its name is fastest, if it is there."""

    def compare(contenders: Mapping[str, Contender], *rest: object, **more: object) -> Comparison:
        fastest = next((x for x in contenders if part in x), next(iter(contenders)))
        return Comparison({x: Timing((1.0,)) for x in contenders}, fastest, (), 0.0, 1)

    return compare


def test_auto_tries_what_an_engine_refuses_on_the_next(
    picky: list[str], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    del picky
    wanted = "split + onnxruntime"
    monkeypatch.setattr("fusewire.choosing.race.compare", prefers(wanted))
    # How long the first run takes is chance here.
    monkeypatch.setattr("fusewire.choosing.race._NEAR", 1e9)
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    graph = fw.trace(waves, x)
    options: Any = {"start": "measured", "budget_seconds": 60.0, "fallback": "allow"}
    program = fw.compile(graph, x, **options)
    np.testing.assert_allclose(program(x), waves(x), rtol=1e-5)
    rows = {row.name: row for row in program.why().tried}
    assert rows["split"].elsewhere == 1
    row = rows[wanted]
    assert (row.status, row.is_chosen, row.elsewhere, row.crossings) == ("right", True, 0, 2)
    assert row.engines == ("split", "onnxruntime")
    assert program.why().backend == wanted
    assert program.why().counts()["data"] == {"split": 2, "onnxruntime": 1}
    # It was recorded, with both engines.
    assert any(entry.key.kind == "plan" for entry in store.entries())
    again = fw.compile(graph, x, **options)
    np.testing.assert_allclose(again(x), waves(x), rtol=1e-5)
    assert again.why().backend == wanted
    assert {row.cache for row in again.why().tried} == {"hit"}


def test_auto_joins_nothing_while_an_engine_takes_all_and_none_may_fall_back(
    picky: list[str],
) -> None:
    del picky
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    options: Any = {"start": "measured", "budget_seconds": 60.0, "fallback": "error"}
    program = fw.compile(fw.trace(waves, x), x, **options)
    names = [row.name for row in program.why().tried]
    assert program.why().backend == "onnxruntime"
    assert not any("+" in name for name in names)


def test_auto_joins_engines_that_each_refuse_something(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["openvino", "xla"]
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: [*names, "reference"])
    monkeypatch.setattr("fusewire.choosing.race.compare", prefers(" + "))

    def both(x: Any) -> Any:
        return np.linalg.det(np.tanh(x[np.nonzero(x[:, 0, 0] > 0)]))

    x = np.abs(X) + 1
    graph = fw.trace(both, fw.Spec(X.shape, "float32"))
    program = fw.compile(graph, x, start="measured", budget_seconds=60.0, fallback="error")
    np.testing.assert_allclose(program(x), both(x), rtol=1e-4)
    assert set(program.why().backend.split(" + ")) == {"openvino", "xla"}
    assert "reference" not in program.why().counts()["data"]


@pytest.mark.parametrize("is_first", [True, False])
def test_quarantine_of_a_split_plan_names_the_engine_that_is_wrong(
    store: Store, is_first: bool
) -> None:
    name = fw.register("tests.toy:wrong", "split")
    try:
        order = [name, "onnxruntime"]
        function = waves
        if not is_first:
            order = ["openvino", name]
            function = determinants
        x = np.linspace(-1, 1, 48, dtype=np.float32).reshape(3, 4, 4)
        graph = fw.trace(function, x)
        options: Any = {"level": 1, "start": "measured", "budget_seconds": 60.0}
        blamed = "Alone, split is wrong about its part."
        with pytest.warns(FallbackWarning, match=f"No engine here.*{blamed}"):
            program = fw.compile(graph, x, backend=order, fallback="warn", **options)
        np.testing.assert_allclose(program(x), function(x), rtol=1e-4)
        wrong = [row for row in program.why().tried if row.status == "wrong"]
        assert wrong
        assert all(row.reason.endswith(blamed) for row in wrong)
        entries = confined(store)
        assert {entry.engine for entry in entries} == {"split"}
        # The plans of both, and the artifacts of the one.
        backends = [dict(entry.key.fields).get("backend") for entry in entries]
        assert backends.count(None) == len(wrong)
        assert set(backends) == {None, "split"}
    finally:
        fw.unregister(name)
