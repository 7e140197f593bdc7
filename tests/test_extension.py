"""Extensions: found by entry point, started and stopped with their backend, heard of if not."""

import importlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fusewire as fw
from fusewire.cli import main
from fusewire.contract.region import first_device
from fusewire.errors import ExtensionWarning, RegistryError
from fusewire.ops.table import all_ops
from fusewire.registry import REGISTRY, Registry
from fusewire.testing.conformance import cases
from fusewire.testing.suite import reports

NAME = "torch-eager"
# A package as an installer leaves it: a module, and metadata that says what it extends.
MODULE = """
import ctypes
from fusewire.contract.extension import Extension

HISTORY = []

class Hyperbolic(Extension):
    lowerings = {"sinh": "sinh", "cosh": "cosh"}

    def start(self, backend):
        HISTORY.append(f"start with {backend.info.name}")

    def stop(self):
        HISTORY.append("stop")

class Raising(Hyperbolic):
    lowerings = {"tan": "tan"}

    def start(self, backend):
        raise OSError("the licence is gone")

class Crashing(Raising):
    def start(self, backend):
        ctypes.string_at(0)

class Greedy(Hyperbolic):
    lowerings = {"exp": "exp2"}

class Softmax(Extension):
    @property
    def lowerings(self):
        import jax

        return {"softmax": lambda node, x: jax.nn.softmax(x, axis=node.attrs["axis"])}
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a package of extensions; its entry points are as given."""
    # What is restored afterwards must not have been read while the package was there.
    REGISTRY.extensions.names()
    (tmp_path / "more_ops.py").write_text(MODULE)
    folder = tmp_path / "more_ops-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: more-ops\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "more_ops", raising=False)

    def install(**classes: str) -> None:
        lines = [f"{key.replace('__', '.')} = more_ops:{name}" for key, name in classes.items()]
        text = "[fusewire.extensions]\n" + "\n".join(lines).replace("torch.", f"{NAME}.")
        (folder / "entry_points.txt").write_text(text + "\n")
        importlib.invalidate_caches()

    return install


@pytest.fixture
def registry() -> Iterator[Registry]:
    """Give a registry that has read nothing yet, and close what it started."""
    made = Registry()
    yield made
    for name in list(made._started):
        made.close(name)


def _history() -> list[str]:
    history: list[str] = importlib.import_module("more_ops").HISTORY
    return history


def test_extension_adds_ops_that_pass_the_suite(package: Any, registry: Registry) -> None:
    package(torch__hyperbolic="Hyperbolic")
    backend = registry.get(NAME)
    assert [(x.name, x.ops) for x in registry.meet(NAME).extensions] == [
        (f"{NAME}.hyperbolic", ("sinh", "cosh"))
    ]
    ops = [all_ops()[name] for name in ("sinh", "cosh")]
    found = [case for case in cases(ops) if case.dtype.name == "float32"]
    rows, problems = reports(backend, first_device(backend), found)
    assert not problems
    assert {row.status for row in rows} == {"proven"}


def test_extension_is_started_once_and_stopped_with_its_backend(
    package: Any, registry: Registry
) -> None:
    pytest.importorskip("fusewire_torch", reason="pip install --editable tests/plugin")
    package(torch__hyperbolic="Hyperbolic")
    threads = [threading.Thread(target=registry.get, args=(NAME,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _history() == [f"start with {NAME}"]
    lowerings = registry.get(NAME).lowerings
    assert lowerings is not None
    assert "sinh" in lowerings
    registry.close(NAME)
    assert _history() == [f"start with {NAME}", "stop"]
    assert "sinh" not in lowerings


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Raising", "the licence is gone"),
        ("Crashing", "SIGSEGV"),
        ("Greedy", f"{NAME} already has exp"),
        ("Missing", "Missing"),
    ],
)
def test_extension_that_does_not_start_is_reported_and_stops_nobody(
    package: Any, registry: Registry, name: str, says: str
) -> None:
    package(torch__bad=name, torch__hyperbolic="Hyperbolic")
    with pytest.warns(ExtensionWarning, match=f"{NAME}.bad"):
        met = registry.meet(NAME)
    bad, good = met.extensions
    assert says in (bad.problem or "")
    assert good.ops == ("sinh", "cosh")
    assert met.is_broken
    assert met.devices
    assert registry.get(NAME).info.name == NAME


def test_backend_without_a_table_says_so(package: Any, registry: Registry) -> None:
    package(reference__hyperbolic="Hyperbolic")
    with pytest.warns(ExtensionWarning, match="accepts no extensions"):
        registry.get("reference")


def _restart(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have the one registry of the package look for extensions anew."""
    REGISTRY.get(name)
    REGISTRY.close(name)
    monkeypatch.setattr(REGISTRY.extensions, "_entries", None)


@pytest.mark.parametrize(
    ("backend", "extension", "op"),
    [
        (NAME, {"torch__hyperbolic": "Hyperbolic"}, "sinh"),
        ("xla", {"xla__nn": "Softmax"}, "softmax"),
    ],
)
def test_program_runs_what_an_extension_adds_without_fallback(
    package: Any, monkeypatch: pytest.MonkeyPatch, backend: str, extension: Any, op: str
) -> None:
    package(**extension)
    _restart(monkeypatch, backend)
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    attrs: Any = {"axis": 0} if op == "softmax" else {}
    try:
        program = fw.compile(
            lambda x: getattr(fw.ops, op)(x, **attrs), x, backend=backend, fallback="error"
        )
        np.testing.assert_allclose(program(x), fw.run(op, x, **attrs), rtol=1e-6)
        assert [node.op for node in program.plan.graph.nodes] == [op]
        assert [c.is_isolated for c in program.why().contacts] == [True]
    finally:
        _restart(monkeypatch, backend)


def test_commands_tell_of_extensions(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package(torch__bad="Raising", torch__hyperbolic="Hyperbolic")
    _restart(monkeypatch, NAME)
    try:
        done = CliRunner().invoke(main, ["backends", "--json"], catch_exceptions=False)
        (row,) = [row for row in json.loads(done.output) if row["name"] == NAME]
        assert row["state"] == "broken"
        assert "the licence is gone" in row["extensions"][0]["problem"]
        assert row["extensions"][1]["ops"] == ["sinh", "cosh"]
        wide = CliRunner(env={"COLUMNS": "400"})
        assert f"{NAME}.bad did not start" in wide.invoke(main, ["backends"]).output
        assert CliRunner().invoke(main, ["doctor"]).exit_code == 1
    finally:
        _restart(monkeypatch, NAME)


def test_name_without_a_backend_is_nobody(package: Any, registry: Registry) -> None:
    package(nobody__more="Hyperbolic")
    assert registry.extensions.names() == ["nobody.more"]
    with pytest.raises(RegistryError, match="has no 'nobody'"):
        registry.meet("nobody")
