"""Sizes that vary are learned: from calls of a function, and where a file's names do not hold."""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.compiler import Session
from fusewire.contract.frontend import Example, Reading
from fusewire.errors import ShapeMismatchError
from fusewire.ir.dims import Symbol
from fusewire.ir.types import Type
from fusewire.options import Options
from fusewire.plan.function import FunctionRunner
from fusewire.program.entry import Entry, LearnedSizes
from fusewire.program.parameters import FunctionParameters
from fusewire.program.program import Program
from fusewire.session.model_source import ModelSource
from fusewire.session.sizes import SeenSizes, read_opened


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rows(count: int, width: int = 4) -> Any:
    return np.random.default_rng(count).normal(size=(count, width)).astype(np.float32)


def test_second_shape_opens_the_sizes_that_differ() -> None:
    program = fw.compile(softmax, backend="reference")
    for count in (5, 7, 9, 300):
        np.testing.assert_allclose(program(rows(count)), softmax(rows(count)), rtol=1e-6)
    assert program.signatures == ["float32[5, 4]", "float32[n, 4]"]
    program(rows(5, 6))
    assert program.signatures[-1] == "float32[5, n]"


def test_sizes_that_change_together_share_a_symbol() -> None:
    program = fw.compile(lambda x, y, z: (x * y, z + 1), backend="reference")
    program(rows(5), rows(5), rows(2))
    program(rows(6), rows(6), rows(3))
    assert program.signatures[-1] == "float32[n, 4], float32[n, 4], float32[n1, 4]"


@pytest.mark.parametrize("count", [0, 1])
def test_sizes_with_a_meaning_of_their_own_are_not_opened(count: int) -> None:
    program = fw.compile(lambda x: np.squeeze(x) + 0, backend="reference")
    for size in (5, 7, count):
        assert program(rows(size)).shape == np.squeeze(rows(size)).shape
    assert program.signatures[-1] == f"float32[{count}, 4]"


def test_function_that_asks_for_a_size_is_traced_for_each() -> None:
    def tail(x: Any) -> Any:
        return x * 2 if x.shape[0] > 6 else x * 3

    program = fw.compile(tail, backend="reference")
    for count in (5, 7, 8):
        np.testing.assert_array_equal(program(rows(count)), tail(rows(count)))
    assert program.signatures == [f"float32[{count}, 4]" for count in (5, 7, 8)]


@pytest.mark.parametrize("backend", ["reference", "onnxruntime"])
def test_sizes_at_which_a_slice_is_cut_off_are_traced_by_themselves(backend: str) -> None:
    program = fw.compile(lambda x: x[:100] * 2, backend=backend)
    for count in (150, 200, 50, 120, 50):
        np.testing.assert_array_equal(program(rows(count)), rows(count)[:100] * 2)
    assert program.signatures == ["float32[150, 4]", "float32[n, 4]", "float32[50, 4]"]


def test_function_may_do_anything_with_a_size_it_cannot_know() -> None:
    factors = {5: 2.0, 7: 3.0}
    program = fw.compile(lambda x: x * np.float32(factors[x.shape[0]]), backend="reference")
    for count in (5, 7):
        np.testing.assert_array_equal(program(rows(count)), rows(count) * factors[count])


class _TwoFaced:
    """A source that says something else where sizes are open, at sizes from ``start`` on."""

    def __init__(self, start: int) -> None:
        self._start = start

    def inputs(self) -> Mapping[str, Type]:
        return {}

    def read(self, example: Example = (), *, is_open: bool = False) -> Reading:
        x: Any = example[0] if isinstance(example, tuple) else None
        size = x.shape[0]
        factor = 3.0 if isinstance(size, int) and size >= self._start else 2.0
        return ModelSource(lambda x: x * np.float32(factor)).read(example)


@pytest.mark.parametrize(("start", "is_right"), [(100, True), (7, False), (5, False)])
def test_open_sizes_count_only_if_both_calls_agree(start: int, is_right: bool) -> None:
    seen, session = SeenSizes(), Session(Options())
    seen.note((rows(5),))
    opening = seen.opening((rows(7),))
    assert opening is not None
    found = read_opened(_TwoFaced(start), opening, (rows(7),), session.rewrite, session.interpret)
    assert (found is not None) is is_right


def test_first_size_alone_may_disagree() -> None:
    class Early(_TwoFaced):
        def read(self, example: Example = (), *, is_open: bool = False) -> Reading:
            x: Any = example[0] if isinstance(example, tuple) else None
            factor = np.float32(3 if x.shape[0] == 5 else 2)
            return ModelSource(lambda x: x * factor).read(example)

    seen, session = SeenSizes(), Session(Options())
    seen.note((rows(5),))
    opening = seen.opening((rows(7),))
    assert opening is not None
    given = (rows(7),)
    assert read_opened(Early(0), opening, given, session.rewrite, session.interpret) is None


def test_plan_serves_sizes_within_a_factor_of_four() -> None:
    learned = LearnedSizes(bool, {Symbol("n"): 100}, lambda arguments: None)  # type: ignore[arg-type,return-value] # never called
    near = {size: learned.is_near({Symbol("n"): size}) for size in (25, 400, 24, 401)}
    assert near == {25: True, 400: True, 24: False, 401: False}


