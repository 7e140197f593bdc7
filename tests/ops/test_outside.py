"""Ops of packages: declared with care, found by name, the same in every process."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.declare import (
    EXACT,
    FLOATS,
    OpPackage,
    TensorType,
    Tolerance,
    Value,
    draw,
    float32,
    sample,
    ulps,
)
from fusewire.errors import RegistryError, TypeRuleError, UnknownOpError, VerifyError
from fusewire.ir.hash import exact_hash
from fusewire.ir.text import parse_graph, print_graph
from fusewire.ops.outside import OUTSIDE, OutsideOps
from fusewire.ops.table import get_op, known_ops, verify
from fusewire.testing.conformance import case_problems, cases, declaration_problems
from tests.rewritten import without_bytecode

MODULE = """
import numpy as np
from fusewire import declare as fd, ops

OPS = fd.OpPackage("spare_ops")

def _type(x: fd.TensorType, *, times: float = 2.0) -> fd.TensorType:
    return x

stretch = OPS.declare(
    "stretch", _type, doc="Multiply by a number.", dtypes=fd.FLOATS, version=VERSION,
    expand=lambda x, *, times: ops.multiply(x, times), onnx="com.spare:Stretch",
    samples=lambda: [fd.sample(fd.draw(3)), fd.sample(fd.draw()), fd.sample(fd.draw(0, 2))],
)
mirror = OPS.declare(
    "mirror", lambda x: x, doc="Reverse all axes.", dtypes=fd.FLOATS, tolerance=fd.EXACT,
    reference=lambda x: np.flip(x).copy(),
    samples=lambda: [fd.sample(fd.draw(3, 2)), fd.sample(fd.draw()), fd.sample(fd.draw(0, 2))],
)
"""

TWICE = """
from fusewire import declare as fd

