"""What was checked is what runs, also if its owner changes it during the call."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.declare import EXACT, FLOATS, OpPackage, draw, sample
from fusewire.ops.outside import OUTSIDE

ENGINES = ("reference", "onnxruntime", "openvino", "torch", "xla", "webgpu")
TABLE = np.arange(1, 9, dtype=np.float32)
MEDDLING = OpPackage("meddling")
CHANGES: list[Callable[[], None]] = []


def _meddle(x: Any) -> Any:
    for change in CHANGES:
        change()
    return x.copy()


meddle = MEDDLING.declare(
    "meddle",
    lambda x: x,
    doc="Return the operand, and do meanwhile what another thread could do.",
    dtypes=FLOATS,
    tolerance=EXACT,
    reference=_meddle,
    samples=lambda: [sample(draw(3)), sample(draw()), sample(draw(0, 2))],
)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    fw.register_op(meddle)
    yield
    CHANGES.clear()
    OUTSIDE.unregister(meddle.name)


def compiled(function: Callable[..., Any], *example: Any, backend: str, **options: Any) -> Any:
    fields = {"isolate": False, "cache": False, "fallback": "allow", **options}
    return fw.compile(fw.trace(function, *example), backend=backend, **fields)


def _gathered(x: Any, places: Any) -> Any:
    """Gather after another op has run, which no engine has."""
    return ops.gather(ops.tanh(meddle(x)), places, axis=0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("number", [7, -9, 2**40])
def test_index_that_changes_after_the_check_is_not_seen(engine: str, number: int) -> None:
    places = np.array([1, 2])
    program = compiled(_gathered, TABLE, places, backend=engine)
    expected = np.tanh(TABLE)[[1, 2]]
    np.testing.assert_allclose(program(TABLE, places), expected, rtol=1e-5)
    CHANGES.append(lambda: places.fill(number))
    np.testing.assert_allclose(program(TABLE, places), expected, rtol=1e-5)
    assert places.tolist() == [number, number]


COUNTING = {
    "compress": lambda x, flags: ops.compress(x, flags, axis=0),
    "boolean_mask": ops.boolean_mask,
    "moved": lambda x, flags: ops.compress(x, ops.reshape(flags, shape=(8,)), axis=0),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", COUNTING)
def test_operand_that_decides_how_much_is_written_stays_as_it_was(engine: str, name: str) -> None:
    flags = np.array([0, 1, 0, 0, 1, 1, 0, 1], np.bool_)
    given = flags.reshape(2, 4) if name == "moved" else flags
    program = compiled(
        lambda x, flags: COUNTING[name](ops.tanh(meddle(x)), flags), TABLE, given, backend=engine
    )
    expected = np.tanh(TABLE)[flags]
    np.testing.assert_allclose(program(TABLE, given), expected, rtol=1e-5)
    CHANGES.append(lambda: given.fill(True))
    np.testing.assert_allclose(program(TABLE, given), expected, rtol=1e-5)
    assert given.all()


@pytest.mark.parametrize("engine", ENGINES)
def test_boolean_that_becomes_another_byte_is_not_seen(engine: str) -> None:
    flags = np.array([True, False])
    program = compiled(
        lambda x, flags: ops.gather(ops.tanh(meddle(x)), ops.cast(flags, dtype="int64"), axis=0),
        TABLE,
        flags,
        backend=engine,
    )
    expected = np.tanh(TABLE)[[1, 0]]
    np.testing.assert_allclose(program(TABLE, flags), expected, rtol=1e-5)
    CHANGES.append(lambda: flags.view(np.uint8).fill(7))
    np.testing.assert_allclose(program(TABLE, flags), expected, rtol=1e-5)


def test_state_of_booleans_is_replaced() -> None:
    def step(x: Any, flags: Any) -> tuple[Any, Any]:
        return ops.where(flags, x, np.float32(0)), ops.logical_not(flags)

    flags = np.array([True] * 4 + [False] * 4)
    program = compiled(step, TABLE, flags, backend="onnxruntime")
    state = fw.state(flags, output="output1")
    for expected in (flags.copy(), ~flags, flags.copy()):
        found = program(TABLE, state)[0]
        assert np.asarray(found).tolist() == (TABLE * expected).tolist()


def _view(places: Any) -> Any:
    view = places.view()
    view.flags.writeable = False
    return view


@pytest.mark.parametrize(
    "given",
    [_view, lambda places: places[::-1][::-1], fw.asarray, lambda places: places.view(np.matrix)],
    ids=["read-only", "strides", "buffer", "subclass"],
)
def test_every_kind_of_array_is_copied(given: Callable[[Any], Any]) -> None:
    places = np.array([[1, 2]])
    program = compiled(_gathered, TABLE, places, backend="openvino")
    CHANGES.append(lambda: places.fill(7))
    expected = np.tanh(TABLE)[[[1, 2]]]
    np.testing.assert_allclose(np.asarray(program(TABLE, given(places))), expected, rtol=1e-5)


def test_buffer_of_a_device_is_copied_there() -> None:
    places = np.array([1, 2])
    program = compiled(_gathered, TABLE, places, backend="webgpu")
    buffer = fw.asarray(places, device="webgpu:0")
    CHANGES.append(lambda: buffer.copy_from(np.array([7, 9])))
    expected = np.tanh(TABLE)[[1, 2]]
    np.testing.assert_allclose(np.asarray(program(TABLE, buffer)), expected, rtol=1e-5)


@pytest.mark.parametrize("count", [4, 300_000])
def test_few_and_many_indices_are_copied(count: int) -> None:
    places = np.ones(count, np.int64)
    program = compiled(_gathered, TABLE, places, backend="openvino")
    CHANGES.append(lambda: places.fill(5))
    expected = np.tanh(TABLE)[np.ones(count, int)]
    np.testing.assert_allclose(program(TABLE, places), expected, rtol=1e-5)


def test_state_that_is_also_an_index_is_replaced() -> None:
    def step(x: Any, places: Any) -> tuple[Any, Any]:
        return ops.gather(x, places, axis=0), ops.add(places, 1)

    places = np.array([1, 2])
    program = compiled(step, TABLE, places, backend="openvino")
    state = fw.state(places, output="output1")
    for number in range(3):
        found = program(TABLE, state)[0]
        assert np.asarray(found).tolist() == TABLE[places + number].tolist()


RACE = """
import sys, threading, time
import numpy as np
import fusewire as fw
from fusewire import ops

