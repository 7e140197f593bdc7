"""Calls as people know them: by name, with a mapping, with defaults; casts; what a program says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import fusewire as fw
from fusewire.errors import OptionsError, ShapeMismatchError
from tests.onnx.models import graph, model

A = np.arange(4, dtype=np.float32)
B = np.full(4, 10, np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that takes ``a`` and ``b`` and gives their difference and product."""
    nodes = [
        onnx.helper.make_node("Sub", ["a", "b"], ["difference"]),
        onnx.helper.make_node("Mul", ["a", "b"], ["product"]),
    ]
    inputs = {"a": ("float32", ["n"]), "b": ("float32", ["n"])}
    made = model(graph(nodes, inputs, ["difference", "product"]), 17)
    onnx.save(made, tmp_path / "two.onnx")
    return tmp_path / "two.onnx"


def check(found: Any) -> None:
    difference, product = found
    assert np.array_equal(difference, A - B)
    assert np.array_equal(product, A * B)


@pytest.mark.parametrize("level", [0, 1])
def test_a_model_by_name(path: Path, level: int) -> None:
    program = fw.compile(str(path), backend="reference", level=level)
    for _ in range(2):
        check(program(A, B))
        check(program(a=A, b=B))
        check(program(b=B, a=A))
        check(program(A, b=B))
        check(program({"b": B, "a": A}))
    result = program.run(b=B, a=A)
    assert np.array_equal(result.by_name["product"], A * B)
    assert list(result.by_name) == ["difference", "product"]


@pytest.mark.parametrize(
    ("arguments", "named", "said"),
    [
        ((), {"a": A, "c": B}, "takes a, b; 'c' is not one of them"),
        ((A,), {"a": A, "b": B}, "'a' was given by position and by name"),
        ((), {"a": A}, "b was not given"),
        ((A,), {}, "takes 2 arguments"),
        ((A, B, A), {}, "takes 2 arguments"),
    ],
)
def test_names_that_do_not_fit(path: Path, arguments: Any, named: Any, said: str) -> None:
    program = fw.compile(str(path), backend="reference")
    with pytest.raises(ShapeMismatchError, match=said):
        program(*arguments, **named)


def weighted(x: Any, y: Any, *, scale: float = 2.0, bias: Any = None) -> Any:
    return x * scale - y if bias is None else x * scale - y + bias


def test_a_function_by_name() -> None:
    program = fw.compile(weighted, backend="reference")
    assert np.array_equal(program(y=B, x=A), A * 2 - B)
    assert np.array_equal(program(A, B, scale=3.0), A * 3 - B)
    assert np.array_equal(program(A, y=B, bias=A), A * 2 - B + A)
    assert np.array_equal(program(A, B), A * 2 - B)
    with pytest.raises(ShapeMismatchError, match="unexpected keyword argument 'z'"):
        program(A, B, z=B)


def test_a_call_by_name_is_the_same_as_one_by_position() -> None:
    program = fw.compile(weighted, A, B, backend="reference")
    assert np.array_equal(program(x=A, y=B), A * 2 - B)
    lazy = fw.compile(weighted, backend="reference")
    lazy(A, B)
    lazy(x=A, y=B)
    assert len(lazy.signatures) == 1


@pytest.mark.parametrize("options", [{"level": 0}, {"level": 0, "backend": "reference"}])
def test_every_form_of_a_call_is_answered_again(options: dict[str, Any]) -> None:
    program = fw.compile(weighted, **options)
    out, device = np.empty_like(A), []
    for _ in range(3):
        for found in (program(A, B), program(A, y=B), program(y=B, x=A), program(A, B, scale=2.0)):
            assert np.array_equal(found, A * 2 - B)
        assert np.array_equal(program(A, y=B, scale=3.0, bias=A), A * 3 - B + A)
        assert program(A, y=B, scale=3.0, out=out) is out
        assert np.array_equal(out, A * 3 - B)
        device.append(program(x=A, y=B, outputs="device"))
        device.append(program(fw.asarray(A.copy()), y=B, donate="x"))
    assert all(np.array_equal(buffer.numpy(), A * 2 - B) for buffer in device)


def test_a_mapping_is_the_argument_of_a_function() -> None:
    program = fw.compile(lambda pair: pair["a"] - pair["b"], backend="reference")
    assert np.array_equal(program({"a": A, "b": B}), A - B)
    assert np.array_equal(program(pair={"a": A, "b": B}), A - B)


def test_arguments_without_a_place_are_refused() -> None:
    program = fw.compile(lambda *arrays, **more: arrays[0], backend="reference")
    with pytest.raises(ShapeMismatchError, match="any number of arguments"):
        program(A, extra=B)


def test_ports(path: Path) -> None:
    program = fw.compile(str(path), backend="reference")
    assert [str(port) for port in program.inputs] == ["a: float32[n]", "b: float32[n]"]
    assert [port.name for port in program.outputs] == ["difference", "product"]
    assert program.outputs[0].shape == ("n",)
    assert repr(program) == "<Program two(a: float32[n], b: float32[n]) on reference, 2 nodes>"


def test_casts_are_refused_with_the_cast_to_write(path: Path) -> None:
    program = fw.compile(str(path), backend="reference")
    with pytest.raises(ShapeMismatchError, match=r'Give b\.astype\("float32"\)'):
        program(A, B.astype(np.float64))
    with pytest.raises(ShapeMismatchError) as found:
        program(A, B.astype(np.complex64))
    assert "astype" not in str(found.value)


@pytest.mark.parametrize("level", [0, 1])
def test_casts_of_the_same_kind(path: Path, level: int) -> None:
    program = fw.compile(str(path), backend="reference", cast="same_kind", level=level)
    check(program(A, B.astype(np.float64)))
    check(program(A, B))
    check(program(A.astype(np.float16), B.astype(np.int8)))
    with pytest.raises(ShapeMismatchError):
        program(A, B.astype(np.complex64))
    with pytest.raises(OptionsError, match="same_kind"):
        fw.compile(str(path), options=fw.Options.of(None, {"cast": "unsafe"}))


def test_a_decorator_with_options() -> None:
    @fw.compile(backend="reference")
    def double(x: Any) -> Any:
        return x + x

    assert np.array_equal(double(A), A + A)
    assert double.name == "double"


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fusewire", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Usage: fusewire ")


@pytest.mark.parametrize("engine", ["reference", "onnxruntime", "openvino", "xla"])
def test_booleans_of_odd_bytes_are_true(engine: str) -> None:
    odd = np.array([0, 255, 1, 2], np.uint8).view(np.bool_)
    program = fw.compile(lambda mask, x: np.where(mask, x, 0) + mask * x, backend=engine)
    for mask in (np.array([False, True, True, True]), odd):
        assert np.array_equal(program(mask, A), 2 * A * [0, 1, 1, 1])


def test_names_in_errors_cannot_steer_a_terminal() -> None:
    assert str(ShapeMismatchError("a\x1b[2Jb")) == "a\\x1b[2Jb"
