"""XLA behind the contract: what declarations cannot show, and a slice of the conformance suite."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fusewire as fw
from fusewire.backends.xla import client, cpus, loading, quick_start
from fusewire.backends.xla.engine import XlaBackend
from fusewire.backends.xla.executable import XlaExecutable
from fusewire.backends.xla.refusal import refuses
from fusewire.backends.xla.storage import encode, work
from fusewire.contract.backend import Config, Device, Offer
from fusewire.contract.region import build
from fusewire.dtypes import DType, bfloat16, bool_, float32, float64, int64
from fusewire.errors import DimError, FormatError, OptionsError, ShapeMismatchError
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Array, Constant, Graph, Value
from fusewire.ir.text import constants_of
from fusewire.ir.types import TensorType
from fusewire.ops.contraction import matmul
from fusewire.ops.control import cond, loop, scan, while_
from fusewire.ops.conversion import cast
from fusewire.ops.creation import range_
from fusewire.ops.elementwise import add, multiply, negative
from fusewire.ops.indexing import nonzero
from fusewire.ops.interpret import interpret
from fusewire.ops.linalg import inverse
from fusewire.ops.logic import less
from fusewire.ops.normalization import softmax
from fusewire.ops.sorting import dynamic_top_k
from fusewire.ops.subgraph import FLAG, INDEX, subgraph
from fusewire.ops.table import all_ops
from fusewire.registry import REGISTRY
from fusewire.rewrite.specialize import specialize
from fusewire.testing.conformance import cases, first_cases
from fusewire.testing.suite import reports
from tests.backends.under_test import (
    ELEMENTS,
    NUMERIC,
    SMALL_FLOATS,
    EngineUnderTest,
    codes_of,
    eighth,
    numbers_to_round,
    value,
    wrong_in_threads,
)

ENGINE = EngineUnderTest(XlaBackend(), refuses)
BACKEND, CPU = ENGINE.backend, ENGINE.device
ready, run, run_op, refused = ENGINE.ready, ENGINE.run, ENGINE.run_op, ENGINE.refused


@pytest.fixture(params=["native", "quick", "portable"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Take all roads: the private one, that without jax, and that for versions it does not know."""
    if request.param == "portable":
        monkeypatch.setattr(cpus, "KNOWN", ("0.0.",))
    if request.param == "quick":
        start_quickly(monkeypatch)
    return request.param


def start_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do as if jax was not imported here, and no times were taken."""
    monkeypatch.setattr(loading, "is_alone", lambda: True)
    monkeypatch.setattr(loading, "are_times_taken", lambda: False)


def aligned(array: Array) -> Array:
    """Copy to memory that jax takes without a copy."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    found: Array = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


# Who it is and what it leaves alone


def test_backend_is_found_by_its_entry_point() -> None:
    assert REGISTRY.backends.get("xla").info == BACKEND.info
    assert BACKEND.info.version == jax.__version__


def test_probe_gives_a_device_that_ran_something() -> None:
    assert [type(found) for found in BACKEND.probe()] == [Device]


ALONE = """
import sys
from fusewire.registry import REGISTRY
backend = REGISTRY.backends.get("xla")
assert "jax" not in sys.modules, "importing the backend imports jax"
import numpy as np
import fusewire as fw
assert fw.run("add", np.array(2**40), np.array(1), backend="xla") == 2**40 + 1
import jax
from jax._src import xla_bridge
assert not jax.config.jax_enable_x64, "the user's setting changed"
assert not xla_bridge.backends_are_initialized(), "the user's devices were started"
assert jax.numpy.arange(3).dtype == "int32"
"""


QUICK = """
import sys, threading
import numpy as np
import fusewire as fw
program = fw.open(sys.argv[1])
held = np.load(sys.argv[2])
given, wanted = [held["x"], held["y"]], [held[f"w{i}"] for i in range(4)]
def check():
    for found, right in zip(program(*given), wanted, strict=True):
        assert found.dtype == right.dtype and (found == right).all(), (found, right)
check()
assert "jax" not in sys.modules, "the first answer waited for jax"
try:
    program(given[0], given[1].astype(np.float64))
    sys.exit("an input of another dtype was taken")
except fw.errors.FusewireError:
    pass
while "fusewire-jax" not in [thread.name for thread in threading.enumerate()]:
    check()
(thread,) = [x for x in threading.enumerate() if x.name == "fusewire-jax"]
while thread.is_alive():
    check()
assert "jax" in sys.modules
check()
"""


