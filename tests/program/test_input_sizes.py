"""Inputs of a wrong size are refused: by every program, and once more by every executable."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.backend import Config, Device, Executable
from fusewire.errors import ShapeMismatchError
from fusewire.registry import REGISTRY

ENGINES = ("reference", "onnxruntime", "openvino", "xla", "webgpu", "triton")
# Triton's kernels are made for one shape.
NAMED = tuple(engine for engine in ENGINES if engine != "triton")


def total(x: Any) -> Any:
    return np.sum(x * 2)


def both(x: Any, y: Any) -> Any:
    return x * 2 + y


def compiled(engine: str, function: Any, *specs: fw.Spec) -> Any:
    if not any(isinstance(found, Device) for found in REGISTRY.backends.get(engine).probe()):
        pytest.skip(f"{engine} finds no device here")
    return fw.compile(function, *specs, backend=engine, fallback="error", isolate=False)


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize("engine", ENGINES)
def test_program_of_a_fixed_size_takes_no_other(engine: str) -> None:
    program = compiled(engine, total, fw.Spec((4,), "float32"))
    assert program(ones(4)) == 8
    for wrong in (ones(5), ones(3), ones(1), ones(0), ones(), ones(4, 1), ones(1, 4)):
        with pytest.raises(ShapeMismatchError, match=r"The input x is float32\[4\], found"):
            program(wrong)
    assert program(ones(4)) == 8


@pytest.mark.parametrize("engine", NAMED)
def test_program_of_a_named_size_holds_the_fixed_one(engine: str) -> None:
    program = compiled(engine, total, fw.Spec(("n", 4), "float32"))
    for wrong in (ones(3, 1), ones(3, 5), ones(4), ones(3, 4, 1)):
        with pytest.raises(ShapeMismatchError, match=r"The input x is float32\[n, 4\], found"):
            program(wrong)
    assert program(ones(3, 4)) == 24


@pytest.mark.parametrize("engine", NAMED)
def test_inputs_of_one_named_size_have_the_same(engine: str) -> None:
    spec = fw.Spec(("n",), "float32")
    program = compiled(engine, both, spec, spec)
    for wrong in ((ones(3), ones(1)), (ones(1), ones(3)), (ones(3), ones(4))):
        with pytest.raises(ShapeMismatchError, match=r"The input y is float32\[n\], found"):
            program(*wrong)
    np.testing.assert_array_equal(program(ones(3), ones(3)), [3, 3, 3])


@pytest.mark.parametrize("engine", ENGINES)
def test_program_takes_no_other_dtype(engine: str) -> None:
    program = compiled(engine, total, fw.Spec((4,), "float32"))
    for wrong in (np.ones(4, np.float64), np.ones(4, np.int32), np.ones(4, bool)):
        with pytest.raises(ShapeMismatchError, match=r"The input x is float32\[4\], found"):
            program(wrong)


def executable(engine: str, function: Any, *shape: int) -> Executable:
    """Load a graph of one input without a program around it."""
    backend = REGISTRY.backends.get(engine)
    device = next((found for found in backend.probe() if isinstance(found, Device)), None)
    if device is None:
        pytest.skip(f"{engine} finds no device here")
    spec = fw.Spec(shape, "float32")
    graph = fw.compile(function, spec, backend="reference", isolate=False).graph
    artifact = backend.compile(graph, device, Config())
    return backend.load(artifact, device, {})


# Small inputs are copied to memory that stays bound; large ones are bound where they lie.
@pytest.mark.parametrize("size", [4, 40_000])
@pytest.mark.parametrize("engine", ENGINES)
def test_executable_does_not_broadcast_its_input(engine: str, size: int) -> None:
    doubled = executable(engine, lambda x: x * 2, size)
    (first,) = doubled.run([ones(size)])
    for wrong in (ones(1), ones(), ones(size, 1), ones(1, size), ones(size + 1)):
        with pytest.raises(Exception):  # noqa: B017 # engines raise types of their own
            doubled.run([wrong])
    (again,) = doubled.run([ones(size)])
    for found in (first, again):
        value: Any = found if isinstance(found, np.ndarray) else found.read()
        assert value.shape == (size,)
        assert (value == 2).all()
