"""ONNX Runtime behind the contract: what declarations cannot show, and a slice of the suite."""

import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import defs
from onnxruntime.capi import onnxruntime_pybind11_state as native

import fusewire as fw
from fusewire.backends.onnxruntime.engine import OnnxRuntimeBackend
from fusewire.backends.onnxruntime.kernels import KERNELS, SINCE
from fusewire.backends.onnxruntime.lowering import LOWERING, OPSETS, lower, refuses
from fusewire.contract.backend import Config, Device, Offer, Refusal
from fusewire.contract.region import build, first_device
from fusewire.dtypes import (
    DType,
    bfloat16,
    bool_,
    complex64,
    float8_e4m3fn,
    float32,
    int8,
    int32,
    int64,
    uint32,
    uint64,
)
from fusewire.errors import OptionsError
from fusewire.ir.builder import constant
from fusewire.ir.dims import symbol, unbacked
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.onnx.elements import NAMES
from fusewire.onnx.write.target import LEADS
from fusewire.ops.activation import relu
from fusewire.ops.contraction import linear, matmul
from fusewire.ops.control import cond, scan, while_
from fusewire.ops.convolution import conv
from fusewire.ops.elementwise import (
    add,
    floor_divide,
    multiply,
    power,
    remainder,
    truncate_divide,
)
from fusewire.ops.indexing import gather, nonzero
from fusewire.ops.interpret import graph_of as graph_of_op
from fusewire.ops.interpret import interpret
from fusewire.ops.logic import less
from fusewire.ops.movement import reshape, transpose
from fusewire.ops.normalization import softmax
from fusewire.ops.pooling import global_max_pool, max_pool
from fusewire.ops.reduction import reduce_sum
from fusewire.ops.subgraph import INDEX, subgraph
from fusewire.ops.table import all_ops
from fusewire.registry import REGISTRY
from fusewire.rewrite.expand import expand
from fusewire.testing.conformance import cases, sliced
from fusewire.testing.suite import is_tensor_op, reports

BACKEND = OnnxRuntimeBackend()
CPU = first_device(BACKEND)
N = symbol("n")


def value(dtype: DType, *shape: Any, name: str = "x") -> Value:
    return Value(TensorType(dtype, shape), name)


def graph_of(inputs: list[Value], *outputs: Value) -> Graph:
    return Graph(inputs, outputs, output_names=[f"output{i}" for i in range(len(outputs))])


def ready(graph: Graph, config: Config = Config()) -> Callable[..., list[Any]]:
    executable = build(BACKEND, graph, CPU, config)
    return lambda *inputs: executable.run(inputs)


def random(*shape: int) -> Array:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def layer() -> tuple[Graph, Array]:
    """Make a layer whose weight is a constant large enough to stay outside."""
    weight = random(64, 16)
    x = value(float32, N, 16)
    return graph_of([x], linear(x, constant(weight), constant(random(64)))), weight


# Who it is


def test_backend_is_found_by_its_entry_point() -> None:
    assert REGISTRY.backends.get("onnxruntime").info == BACKEND.info


def test_probe_gives_a_device_that_ran_something() -> None:
    assert [type(found) for found in BACKEND.probe()] == [Device]


# What it claims


def engine_kernels(op: str, place: int) -> set[str]:
    """List the types for which the engine has CPU kernels, by its own account."""
    domain, _, name = op.rpartition(":")
    types, variable = set(NAMES.values()), "T1" if name == "MatMulNBits" else "T"
    if not domain:
        schema = defs.get_schema(name, max_inclusive_version=OPSETS[-1])
        formal = schema.outputs[0] if place < 0 else schema.inputs[place]
        types, variable = set(formal.types), formal.type_str
    found: set[str] = set()
    for kernel in native.get_all_opkernel_def():
        first, last = kernel.version_range
        if kernel.op_name == name and kernel.domain == domain and first <= OPSETS[-1] <= last:
            found |= set(kernel.type_constraints.get(variable, types))
    return found & types


@pytest.mark.parametrize("key", sorted(set(KERNELS) - {"HardSwish", "Mish"}))
def test_kernels_are_those_of_the_engine(key: str) -> None:
    op, _, place = key.partition("@")
    found = engine_kernels(op, int(place) if place else LEADS.get(op, 0))
    # Strings, complex numbers and dtypes below a byte do not cross the border.
    crossing = {NAMES[of] for of in KERNELS["Identity"]}
    assert {NAMES[of] for of in KERNELS[key]} == found & crossing