def test_first_answer_of_a_bundle_does_not_wait_for_jax(tmp_path: Path) -> None:
    def function(x: Any, y: Any) -> Any:
        wave = np.fft.rfft(x).real.astype(np.float32)
        return np.tanh(x @ y), np.sort(y, axis=0), np.cumsum(x, axis=1, dtype=np.float64), wave

    x = np.arange(12.0, dtype=np.float32).reshape(3, 4) / 7
    y = np.eye(4, dtype=np.float32) * 3
    program = fw.compile(function, x, y, backend="xla", level=0, fallback="error")
    wanted = {f"w{place}": array for place, array in enumerate(program(x, y))}
    program.save(tmp_path / "model.fw")
    np.savez(tmp_path / "arrays.npz", x=x, y=y, **wanted)
    files = str(tmp_path / "model.fw"), str(tmp_path / "arrays.npz")
    # It is not signed, so that a child compiles it.
    words = [sys.executable, "-W", "ignore", "-c", QUICK, *files]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> XlaExecutable:
    """Load a program that starts quickly, and would have jax take over at the second call."""
    start_quickly(monkeypatch)
    monkeypatch.setattr(quick_start, "CALLS", 2)
    executable = negated()
    assert isinstance(executable.call, quick_start.QuickStart)
    return executable


def negated() -> XlaExecutable:
    x = value(float32, 3)
    executable = build(BACKEND, Graph([x], [negative(x)]), CPU)
    assert isinstance(executable, XlaExecutable)
    return executable


def called_often(executable: XlaExecutable) -> None:
    """Call it before jax takes over, and after that."""
    given = np.ones(3, np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(executable.run([given]), [-given])
    for thread in threading.enumerate():
        if thread.name == "fusewire-jax":
            thread.join()
    np.testing.assert_array_equal(executable.run([given]), [-given])


def test_jax_takes_over_from_a_quick_start(quick: XlaExecutable) -> None:
    before = quick.call
    called_often(quick)
    assert quick.call is not before


def test_quick_start_goes_on_without_a_thread(
    quick: XlaExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        called_often(quick)
    assert isinstance(quick.call, quick_start.QuickStart)
    quick.call._calls = 0
    called_often(quick)
    assert not isinstance(quick.call, quick_start.QuickStart)


def test_quick_start_does_not_keep_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    start_quickly(monkeypatch)
    executable = negated()
    seen = weakref.ref(executable)
    gc.disable()
    try:
        del executable
        assert seen() is None
    finally:
        gc.enable()


def test_quick_start_goes_on_if_jax_fails(
    quick: XlaExecutable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*given: Any) -> Any:
        raise ImportError("planted")

    monkeypatch.setattr(client, "bind", fails)
    before = quick.call
    with caplog.at_level("INFO", "fusewire"):
        called_often(quick)
    assert quick.call is before
    assert "ImportError: planted" in caplog.text


def test_whoever_takes_times_has_those_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    start_quickly(monkeypatch)
    monkeypatch.setattr(loading, "are_times_taken", lambda: True)
    assert not isinstance(negated().call, quick_start.QuickStart)


def test_user_of_jax_notices_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_strict_settings_of_the_user_do_not_matter() -> None:
    x = np.arange(6, dtype=np.int64).reshape(2, 3)
    with (
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
        jax.disable_jit(),
        jax.default_matmul_precision("bfloat16"),
    ):
        found = run_op("gather", x, np.array([1, 0], np.uint8), axis=0)
        product = run_op("matmul", np.full((1, 1), 1 + 2**-12, np.float32), np.ones((1, 1), "f4"))
    assert np.array_equal(found, x[[1, 0]])
    assert product == np.float32(1 + 2**-12)


# Dtypes


@pytest.mark.parametrize("array", ELEMENTS, ids=lambda x: f"{x.dtype}{x.shape}")
def test_elements_come_through_bit_for_bit(array: Array, road: str) -> None:
    assert ENGINE.keeps(array)


@pytest.mark.parametrize("of", SMALL_FLOATS, ids=str)
def test_small_floats_round_as_ml_dtypes_rounds_them(of: DType) -> None:
    x, wanted = numbers_to_round(of)
    codes = codes_of(of)
    with jax.enable_x64(True), np.errstate(all="ignore"):
        assert np.array_equal(encode(jax.numpy.asarray(x), of), wanted)
        wide = np.asarray(work(jax.numpy.asarray(codes), of))
    assert np.array_equal(wide, codes.view(of.numpy).astype(np.float32), equal_nan=True)


def test_rounding_to_fewer_bits_is_not_optimised_away() -> None:
    x = value(float32, 2)
    graph = Graph([x], [cast(cast(x, dtype=bfloat16), dtype=float32)])
    (found,) = run(graph, np.array([1 + 2**-12, 3.0], np.float32))
    assert found.tolist() == [1.0, 3.0]


def test_integers_divided_by_0_give_0() -> None:
    x, y = np.array([7, -7], np.int32), np.zeros(2, np.int32)
    for name in ("floor_divide", "truncate_divide", "remainder", "fmod"):
        assert run_op(name, x, y).tolist() == [0, 0]


def test_singular_matrix_gives_nan_and_leaves_its_batch_alone() -> None:
    found = run_op("inverse", np.stack([np.zeros((2, 2)), 2 * np.eye(2)]))
    assert np.isnan(found[0]).all()
    assert np.array_equal(found[1], np.eye(2) / 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint32, np.int64])
@pytest.mark.parametrize("largest", [False, True])
def test_order_is_stable_at_extremes(dtype: Any, largest: bool) -> None:
    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        pool = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -1.5], dtype)
    else:
        pool = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1], dtype)
    x = rng.choice(pool, (3, 40))
    wanted = fw.run("argsort", x, descending=largest)
    assert np.array_equal(run_op("argsort", x, descending=largest), wanted)
    assert np.array_equal(run_op("top_k", x, k=13, largest=largest)[1], wanted[:, :13])
    ordered = run_op("sort", x, descending=largest)
    assert np.array_equal(ordered, fw.run("sort", x, descending=largest), equal_nan=True)


