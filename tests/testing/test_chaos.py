"""Faults of engines through fw.compile: a right answer by fallback, or a typed error."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import fusewire as fw
from benchmarks.policies import PHASES, POLICIES, problem
from fusewire import ops
from fusewire.contract.backend import Config, Device, Refusal
from fusewire.errors import RefusedError
from fusewire.ir.graph import Graph, Value
from fusewire.ops.table import all_ops
from fusewire.process.isolate import Contact, first_contact, rerun
from fusewire.registry import REGISTRY
from fusewire.testing.chaos import ChaosBackend
from fusewire.testing.conformance import cases
from fusewire.testing.suite import reports

CPU = Device("cpu", "chaos")
# Each fault at each phase, under policies in turn; `benchmarks/policies.py` runs them all.
FAULTS = list(itertools.product(("segv", "raise", "garbage"), PHASES))
TURNS = [(*fault, POLICIES[place % 3]) for place, fault in enumerate(FAULTS)]
TURNS += [("segv", "run", "warn"), ("hang", "claim", "allow"), ("none", "run", "error")]


@pytest.mark.parametrize(("fault", "phase", "policy"), TURNS)
def test_fault_gives_a_right_answer_or_a_typed_error(fault: str, phase: str, policy: str) -> None:
    assert problem(fault, phase, policy) is None


def test_fault_is_blamed_on_who_has_it() -> None:
    fw.register("fusewire.testing.chaos:abort_at_compile", "chaos")
    try:
        program = fw.compile(np.exp, np.ones(3, np.float32), backend="chaos", fallback="error")
        with pytest.raises(RefusedError, match=r"chaos crashed while compiling .* SIGABRT"):
            program(np.ones(3, np.float32))
        (contact,) = program.why().contacts
        assert (contact.outcome, contact.runs_on) == ("crashed", "")
    finally:
        fw.unregister("chaos")


def test_engine_that_fails_later_is_left_for_a_while() -> None:
    fw.register("fusewire.testing.chaos:raise_at_rerun", "chaos")
    x = np.ones(3, np.float32)
    try:
        program = fw.compile(lambda x: x + 1, x, backend="chaos", fallback="allow")
        assert [program(x).tolist() for _ in range(5)] == [[2.0] * 3] * 5
        (contact,), (failed,) = program.why().contacts, program.why().failures
        assert (contact.outcome, contact.runs_on) == ("ready", "chaos")
        assert (failed.by_engine, failed.is_resting) == (3, True)
    finally:
        fw.unregister("chaos")


@pytest.mark.parametrize("fault", ["element", "nan"])
def test_wrong_answers_do_not_pass_the_suite(fault: str) -> None:
    found = [case for case in cases([all_ops()["add"]]) if case.dtype.name == "float32"]
    rows, problems = reports(ChaosBackend(fault, "run"), CPU, found)
    assert [row.status for row in rows] == ["failed"]
    assert problems


def _deep_model(depth: int) -> bytes:
    """Chain functions of a model, each calling the next; ONNX Runtime follows them on its stack."""
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("deep", 1)]
    make: Callable[..., Any] = helper.make_node
    calls = [make(f"f{i}", ["x"], ["y"], domain="deep") for i in range(depth)]
    bodies = [*calls[1:], make("Identity", ["x"], ["y"])]
    functions = [
        helper.make_function("deep", f"f{i}", ["x"], ["y"], [body], imports)
        for i, body in enumerate(bodies)
    ]
    edges = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(calls[:1], "deep", edges[:1], edges[1:])
    model = helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)
    return bytes(model.SerializeToString())


def test_model_that_kills_onnxruntime_kills_only_a_child() -> None:
    met = REGISTRY.meet("onnxruntime")
    x = Value(fw.Spec((2,), "float32").type, "x")
    given = [np.ones(2, np.float32)]
    graph = Graph([x], [ops.add(x, x)])
    contact = first_contact(met.reference, graph, met.devices[0], Config(), given)
    assert isinstance(contact, Contact)
    deadly = replace(contact.artifact, payload=_deep_model(3000))
    found = rerun(replace(contact, artifact=deadly, held="deadly"), given)
    assert isinstance(found, Refusal)
    assert found.code == "crashed"
    assert "SIGSEGV" in found.reason
    again = rerun(contact, given)
    assert isinstance(again, list)
    np.testing.assert_array_equal(again[0], [2.0, 2.0])