@pytest.mark.parametrize(("op", "since"), sorted(SINCE.items()))
def test_ops_of_a_later_opset_are_new_there(op: str, since: int) -> None:
    assert defs.get_schema(op, max_inclusive_version=OPSETS[-1]).domain == ""
    assert not defs.has(op, max_inclusive_version=since - 1)


def test_offers_are_for_any_size() -> None:
    (offer,) = BACKEND.claim(layer()[0], CPU)
    assert isinstance(offer, Offer)
    assert offer.shapes == "dynamic"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: power(value(int64, 3), value(int64, 3)), "float64"),
        (lambda: add(value(complex64, 3), value(complex64, 3)), "complex64"),
        (lambda: all_ops()["svd"](value(float32, 3, 3))[0], "svd"),
        (
            lambda: all_ops()["sequence_length"](all_ops()["sequence_construct"](value(float32))),
            "reference",
        ),
    ],
)
def test_refusal_is_a_sentence_that_says_why(make: Callable[[], Value], said: str) -> None:
    node = make().node
    assert node is not None
    refusals = BACKEND.claim(Graph([], node.outputs, [node]), CPU)
    assert all(isinstance(found, Refusal) for found in refusals)
    reason = refuses(node)
    assert reason is not None
    assert said in reason
    assert reason[0].isupper() or reason.startswith(node.op)
    assert reason.endswith(".")


def test_every_lowering_is_of_a_declared_op() -> None:
    assert set(LOWERING) <= set(all_ops())


# What it is given, and gives


def test_new_size_runs_without_compiling_again() -> None:
    graph, weight = layer()
    run = ready(graph)
    for count in (1, 5, 0, 3):
        x = random(count, 16)
        (found,) = run(x)
        assert found.shape == (count, 64)
        np.testing.assert_allclose(found, interpret(graph, [x])[0], rtol=1e-5, atol=1e-5)
    assert weight.shape == (64, 16)


def test_sizes_in_attributes_are_computed_by_the_run() -> None:
    x = value(float32, N, 3, 4)
    rows = reshape(x, shape=(N * 2, 6))
    again = reshape(rows, shape=(3, N, 4))
    run = ready(graph_of([x], rows, again, reduce_sum(again, axes=(1,))))
    for count in (2, 7):
        given = random(count, 3, 4)
        first, second, total = run(given)
        assert np.array_equal(first, given.reshape(2 * count, 6))
        assert np.array_equal(second, given.reshape(3, count, 4))
        np.testing.assert_allclose(total, second.sum(1), rtol=1e-5, atol=1e-5)


def test_size_is_found_in_a_dim_that_is_not_the_symbol_alone() -> None:
    x = value(float32, 2 * N + 1)
    run = ready(graph_of([x], all_ops()["full"](reduce_sum(x), shape=(N,))))
    assert run(np.ones(7, np.float32))[0].tolist() == [7.0, 7.0, 7.0]


def test_size_that_only_a_node_tells_is_used_after_it() -> None:
    x = value(float32, N)
    places = nonzero(x)
    count = places.tensor.shape[1]
    run = ready(graph_of([x], gather(x, reshape(places, shape=(count,)), axis=0)))
    assert run(np.array([0.0, 3.0, 0.0, 5.0], np.float32))[0].tolist() == [3.0, 5.0]


def test_outputs_are_fresh_and_the_callers() -> None:
    x = value(float32, N)
    small, large = constant(np.ones(3, np.float32)), constant(np.ones(512, np.float32))
    y = add(x, x)
    run = ready(graph_of([x], x, y, y, small, large))
    given = np.ones(4, np.float32)
    first, second = run(given), run(given)
    arrays = [*first, *second, given]
    for place, array in enumerate(arrays):
        assert not any(np.shares_memory(array, other) for other in arrays[:place])
    for array in first:
        array[...] = 9.0
    assert [float(array[0]) for array in run(given)] == [1.0, 2.0, 2.0, 1.0, 1.0]


def test_names_need_not_differ() -> None:
    x, y = value(float32, 2), value(float32, 2)
    graph = Graph([x, y], [add(x, y), multiply(x, y)], output_names=["x", "x"])
    total, product = ready(graph)(np.full(2, 3.0, np.float32), np.full(2, 4.0, np.float32))
    assert (total[0], product[0]) == (7.0, 12.0)


