"""How sessions are called: small tensors stay bound, also where a model takes many shapes."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.backends.onnxruntime import executable
from fusewire.backends.onnxruntime.executable import SMALL, BoundSession, Edges, SingleSession
from fusewire.errors import OptionsError, ShapeMismatchError
from fusewire.ops.limits import limited
from fusewire.plan import execute
from tests.flaky import compiled

RNG = np.random.default_rng(0)


def rows(count: int, width: int = 4) -> Any:
    return RNG.standard_normal((count, width)).astype(np.float32)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """List the shapes for which sessions bind small tensors."""
    # The first use of the engine in a process runs a program of its own.
    opened(lambda x: x + 1, fw.Spec((2,), "float32"))(np.zeros(2, np.float32))
    shapes, make = list[Any](), executable.bound_small

    def noted(session: Any, edges: Edges) -> Any:
        shapes.append(tuple(slot.dims for _, slot in edges.inputs))
        return make(session, edges)

    monkeypatch.setattr(executable, "bound_small", noted)
    return shapes


def opened(function: Any, *specs: fw.Spec) -> Any:
    return compiled(function, *specs, backend="onnxruntime", fallback="error")


def test_shapes_that_come_again_stay_bound(bound: list[Any]) -> None:
    program = opened(lambda x: np.tanh(x) * 2, fw.Spec(("n", 4), "float32"))
    for x in [rows(3) for _ in range(6)] + [rows(5) for _ in range(6)]:
        np.testing.assert_allclose(program(x), np.tanh(x) * 2, rtol=1e-5)
    assert bound == [((3, 4),), ((5, 4),)]


def test_answers_of_bound_shapes_are_the_callers_own(bound: list[Any]) -> None:
    program = opened(lambda x: x + 1, fw.Spec(("n", 4), "float32"))
    x = rows(3)
    answers = [program(x) for _ in range(6)]
    assert bound
    for answer in answers:
        answer[...] = 7
    assert not any(np.shares_memory(a, b) for a in answers for b in answers if a is not b)
    np.testing.assert_allclose(program(x), x + 1, rtol=1e-6)


def test_shapes_that_change_at_every_call_bind_nothing(bound: list[Any]) -> None:
    program = opened(lambda x: x + 1, fw.Spec(("n", 4), "float32"))
    for _ in range(3):
        for count in (2, 3, 4):
            program(rows(count))
    assert bound == []


def test_large_tensors_are_not_copied_to_what_stays_bound(bound: list[Any]) -> None:
    program = opened(lambda x: x + 1, fw.Spec(("n", 4), "float32"))
    x = rows(SMALL // 16 + 1)
    for _ in range(5):
        np.testing.assert_allclose(program(x), x + 1, rtol=1e-6)
    assert bound == []


def test_outputs_whose_shape_the_values_decide_are_not_bound(bound: list[Any]) -> None:
    program = opened(lambda x: np.nonzero(x), fw.Spec(("n",), "float32"))
    for count in (1, 4, 2, 2, 2):
        x = np.zeros(8, np.float32)
        x[:count] = 1
        found = program(x)
        found = found[0] if isinstance(found, tuple) else found
        np.testing.assert_array_equal(np.ravel(found), np.arange(count))
    assert bound == []


@pytest.mark.parametrize("is_open", [True, False])
def test_strided_inputs_are_read_as_they_are(is_open: bool) -> None:
    program = opened(lambda x: x * 2, fw.Spec(("n" if is_open else 3, 4), "float32"))
    wide = rows(3, 8)
    for x in (wide[:, ::2], wide[:, :4], rows(4, 3).T, wide[::-1, 4:]):
        for _ in range(4):
            np.testing.assert_array_equal(program(x), x * 2)


def session_of(program: Any, *inputs: Any) -> Any:
    program(*inputs)
    (loaded,) = program.entry(inputs).runner._runners[0]._made.values()
    return loaded.parts[0].__self__


def test_session_of_several_inputs_takes_no_others() -> None:
    x = rows(2)
    session = session_of(opened(lambda x, y: x + y, *[fw.Spec((2, 4), "float32")] * 2), x, x)
    assert isinstance(session, BoundSession)
    with pytest.raises(IndexError):
        session.run([x])
    with pytest.raises(ShapeMismatchError):
        session.run([x, x[:1]])
    np.testing.assert_array_equal(session.run([x, x])[0], x + x)


def test_session_of_one_input_takes_no_other() -> None:
    x = rows(2)
    session = session_of(opened(lambda x: x + 1, fw.Spec((2, 4), "float32")), x)
    assert isinstance(session, SingleSession)
    for wrong in ([], [x, x]):
        with pytest.raises(ValueError, match="unpack"):
            session.run(wrong)
    with pytest.raises(ShapeMismatchError):
        session.run([x[:1]])
    np.testing.assert_array_equal(session.run([x])[0], x + 1)


def test_threads_do_not_share_what_is_bound() -> None:
    program = opened(lambda x: x * 2 + 1, fw.Spec((64,), "float32"))
    inputs = [np.full(64, place, np.float32) for place in range(8)]
    program(inputs[0])
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            for x, found in zip(inputs, threads.map(program, inputs), strict=True):
                np.testing.assert_array_equal(found, x * 2 + 1)


@pytest.mark.parametrize(
    ("function", "is_direct"),
    [
        (lambda x, y: np.tanh(x), True),
        (lambda x, y: y - x, True),
        # What is given back is copied, and that is a step of ours.
        (lambda x, y: (np.tanh(y), x), False),
    ],
)
def test_engine_that_answers_all_runs_without_our_steps(
    monkeypatch: pytest.MonkeyPatch, function: Any, is_direct: bool
) -> None:
    program = opened(function, *[fw.Spec((2, 4), "float32")] * 2)
    x, y = rows(2), rows(2)
    program(x, y)
    begun = list[Any]()

    def noted(limits: Any) -> Any:
        begun.append(limits)
        return limited(limits)

    monkeypatch.setattr(execute, "limited", noted)
    for left, right in zip(program(x, y), function(x, y), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5)
    assert bool(begun) != is_direct


_RESIDENT = """
import os
import sys
import numpy as np
import fusewire as fw

def wide(x):
    return np.sum(np.cumsum(np.exp(x[:, None] * x[None, :]), axis=1), axis=1)

config = {"arena": sys.argv[1] == "kept"}
spec = fw.Spec((4096,), "float32")
program = fw.compile(wide, spec, backend="onnxruntime", level=0, backend_config=config)
for _ in range(2):
    program(np.full(4096, 1e-3, np.float32))
with open("/proc/self/statm") as file:
    print(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_a_call_is_given_back_where_that_is_asked_for() -> None:
    kept, freed = (
        int(subprocess.check_output([sys.executable, "-c", _RESIDENT, way], text=True))
        for way in ("kept", "freed")
    )
    # Two values of 64 MB live at once.
    assert kept - freed > 100e6
    with pytest.raises(OptionsError, match=r"has no arena='small'\. It has True and False"):
        fw.compile(np.exp, backend="onnxruntime", backend_config={"arena": "small"})(rows(2))
