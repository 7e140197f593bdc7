"""A source is read as it is when it is needed, and checked whoever read it."""

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import fusewire as fw
from fusewire.contract.frontend import Document, Example, Frontend, Limits, Reading, Structure
from fusewire.dtypes import float32
from fusewire.errors import GraphError, RegistryError, VerifyError
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType, Type
from fusewire.registry import REGISTRY, Registry
from fusewire.store.disk import Store


def _scale(path: Path, factor: float, shape: list[Any] | None) -> None:
    """Write a model that multiplies its input; without a shape, its rank is not known either."""
    edges = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    constant = helper.make_tensor("k", TensorProto.FLOAT, [], [factor])
    node = helper.make_node("Mul", ["x", "k"], ["y"])
    graph = helper.make_graph([node], "g", edges[:1], edges[1:], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("cache", [True, False])
def test_model_that_needs_sizes_is_read_as_it_is_at_the_call(
    tmp_path: Path, store: Store, cache: bool
) -> None:
    path = tmp_path / "model.onnx"
    _scale(path, 2.0, None)
    program = fw.compile(path, backend="reference", cache=cache)
    _scale(path, 3.0, None)
    for shape in ((3,), (2, 2)):
        np.testing.assert_array_equal(program(np.ones(shape, np.float32)), np.full(shape, 3.0))


def test_region_of_a_recalled_plan_that_is_compiled_is_said_to_be_isolated(
    tmp_path: Path, store: Store
) -> None:
    path = tmp_path / "model.onnx"
    _scale(path, 2.0, ["n"])
    fw.compile(path, backend="xla")(np.ones(2, np.float32))
    program = fw.compile(path, backend="xla")
    for size in (2, 3):
        np.testing.assert_array_equal(program(np.ones(size, np.float32)), np.full(size, 2.0))
    hit, miss = program.why().contacts
    assert (hit.cache, hit.is_isolated) == ("hit", False)
    assert miss.cache != "hit"
    assert miss.is_isolated


class BrokenDocument(Document):
    @property
    def inputs(self) -> Mapping[str, Type]:
        return {}

    @property
    def digest(self) -> None:
        return None

    def convert(self, example: Example, *, is_open: bool = False) -> Reading:
        x = Value(TensorType(float32, (4,)), "x")
        node = Node("add", [x, x], {}, [TensorType(float32, (7,))])
        graph = Graph([x], [node.outputs[0]], name="broken", output_names=["y"])
        arguments = Structure({"x": Structure.LEAF}, ("x",))
        return Reading(graph, arguments, Structure.of_results(("y",)))


class BrokenFrontend(Frontend):
    needs_example = False

    def accepts(self, source: object) -> bool:
        return source == b"broken"

    def open(self, source: Any, limits: Limits) -> Document:
        return BrokenDocument()


@pytest.fixture
def broken_frontend() -> Iterator[None]:
    REGISTRY.frontends.register("a_broken", "tests.test_compiler:BrokenFrontend")
    yield
    REGISTRY.frontends.unregister("a_broken")


@pytest.fixture
def own_registry() -> Iterator[Registry]:
    """A registry with the reference and a backend that nobody else knows."""
    own = Registry()
    for name in own.backends.names():
        if name != "reference":
            own.backends.unregister(name)
    own.register("fusewire.testing.chaos:none_at_run", "chaos")
    yield own
    own.unregister("chaos")


def doubled_tanh(x: Any) -> Any:
    return np.tanh(x) * 2


@pytest.mark.parametrize("start", ["measured", "now"])
def test_program_with_a_registry_of_its_own_knows_no_other_backend(
    own_registry: Registry, start: Any
) -> None:
    x = np.ones((64, 64), np.float32)
    before = fw.list_backends()
    options: Any = {"registry": own_registry, "start": start, "cache": False}
    program = fw.compile(doubled_tanh, x, **options)
    np.testing.assert_allclose(program(x), doubled_tanh(x), rtol=1e-5)
    assert program.wait(240)
    assert {row.backend for row in program.why().tried} == {"chaos", "reference", "function"}
    assert fw.list_backends() == before
    with pytest.raises(RegistryError, match="onnxruntime"):
        fw.compile(doubled_tanh, x, backend="onnxruntime", **options)
    with pytest.raises(GraphError, match="a registry of its own"):
        pickle.loads(pickle.dumps(program))


@pytest.mark.usefixtures("broken_frontend")
def test_graph_of_a_frontend_of_others_is_verified() -> None:
    with pytest.raises(VerifyError, match="float32"):
        fw.compile(b"broken", backend="reference")