# Shapes


def test_symbolic_graph_is_offered_and_compiled_once_specialised() -> None:
    x = value(float32, symbol("n"), 3)
    graph = Graph([x], [negative(x)])
    (offer,) = BACKEND.claim(graph, CPU)
    assert isinstance(offer, Offer)
    assert offer.shapes == "static"
    with pytest.raises(DimError, match="Specialise"):
        BACKEND.compile(graph, CPU, Config())
    for n in (0, 1, 4):
        array = np.ones((n, 3), np.float32)
        assert np.array_equal(run(specialize(graph, {"n": n}), array)[0], -array)


def test_size_that_only_the_node_tells_is_refused() -> None:
    x = value(float32, 3)
    counted = nonzero(x)
    (reason,) = refused(Graph([x], [counted]))
    assert "known" in reason
    assert "nonzero" in reason
    # Whoever comes after it is compiled once the size is known.
    told = Value(counted.type, "told")
    assert not refused(Graph([told], [negative(told)]))


def test_size_that_is_promised_is_taken() -> None:
    x = value(float32, 4)
    found = run(Graph([x], [nonzero(x, count=2)]), np.array([0, 1, 0, 2], np.float32))
    assert found[0].tolist() == [[1, 3]]
    ends = [value(int64, name=name) for name in "abc"]
    counted = range_(*ends, count=3)
    given = [np.array(i) for i in (5, 11, 2)]
    assert run(Graph(ends, [counted]), *given)[0].tolist() == [5, 7, 9]
    k = value(int64, name="k")
    chosen = dynamic_top_k(x, k, count=2)
    found = run(Graph([x, k], list(chosen)), np.array([3, 1, 4, 1], np.float32), np.array(2))
    assert [part.tolist() for part in found] == [[4, 3], [2, 0]]


def test_wrong_input_is_named(road: str) -> None:
    x = value(float32, 3)
    executable = build(BACKEND, Graph([x], [negative(x)]), CPU)
    if road == "native":
        with pytest.raises(ShapeMismatchError, match=r"The input x is float32\[3\]"):
            executable.run([np.zeros(4, np.float32)])


# Weights and artifacts


def weighted(array: Array) -> Graph:
    x = value(float32, *array.shape)
    return Graph([x], [add(x, array)])


def weights_of(graph: Graph) -> dict[str, Array]:
    return {digest: held.array for digest, held in constants_of(graph).items()}


def test_weights_are_bound_by_digest_and_not_in_the_artifact(road: str) -> None:
    array = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    graph = weighted(array)
    artifact = BACKEND.compile(graph, CPU, Config())
    assert artifact.kind == ("rebuild" if road == "portable" else "native")
    (slot,) = (slot for slot in artifact.slots if slot.role == "weight")
    assert slot.digest == Constant.of(array).digest
    assert len(artifact.payload) < 50_000
    executable = BACKEND.load(artifact, CPU, weights_of(graph))
    found: Any = executable.run([np.ones_like(array)])[0]
    assert np.array_equal(found, array + 1)


