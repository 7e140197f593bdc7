"""Graphs of ours as ONNX models: valid by the checker, and right where an engine runs them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as native

from fusewire.dtypes import (
    DType,
    bool_,
    float32,
    float64,
    int32,
    int64,
)
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Graph, HostValue, Value
from fusewire.ir.types import SequenceType, TensorType
from fusewire.onnx.elements import DTYPES, element_of
from fusewire.onnx.ops.write_table import WRITERS
from fusewire.onnx.write.target import Standard
from fusewire.onnx.write.writer import write
from fusewire.ops.activation import gelu
from fusewire.ops.channels import batch_norm
from fusewire.ops.control import cond
from fusewire.ops.declare import Op, Trait
from fusewire.ops.elementwise import add, multiply, sin
from fusewire.ops.indexing import gather
from fusewire.ops.movement import broadcast_to, reshape
from fusewire.ops.normalization import layer_norm, rms_norm
from fusewire.ops.recurrent import lstm
from fusewire.ops.slicing import slice_axis
from fusewire.ops.subgraph import subgraph
from fusewire.ops.table import all_ops
from fusewire.ops.transformer import attention
from fusewire.testing.conformance import Case, first_cases, value_problems

N = symbol("n")
LATEST = 26
# What ONNX has nothing for: complex numbers, decompositions, and functions nobody asked it for;
# a check, which the host does for engines.
UNWRITABLE = {
    "check",
    "conj", "real", "imag", "complex", "angle", "fft", "ifft", "rfft",
    "irfft", "fftn", "ifftn", "rfftn", "irfftn", "inverse", "solve", "triangular_solve",
    "cholesky", "qr", "svd", "eigh",
}  # fmt: skip
# ONNX counts windows that begin in the padding when it infers shapes, against its own text.
UNCHECKED = {"average_pool-11-float32"}
# ONNX Runtime 1.31.1 is wrong about frames whose length is not at a power of two.
UNJUDGED = {"stft-4-float32"}
# What NumPy alone cannot hold, so that a session cannot be given or asked for it.
FOREIGN = {
    d for d in DTYPES.values() if d.numpy.kind == "V" or d.numpy.char not in "?bhilqBHILQefdO"
}


def value(dtype: DType, *shape: Any, name: str = "x") -> Value:
    return Value(TensorType(dtype, shape), name)


def graph_of(inputs: Sequence[Value], *outputs: Value) -> Graph:
    return Graph(inputs, outputs, output_names=[f"output{i}" for i in range(len(outputs))])


def checked(graph: Graph, opset: int = 21) -> onnx.ModelProto:
    model = write(graph, opset).proto()
    onnx.checker.check_model(model, full_check=True)
    return model


def ops_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def run(model: onnx.ModelProto, *inputs: HostValue) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [given.name for given in model.graph.input]
    found: list[Any] = session.run(None, dict(zip(names, inputs, strict=True)))
    return found


# Every op


def is_runnable(case: Case, graph: Graph) -> bool:
    """Tell whether a session can be fed; strings and sequences are not what this is about."""
    types = [*(v.type for v in graph.inputs), *(v.type for v in graph.outputs)]
    plain = all(isinstance(t, TensorType) and t.dtype not in FOREIGN for t in types)
    is_judged = case.op.name != "sigmoid" and case.id not in UNJUDGED
    return plain and is_judged and not case.op.is_(Trait.HOST)


def answers(graph: Graph, inputs: Sequence[HostValue]) -> list[Any] | None:
    """Run a model that holds only what engines agree about; None if there is none, or no kernel."""
    try:
        return run(write(graph, LATEST, is_cautious=True).proto(), *inputs)
    except (FormatError, native.NotImplemented):
        return None


@pytest.mark.parametrize("op", [pytest.param(op, id=name) for name, op in all_ops().items()])
def test_op_is_written_as_a_valid_model_that_runs(op: Op[Any]) -> None:
    problems, written = [], 0
    for case in first_cases(op)[:12]:
        graph, inputs = case.make()
        try:
            made = write(graph, LATEST).proto()
        except FormatError:
            continue
        written += 1
        onnx.checker.check_model(made, full_check=case.id not in UNCHECKED)
        found = answers(graph, inputs) if is_runnable(case, graph) else None
        if found is not None:
            problems += [f"{case.id}: {p}" for p in value_problems(graph, inputs, found)]
    assert not problems, "\n".join(problems)
    assert bool(written) is (op.name not in UNWRITABLE)


def test_table_names_declared_ops_only() -> None:
    assert set(WRITERS) <= set(all_ops())


# Opsets


def test_default_opset_is_21() -> None:
    x = value(float32, 3)
    model = checked(graph_of([x], add(x, x)))
    assert [(found.domain, found.version) for found in model.opset_import] == [("", 21)]
    assert model.ir_version == 10


@pytest.mark.parametrize(("opset", "wanted"), [(21, "ReduceMean"), (23, "RMSNormalization")])
def test_op_of_a_later_opset_is_used_where_it_is_allowed(opset: int, wanted: str) -> None:
    x, scale = value(float32, 2, 4), value(float32, 4, name="scale")
    assert wanted in ops_of(checked(graph_of([x, scale], rms_norm(x, scale)), opset))


def test_attention_is_whole_from_opset_23_on() -> None:
    q, k, v = (value(float32, 1, 2, 3, 4, name=name) for name in "qkv")
    graph = graph_of([q, k, v], attention(q, k, v))
    assert ops_of(checked(graph, 23))[0] == "Attention"
    assert "Softmax" in ops_of(checked(graph, 21))


def test_opset_that_is_too_old_is_an_error() -> None:
    with pytest.raises(FormatError, match="opset 21 or later"):
        Standard(20)


def test_dtype_that_an_opset_lacks_is_widened() -> None:
    x = value(all_ops()["sin"].dtypes[1], 3)
    assert x.tensor.dtype.name == "bfloat16"
    assert ops_of(checked(graph_of([x], sin(x)), 21))[:3] == ["Cast", "Sin", "Cast"]
    assert ops_of(checked(graph_of([x], sin(x)), 22))[0] == "Sin"


# Composites


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda x: gelu(x), "Gelu"),
        (lambda x: layer_norm(x, constant(np.ones(4, np.float32))), "LayerNormalization"),
        (lambda x: all_ops()["softmax"](x), "Softmax"),
        (lambda x: all_ops()["hard_swish"](x), "HardSwish"),
        (lambda x: batch_norm(x, *(constant(np.ones(4, np.float32)),) * 4), "BatchNormalization"),
    ],
)
def test_composite_that_onnx_has_is_one_node(make: Any, wanted: str) -> None:
    x = value(float32, N, 4)
    assert ops_of(checked(graph_of([x], make(x))))[0] == wanted


def test_recurrent_layer_is_one_node() -> None:
    x, w, r = (
        value(float32, N, 2, 3),
        value(float32, 1, 8, 3, name="w"),
        value(float32, 1, 8, 2, name="r"),
    )
    assert ops_of(checked(graph_of([x, w, r], *lstm(x, w, r))))[0] == "LSTM"


def test_composite_that_onnx_lacks_is_written_out() -> None:
    x = value(float32, 3, 4)
    rolled = all_ops()["roll"](x, shifts=(1,), axes=(0,))
    assert ops_of(checked(graph_of([x], rolled)))[:2] == ["Split", "Concat"]


def test_attribute_too_long_for_float32_is_not_lost() -> None:
    x, scale = value(float64, 2, 4), value(float64, 4, name="scale")
    model = checked(graph_of([x, scale], layer_norm(x, scale, epsilon=1e-5)))
    assert "LayerNormalization" not in ops_of(model)
    exact = checked(graph_of([x, scale], layer_norm(x, scale, epsilon=0.5)))
    assert ops_of(exact)[0] == "LayerNormalization"


# Sizes


def test_symbols_become_named_dims() -> None:
    x = value(float32, N, 3, N * 2)
    dims = checked(graph_of([x], add(x, x))).graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["n", 3, "2*n"]


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda x: reshape(x, shape=(N * 12,)), lambda x: x.reshape(-1)),
        (lambda x: reshape(x, shape=(2, N, 6)), lambda x: x.reshape(2, -1, 6)),
        (lambda x: slice_axis(x, 0, slice(1, N - 1)), lambda x: x[1:-1]),
        (lambda x: slice_axis(x, 0, slice(None, None, -2)), lambda x: x[::-2]),
        (lambda x: slice_axis(x, 0, slice(N // 2, None)), lambda x: x[len(x) // 2 :]),
        (
            lambda x: broadcast_to(x, shape=(2, N, 3, 4)),
            lambda x: np.broadcast_to(x, (2, *x.shape)),
        ),
        (
            lambda x: all_ops()["roll"](x, shifts=(5,), axes=(0,)),
            lambda x: np.roll(x, 5, 0),
        ),
        (lambda x: all_ops()["repeat"](x, count=2, axis=0), lambda x: np.repeat(x, 2, 0)),
        (
            lambda x: add(x, all_ops()["iota"].new(shape=(N, 3, 4), axis=0, dtype=float32)),
            lambda x: x + np.arange(len(x), dtype=np.float32)[:, None, None],
        ),
    ],
)
def test_sizes_are_computed_when_the_model_runs(make: Any, wanted: Any) -> None:
    x = value(float32, N, 3, 4)
    model = checked(graph_of([x], make(x)))
    for count in (2, 6):
        given = np.random.default_rng(3).normal(size=(count, 3, 4)).astype(np.float32)
        assert np.array_equal(run(model, given)[0], wanted(given))


def test_reshape_needs_no_node_for_a_size_that_follows() -> None:
    x = value(float32, N, 3, 4)
    assert ops_of(checked(graph_of([x], reshape(x, shape=(N, 12)))))[0] == "Reshape"


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (("n", "m"), ("n", 1, "m"), ["Unsqueeze"]),
        ((1, "n", 1, "m"), ("n", "m"), ["Squeeze"]),
        ((1, "n", "m"), ("n", "m", 1), ["Squeeze", "Unsqueeze"]),
    ],
)
def test_axes_of_one_take_no_sizes_that_only_the_run_tells(
    before: Any, after: Any, wanted: list[str]
) -> None:
    def sized(shape: Any, n: Any, m: Any) -> Any:
        return tuple({"n": n, "m": m}.get(dim, dim) for dim in shape)

    x = value(float32, *sized(before, N, symbol("m")))
    model = checked(graph_of([x], reshape(x, shape=sized(after, N, symbol("m")))))
    assert ops_of(model)[: len(wanted)] == wanted
    for sizes in ((2, 3), (1, 1), (0, 4), (3, 0)):
        (found,) = run(model, np.ones(sized(before, *sizes), np.float32))
        assert found.shape == sized(after, *sizes)


def test_size_that_nothing_tells_is_an_error() -> None:
    x = value(float32, 3)
    with pytest.raises(FormatError, match="no input or earlier node"):
        write(graph_of([x], broadcast_to(x, shape=(N, 3))))


# Names, constants, bodies


def test_names_are_unique_over_all_bodies() -> None:
    of = TensorType(float32, (N,))
    one = subgraph(lambda x: [add(multiply(x, x), 1.0)], of)
    inner = subgraph(
        lambda flag, x: cond(flag, x, then=one, otherwise=one), TensorType(bool_, ()), of
    )
    flag, x = value(bool_, name="flag"), value(float32, N, name="add_0")
    model = checked(graph_of([flag, x], *cond(flag, flag, x, then=inner, otherwise=inner)))
    names: list[str] = [given.name for given in model.graph.input]
    stack = [model.graph]
    while stack:
        graph = stack.pop()
        names += [name for node in graph.node for name in node.output]
        stack += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    assert len(names) == len(set(names))
    given = np.array([2.0, 3.0], np.float32)
    assert run(model, np.array(True), given)[0].tolist() == [5.0, 10.0]


def test_input_and_output_of_one_name_are_an_error() -> None:
    x = value(float32, 3)
    with pytest.raises(FormatError, match="different names"):
        write(Graph([x], [add(x, x)], output_names=["x"]))


def test_output_may_be_an_input_a_constant_or_given_twice() -> None:
    x = value(float32, 2)
    y = add(x, x)
    model = checked(graph_of([x], x, y, y, constant(np.ones(3, np.float32))))
    found = run(model, np.ones(2, np.float32))
    assert [array.tolist() for array in found] == [[1, 1], [2, 2], [2, 2], [1, 1, 1]]


def test_constants_are_inside_unless_they_are_left_outside() -> None:
    table = constant(np.ones((64, 4), np.float32))
    places = value(int64, 2)
    written = write(graph_of([places], gather(table, places, axis=0)))
    assert table.constant is not None
    (inside,) = written.proto().graph.initializer
    assert len(inside.raw_data) == 1024
    (outside,) = written.proto({table.constant.digest}).graph.initializer
    assert not outside.raw_data
    location = {entry.key: entry.value for entry in outside.external_data}
    assert location == {"location": table.constant.digest, "length": "1024"}


def test_equal_constants_are_written_once() -> None:
    x = value(float32, 3)
    graph = graph_of([x], add(multiply(x, constant(np.float32(2))), constant(np.float32(2))))
    assert len(write(graph).proto().graph.initializer) == 1


def test_sequences_have_types_of_their_own() -> None:
    xs = Value(SequenceType(TensorType(float32, (3,))), "xs")
    at = value(int32, name="at")
    model = checked(graph_of([xs, at], all_ops()["sequence_at"](xs, at)))
    assert model.graph.input[0].type.HasField("sequence_type")
    given = [np.zeros(3, np.float32), np.ones(3, np.float32)]
    assert run(model, given, np.array(1, np.int32))[0].all()


@pytest.mark.parametrize("of", DTYPES.values())
def test_dtypes_have_the_numbers_of_onnx(of: DType) -> None:
    found = onnx.TensorProto.DataType.Name(element_of(of))
    held = onnx.helper.tensor_dtype_to_np_dtype(element_of(of))
    assert held == of.numpy
    assert found


def test_dtype_that_onnx_lacks_is_an_error() -> None:
    with pytest.raises(FormatError, match="float8_e3m4"):
        element_of(next(d for d in all_ops()["reshape"].dtypes if d.name == "float8_e3m4"))