table = np.arange(1, 4097, dtype=np.float32)[:, None]
places = np.zeros((1 << 15, 1), sys.argv[2])
graph = fw.trace(lambda places: ops.gather_nd(table, places), places)
program = fw.compile(graph, backend=sys.argv[1], cache=False)
program(places)
ended = False

def meddle():
    while not ended:
        places[1 << 14:] = -3 * 4096
        places[1 << 14:] = 0

thread = threading.Thread(target=meddle)
thread.start()
accepted = wrong = 0
end = time.monotonic() + 1.5
while time.monotonic() < end:
    try:
        answer = np.asarray(program(places))
    except fw.errors.CheckError:
        continue
    accepted += 1
    wrong += bool((answer != 1).any())
ended = True
thread.join()
print(accepted, wrong)
"""


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_race_with_the_owner_of_an_index_reads_nothing_else(dtype: str) -> None:
    command = [sys.executable, "-c", RACE, "openvino", dtype]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    accepted, wrong = map(int, done.stdout.split())
    assert accepted
    assert wrong == 0


COUNT_RACE = """
import sys, threading, time
import numpy as np
import fusewire as fw
from fusewire import ops

count = 1 << 20
row = np.zeros(count, "bool" if sys.argv[2] == "nonzero" else "float32")
others = [row.copy(), np.ones_like(row), np.random.default_rng(0).random(count) > 0.5]
function = ops.nonzero if sys.argv[2] == "nonzero" else lambda x: ops.top_k(x, k=count - 1)[1]
program = fw.compile(fw.trace(function, row), backend=sys.argv[1], cache=False)
program(row)
ended = False

def meddle():
    while not ended:
        for other in others:
            np.copyto(row, other)

thread = threading.Thread(target=meddle)
thread.start()
end = time.monotonic() + 1.5
while time.monotonic() < end:
    places = np.asarray(program(row))
    assert not places.size or 0 <= places.min() <= places.max() < count
ended = True
thread.join()
"""


@pytest.mark.parametrize(("engine", "op"), [("torch", "nonzero"), ("onnxruntime", "top_k")])
def test_race_with_the_owner_of_what_decides_sizes_harms_nothing(engine: str, op: str) -> None:
    command = [sys.executable, "-c", COUNT_RACE, engine, op]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-500:]