def test_small_constant_is_part_of_the_program() -> None:
    artifact = BACKEND.compile(weighted(np.ones(3, np.float32)), CPU, Config())
    assert not [slot for slot in artifact.slots if slot.role == "weight"]


def test_weight_of_a_subgraph_is_bound() -> None:
    array = np.arange(1024, dtype=np.float32)
    of = TensorType(float32, (1024,))
    then = subgraph(lambda x: [add(x, array)], of, name="then")
    otherwise = subgraph(lambda x: [negative(x)], of, name="otherwise")
    flag, x = value(bool_, name="flag"), value(float32, 1024)
    graph = Graph([flag, x], list(cond(flag, x, then=then, otherwise=otherwise)))
    assert any(s.role == "weight" for s in BACKEND.compile(graph, CPU, Config()).slots)
    ones = np.ones(1024, np.float32)
    assert np.array_equal(run(graph, np.array(True), ones)[0], array + 1)


def test_artifact_of_another_version_is_refused() -> None:
    artifact = BACKEND.compile(weighted(np.ones(3, np.float32)), CPU, Config())
    with pytest.raises(FormatError, match="Compile it again"):
        BACKEND.load(replace(artifact, key={"jaxlib": "0.9.9"}), CPU, {})


CHILD = """
import sys
import numpy as np
from pathlib import Path
from fusewire.contract.backend import Artifact, Slot
from fusewire.backends.xla.engine import XlaBackend
from fusewire.dtypes import float64
from fusewire.contract.region import first_device
backend = XlaBackend()
key = {"jaxlib": backend.info.metadata["jaxlib"]}
launch = {"threads": 0, "lapack": True}
slots = tuple(Slot(role, "x", float64, (2, 2)) for role in ("input", "output"))
artifact = Artifact("native", Path(sys.argv[1]).read_bytes(), slots, launch=launch, key=key)
executable = backend.load(artifact, first_device(backend), {})
(found,) = executable.run([np.array([[2.0, 0.0], [0.0, 4.0]])])
assert np.array_equal(found, [[0.5, 0.0], [0.0, 0.25]]), found
"""


