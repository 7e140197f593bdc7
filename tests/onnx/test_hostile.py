"""Files of strangers: nothing outside their folder is read, nothing is paid before it is checked.

Escapes, floods and mutants are tables beside this file; benchmarks/hostile.py runs them at full
size, each in a process of its own.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusewire.contract.frontend import Limits
from fusewire.errors import BudgetError, FormatError, FusewireError, SourceError
from fusewire.onnx.elements import DTYPES
from fusewire.onnx.read import wire
from fusewire.onnx.read.external import ModelFolder
from fusewire.onnx.read.model_file import Opened, open_model
from fusewire.system.beneath import open_in_steps
from tests.onnx import escapes, floods
from tests.onnx.escapes import HONEST, Box, at

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", escapes.ESCAPES)
def test_nothing_escapes(name: str, tmp_path: Path) -> None:
    try:
        with pytest.raises(FusewireError) as caught:
            escapes.attempt(name, Box(tmp_path))
    except PermissionError as error:
        pytest.skip(f"this user cannot make it: {error}")
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("name", escapes.ESCAPES)
def test_nothing_escapes_where_the_kernel_does_not_help(name: str, tmp_path: Path) -> None:
    box = Box(tmp_path)
    try:
        location = escapes.ESCAPES[name](box)
    except PermissionError as error:
        pytest.skip(f"this user cannot make it: {error}")
    if not isinstance(location, str) or name == "model has a zero byte":
        return
    with pytest.raises(FormatError):
        ModelFolder(box.folder, open_in_steps).open(location)


@pytest.mark.parametrize(
    ("location", "offset", "length"),
    [
        ("weights.bin", "", ""),
        ("./weights.bin", "0", "16"),
        ("sub/w", "4", "16"),
        ("a:b", "", "16"),
    ],
)
def test_honest_external_data_is_read(
    location: str, offset: str, length: str, tmp_path: Path
) -> None:
    box = Box(tmp_path)
    values = np.arange(4, dtype=np.float32)
    where = box.folder / location
    where.write_bytes(b"\1" * int(offset or 0) + values.tobytes() + b"rest")
    entries = [(k, v) for k, v in (("offset", offset), ("length", length)) if v]
    opened = _stored(box, escapes.model(at(location, *entries)))
    (read,) = escapes.read_all(opened)
    np.testing.assert_array_equal(read, values)
    descriptor, _ = ModelFolder(box.folder, open_in_steps).open(location)
    os.close(descriptor)


def _stored(box: Box, model: Any) -> Opened:
    path = box.folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return open_model(path)


def test_digest_covers_external_data(tmp_path: Path) -> None:
    box = Box(tmp_path)
    model = escapes.model(at("weights.bin"))
    first = _stored(box, model).digest
    assert first == _stored(box, model).digest
    box.weights.write_bytes(HONEST[:-1] + b"\1")
    assert first != _stored(box, model).digest


def test_changed_file_has_no_digest(tmp_path: Path) -> None:
    box = Box(tmp_path)
    opened = _stored(box, escapes.model(at("weights.bin")))
    box.weights.write_bytes(b"longer" * 10)
    with pytest.raises(FormatError, match="changed"):
        _ = opened.digest


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    def held() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    before = held()
    for place in range(20):
        box = Box(tmp_path / str(place))
        list(escapes.read_all(_stored(box, escapes.model(at("weights.bin")))))
        with pytest.raises(FormatError):
            _stored(box, escapes.model(at("sub")))
    assert held() == before


@pytest.fixture(scope="module")
def flooded() -> dict[str, dict[str, Any]]:
    """Load all floods in one process, which may take the memory of one at most."""
    command = [sys.executable, "benchmarks/hostile.py", "floods", "--json"]
    ran = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, timeout=300)
    return {row["name"]: row for row in json.loads(ran.stdout)["rows"]}


@pytest.mark.parametrize("name", [*floods.OPEN, *floods.WORK])
def test_flood_costs_little(name: str, flooded: dict[str, dict[str, Any]]) -> None:
    row = flooded[name]
    assert not row["problem"], row


def test_mutants_do_no_harm() -> None:
    command = [sys.executable, "benchmarks/hostile.py", "mutations", "--count", "2000", "--json"]
    ran = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, timeout=600)
    found = json.loads(ran.stdout)
    assert not found["problems"]
    assert sum(found["outcomes"].values()) == 2000
    # Mutants that never get past the parser would prove nothing about the rest.
    assert found["outcomes"]["loaded"] > 100


def _held(tensor: Any) -> Any:
    return escapes.model(tensor)


def _arrays(opened: Opened) -> list[np.ndarray]:
    return list(escapes.read_all(opened))


@pytest.mark.parametrize("number", [n for n, of in DTYPES.items() if of.name != "string"])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 3)])
@pytest.mark.parametrize("form", ["raw", "entries", "external"])
def test_elements_are_read_as_onnx_reads_them(
    number: int, shape: tuple[int, ...], form: str, tmp_path: Path
) -> None:
    of = DTYPES[number]
    count = int(np.prod(shape))
    bits = np.random.default_rng(number).integers(0, 256, count * of.itemsize, np.uint8)
    if of.name == "bool":
        bits &= 1
    if of.is_narrow and of.bits < 8:
        bits &= 2**of.bits - 1
    wanted = bits.view(of.numpy).reshape(shape)
    tensor = numpy_helper.from_array(wanted, "w")
    if form == "entries":
        tensor = helper.make_tensor("w", number, shape, wanted.reshape(-1))
    box = Box(tmp_path)
    if form == "external":
        box.weights.write_bytes(tensor.raw_data)
        entries = [("location", "weights.bin")]
        tensor = escapes.external(entries, shape, number)
    (found,) = _arrays(_stored(box, _held(tensor)))
    assert found.dtype == of.numpy
    assert found.shape == shape
    assert found.tobytes() == wanted.tobytes()


def test_strings_are_read() -> None:
    tensor = helper.make_tensor("w", TensorProto.STRING, [2], ["größe".encode(), b""])
    (found,) = _arrays(open_model(_held(tensor)))
    assert found.tolist() == ["größe", ""]


def test_strings_are_text() -> None:
    tensor = helper.make_tensor("w", TensorProto.STRING, [1], [b"\xff"])
    with pytest.raises(FormatError, match="UTF-8"):
        _arrays(open_model(_held(tensor)))


@pytest.mark.parametrize("flat", [True, False])
def test_sparse_tensor_is_made_dense(flat: bool) -> None:
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    places = [1, 5] if flat else [0, 1, 1, 2]
    indices = helper.make_tensor("i", TensorProto.INT64, [2] if flat else [2, 2], places)
    model = escapes.model(values)
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    del model.graph.initializer[:]
    (found,) = _arrays(open_model(model))
    np.testing.assert_array_equal(found, [[0, 1, 0], [0, 0, 2]])


@pytest.mark.parametrize(
    "places", [[5, 1], [1, 1], [-1, 1], [1, 6], [1, 2**62], [-(2**63), 2**63 - 1]]
)
def test_sparse_tensor_stays_within_its_dims(places: list[int]) -> None:
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    model = escapes.model(values)
    indices = helper.make_tensor("i", TensorProto.INT64, [2], places)
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    del model.graph.initializer[:]
    with pytest.raises(FormatError):
        _arrays(open_model(model))


def _float(**fields: Any) -> Any:
    return TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], **fields)


@pytest.mark.parametrize(
    "tensor",
    [
        _float(raw_data=b"\0" * 8, float_data=[1, 2]),
        _float(float_data=[1, 2], int64_data=[1]),
        _float(raw_data=b"\0" * 7),
        _float(raw_data=b"\0" * 9),
        _float(float_data=[1]),
        _float(float_data=[1, 2, 3]),
        _float(int32_data=[1, 2]),
        _float(),
        TensorProto(name="w", data_type=99, dims=[2], raw_data=b"\0" * 8),
        TensorProto(name="w", data_type=TensorProto.STRING, dims=[2], raw_data=b"ab"),
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[0], float_data=[1]),
        _float(raw_data=b"\0" * 8, segment=TensorProto.Segment(begin=0, end=1)),
    ],
)
def test_tensor_must_hold_its_elements_once(tensor: Any) -> None:
    with pytest.raises(FormatError, match="'w'"):
        open_model(_held(tensor))


def test_two_homes_of_elements_are_named() -> None:
    with pytest.raises(FormatError, match="twice, in float_data and raw_data"):
        open_model(_held(_float(raw_data=b"\0" * 8, float_data=[1, 2])))


def _two_nodes() -> Any:
    nodes = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Neg", ["t"], ["y"])]
    made = onnx.ModelProto.FromString(floods.model(nodes))
    made.graph.output[0].type.tensor_type.shape.SetInParent()
    return made


def _unsorted(model: Any) -> None:
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))


def _repeated(model: Any) -> None:
    model.graph.initializer.extend([_float(raw_data=b"\0" * 8)] * 2)


def _old(model: Any) -> None:
    model.ir_version = 3
    model.graph.initializer.append(_float(raw_data=b"\0" * 8))
    model.graph.node.append(helper.make_node("Identity", ["w"], ["z"]))


def _said_twice(model: Any) -> None:
    for _ in range(2):
        model.metadata_props.add(key="a", value="b")


def _long_name(model: Any) -> None:
    for node in model.graph.node:
        node.domain = "ai.onnx"


BENDS: dict[str, Callable[[Any], object]] = {
    "graph without a name": lambda m: m.graph.ClearField("name"),
    "nodes out of order": _unsorted,
    "output without a shape": lambda m: m.graph.output[0].type.tensor_type.ClearField("shape"),
    "output without a type": lambda m: m.graph.output[0].ClearField("type"),
    "input without a shape": lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"),
    "initializer that is there twice": _repeated,
    "initializer that is not an input, of old": _old,
    "metadata with a key twice": _said_twice,
    "nodes of ai.onnx": _long_name,
    "operator sets of others": lambda m: m.opset_import.add(domain="com.example", version=1),
}


@pytest.mark.parametrize("bend", BENDS)
def test_what_engines_take_is_taken(bend: str) -> None:
    import onnxruntime

    model = _two_nodes()
    BENDS[bend](model)
    data = model.SerializeToString()
    onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    opened = open_model(data)
    assert [node.op_type for node in opened.proto.graph.node][:2] == ["Relu", "Neg"]
    assert {node.domain for node in opened.proto.graph.node} == {""}


def _ring(model: Any) -> None:
    model.graph.node[0].input[0] = "y"


def _differing(model: Any) -> None:
    _repeated(model)
    model.graph.initializer[1].raw_data = b"\1" * 8


def _foreign(op: str, domain: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.graph.node[0].op_type, model.graph.node[0].domain = op, domain
        model.opset_import.add(domain=domain, version=1)

    return change


REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "nodes in a ring": (_ring, "ring: Relu -> Neg -> Relu"),
    "initializers of one name": (_differing, "not unique"),
    "compiled code": (_foreign("EPContext", "com.microsoft"), "EPContext"),
    "Python code": (_foreign("PythonOp", "com.microsoft"), "PythonOp"),
    "unknown domain": (_foreign("Op", "com.example"), "com.example"),
    "unknown op": (_foreign("Nothing", ""), "Nothing"),
    "unknown attribute": (
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("own", 1)),
        "own",
    ),
    "unknown input": (lambda m: m.graph.node[0].input.__setitem__(0, "nobody"), "nobody"),
    "newer form": (lambda m: m.__setattr__("ir_version", 99), "99"),
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_no_engine_should_take_is_refused(change: str) -> None:
    model = _two_nodes()
    make, said = REFUSED[change]
    make(model)
    with pytest.raises(FormatError, match=said):
        open_model(model)


def test_messages_show_no_controls() -> None:
    model = _two_nodes()
    _foreign("Op", "evil\x1b[31m\n" + "long" * 100)(model)
    with pytest.raises(FormatError) as caught:
        open_model(model)
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 500


@pytest.mark.parametrize(
    ("limits", "model"),
    [
        (Limits(nodes=1), _two_nodes()),
        (Limits(file_bytes=10), _two_nodes()),
        (Limits(rank=0), _held(_float(raw_data=b"\0" * 8))),
        (Limits(constant_bytes=7), _held(_float(raw_data=b"\0" * 8))),
        (Limits(depth=1), onnx.ModelProto.FromString(floods.calls(1, 1))),
        (Limits(sparse_bytes=3), onnx.ModelProto.FromString(floods.sparse(1, 1))),
    ],
)
def test_limits_are_kept(limits: Limits, model: Any) -> None:
    open_model(model.SerializeToString())
    with pytest.raises(BudgetError, match="Limits"):
        open_model(model.SerializeToString(), limits)


def test_external_files_count(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.weights.write_bytes(HONEST * 1000)
    path = box.folder / "model.onnx"
    path.write_bytes(escapes.model(at("weights.bin")).SerializeToString())
    with pytest.raises(BudgetError, match="file_bytes"):
        open_model(path, Limits(file_bytes=10_000))


@pytest.mark.parametrize("data", [b"", b"\0", b"hello", b"\x3a\x7f", b"\x08\x08", b"\xff" * 100])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"not an ONNX model|no graph"):
        open_model(data)


def test_other_things_are_refused() -> None:
    with pytest.raises(SourceError, match="int"):
        open_model(3)


@pytest.mark.parametrize("name", ["light_bvlc_alexnet", "light_inception_v1"])
def test_a_look_at_the_bytes_lets_real_models_pass(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HARMLESS", 0)
    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    data = (folder / f"{name}.onnx").read_bytes()
    wire.look(data, Limits())
    for cut in range(1, len(data), 997):
        with pytest.raises(FormatError):
            wire.look(data[:cut], Limits())
