"""Compiled methods and the face of a program: what a decorator is expected to leave in place."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import SourceError

X = np.arange(3, dtype=np.float32)


class Scale:
    """Multiplies by a number of its own."""

    def __init__(self, factor: float) -> None:
        self.factor = np.float32(factor)

    @fw.compile(backend="reference")
    def scaled(self, x: Any, shift: float = 0.0) -> Any:
        """Multiply, and add."""
        return x * self.factor + shift

    @fw.compile(backend="reference")
    def squared(self, x: Any) -> Any:
        return self.scaled(self.scaled(x))


class Twice(Scale):
    @fw.compile(backend="reference")
    def scaled(self, x: Any, shift: float = 0.0) -> Any:
        return super().scaled(x, shift) * 2


def test_methods_know_their_object() -> None:
    two, three = Scale(2), Scale(3)
    for scale in (two, three, two):
        np.testing.assert_array_equal(scale.scaled(X), X * scale.factor)
        np.testing.assert_array_equal(scale.scaled(X, shift=1.0), X * scale.factor + 1)
    assert isinstance(two.scaled, fw.Program)
    assert two.scaled is two.scaled
    assert two.scaled is not three.scaled
    np.testing.assert_array_equal(Scale(5).scaled(X), X * 5)
    np.testing.assert_array_equal(Scale.scaled(two, X), X * 2)


def test_methods_call_others_and_those_they_override() -> None:
    np.testing.assert_array_equal(Scale(3).squared(X), X * 9)
    np.testing.assert_array_equal(Twice(3).scaled(X), X * 6)


def test_traced_methods_call_those_they_override_once() -> None:
    class Plain:
        def scaled(self, x: Any) -> Any:
            return np.multiply(x, 3)

    class Derived(Plain):
        def scaled(self, x: Any) -> Any:
            return super().scaled(x) * 2

    program = fw.compile(Derived().scaled, backend="reference")
    np.testing.assert_array_equal(program(X), X * 6)


def test_copies_of_an_object_have_programs_of_their_own() -> None:
    scale = Scale(2)
    scale.scaled(X)
    for other in (copy.copy(scale), copy.deepcopy(scale), pickle.loads(pickle.dumps(scale))):
        other.factor = np.float32(7)
        np.testing.assert_array_equal(other.scaled(X), X * 7)
        np.testing.assert_array_equal(scale.scaled(X), X * 2)
        assert other.scaled is other.scaled


def test_programs_of_an_object_go_with_it() -> None:
    scale = Scale(2)
    scale.scaled(X)
    seen = weakref.ref(scale)
    del scale
    gc.collect()
    assert seen() is None


def test_object_without_a_dict_is_told_what_to_write() -> None:
    class Slotted:
        __slots__ = ("factor",)

        @fw.compile(backend="reference")
        def scaled(self, x: Any) -> Any:
            return x

    with pytest.raises(SourceError, match=r"fw\.compile\(lambda x: scaled\(self, x\)\)"):
        Slotted().scaled(X)


def test_class_methods_know_their_class() -> None:
    class Half:
        factor = np.float32(0.5)

        @classmethod
        @fw.compile(backend="reference")
        def scaled(cls, x: Any) -> Any:
            return x * cls.factor

        @fw.compile(backend="reference")
        def shifted(self, x: Any) -> Any:
            return self.scaled(x) + 1

    class Third(Half):
        factor = np.float32(3)

    for kind in (Half, Third, Half):
        np.testing.assert_array_equal(kind.scaled(X), X * kind.factor)
        np.testing.assert_array_equal(kind().scaled(X), X * kind.factor)
        np.testing.assert_array_equal(kind().shifted(X), X * kind.factor + 1)


def test_programs_of_models_and_of_objects_are_not_bound(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(lambda x: x * 2, X), path)

    class Held:
        model = fw.compile(path, backend="reference")
        static = staticmethod(fw.compile(lambda x: x * 2, backend="reference"))

    np.testing.assert_array_equal(Held().model(X), X * 2)
    np.testing.assert_array_equal(Held().static(X), X * 2)


def test_compiled_function_calls_another() -> None:
    inner = fw.compile(lambda x: x + 1, backend="reference")
    outer = fw.compile(lambda x: inner(x) * 2, backend="reference")
    np.testing.assert_array_equal(outer(X), (X + 1) * 2)
    assert len(outer.graph.nodes) >= 2


def test_program_has_the_name_and_the_text_of_its_function() -> None:
    def double(x: Any) -> Any:
        """Add to itself."""
        return x + x

    program: Any = fw.compile(double)
    assert program.__name__ == "double"
    assert program.__qualname__ == double.__qualname__
    assert program.__module__ == __name__
    assert program.__doc__ == "Add to itself."
    assert program.__wrapped__ is double
    assert inspect.signature(program) == inspect.signature(double)
    scaled: Any = Scale(2).scaled
    assert scaled.__doc__ == "Multiply, and add."
    assert list(inspect.signature(scaled).parameters) == ["x", "shift"]
    assert pickle.loads(pickle.dumps(Scale.scaled)) is Scale.scaled
    assert fw.Program.__doc__ not in (None, program.__doc__)


def test_print_shows_what_goes_in_and_out_and_the_graph_is_at_graph() -> None:
    program = fw.compile(lambda x: {"y": np.exp(x) + 1}, backend="reference")
    assert str(program) == "Program <lambda>: not called yet"
    program(X)
    lines = str(program).splitlines()
    assert lines[0].startswith("Program <lambda> on reference (cpu):")
    assert [line.split()[:3] for line in lines[-2:]] == [
        ["input", "x", "float32"],
        ["output", "y", "float32"],
    ]
    assert "constant" not in str(program)
    assert "constant" in str(program.graph)
    program(np.ones((2, 3), np.float32))
    assert str(program).endswith("The latest of 2 signatures; program.signatures lists all.")