def test_artifact_that_calls_lapack_runs_in_another_process(tmp_path: Path) -> None:
    x = value(float64, 2, 2)
    artifact = BACKEND.compile(Graph([x], [inverse(x)]), CPU, Config())
    assert artifact.launch["lapack"] is True
    path = tmp_path / "payload"
    path.write_bytes(artifact.payload)
    child = [sys.executable, "-c", CHILD, str(path)]
    done = subprocess.run(child, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Outputs


def test_outputs_are_the_callers(road: str) -> None:
    x = value(float32, 64)
    held = np.arange(64, dtype=np.float32)
    same = negative(x)
    graph = Graph([x], [x, Value(TensorType(float32, (64,)), None, Constant.of(held)), same, same])
    call = ready(graph)
    given = aligned(np.ones(64, np.float32))
    first = call(given)
    for output in first:
        assert output.flags.writeable
        output[...] = 7.0
    given[...] = 2.0
    second = call(given)
    assert [x[0] for x in second] == [2.0, 0.0, -2.0, -2.0]
    assert np.array_equal(second[1], held)
    assert all(np.array_equal(x, np.full(64, 7.0)) for x in first)
    assert np.array_equal(given, np.full(64, 2.0))


def test_output_outlives_its_executable() -> None:
    x = value(float32, 1000)
    ones = np.ones(1000, np.float32)
    (found,) = run(Graph([x], [negative(x)]), ones)
    for _ in range(3):
        run(Graph([x], [add(x, x)]), ones)
    assert np.array_equal(found, -np.ones(1000))


@pytest.mark.parametrize("threads", [None, 1])
def test_outputs_are_computed_when_they_are_given(threads: int | None) -> None:
    # XLA copies large arrays that are not aligned in another thread, and computes after that.
    x = value(float32, 400, 400)
    product = x
    for _ in range(6):
        product = matmul(product, x)
    call = ready(Graph([x], [product]), Config(threads=threads))
    given = aligned(np.full(160_001, 0.25, np.float32))[1:].reshape(400, 400)
    for _ in range(10):
        (found,) = call(given)
        early = found.copy()
        time.sleep(0.02)
        assert np.array_equal(early, found)


def test_several_threads_run_it_at_once() -> None:
    x = value(int64, 1000)
    executable = build(BACKEND, Graph([x], [multiply(x, x)]), CPU)
    assert executable.is_reentrant
    assert not wrong_in_threads(executable)


def test_threads_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    x = value(float32, 3)
    graph = Graph([x], [negative(x)])
    (found,) = run(graph, np.ones(3, np.float32), config=Config(threads=1))
    assert found.tolist() == [-1.0] * 3
    with pytest.raises(OptionsError, match="at least 1"):
        BACKEND.compile(graph, CPU, Config(threads=0))
    monkeypatch.setattr(cpus, "KNOWN", ("0.0.",))
    with pytest.raises(OptionsError, match="from the process"):
        BACKEND.compile(graph, CPU, Config(threads=1))


# Control flow


def checked(graph: Graph, *inputs: Array) -> None:
    """Run on XLA and on the reference."""
    assert not refused(graph)
    for found, wanted in zip(run(graph, *inputs), interpret(graph, inputs), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_composite_in_a_branch_is_expanded(road: str) -> None:
    of = TensorType(float32, (2, symbol("k")))
    then = subgraph(lambda x: [softmax(x, axis=1)], of, name="then")
    otherwise = subgraph(lambda x: [negative(x)], of, name="otherwise")
    flag, x = value(bool_, name="flag"), value(float32, 2, 3)
    graph = Graph([flag, x], list(cond(flag, x, then=then, otherwise=otherwise)))
    for taken in (True, False):
        checked(graph, np.array(taken), np.arange(6, dtype=np.float32).reshape(2, 3))


def test_loop_in_a_loop_runs() -> None:
    of, rows = TensorType(float32, (2,)), TensorType(float32, (3, 2))
    inner = subgraph(lambda x, y: [add(x, y), multiply(x, y)], of, of)
    body = subgraph(
        lambda x, i, ys, n: [scan(x, ys, body=inner, carries=1, scans=1)[0], add(i, 1)],
        of,
        INDEX,
        rows,
        INDEX,
    )
    test = subgraph(lambda x, i, ys, n: [less(i, n)], of, INDEX, rows, INDEX)
    values = [value(float32, 2), value(int64, name="i"), value(float32, 3, 2, name="ys")]
    values.append(value(int64, name="n"))
    graph = Graph(values, list(while_(*values, condition=test, body=body, carries=2)))
    ys = np.arange(6, dtype=np.float32).reshape(3, 2)
    for trips in (0, 3):
        checked(graph, np.ones(2, np.float32), np.array(0), ys, np.array(trips))


@pytest.mark.parametrize("stacks", [False, True])
def test_loop_ends_by_its_condition_or_its_trips(stacks: bool) -> None:
    of = TensorType(float32, (2,))
    body = subgraph(
        lambda i, go, x: [less(i, 2), add(x, x), *([x] if stacks else [])], INDEX, FLAG, of
    )
    trips, flag, x = value(int64, name="trips"), value(bool_, name="flag"), value(float32, 2)
    types = (of, TensorType(float32, (3, 2)))[: 1 + stacks]
    made = loop(trips, flag, x, body=body, carries=1, types=types)
    checked(
        Graph([trips, flag, x], list(made)), np.array(9), np.array(True), np.ones(2, np.float32)
    )


def test_body_that_grows_its_value_is_refused() -> None:
    sample = all_ops()["loop"].samples()[4]
    graph = next(c for c in cases([all_ops()["loop"]]) if c.index == 4).make()[0]
    assert sample.attrs["carries"] == 1
    assert "known" in refused(graph)[0]


# Conformance


@pytest.mark.parametrize("name", NUMERIC)
def test_conformance_slice(name: str) -> None:
    _, problems = reports(BACKEND, CPU, eighth(name))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["qr", "svd", "eigh"])
def test_matrix_that_is_not_finite_has_factors_of_nan(name: str, number: float) -> None:
    x = np.stack([np.diag(np.arange(1.0, 5.0))] * 2)
    x[0, 0, 0] = number
    for factor in run_op(name, x):
        assert np.isnan(factor[0]).all()
        assert np.isfinite(factor[1]).all()


def test_nine_of_ten_tensor_ops_are_taken() -> None:
    share, others = ENGINE.share_of_ops()
    assert share >= 0.9, others


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
def test_recurrent_layers_are_taken_by_their_expansion(name: str) -> None:
    rows, problems = reports(BACKEND, CPU, first_cases(all_ops()[name]))
    assert not problems
    assert rows[0].status == "proven", rows[0].reason
