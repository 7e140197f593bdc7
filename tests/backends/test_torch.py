"""Eager PyTorch behind the contract: what declarations cannot show, and a slice of the suite."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from fusewire.backends.torch.engine import TorchBackend
from fusewire.backends.torch.refusal import refuses
from fusewire.backends.torch.storage import encode, entrance, work
from fusewire.contract.backend import Config, Device
from fusewire.contract.region import build
from fusewire.dtypes import DType, bool_, float32, int64
from fusewire.dtypes import dtype as fw_dtype
from fusewire.errors import OptionsError
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Array, Constant, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.control import cond
from fusewire.ops.elementwise import add, multiply, negative
from fusewire.ops.indexing import gather
from fusewire.ops.interpret import interpret
from fusewire.ops.movement import reshape, transpose
from fusewire.ops.normalization import softmax
from fusewire.ops.subgraph import subgraph
from fusewire.ops.table import all_ops
from fusewire.registry import REGISTRY
from fusewire.rewrite.expand import expand
from fusewire.testing.conformance import first_cases
from fusewire.testing.suite import is_tensor_op, reports
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
from tests.environments import environment

ENGINE = EngineUnderTest(TorchBackend(), refuses)
BACKEND, CPU = ENGINE.backend, ENGINE.device
ready, run, run_op, refused = ENGINE.ready, ENGINE.run, ENGINE.run_op, ENGINE.refused


# Who it is and what it leaves alone


def test_backend_is_found_by_its_entry_point() -> None:
    assert REGISTRY.backends.get("torch").info == BACKEND.info
    assert torch.__version__.startswith(BACKEND.info.version)


def test_probe_gives_a_device_that_ran_something() -> None:
    assert [type(found) for found in BACKEND.probe()] == [Device]


ALONE = """
import sys
from fusewire.registry import REGISTRY
backend = REGISTRY.backends.get("torch")
assert "torch" not in sys.modules, "importing the backend imports torch"
"""


def test_importing_the_backend_imports_no_engine() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ONLY = """
import numpy as np
import fusewire as fw
x = np.linspace(-1, 1, 6, dtype=np.float32)
for options in ({"backend": "torch"}, {"level": 0}):
    program = fw.compile(lambda x: np.tanh(x) * 2, x, fallback="error", cache=False, **options)
    assert np.allclose(program(x), np.tanh(x) * 2)
    print(program.why().backend)