again = fd.OpPackage("spare_ops").declare(
    "mirror", lambda x: x, doc="Do nothing.", dtypes=fd.FLOATS, samples=list, reference=lambda x: x
)
"""


def _type(x: TensorType, *, by: float = 1.0) -> TensorType:
    return x


def _samples() -> list[Any]:
    return [sample(draw(2))]


FIELDS: dict[str, Any] = {
    "doc": "Do something.",
    "dtypes": FLOATS,
    "samples": _samples,
    "reference": lambda x, *, by: x,
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], ModuleType]:
    """Write a module of ops that children can import, with its version of an op."""
    monkeypatch.syspath_prepend(tmp_path)
    without_bytecode(monkeypatch)

    def write(version: int) -> ModuleType:
        text = MODULE.replace("VERSION", str(version))
        (tmp_path / "spare_ops.py").write_text(text)
        monkeypatch.delitem(sys.modules, "spare_ops", raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("spare_ops")

    return write


@pytest.fixture
def spare(module: Callable[[int], ModuleType]) -> Iterator[ModuleType]:
    """Register both ops of the module."""
    made = module(1)
    ops = [fw.register_op(made.stretch), fw.register_op("spare_ops:mirror")]
    yield made
    for op in ops:
        OUTSIDE.unregister(op.name)


@pytest.mark.parametrize(
    ("name", "rule", "given", "says"),
    [
        ("Big", _type, {}, "'Big' is not a lower-case word"),
        ("op", "rule", {}, "its type rule is a str, not a function"),
        ("op", _type, {"doc": "no sentence"}, "its doc is 'no sentence', not a sentence"),
        ("op", _type, {"dtypes": ("float32",)}, "dtypes is not a tuple of dtypes"),
        ("op", _type, {"samples": []}, "samples is not a function"),
        ("op", _type, {"tolerance": 1e-6}, "its tolerance is 1e-06, not ulps"),
        ("op", _type, {"tolerance": Tolerance("loose")}, "not ulps"),
        ("op", _type, {"tolerance": ulps(-1)}, "not ulps"),
        ("op", _type, {"colour": 1}, "colour is not a field. Fields: cost"),
        ("op", _type, {"version": 0}, "its version is 0"),
        ("op", _type, {"onnx": "Stretch"}, "not DOMAIN:OpName"),
        ("op", _type, {"onnx": "ai.onnx:Add"}, "Use a domain of your own"),
        ("op", _type, {"reference": None}, "found neither"),
        ("op", _type, {"expand": lambda x, *, by: x}, "found reference and expand"),
        ("op", _type, {"reference": lambda x: x}, "its reference does not take these"),
        ("op", lambda **attrs: None, {}, "name each"),
    ],
)
def test_bad_declaration_is_refused_with_a_sentence(
    name: Any, rule: Any, given: Any, says: str
) -> None:
    with pytest.raises(RegistryError, match=says):
        OpPackage("my_ops").declare(name, rule, **{**FIELDS, **given})


def test_package_has_a_lower_case_name_and_each_op_once() -> None:
    with pytest.raises(RegistryError, match="cannot be the name of a package"):
        OpPackage("My-Ops")
    package = OpPackage("my_ops")
    package.declare("op", _type, tolerance=EXACT, **FIELDS)
    with pytest.raises(RegistryError, match=r"my_ops.op is declared twice"):
        package.declare("op", _type, **FIELDS)
    assert package.declare("op", _type, version=2, **FIELDS).name == "my_ops.op@2"


def test_registered_op_traces_runs_and_passes_the_suite(spare: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (spare.stretch(x, times=3.0) == 3 * x).all()
    graph = fw.trace(lambda x: spare.mirror(spare.stretch(x)) + 1, x)
    verify(graph)
    assert [node.op for node in graph.nodes] == ["spare_ops.stretch", "spare_ops.mirror", "add"]
    again = parse_graph(print_graph(graph))
    assert print_graph(again) == print_graph(graph)
    assert exact_hash(again) == exact_hash(graph)
    assert (fw.run("spare_ops.mirror", x) == np.flip(x)).all()
    for op in (spare.stretch, spare.mirror):
        assert op.name in known_ops()
        problems = declaration_problems(op)
        assert not [p for case in cases([op]) for p in case_problems(case)] + problems


@pytest.mark.parametrize("backend", ["xla", "webgpu", "reference"])
def test_children_know_a_registered_op(spare: Any, backend: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    program = fw.compile(
        lambda x: spare.mirror(np.exp(spare.stretch(x))), x, backend=backend, fallback="allow"
    )
    np.testing.assert_allclose(program(x), np.flip(np.exp(2 * x)), rtol=1e-5)
    program.close()


def test_version_is_part_of_the_name_and_of_the_hash(module: Callable[[int], ModuleType]) -> None:
    hashes, texts = [], []
    for version in (1, 2):
        op = fw.register_op(module(version).stretch)
        graph = fw.trace(lambda x, op=op: op(x), fw.Spec((2,), "float32"))
        hashes.append(exact_hash(graph))
        texts.append(print_graph(graph))
        verify(parse_graph(texts[-1]))
        OUTSIDE.unregister(op.name)
    assert hashes[0] != hashes[1]
    assert "spare_ops.stretch@2(" in texts[1]
    with pytest.raises(VerifyError, match=r"no op 'spare_ops.stretch@2'"):
        verify(parse_graph(texts[1]))


def test_what_cannot_be_registered_is_refused(spare: Any, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"'add' has no namespace"):
        fw.register_op("fusewire.ops.elementwise:add")
    with pytest.raises(RegistryError, match="not a declared op"):
        fw.register_op("spare_ops:OPS")
    with pytest.raises(RegistryError, match="cannot be imported"):
        fw.register_op("spare_ops:nothing")
    with pytest.raises(RegistryError, match="does not have the form module:name"):
        fw.register_op("import os")
    other = OpPackage("spare_ops").declare("mirror", _type, **FIELDS)
    with pytest.raises(RegistryError, match="not an attribute of a module"):
        fw.register_op(other)
    (tmp_path / "spare_twice.py").write_text(TWICE)
    with pytest.raises(RegistryError, match=r"spare_ops.mirror is taken by another declaration"):
        fw.register_op("spare_twice:again")


def test_op_of_a_script_says_to_put_it_into_a_module() -> None:
    code = MODULE.replace("VERSION", "1") + "\nimport fusewire as fw\nfw.register_op(stretch)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Put it into a module" in done.stderr


def _found(**values: str) -> OutsideOps:
    return OutsideOps([EntryPoint(name, value, "fusewire.ops") for name, value in values.items()])


def test_entry_point_leads_to_the_one_package_of_a_name(spare: Any) -> None:
    found = _found(spare_ops="spare_ops:OPS", broken="no_such_module:OPS")
    assert found.get("spare_ops.mirror").name == "spare_ops.mirror"
    assert list(found.all()) == ["spare_ops.mirror", "spare_ops.stretch"]
    with pytest.raises(UnknownOpError, match=r"spare_ops \(spare_ops:OPS\) has spare_ops.mirror"):
        found.get("spare_ops.gone")
    with pytest.raises(UnknownOpError, match="no installed package has the entry point 'nobody'"):
        found.get("nobody.op")
    with pytest.raises(RegistryError, match="cannot be imported: ModuleNotFoundError"):
        found.get("broken.op")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"other": "spare_ops:OPS"}, "calls itself 'spare_ops'"),
        ({"other": "spare_ops:stretch"}, "is a Op, not an OpPackage"),
    ],
)
def test_entry_point_that_is_no_package_is_refused(spare: Any, values: Any, says: str) -> None:
    with pytest.raises(RegistryError, match=says):
        _found(**values).get("other.op")


def test_two_packages_of_one_name_are_refused() -> None:
    points = [EntryPoint("a", value, "fusewire.ops") for value in ("one:OPS", "two:OPS")]
    with pytest.raises(RegistryError, match="Two packages have ops called a"):
        OutsideOps(points).get("a.op")


def test_type_rule_and_meaning_that_disagree_are_found() -> None:
    package = OpPackage("my_ops")
    given = {**FIELDS, "reference": None}
    wide = package.declare(
        "wide", _type, **given, expand=lambda x, *, by: fw.ops.concat(x, x, axis=0)
    )
    node = wide.make([Value(TensorType(float32, (2,)))], {})
    with pytest.raises(TypeRuleError, match=r"float32\[2\] by its type rule and float32\[4\]"):
        wide.expansion(node)


def test_unknown_op_names_the_missing_package() -> None:
    with pytest.raises(UnknownOpError, match="Install the package that declares it"):
        get_op("nobody.here")