def test_far_sizes_are_decided_anew() -> None:
    program = fw.compile(softmax, start="measured", budget_seconds=2)
    for count in (50, 60, 190, 900):
        np.testing.assert_allclose(program(rows(count)), softmax(rows(count)), rtol=1e-5)
    # Those of 50, and one entry for near and one for far sizes.
    assert len(program.signatures) == 3
    assert program.signatures[1] == program.signatures[2] == "float32[n, 4]"


def on_xla(arguments: tuple[Any, ...]) -> Entry:
    """Make an entry on XLA, which compiles per size; the function answers meanwhile."""
    model = ModelSource(softmax)
    session = Session(Options(backend="xla", fallback="error"))
    entry = session.entry(model, (fw.Spec(("n", 4), "float32"),))
    reading = model.read((fw.Spec(("n", 4), "float32"),))
    learned = LearnedSizes(bool, {Symbol("n"): 5}, on_xla, FunctionRunner(reading))
    return replace(entry, learned=learned)


def wait_for_the_engine(program: Program) -> None:
    """Wait until calls of every signature run on the engine."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if all(program._calls[key][0] is x.run for key, x in program._entries.items()):
            return
        time.sleep(0.01)
    raise AssertionError("the engine was not ready in 60 s")


def test_engine_that_compiles_per_size_does_so_behind_the_answers() -> None:
    program = Program("softmax", on_xla, parameters=FunctionParameters(softmax))
    program(rows(5))
    start = time.perf_counter()
    first = program(rows(7))
    took = time.perf_counter() - start
    # The function itself answered: to the bit, and sooner than anybody compiles.
    np.testing.assert_array_equal(first, softmax(rows(7)))
    assert took < 0.05
    wait_for_the_engine(program)
    np.testing.assert_allclose(program(rows(7)), softmax(rows(7)), rtol=1e-5)


def test_many_threads_with_many_sizes_get_right_answers() -> None:
    program = Program("softmax", on_xla, parameters=FunctionParameters(softmax))
    wrong: list[int] = []

    def call(first: int) -> None:
        for count in range(first, first + 4):
            if not np.allclose(program(rows(count)), softmax(rows(count)), rtol=1e-4):
                wrong.append(count)

    threads = [threading.Thread(target=call, args=[first]) for first in range(4, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    wait_for_the_engine(program)


@pytest.fixture
def sum_file(tmp_path: Path) -> Path:
    """A file with one name for the rows of both inputs, which it broadcasts."""
    spec = fw.Spec(("rows", 4), "float32")
    fw.save_onnx(fw.trace(lambda x, y: x + y * 2, spec, spec), tmp_path / "sum.onnx")
    return tmp_path / "sum.onnx"


def test_name_of_a_size_in_a_file_is_a_hint(
    sum_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = fw.compile(sum_file, backend="onnxruntime")
    with caplog.at_level(logging.WARNING, "fusewire"):
        for first, second in ((5, 5), (5, 1), (6, 1), (1, 7), (6, 6)):
            given = rows(first), rows(second)
            np.testing.assert_allclose(program(*given), given[0] + given[1] * 2, rtol=1e-6)
    said = [x.getMessage() for x in caplog.records if "one name for sizes" in x.getMessage()]
    assert len(said) == 1
    assert "(rows)" in said[0]
    assert program.signatures[-1] == "float32[x_0, 4], float32[y_0, 4]"


def test_sizes_that_do_not_go_together_are_refused_as_before(sum_file: Path) -> None:
    program = fw.compile(sum_file, backend="onnxruntime")
    with pytest.raises(ShapeMismatchError):
        program(rows(5), rows(3))
    with pytest.raises(ShapeMismatchError, match="float32"):
        program(rows(5), rows(5, 3))
    np.testing.assert_allclose(program(rows(2), rows(2)), rows(2) * 3, rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * np.float32({8: 2.0}.get(x.shape[0], 3.0)),
        lambda x: x * np.float32(len(str(x.shape[0]))),
        lambda x: x * np.float32(len(f"{x.shape[0]}")),
    ],
    ids=["key", "text", "format"],
)
def test_function_that_looks_a_size_up_is_traced_for_each(function: Any) -> None:
    program = fw.compile(function, backend="reference")
    for count in (3, 5, 8, 16):
        np.testing.assert_array_equal(program(rows(count)), function(rows(count)))


def test_sizes_at_which_a_function_raised_are_not_learned_from() -> None:
    program = fw.compile(lambda x: x[6] * 2, backend="reference")
    with pytest.raises(IndexError):
        program(rows(3))
    for count in (8, 16, 9):
        np.testing.assert_array_equal(program(rows(count)), rows(count)[6] * 2)


def test_sizes_that_disagree_are_named_and_no_cast_is_advised(sum_file: Path) -> None:
    program = fw.compile(sum_file, backend="onnxruntime")
    program(rows(2), rows(2))
    with pytest.raises(ShapeMismatchError) as caught:
        program(rows(5), rows(3))
    said = str(caught.value)
    assert said.endswith("rows is 5 in an earlier input, and 3 here.")
    assert "astype" not in said
    with pytest.raises(ShapeMismatchError) as caught:
        program(rows(5))
    assert str(caught.value).count("It takes 2 arguments") == 1
