"""The file as an engine may get it: what was read and checked, and nothing else of it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fusewire.contract.model_file import ModelFile
from fusewire.errors import FormatError
from fusewire.session.model_source import ModelSource
from tests.onnx.models import graph, model

MARK = "planted-for-the-engine"
WEIGHT = np.arange(1024, dtype=np.float32).reshape(32, 32) / 1024


def layers() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["hidden"], name="first"),
        helper.make_node("Relu", ["hidden"], ["y"], name="second"),
    ]
    return model(graph(nodes, {"x": ("float32", ["n", 32])}, ["y"], {"w": WEIGHT}), 17)


def checked(made: onnx.ModelProto, folder: Path, **saving: Any) -> ModelFile | None:
    path = folder / "model.onnx"
    onnx.save(made, path, **saving)
    return ModelSource(path).read().file


def parsed(file: ModelFile | None) -> Any:
    assert file is not None
    return onnx.ModelProto.FromString(file.payload)


def test_weights_are_handed_over_by_digest(tmp_path: Path) -> None:
    file = checked(layers(), tmp_path)
    (tensor,) = parsed(file).graph.initializer
    assert file is not None
    ((digest, weight),) = file.weights.items()
    assert np.array_equal(weight.array, WEIGHT)
    assert {entry.key: entry.value for entry in tensor.external_data}["location"] == digest
    assert len(file.payload) < 1000


def test_weights_are_those_of_the_graph(tmp_path: Path) -> None:
    onnx.save(layers(), tmp_path / "model.onnx")
    reading = ModelSource(tmp_path / "model.onnx").read()
    assert reading.file is not None
    held = [value.constant for value in reading.graph.constants]
    # The same objects: read and hashed once.
    assert all(any(constant is x for x in held) for constant in reading.file.weights.values())


def test_nothing_that_does_not_compute_reaches_the_engine(tmp_path: Path) -> None:
    made = layers()
    settings = '{"session_options": {"intra_op_num_threads": 64, "' + MARK + '": 1}}'
    made.metadata_props.add(key="ort_config", value=settings)
    made.producer_name = made.domain = made.doc_string = made.graph.doc_string = MARK
    made.graph.metadata_props.add(key=MARK, value=MARK)
    made.graph.node[0].metadata_props.add(key=MARK, value=MARK)
    made.graph.node[0].doc_string = made.graph.initializer[0].doc_string = MARK
    made.graph.input[0].doc_string = made.graph.input[0].type.denotation = MARK
    made.graph.value_info.append(helper.make_tensor_value_info("hidden", 1, [MARK, 32]))
    made.graph.quantization_annotation.add(tensor_name=MARK)
    training = made.training_info.add()
    training.algorithm.CopyFrom(made.graph)
    training.algorithm.name = MARK
    file = checked(made, tmp_path)
    assert file is not None
    assert MARK.encode() in (tmp_path / "model.onnx").read_bytes()
    assert MARK.encode() not in file.payload
    assert b"session_options" not in file.payload


def test_nodes_that_no_output_needs_are_left_out(tmp_path: Path) -> None:
    made = layers()
    made.graph.node.append(helper.make_node("Neg", ["hidden"], ["unused"], name="dead"))
    assert [node.name for node in parsed(checked(made, tmp_path)).graph.node] == ["first", "second"]


def test_an_initializer_is_no_input(tmp_path: Path) -> None:
    made = layers()
    made.graph.input.append(helper.make_tensor_value_info("w", 1, [32, 32]))
    assert [info.name for info in parsed(checked(made, tmp_path)).graph.input] == ["x"]


def test_external_data_is_read_by_us(tmp_path: Path) -> None:
    saving = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    file = checked(layers(), tmp_path, **saving)
    assert file is not None
    assert b"weights.bin" not in file.payload
    (weight,) = file.weights.values()
    assert np.array_equal(weight.array, WEIGHT)


def test_no_file_reads_memory_of_the_engine(tmp_path: Path) -> None:
    """A place by which ONNX Runtime and OpenVINO mean an address of their process."""
    saving = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    checked(layers(), tmp_path, **saving)
    made = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    for entry in made.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "*/_ORT_MEM_ADDR_/*"
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(FormatError, match="cannot be read"):
        ModelSource(tmp_path / "model.onnx").read()


def test_external_data_of_a_body_is_inside(tmp_path: Path) -> None:
    twos = np.full(400, 2.0, np.float32)
    then = helper.make_node("Constant", [], ["a"], value=numpy_helper.from_array(twos, "c"))
    body = helper.make_graph([then], "then", [], [helper.make_tensor_value_info("a", 1, [400])])
    other = helper.make_node("Neg", ["x"], ["b"])
    rest = helper.make_graph([other], "else", [], [helper.make_tensor_value_info("b", 1, [400])])
    node = helper.make_node("If", ["which"], ["y"], then_branch=body, else_branch=rest)
    inputs = {"which": ("bool", []), "x": ("float32", [400])}
    made = model(graph([node], inputs, ["y"]), 17)
    saving = {
        "save_as_external_data": True,
        "location": "weights.bin",
        "size_threshold": 0,
        "convert_attribute": True,
    }
    file = checked(made, tmp_path, **saving)
    assert (tmp_path / "weights.bin").exists()
    assert file is not None
    assert b"weights.bin" not in file.payload
    (branch,) = (x.g for x in parsed(file).graph.node[0].attribute if x.name == "then_branch")
    assert np.array_equal(numpy_helper.to_array(branch.node[0].attribute[0].t), twos)


def test_a_file_that_is_replaced_after_reading_has_no_effect(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(layers(), path)
    file = ModelSource(path).read().file
    other = layers()
    other.graph.node[1].op_type = "Neg"
    onnx.save(other, path)
    assert [node.op_type for node in parsed(file).graph.node] == ["MatMul", "Relu"]


def test_external_data_that_is_replaced_after_reading_is_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "model.onnx", tmp_path / "weights.bin"
    onnx.save(layers(), path, save_as_external_data=True, location=data.name, size_threshold=0)
    file = ModelSource(path).read().file
    assert file is not None
    data.write_bytes(bytes(WEIGHT.nbytes))
    with pytest.raises(FormatError, match="changed"):
        _ = file.payload


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integers_that_may_be_divided_by_0_stay_with_us(op: str, tmp_path: Path) -> None:
    # ONNX Runtime 1.31.1 ends the process; what we write for it does not divide by 0.
    nodes = [helper.make_node(op, ["x", "d"], ["y"])]
    inputs = {"x": ("int32", [3]), "d": ("int32", [3])}
    assert checked(model(graph(nodes, inputs, ["y"]), 17), tmp_path) is None
    inputs.pop("d")
    for divisor, is_safe in ((2, True), (0, False), (-1, False)):
        made = model(graph(nodes, inputs, ["y"], {"d": np.array([divisor], np.int32)}), 17)
        assert (checked(made, tmp_path) is not None) is is_safe


def test_a_division_of_sizes_stays_with_us(tmp_path: Path) -> None:
    """Here no node of the graph divides: it is a size of an output."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node("Shape", ["x"], ["m"], start=1, end=2),
        helper.make_node("Div", ["n", "m"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["y"]),
    ]
    made = model(graph(nodes, {"x": ("float32", ["n", "m"])}, ["y"]), 17)
    assert checked(made, tmp_path) is None


