"""OpenVINO behind the contract: what it claims is right, and float32 means float32."""

import itertools
import subprocess
import sys
import tomllib
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.backend import Refusal
from fusewire.contract.region import build, first_device
from fusewire.dtypes import float32
from fusewire.errors import RefusedError
from fusewire.ir.dims import symbol, unbacked
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.control import cond
from fusewire.ops.elementwise import tanh
from fusewire.ops.subgraph import subgraph
from fusewire.ops.table import all_ops
from fusewire.registry import REGISTRY
from fusewire.testing.conformance import cases, sliced
from fusewire.testing.suite import is_tensor_op, reports

pytest.importorskip("openvino")
NAME = "openvino"
CPU = first_device(REGISTRY.backends.get(NAME))


def test_slice_of_the_conformance_suite() -> None:
    backend = REGISTRY.backends.get(NAME)
    found = [
        case
        for op in all_ops().values()
        if is_tensor_op(op)
        for case in sliced(list(cases([op])), Fraction(1, 8))
    ]
    rows, problems = reports(backend, CPU, found)
    assert not problems
    shown = [row for row in rows if row.status in ("proven", "partial")]
    assert len(shown) >= 0.7 * len(rows)


def test_new_size_does_not_compile_again() -> None:
    def mean(x: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> object:
        return np.tanh(x).mean(axis=-1)

    program = fw.compile(mean, fw.Spec(("n", 4), "float32"), backend=NAME, fallback="error")
    for rows in (2, 5, 3):
        x = np.ones((rows, 4), np.float32)
        np.testing.assert_allclose(program(x), np.tanh(x).mean(axis=-1), rtol=1e-6)
    assert [region.shapes for region in program.plan.regions()] == ["dynamic"]


def test_wide_integers_are_exact_or_refused() -> None:
    x = np.array([2**40 + 1, -(2**50)], np.int64)
    program = fw.compile(lambda v: v + v, x, backend=NAME, fallback="allow")
    np.testing.assert_array_equal(program(x), x + x)


@pytest.mark.parametrize("rows", [200, symbol("n")])
def test_large_outputs_are_written_to_memory_that_is_given(rows: Any) -> None:
    backend, x = REGISTRY.backends.get(NAME), Value(TensorType(float32, (rows, 200)), "x")
    executable = build(backend, Graph([x], [tanh(x)]), CPU)
    place = np.zeros((200, 200), np.float32)
    kept = []
    for turn in range(4):
        given = np.full((200, 200), turn, np.float32)
        # One call in two has memory of its own.
        (made,) = executable.run([given], () if turn % 2 else [place])
        # What is dynamic is known to be large after the first run.
        assert (made is place) is (turn % 2 == 0 and (turn > 0 or rows == 200))
        kept.append((made, np.tanh(given)))
        np.testing.assert_allclose(made, np.tanh(given), rtol=1e-6)
    for made, right in kept:
        if made is not place:
            np.testing.assert_allclose(made, right, rtol=1e-6)
    # Memory that cannot hold it is left alone.
    for other in (place.T, place.astype(np.float64), np.zeros((100, 200), np.float32)):
        before = other.copy()
        (made,) = executable.run([np.ones((200, 200), np.float32)], [other])
        assert made is not other
        np.testing.assert_array_equal(other, before)


@pytest.mark.parametrize("shape", [(), (3,), (200, 200)])
def test_output_that_is_an_input_is_written(shape: tuple[int, ...]) -> None:
    backend, x = REGISTRY.backends.get(NAME), Value(TensorType(float32, shape), "x")
    graph = Graph([x], [x, tanh(x), x], output_names=["a", "b", "c"])
    executable = build(backend, graph, CPU)
    for number in (1.0, 2.0):
        given = np.full(shape, number, np.float32)
        first, _, last = executable.run([given])
        for found in (first, last):
            np.testing.assert_array_equal(found, given)
            assert isinstance(found, np.ndarray)
            assert not np.may_share_memory(found, given)
    (found,) = build(backend, Graph([x], [x]), CPU).run([np.ones(shape, np.float32)])
    np.testing.assert_array_equal(found, np.ones(shape))


def test_floats_beside_codes_are_not_made_codes() -> None:
    """Weights that are codes make the engine quantize what they are multiplied with."""
    rng = np.random.default_rng(0)
    x, codes = rng.standard_normal((64, 256), np.float32), rng.integers(-127, 128, (256, 256))
    weights = codes.astype(np.int8)

    def product(v: Value) -> object:
        return fw.ops.matmul(v, fw.ops.dequantize(weights, np.float32(0.01)))

    found = fw.compile(product, x, backend=NAME, fallback="error", cache=False)(x)
    wanted = x.astype(np.float64) @ (weights * np.float64(np.float32(0.01)))
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("nan", ["exact", "engine"])
@pytest.mark.parametrize(("of", "zero"), [("int8", 3), ("uint8", 128), ("int8", 0)])
def test_codes_around_a_zero_point(of: str, zero: int, nan: str) -> None:
    # No quotient is half way between two codes.
    x = (np.linspace(-400.0, 400.0, 97, dtype=np.float32) + np.float32(0.3)) * np.float32(0.5)
    scale, middle = np.float32(0.5), np.array(zero, of)

    def both(v: Value) -> tuple[object, object]:
        codes = fw.ops.quantize(v, scale, middle, dtype=of)
        return codes, fw.ops.dequantize(codes, scale, middle)

    config = {"nan": nan}
    program = fw.compile(both, x, backend=NAME, fallback="error", backend_config=config)
    limits = np.iinfo(of)
    wanted = np.clip(np.round(x / scale) + zero, limits.min, limits.max)
    codes, numbers = program(x)
    np.testing.assert_array_equal(codes, wanted.astype(of))
    np.testing.assert_allclose(numbers, (wanted - zero) * scale, rtol=1e-6)


@pytest.mark.parametrize("mode", ["reflect", "edge", "symmetric", "wrap"])
def test_open_axis_is_padded_from_inside(mode: str) -> None:
    def padded(v: Value) -> object:
        return fw.ops.pad(v, padding=((2, 0), (0, 3), (0, 0)), mode=mode)

    spec = fw.Spec(("n", "m", 2), "float32")
    program = fw.compile(padded, spec, backend=NAME, fallback="error", cache=False)
    for rows, columns in ((3, 4), (5, 2), (2, 2)):
        x = np.arange(rows * columns * 2, dtype=np.float32).reshape(rows, columns, 2)
        widths = ((2, 0), (0, 3), (0, 0))
        np.testing.assert_array_equal(program(x), np.pad(x, widths, mode=mode))  # type: ignore[call-overload] # any of four


@pytest.mark.parametrize("mode", ["reflect", "edge", "symmetric", "wrap"])
def test_places_on_a_known_axis_are_not_worked_out_by_each_run(mode: str) -> None:
    def padded(v: Value) -> object:
        return fw.ops.pad(v, padding=((0, 0), (3, 2)), mode=mode)

    graph = fw.trace(padded, fw.Spec(("n", 4), "float32"))
    made: Any = build(REGISTRY.backends.get(NAME), graph, CPU)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (found,) = made.run([x])
    np.testing.assert_array_equal(found, np.pad(x, ((0, 0), (3, 2)), mode=mode))  # type: ignore[call-overload] # any of four
    # The input, places and an axis, one gather, the output.
    assert len(made._compiled.get_runtime_model().get_ops()) == 5


def _recurrent(op: str, direction: str) -> Callable[..., Any]:
    rng, gates = np.random.default_rng(0), {"rnn": 1, "gru": 3, "lstm": 4}[op]
    directions = 2 if direction == "bidirectional" else 1
    w, r = (rng.standard_normal((directions, gates * 2, 2), np.float32) for _ in range(2))

    def run(x: Value, lengths: Value | None = None) -> object:
        return getattr(fw.ops, op)(x, w, r, None, lengths, direction=direction)

    return run


def _assert_close(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


SEQUENCES = [("rnn", "forward"), ("gru", "reverse"), ("lstm", "forward"), ("lstm", "bidirectional")]
OPEN = [("s", 3, 2), (4, "b", 2), ("s", "b", 2)]


@pytest.mark.parametrize("shape", OPEN, ids=str)
@pytest.mark.parametrize(("op", "direction"), SEQUENCES)
def test_lengths_count_where_the_sizes_are_open(
    op: str, direction: str, shape: tuple[int | str, ...]
) -> None:
    run, x = _recurrent(op, direction), np.ones((4, 3, 2), np.float32)
    specs = (fw.Spec(shape, "float32"), fw.Spec((shape[1],), "int32"))
    program = fw.compile(run, *specs, backend=NAME, fallback="error", cache=False)
    reference = fw.compile(run, *specs, backend="reference", cache=False)
    for lengths in ([4, 4, 4], [0, 2, 4], [1, 2, 3]):
        given = np.array(lengths, np.int32)
        _assert_close(program(x, given), reference(x, given))
    assert {region.shapes for region in program.plan.regions()} == {"static"}


@pytest.mark.parametrize("shape", OPEN, ids=str)
@pytest.mark.parametrize(("op", "direction"), SEQUENCES)
def test_empty_sequences_end_in_no_earlier_state(
    op: str, direction: str, shape: tuple[int | str, ...]
) -> None:
    run, spec = _recurrent(op, direction), fw.Spec(shape, "float32")
    program = fw.compile(run, spec, backend=NAME, fallback="allow", cache=False)
    reference = fw.compile(run, spec, backend="reference", cache=False)
    whole = np.ones((4, 3, 2), np.float32)
    empty = [x for x, axis in ((whole[:0], 0), (whole[:, :0], 1)) if isinstance(shape[axis], str)]
    for x in (whole, *empty, whole):
        _assert_close(program(x), reference(x))


@pytest.mark.parametrize(("op", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_what_follows_a_sequence_reads_its_elements_in_order(op: str, gates: int) -> None:
    rng = np.random.default_rng(0)
    w, r = (rng.standard_normal((1, gates * 10, n), np.float32) for n in (5, 10))

    def run(x: Value) -> Any:
        return fw.ops.relu(getattr(fw.ops, op)(x, w, r, None, None)[0])

    x = rng.standard_normal((7, 3, 5), np.float32)
    program = fw.compile(run, x, backend=NAME, fallback="error", cache=False)
    reference = fw.compile(run, x, backend="reference", cache=False)
    _assert_close([program(x)], [reference(x)])


def test_sequences_of_a_size_that_the_run_tells() -> None:
    layer, steps = _recurrent("lstm", "forward"), unbacked()

    def run(x: Value, start: Value, limit: Value, lengths: Value) -> object:
        dims = (steps, 3, 2)
        return layer(fw.ops.dynamic_slice(x, start, limit, axes=(0,), dims=dims), lengths)

    specs = [fw.Spec(("n", 3, 2), "float32"), *(fw.Spec((n,), "int32") for n in (1, 1, 3))]
    program = fw.compile(run, *specs, backend=NAME, fallback="allow", cache=False)
    reference = fw.compile(run, *specs, backend="reference", cache=False)
    x = np.ones((4, 3, 2), np.float32)
    for limit, lengths in ((4, [4, 4, 4]), (3, [0, 1, 3]), (0, [0, 0, 0])):
        given = [np.array(v, np.int32) for v in ([0], [limit], lengths)]
        _assert_close(program(x, *given), reference(x, *given))


def test_layers_over_nothing_are_refused_with_a_reason() -> None:
    backend = REGISTRY.backends.get(NAME)
    graph = fw.trace(_recurrent("lstm", "forward"), fw.Spec((0, "b", 2), "float32"))
    (answer,) = backend.claim(graph, CPU)
    assert isinstance(answer, Refusal)
    assert "at least one step" in answer.reason


def _far(*numbers: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(numbers, np.int64)


BESIDE_SIZES: dict[str, Callable[[Any], Any]] = {
    "listed": lambda n: fw.ops.concat(n, _far(2**40), axis=0),
    "multiplied": lambda n: fw.ops.remainder(
        fw.ops.multiply(fw.ops.concat(n, _far(7), axis=0), _far(1, 2654435761)), _far(97)
    ),
    "subtracted": lambda n: fw.ops.remainder(fw.ops.subtract(n, _far(2**33)), _far(-7)),
    "maximum": lambda n: fw.ops.maximum(_far(2**35), n),
    "product": lambda n: fw.ops.reduce_prod(fw.ops.concat(n, _far(2**31), axis=0)),
    "hashed": lambda n: fw.ops.remainder(fw.ops.multiply(n, _far(2654435761)), _far(97)),
    "less, multiplied": lambda n: fw.ops.multiply(fw.ops.subtract(n, _far(5)), _far(2**20)),
}


@pytest.mark.parametrize("name", BESIDE_SIZES)
def test_number_beside_a_size_has_64_bits_and_no_call_is_declined(name: str) -> None:
    def made(x: Any) -> Any:
        return BESIDE_SIZES[name](fw.ops.shape_of(x))

    program, reference = (
        fw.compile(made, fw.Spec(("n",), "float32"), backend=of, fallback="error", cache=False)
        for of in (NAME, "reference")
    )
    for size in (0, 5, 5000):
        x = np.zeros(size, np.float32)
        np.testing.assert_array_equal(program(x), reference(x))


@pytest.mark.parametrize("rows", [3, 2**30])
def test_size_in_a_body_fits_or_the_call_is_answered_elsewhere(rows: int) -> None:
    of = TensorType(float32, (symbol("k"), symbol("j")))
    third = subgraph(
        lambda x: [
            fw.ops.floor_divide(fw.ops.shape_of(fw.ops.concat(x, x, x, axis=0)), _far(2**20))
        ],
        of,
    )

    def made(flag: Any, x: Any) -> Any:
        return cond(flag, x, then=third, otherwise=third)[0]

    specs = fw.Spec((), "bool"), fw.Spec(("n", "m"), "float32")
    program = fw.compile(made, *specs, backend=NAME, fallback="allow", cache=False)
    x = np.zeros((rows, 0), np.float32)
    np.testing.assert_array_equal(program(np.array(True), x), [rows * 3 // 2**20, 0])


@pytest.mark.parametrize("of", ["int32", "int64"])
def test_slice_takes_the_most_extreme_numbers(of: str) -> None:
    rows = unbacked()

    def cut(x: Value, start: Value, limit: Value, stride: Value) -> object:
        return fw.ops.dynamic_slice(x, start, limit, stride, axes=(0,), dims=(rows, 4))

    specs = [fw.Spec(("n", 4), "float32"), *[fw.Spec((1,), of)] * 3]
    program = fw.compile(cut, *specs, backend=NAME, fallback="error", cache=False)
    reference = fw.compile(cut, *specs, backend="reference", cache=False)
    x, limits = np.arange(16, dtype=np.float32).reshape(4, 4), np.iinfo(of)
    far = {int(limits.min), -(2**31), 1 - 2**31, 2**31 - 1, int(limits.max)}
    far |= {-(2**32) - 1, 2**32 + 1} if of == "int64" else set()
    for start, limit in itertools.product((*far, 0, 3), repeat=2):
        # Backwards from before the first element, the engine begins at it, as ONNX says.
        for stride in (v for v in (*far, -1, 1) if v > 0 or start >= -4):
            given = [np.array([v], of) for v in (start, limit, stride)]
            np.testing.assert_array_equal(program(x, *given), reference(x, *given))


@pytest.mark.parametrize("stride", [-(2**31), 1 - 2**31, -3])
def test_slice_of_known_places_may_step_far(stride: int) -> None:
    def cut(x: Value) -> object:
        return fw.ops.slice(x, starts=(3,), limits=(-1,), strides=(stride,))

    x = np.arange(4, dtype=np.float32)
    program = fw.compile(cut, x, backend=NAME, fallback="error", cache=False)
    np.testing.assert_array_equal(program(x), x[3::stride])


def test_import_sends_no_telemetry_and_forks_nothing() -> None:
    source = """
import sys, threading
from fusewire.backends.openvino.api import openvino
assert "openvino_telemetry" not in sys.modules
assert threading.active_count() == 1, threading.enumerate()
import openvino_telemetry  # who wants it has it
assert openvino.convert_model
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=120)


def test_array_that_was_given_another_shape_is_bound_again() -> None:
    program = fw.compile(
        lambda x: x.sum(axis=0), fw.Spec(("a", "b"), "float32"), backend=NAME, fallback="error"
    )
    x = np.arange(512 * 256, dtype=np.float32).reshape(512, 256)
    assert program(x).shape == (256,)
    x.resize((256, 512), refcheck=False)
    np.testing.assert_allclose(program(x), x.sum(axis=0), rtol=1e-5)


def test_oldest_version_allowed_checks_the_indices_of_scatter_nd() -> None:
    # Up to 2026.3.1, indices that wrap passed the check, and wrote outside the tensor
    # (openvinotoolkit/openvino#37125). 2026.4.0 is the first release that refuses them.
    project = Path(__file__).parents[2] / "pyproject.toml"
    (floor,) = tomllib.loads(project.read_text())["project"]["optional-dependencies"]["openvino"]
    oldest = tuple(map(int, floor.removeprefix("openvino>=").split(".")))
    assert oldest >= (2026, 4)
    script = """
import numpy as np
from fusewire.backends.openvino.api import openvino
from openvino import opset15
data, at, rows = (
    opset15.parameter(shape, of)
    for shape, of in (([16, 4], np.float32), ([1, 2], np.int64), ([1], np.float32))
)
scattered = opset15.scatter_nd_update(data, at, rows)
compiled = openvino.Core().compile_model(openvino.Model([scattered], [data, at, rows], "m"), "CPU")
try:
    compiled([np.zeros((16, 4), np.float32), np.array([[5, -19]]), np.ones(1, np.float32)])
except RuntimeError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "refused\n", done.stderr


def test_numbers_without_a_finite_reciprocal_divide() -> None:
    """The engine alone multiplies by the reciprocal, which is infinite for 1e-40."""
    x = np.array([1e-40, 3e38, -3e38, 2], np.float32)
    functions: list[Callable[[Any], Any]] = [lambda x: x / x, lambda x: x / x[3] / x[::-1]]
    for function in functions:
        program = fw.compile(function, x, backend="openvino", fallback="error")
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(program(x), function(x), rtol=1e-6)


def test_dividend_that_is_constant_is_divided() -> None:
    """Behind a reduction, the engine exchanges the operands of one that it may not convert."""
    x = np.linspace(0.5, 3, 24, dtype=np.float32).reshape(2, 3, 4)
    functions: list[Callable[[Any], Any]] = [
        lambda x: x * (np.float32(2) / np.max(x, axis=(1, 2), keepdims=True)),
        lambda x: np.arange(1, 5, dtype=np.float32) / np.sum(x, axis=2, keepdims=True),
        lambda x: np.arange(4, dtype=np.float32) / np.sum(x, axis=2, keepdims=True),
        lambda x: np.max(x, axis=(1, 2), keepdims=True) / np.float32(2e-38),
    ]
    for function in functions:
        program = fw.compile(function, x, backend="openvino", fallback="error")
        np.testing.assert_allclose(program(x), function(x), rtol=1e-6)


@pytest.mark.parametrize("rows", [4, "n"])
def test_constants_are_divided_by_numbers_without_a_finite_reciprocal(rows: int | str) -> None:
    x = np.array([[1e-40, -2e-39], [0, 2], [3e38, np.inf], [-np.inf, np.nan]], np.float32)
    small = np.array([[1e-5], [0], [np.nan], [0.5], [-0.0], [1]], np.float32)[:, None]
    functions: list[Callable[[Any], Any]] = [
        lambda x: np.float32(1e-5) / x,
        lambda x: small / x,
        lambda x: np.float32(0.5) / np.max(x, axis=1, keepdims=True),
    ]
    for function in functions:
        program = fw.compile(
            function, fw.Spec((rows, 2), "float32"), backend=NAME, fallback="error"
        )
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(program(x), function(x), rtol=1e-6)


def test_quotients_of_constants_that_the_engine_takes_for_zero_are_refused() -> None:
    x, tiny = np.array([1e-40, -2e-39, 0, 2, np.nan], np.float32), np.float32(1e-40)
    functions: list[Callable[[Any], Any]] = [lambda x: x / tiny, lambda x: tiny / x]
    for function in functions:
        with pytest.raises(RefusedError, match=r"takes constants between -1\.2e-38"):
            fw.compile(function, x, backend=NAME, fallback="error")
        program = fw.compile(function, x, backend=NAME, fallback="allow")
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(program(x), function(x), rtol=1e-6)


def test_angles_and_complex_numbers_have_quotients_of_tiny_numbers() -> None:
    x = np.array([1e-40, -2e-39, 3e-39, 2], np.float32)
    z = (x + 2j * x[::-1].copy()).astype(np.complex64)
    functions: list[tuple[Callable[[Any], Any], Any]] = [
        (lambda x: np.arctan2(x, x[::-1]), x),
        (lambda x: np.arctan2(x, x), x),
        (np.abs, z * np.float32(1e-3)),
    ]
    for function, given in functions:
        program = fw.compile(function, given, backend="openvino", fallback="error")
        np.testing.assert_allclose(program(given), function(given), rtol=1e-5)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("middle", [3, "n"])
def test_numbers_for_each_place_of_the_middle_axis_follow_a_reduction(
    middle: int | str, axis: int, keepdims: bool
) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((4, 3, 6), np.float32)
    numbers = random.standard_normal(3, np.float32)
    shape = {(0, False): (3, 1), (0, True): (1, 3, 1), (2, False): (3,), (2, True): (3, 1)}
    each = numbers.reshape(shape[axis, keepdims])

    def scaled(x: Any, reduce: Callable[..., Any]) -> Any:
        return reduce(x, axis=axis, keepdims=keepdims) * each + each

    for reduce in (np.sum, np.mean, np.max):
        function = partial(scaled, reduce=reduce)
        spec = fw.Spec((4, middle, 6), "float32")
        program = fw.compile(function, spec, backend=NAME, fallback="error")
        np.testing.assert_allclose(program(x), function(x), rtol=1e-5, atol=1e-5)


TOP_OF_NONE = """
import numpy as np
import fusewire as fw
from fusewire.dtypes import float32, int64
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.sorting import top_k

m, n = symbol("m"), symbol("n")
x, y = Value(TensorType(float32, (m, 3)), "x"), Value(TensorType(int64, (n,)), "y")
given = np.arange(12, dtype=np.float32).reshape(4, 3)
for k in (n, 0):
    graph = Graph([x, y], [*top_k(x, k=k, axis=-1, largest=True), y])
    program = fw.compile(graph, backend="openvino", isolate="never", fallback="error")
    for size in (1, 0, 2, 0, 3, 0):
        best, places, _ = program(given, np.zeros(size, np.int64))
        count = size if k is n else 0
        assert best.tolist() == given[:, ::-1][:, :count].tolist()
        assert places.shape == (4, count)
"""


def test_top_of_none_is_empty() -> None:
    # In a process of its own, which the engine's TopK would end.
    done = subprocess.run(
        [sys.executable, "-c", TOP_OF_NONE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