@pytest.mark.parametrize("of", [bfloat16, float8_e4m3fn])
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 3)])
def test_dtypes_that_numpy_lacks_cross_by_their_bits(of: DType, shape: tuple[int, ...]) -> None:
    x = value(of, *shape)
    given = np.full(shape, 1.5).astype(of.numpy)
    (found,) = ready(graph_of([x], reshape(x, shape=(*shape, 1))))(given)
    assert found.dtype == of.numpy
    assert np.array_equal(found, given[..., None])


def test_weights_of_bfloat16_are_bound() -> None:
    x = value(bfloat16, 2, 64)
    weight = random(64, 64).astype(ml_dtypes.bfloat16)
    given = random(2, 64).astype(ml_dtypes.bfloat16)
    (found,) = ready(graph_of([x], matmul(x, constant(weight))))(given)
    exact = given.astype(np.float64) @ weight.astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2e-2, atol=2e-1)


def test_region_without_nodes_gives_copies() -> None:
    x = value(complex64, 2)
    given = np.array([1j, 2.0], np.complex64)
    (found,) = ready(graph_of([x], x))(given)
    assert np.array_equal(found, given)
    assert found is not given


def test_int64_is_exact() -> None:
    x, y = value(int64, 2), value(int64, 2, name="y")
    big = np.array([2**62 + 1, -(2**62) - 1])
    total, product = ready(graph_of([x, y], add(x, y), multiply(x, y)))(big, np.array([1, 3]))
    assert total.tolist() == [2**62 + 2, -(2**62) + 2]
    assert product.tolist() == [2**62 + 1, (-(2**62) - 1) * 3 + 2**64]


WIDE: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("maximum", "minimum", "sign", "abs", "less", "cumsum", "argmax")},
    **{
        name: {"axes": (1,)}
        for name in (
            "reduce_max",
            "reduce_min",
            "reduce_sum",
            "reduce_prod",
            "norm_l1",
            "sum_square",
        )
    },
    "cumsum": {"axis": 1},
    "argmax": {"axis": 1},
    "sort": {},
    "clip": {},
    "matmul": {},
}


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("of", [int32, int64, uint32, uint64])
def test_integers_of_any_size_are_exact(name: str, of: DType) -> None:
    op = all_ops()[name]
    bits = np.random.default_rng(3).integers(0, 2**64, (2, 12, 12), np.uint64, endpoint=False)
    # Of every length, as what differs in the upper or the lower half alone is what goes wrong.
    given = [(x >> (np.arange(144, dtype=np.uint64).reshape(12, 12) % 64)) for x in bits]
    arrays = [x.astype(of.numpy) for x in given]
    if of is int64:
        arrays[0][0, :2] = 2, 2**32 - 2
    operands = arrays if name in ("maximum", "minimum", "less", "matmul") else arrays[:1]
    if name == "clip":
        operands = [arrays[0], np.array(3, of.numpy), np.array(2**31 - 3, of.numpy)]
    graph, inputs = graph_of_op(op, operands, WIDE[name])
    legal = expand(graph, refuses).graph
    (found,), (wanted,) = ready(legal)(*inputs), interpret(graph, inputs)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("of", [int8, int32, int64])
def test_division_that_would_stop_the_process_does_not(of: DType) -> None:
    x, y = value(of, 4), value(of, 4, name="y")
    outputs = [op(x, y) for op in (floor_divide, truncate_divide, remainder, all_ops()["fmod"])]
    graph = graph_of([x, y], *outputs)
    given = [np.array([of.range[0], 7, 0, -7], of.numpy), np.array([-1, 0, 0, 2], of.numpy)]
    for found, wanted in zip(ready(graph)(*given), interpret(graph, given), strict=True):
        assert np.array_equal(found, wanted)


def test_threads_are_taken_from_the_configuration() -> None:
    graph, _ = layer()
    artifact = BACKEND.compile(graph, CPU, Config(threads=1))
    assert artifact.launch["threads"] == 1
    session: Any = BACKEND.load(artifact, CPU, {})
    assert session._held[0].get_session_options().intra_op_num_threads == 1


@pytest.mark.parametrize(
    "config",
    [Config(threads=0), Config(options={"unknown": False}), Config(options={"sizes": "some"})],
)
def test_configuration_that_makes_no_sense_is_an_error(config: Config) -> None:
    with pytest.raises(OptionsError):
        BACKEND.compile(layer()[0], CPU, config)