@pytest.mark.parametrize("domain", ["", "ai.onnx", "com.microsoft", "fusewire"])
def test_functions_with_names_that_engines_know_stay_with_us(domain: str, tmp_path: Path) -> None:
    made = layers()
    made.ir_version = 10
    imports = [helper.make_opsetid("", 17)]
    body = [helper.make_node("Neg", ["a"], ["b"])]
    made.functions.append(helper.make_function(domain, "Relu", ["a"], ["b"], body, imports))
    if domain not in ("", "ai.onnx"):
        made.opset_import.append(helper.make_opsetid(domain, 1))
    made.graph.node[1].domain = domain
    try:
        assert checked(made, tmp_path) is None
    except FormatError:
        # Not even our reader takes it.
        assert domain in ("", "ai.onnx")


def test_functions_of_the_file_are_handed_over_if_called(tmp_path: Path) -> None:
    made = layers()
    made.ir_version = 10
    imports = [helper.make_opsetid("", 17)]
    for name in ("Used", "Unused"):
        body = [helper.make_node("Relu", ["a"], ["b"])]
        made.functions.append(helper.make_function("own", name, ["a"], ["b"], body, imports))
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.graph.node[1].op_type, made.graph.node[1].domain = "Used", "own"
    file = parsed(checked(made, tmp_path))
    assert [function.name for function in file.functions] == ["Used"]
