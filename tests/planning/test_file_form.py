"""When an engine may read a file by itself: nothing inside may need our checks or limits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from fusewire.compiler import Session
from fusewire.contract.backend import Config
from fusewire.planning.candidates import Candidate, candidates
from fusewire.planning.file_form import plan_file
from fusewire.planning.planner import Planned, make_plan
from fusewire.session.context import reference_target
from fusewire.session.model_source import ModelSource
from tests.onnx.models import Inputs, graph, model

ENGINES = ("onnxruntime", "openvino")
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


def planned(
    engine: str,
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Inputs,
    outputs: Sequence[str] = ("y",),
    **constants: Any,
) -> Planned | str:
    path = folder / "model.onnx"
    onnx.save(model(graph(nodes, inputs, outputs, constants), 17), path)
    session, reading = Session(), ModelSource(path).read()
    assert reading.file is not None
    (target,) = session.context.finder.targets(engine)
    plan = make_plan(session.rewrite(reading.graph), [target, reference_target()])
    return plan_file(reading.file, target, plan)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_index_that_is_an_input_is_checked_before_the_engine(
    engine: str, tmp_path: Path
) -> None:
    nodes = [helper.make_node("Gather", ["table", "i"], ["y"])]
    found = planned(engine, tmp_path, nodes, {"i": ("int64", [5])}, table=TABLE)
    assert not isinstance(found, str)
    (guard,) = found.plan.guards
    assert guard.place == 0
    assert found.plan.is_whole


@pytest.mark.parametrize("engine", ENGINES)
def test_an_index_that_is_computed_keeps_the_file_away(engine: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["table", "i"], ["y"]),
    ]
    found = planned(engine, tmp_path, nodes, {"x": ("float32", ["n"])}, table=TABLE)
    assert isinstance(found, str)
    assert "computed inside" in found


@pytest.mark.parametrize("engine", ENGINES)
def test_an_index_that_rewriting_removes_is_checked_all_the_same(
    engine: str, tmp_path: Path
) -> None:
    """The engine still runs the Gather whose result our graph does not need."""
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["taken"]),
        helper.make_node("Where", ["never", "taken", "x"], ["chosen"]),
        helper.make_node("Neg", ["chosen"], ["y"]),
    ]
    inputs = {"i": ("int64", [4]), "x": ("float32", [4, 3])}
    found = planned(engine, tmp_path, nodes, inputs, table=TABLE, never=np.zeros((4, 3), bool))
    assert not isinstance(found, str)
    assert "gather" not in [node.op for node in found.plan.graph.nodes]
    assert [guard.place for guard in found.plan.guards] == [0]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_size_without_a_bound_keeps_the_file_away(engine: str, tmp_path: Path) -> None:
    nodes = [helper.make_node("ConstantOfShape", ["size"], ["y"])]
    found = planned(engine, tmp_path, nodes, {"size": ("int64", [2])})
    assert isinstance(found, str)
    assert "without a bound" in found or "does not take all" in found


@pytest.mark.parametrize("of", ["float64", "uint32", "int64"])
def test_openvino_reads_no_file_in_dtypes_that_it_narrows(of: str, tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["squared"])]
    nodes += [helper.make_node("Reshape", ["squared", "flat"], ["y"])]
    found = planned("openvino", tmp_path, nodes, {"x": (of, [2, 3])}, flat=np.array([6], np.int64))
    assert isinstance(found, str)


@pytest.mark.parametrize(
    ("op", "of", "is_read"),
    [("Max", "int64", False), ("Max", "float32", True), ("Sin", "float64", False)],
)
def test_onnxruntime_reads_no_file_for_kernels_that_are_not_right(
    op: str, of: str, is_read: bool, tmp_path: Path
) -> None:
    names = ["x", "x"] if op == "Max" else ["x"]
    nodes = [helper.make_node(op, names, ["half"]), helper.make_node("Neg", ["half"], ["y"])]
    found = planned("onnxruntime", tmp_path, nodes, {"x": (of, [2])})
    assert isinstance(found, str) is not is_read, found


def test_openvino_reads_no_file_of_open_sizes_or_with_loops(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    found = planned("openvino", tmp_path, nodes, {"x": ("float32", ["n"])})
    assert isinstance(found, str)
    assert "sizes are open" in found
    for name, op in (("then_branch", "Neg"), ("else_branch", "Relu")):
        body = helper.make_node(op, ["x"], ["inner"])
        info = helper.make_tensor_value_info("inner", 1, [3])
        nodes[0].attribute.append(
            helper.make_attribute(name, helper.make_graph([body], name, [], [info]))
        )
    nodes[0].op_type = "If"
    nodes[0].input[0] = "which"
    inputs = {"which": ("bool", []), "x": ("float32", [3])}
    found = planned("openvino", tmp_path, nodes, inputs)
    assert isinstance(found, str)
    assert "loops" in found


def test_openvino_reads_no_file_whose_top_may_be_of_none(tmp_path: Path) -> None:
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "places"])]
    inputs: Inputs = {"x": ("float32", [4, 3]), "k": ("int64", [1])}
    found = planned("openvino", tmp_path, nodes, inputs)
    assert isinstance(found, str)
    assert "may be of none" in found


def test_openvino_reads_no_file_whose_output_nothing_computes(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["x"], ["z"])]
    found = planned("openvino", tmp_path, nodes, {"x": ("float32", [3])}, ("y", "z"))
    assert isinstance(found, str)
    assert "nothing computes" in found


def test_an_option_of_the_user_keeps_the_file_away(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    onnx.save(model(graph(nodes, {"x": ("float32", [3])}, ["y"]), 17), path)
    session, reading = Session(), ModelSource(path).read()
    targets = session.context.finder.targets("openvino")
    for options, has_file in (({}, True), ({"nan": "exact"}, False)):
        found = candidates(
            session.rewrite(reading.graph),
            targets,
            reference_target(),
            Config(options=options),
            may_fall_back=True,
            file=reading.file,
        )
        forms = [x.form for x in found if isinstance(x, Candidate)]
        assert ("file" in forms) is has_file


@pytest.mark.parametrize(("of", "is_early"), [("float16", True), ("float32", False)])
def test_a_file_in_narrow_floats_comes_right_after_its_engine(
    of: str, is_early: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    nodes = [helper.make_node("Relu", ["x"], ["half"]), helper.make_node("Neg", ["half"], ["y"])]
    onnx.save(model(graph(nodes, {"x": (of, [3])}, ["y"]), 17), path)
    session, reading = Session(), ModelSource(path).read()
    targets = [x for engine in ENGINES for x in session.context.finder.targets(engine)]
    found = candidates(
        session.rewrite(reading.graph),
        targets,
        reference_target(),
        Config(),
        may_fall_back=True,
        file=reading.file,
    )
    names = [x.name for x in found if isinstance(x, Candidate)]
    assert names[0] == "onnxruntime"
    assert len(set(names)) == len(names)
    assert names.index("onnxruntime file") == (1 if is_early else names.index("openvino file") - 1)