def test_threads_may_share_an_executable() -> None:
    graph, _ = layer()
    run = ready(graph)
    x = random(32, 16)
    (wanted,) = run(x)
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            if not np.array_equal(run(x)[0], wanted):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


# Control flow


def test_branch_is_chosen_by_the_run() -> None:
    of = TensorType(float32, (N,))
    twice = subgraph(lambda x, y: [multiply(x, y)], of, of)
    more = subgraph(lambda x, y: [softmax(add(x, y))], of, of)
    flag, x, y = (
        value(all_ops()["less"].dtypes[0], name="flag"),
        value(float32, N),
        value(float32, N, name="y"),
    )
    run = ready(graph_of([flag, x, y], *cond(flag, x, y, then=twice, otherwise=more)))
    given = random(3), random(3)
    np.testing.assert_allclose(run(np.array(True), *given)[0], given[0] * given[1], rtol=1e-6)
    np.testing.assert_allclose(run(np.array(False), *given)[0].sum(), 1.0, rtol=1e-5)


def test_loop_runs_as_often_as_its_condition_says() -> None:
    of = TensorType(float32, (N,))
    test = subgraph(lambda x, i, n: [less(i, n)], of, INDEX, INDEX)
    body = subgraph(lambda x, i, n: [add(x, x), add(i, 1)], of, INDEX, INDEX)
    x, i, n = value(float32, N), value(int64, name="i"), value(int64, name="count")
    run = ready(graph_of([x, i, n], *while_(x, i, n, condition=test, body=body, carries=2)))
    for count in (0, 1, 5):
        found, last = run(np.ones(2, np.float32), np.array(0), np.array(count))
        assert found.tolist() == [2.0**count] * 2
        assert last == count


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_takes_any_number_of_rows(reverse: bool) -> None:
    row = TensorType(float32, (2,))
    body = subgraph(lambda s, x: [add(s, x), s], row, row)
    first, rows = value(float32, 2, name="first"), value(float32, N, 2, name="rows")
    outputs = scan(first, rows, body=body, carries=1, scans=1, reverse=reverse)
    graph = graph_of([first, rows], *outputs)
    run = ready(graph)
    for count in (0, 1, 4):
        given = [np.ones(2, np.float32), random(count, 2)]
        for found, wanted in zip(run(*given), interpret(graph, given), strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize(("time", "batch"), [(0, 2), (3, 0), (3, 2)])
def test_layer_without_steps_does_not_stop_the_process(name: str, time: int, batch: int) -> None:
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[name]
    x = value(float32, symbol("t"), N, 3)
    weights = [constant(random(1, 2 * gates, n)) for n in (3, 2)]
    graph = graph_of([x], *all_ops()[name](x, *weights))
    given = random(time, batch, 3)
    for found, wanted in zip(ready(graph)(given), interpret(graph, [given]), strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("batch", "wanted"), [(N, [{"sizes": "fitted"}]), (2, [])])
def test_known_sizes_are_offered_where_they_leave_out_a_branch(batch: Any, wanted: Any) -> None:
    x = value(float32, 3, batch, 3)
    weights = [constant(random(1, 8, n)) for n in (3, 2)]
    graph = graph_of([x], *all_ops()["lstm"](x, *weights))
    assert [x for x in BACKEND.configs(graph, CPU) if "nan" not in x] == wanted
    # Its own kernel alone: what mends NaN is a branch, too.
    written = lower(graph, {"nan": "engine"})
    ops = [node.op_type for node in written.proto(set()).graph.node]
    assert ("If" in ops) == bool(wanted)


def test_known_sizes_are_offered_only_where_inputs_tell_the_steps_of_a_layer() -> None:
    x, mask = value(float32, N, 3), value(bool_, 5, name="mask")
    assert list(BACKEND.configs(graph_of([x], all_ops()["tanh"](x)), CPU)) == []
    rows = value(float32, 5, 2, 3)
    kept = gather(rows, reshape(nonzero(mask, count=(u := unbacked())), shape=(u,)), axis=0)
    weights = [constant(random(1, 8, n)) for n in (3, 2)]
    outputs = all_ops()["lstm"](kept, *weights)
    assert list(BACKEND.configs(graph_of([rows, mask], *outputs), CPU)) == [{"nan": "engine"}]


def test_op_whose_kernel_ended_keeps_the_rest_at_its_opset() -> None:
    x, rois = value(float32, 1, 1, 4, 4), value(float32, 2, 4, name="rois")
    batches = value(int64, 2, name="batches")
    boxes = all_ops()["roi_align"](x, rois, batches, sizes=(2, 2))
    negative = all_ops()["signbit"](boxes)
    offer, refused = BACKEND.claim(graph_of([x, rois, batches], negative), CPU)
    assert isinstance(offer, Offer)
    assert isinstance(refused, Refusal)
    assert "BitCast" in refused.reason
    (alone,) = BACKEND.claim(graph_of([x], all_ops()["signbit"](x)), CPU)
    assert isinstance(alone, Offer)


def test_model_is_valid_where_bodies_see_what_is_around() -> None:
    row = TensorType(float32, (2,))
    body = subgraph(lambda s, x, w: [add(s, multiply(x, w)), s], row, row, row)
    first, rows = value(float32, 2, name="first"), value(float32, N, 2, name="rows")
    outputs = scan(first, rows, constant(np.ones(2, np.float32)), body=body, carries=1, scans=1)
    onnx.checker.check_model(lower(graph_of([first, rows], *outputs)).proto(), full_check=True)


def test_pools_that_the_engine_lays_out_anew_keep_nan() -> None:
    """Convolutions of sixteen channels and their pools have a layout of their own (NCHWc)."""
    x, weight = value(float32, 1, 16, 12, 12), constant(random(16, 16, 3, 3))
    pooled = max_pool(conv(max_pool(conv(x, weight), window=(2, 2)), weight), window=(3, 3))
    graph = graph_of([x], pooled, global_max_pool(conv(x, weight)))
    run, array = ready(graph), random(1, 16, 12, 12)
    for place in (None, (0, 3, 7, 11)):
        if place is not None:
            array[place] = np.nan
        for answer, right in zip(run(array), interpret(graph, [array]), strict=True):
            np.testing.assert_allclose(answer, right, rtol=1e-4, atol=1e-3)


# All that is declared


def test_slice_of_the_conformance_suite() -> None:
    # Of ops with gaps all cases: a gap must really fail.
    gaps = {gap.op for gap in BACKEND.gaps}
    found = [
        case
        for op in all_ops().values()
        if is_tensor_op(op)
        for case in sliced(list(cases([op])), Fraction(1, 1 if op.name in gaps else 8))
    ]
    rows, problems = reports(BACKEND, CPU, found)
    assert not problems, "\n".join(problems)
    taken = [row for row in rows if any(result.passed for result in row.results.values())]
    assert len(taken) >= 0.9 * len(rows)


def test_weight_that_the_engine_transposes_is_read_in_its_new_order() -> None:
    weight, given = random(64, 64), random(2, 64, 64)
    x = value(float32, N, 64, 64)
    turned = transpose(add(transpose(x, perm=(0, 2, 1)), constant(weight)), perm=(0, 2, 1))
    (found,) = ready(graph_of([x], relu(turned)))(given)
    np.testing.assert_array_equal(found, np.maximum(given + weight.T, 0))


def test_outputs_of_dynamic_sizes_are_written_to_memory_that_is_given() -> None:
    x = Value(TensorType(float32, (symbol("n"), 4)), "x")
    graph = Graph([x], [add(x, x), nonzero(x)])
    session = BACKEND.load(BACKEND.compile(graph, CPU, Config()), CPU, {})
    given, place = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    found = session.run([given], [place, np.zeros((12, 2), np.int64)])
    # Nothing tells how many elements are nonzero.
    assert found[0] is not place
    graph = Graph([x], [add(x, x)])
    session = BACKEND.load(BACKEND.compile(graph, CPU, Config()), CPU, {})
    for turn in (1.0, 2.0):
        (made,) = session.run([given * turn], [place])
        assert made is place
        np.testing.assert_array_equal(place, given * turn * 2)
    # Of another size: it is new.
    (made,) = session.run([given[:2]], [place])
    assert np.shape(made) == (2, 4)
    np.testing.assert_array_equal(place, given * 4)


def test_spinning_must_be_told_in_plain_words() -> None:
    x = np.linspace(-1, 1, 6, dtype=np.float32)
    graph = fw.trace(np.tanh, x)
    with pytest.raises(OptionsError, match=r"has no spinning='no'\. It has True and False"):
        fw.compile(graph, backend="onnxruntime", backend_config={"spinning": "no"})(x)
    asleep = fw.compile(graph, backend="onnxruntime", backend_config={"spinning": False})
    np.testing.assert_allclose(asleep(x), np.tanh(x), rtol=1e-5)