"""


def test_pytorch_alone_is_enough(tmp_path: Path) -> None:
    python = environment(tmp_path / "torch", "torch")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([python, "-c", ONLY], env=kept, capture_output=True, text=True)
    assert done.stdout.split() == ["torch", "torch"], done.stderr


def test_threads_of_the_user_stay_as_they_are() -> None:
    before = torch.get_num_threads()
    x = value(float32, 3)
    (found,) = run(Graph([x], [negative(x)]), np.ones(3, np.float32), config=Config(threads=1))
    assert found.tolist() == [-1.0] * 3
    assert torch.get_num_threads() == before
    with pytest.raises(OptionsError, match="at least 1"):
        BACKEND.compile(Graph([x], [negative(x)]), CPU, Config(threads=0))


def test_gradients_are_off_and_modes_stay_as_they_are() -> None:
    x = value(float32, 3)
    run(Graph([x], [negative(x)]), np.ones(3, np.float32))
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


# Memory


def test_inputs_are_read_where_they_lie() -> None:
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, np.uint64, ml_dtypes.float8_e4m3fn):
        given = np.ones(64, dtype)
        enter = entrance(fw_dtype(given.dtype))
        assert enter(given).data_ptr() == given.ctypes.data


def test_weights_are_read_where_they_lie() -> None:
    array = np.arange(1024, dtype=np.float32)
    array.flags.writeable = False
    x = value(float32, 1024)
    graph = Graph([x], [add(x, array)])
    artifact = BACKEND.compile(graph, CPU, Config())
    (slot,) = (slot for slot in artifact.slots if slot.role == "weight")
    assert slot.digest is not None
    executable: Any = BACKEND.load(artifact, CPU, {slot.digest: array})
    assert executable._program.constant(slot.digest).data_ptr() == array.ctypes.data
    assert len(artifact.payload) < 1000


def test_read_only_inputs_are_taken_without_a_warning() -> None:
    given = np.ones(3, np.float32)
    given.flags.writeable = False
    x = value(float32, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = run(Graph([x], [negative(x)]), given)
    assert found.flags.writeable


def test_outputs_are_the_callers() -> None:
    x = value(float32, 4, 16)
    held = np.arange(64, dtype=np.float32)
    same = negative(x)
    whole = Value(TensorType(float32, (64,)), None, Constant.of(held))
    views = [reshape(x, shape=(64,)), transpose(same, perm=(1, 0)), reshape(same, shape=(64,))]
    call = ready(Graph([x], [x, whole, same, same, *views]))
    given = np.ones((4, 16), np.float32)
    first = call(given)
    for output in first:
        assert output.flags.writeable
        assert output.flags.c_contiguous
        output[...] = 7.0
    given[...] = 2.0
    second = call(given)
    assert [x.flat[0] for x in second] == [2.0, 0.0, -2.0, -2.0, 2.0, -2.0, -2.0]
    assert np.array_equal(second[1], held)
    assert all(np.array_equal(x, np.full(x.shape, 7.0)) for x in first)


@pytest.mark.parametrize("name", sorted(n for n, op in all_ops().items() if is_tensor_op(op)))
def test_no_output_of_an_op_is_an_operand_or_another_output(name: str) -> None:
    for case in first_cases(all_ops()[name]):
        graph, inputs = case.make()
        legal = expand(graph, refuses).graph
        if refused(legal):
            continue
        arrays = [np.array(x) for x in inputs]
        outputs = run(legal, *arrays)
        for place, output in enumerate(outputs):
            others = [*arrays, *outputs[:place]]
            assert not any(np.may_share_memory(output, x) for x in others), case.id


def test_several_threads_run_it_at_once() -> None:
    x = value(int64, 1000)
    executable = build(BACKEND, Graph([x], [multiply(x, x)]), CPU)
    assert executable.is_reentrant
    assert not wrong_in_threads(executable)


# Dtypes


@pytest.mark.parametrize("array", ELEMENTS, ids=lambda x: f"{x.dtype}{x.shape}")
def test_elements_come_through_bit_for_bit(array: Array) -> None:
    assert ENGINE.keeps(array)


@pytest.mark.parametrize("of", SMALL_FLOATS, ids=str)
def test_small_floats_round_as_ml_dtypes_rounds_them(of: DType) -> None:
    x, wanted = numbers_to_round(of)
    codes, bring = codes_of(of), work(of)
    assert np.array_equal(encode(torch.from_numpy(x), of).numpy(), wanted)
    assert bring is not None
    wide = bring(torch.from_numpy(codes)).numpy()
    assert np.array_equal(wide, codes.view(of.numpy).astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_integers_divided_by_0_or_beyond_the_largest_do_not_stop_the_process(dtype: Any) -> None:
    least = np.iinfo(dtype).min
    x, y = np.array([7, -7, least, least], dtype), np.array([0, 0, -1, 0], dtype)
    for name in ("floor_divide", "truncate_divide", "remainder", "fmod"):
        wanted = [0, 0, least if "divide" in name else 0, 0]
        assert run_op(name, x, y).tolist() == wanted


# Indices and sizes


@pytest.mark.parametrize("index", [4, -5])
def test_index_that_does_not_exist_is_found(index: int) -> None:
    x, at = value(float32, 4, 2), value(int64, 1, name="at")
    with pytest.raises((IndexError, RuntimeError)):
        run(Graph([x, at], [gather(x, at, axis=0)]), np.ones((4, 2), np.float32), np.array([index]))


def test_scalar_index_into_a_row_gives_a_scalar() -> None:
    found = run_op("gather", np.arange(3.0), np.array(1), axis=0)
    assert (found.shape, float(found)) == ((), 1.0)
    nothing = run_op(
        "scatter_nd", np.zeros((3, 0)), np.array([[1]]), np.zeros((1, 0)), reduction="max"
    )
    assert nothing.shape == (3, 0)


def test_one_program_serves_every_size() -> None:
    n = symbol("n")
    x = value(float32, n, 3)
    call = ready(Graph([x], [reshape(transpose(x, perm=(1, 0)), shape=(n * 3,)), softmax(x)]))
    for size in (0, 1, 5):
        given = np.arange(size * 3, dtype=np.float32).reshape(size, 3)
        flat, shares = call(given)
        assert np.array_equal(flat, given.T.reshape(-1))
        assert shares.shape == (size, 3)


def test_composite_in_a_branch_runs() -> None:
    of = TensorType(float32, (2, symbol("k")))
    then = subgraph(lambda x: [softmax(x, axis=1)], of, name="then")
    otherwise = subgraph(lambda x: [negative(x)], of, name="otherwise")
    flag, x = value(bool_, name="flag"), value(float32, 2, 3)
    graph = Graph([flag, x], list(cond(flag, x, then=then, otherwise=otherwise)))
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    for taken in (True, False):
        (found,), (wanted,) = (
            how(graph, [np.array(taken), given]) for how in (lambda g, xs: run(g, *xs), interpret)
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


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


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_query_that_is_not_finite_has_an_answer_of_nan(number: float, causal: bool) -> None:
    q, k, v = np.ones((3, 1, 1, 3, 4), np.float32)
    q[0, 0, 1, 2] = number
    found = run_op("attention", q, k, v, causal=causal)
    assert np.isnan(found[0, 0, 1]).all()
    assert np.isfinite(found[0, 0, [0, 2]]).all()


@pytest.mark.parametrize("right", [False, True])
def test_nan_is_the_last_of_a_sorted_row(right: bool) -> None:
    row, x = np.array([-np.inf, 0, 1, np.inf, np.nan]), np.array([np.nan, np.inf, 2, 0, -np.inf])
    found = run_op("searchsorted", row, x, right=right)
    assert list(found) == list(np.searchsorted(row, x, "right" if right else "left"))


def test_nine_of_ten_tensor_ops_are_taken() -> None:
    share, others = ENGINE.share_of_ops()
    assert share >= 0.9, others
