"""Rows that are proven independent: alone, each gives what it gives in a batch."""

import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.compiler import Session
from fusewire.dtypes import float32
from fusewire.errors import FusewireError
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Op
from fusewire.ops.interpret import interpret, type_of
from fusewire.ops.sample import Sample
from fusewire.ops.table import all_ops
from fusewire.planning.rows import Axis, RowProof, prove_rows

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "zoo"))
zoo: Any = import_module("zoo")
ROWS = symbol("n")


def graph_of(op: Op[Any], sample: Sample, arrays: list[Any], axes: list[Axis]) -> Graph:
    """Make the graph of one node whose operands have rows along these axes."""
    values: list[Value | None] = []
    for place, (array, axis) in enumerate(zip(arrays, axes, strict=True)):
        if array is None:
            values.append(None)
            continue
        type_ = type_of(array)
        assert isinstance(type_, TensorType)
        dims = [ROWS if place == axis else dim for place, dim in enumerate(type_.shape)]
        values.append(Value(type_.with_shape(tuple(dims)), f"x{place}"))
    node = op.make(values, sample.attrs)
    return Graph([value for value in values if value is not None], node.outputs, name=op.name)


def placements(arrays: list[Any]) -> Iterator[list[Axis]]:
    """Try rows along each axis of each operand, alone and together with all that have as many."""
    for place, array in enumerate(arrays):
        for axis in range(np.ndim(array)) if isinstance(array, np.ndarray) else ():
            size = array.shape[axis]
            if size < 2:
                continue
            alone: list[Axis] = [axis if other == place else None for other in range(len(arrays))]
            yield alone
            if place == 0:
                yield [
                    axis if isinstance(x, np.ndarray) and x.ndim > axis and x.shape[axis] == size
                    else None
                    for x in arrays
                ]  # fmt: skip


def proven(op: Op[Any]) -> Iterator[tuple[Graph, RowProof, list[Array], list[Axis]]]:
    for sample in op.samples()[:4]:
        dtype = float32 if float32 in op.dtypes else op.dtypes[0]
        tested = dtype if sample.only is None else sample.only[0]
        arrays = sample.make(tested)
        if any(isinstance(x, list) or np.size(x) == 0 for x in arrays):
            continue
        for axes in placements(arrays):
            try:
                graph = graph_of(op, sample, arrays, axes)
            except FusewireError:
                # Attributes of this sample hold only for its own sizes.
                continue
            present = [axis for x, axis in zip(arrays, axes, strict=True) if x is not None]
            proof = prove_rows(graph, present)
            if proof.is_proven:
                yield graph, proof, [x for x in arrays if x is not None], present


def taken(array: Array, axis: Axis, row: int) -> Array:
    return array if axis is None else array.take([row], axis)


def check_alone(
    graph: Graph, proof: RowProof, arrays: list[Array], axes: list[Axis], tolerance: float
) -> None:
    together = interpret(graph, arrays)
    count = next(x.shape[a] for x, a in zip(arrays, axes, strict=True) if a is not None)
    for row in range(count):
        part = [taken(x, axis, row) for x, axis in zip(arrays, axes, strict=True)]
        for whole, found, axis in zip(together, interpret(graph, part), proof.outputs, strict=True):
            wanted = taken(whole, axis, row)
            assert found.shape == wanted.shape
            if whole.dtype.kind in "fc":
                scale = tolerance * np.abs(wanted[np.isfinite(wanted)]).max(initial=0)
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=scale)
            else:
                np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("family", sorted({op.family for op in all_ops().values()}))
def test_op_proven_to_keep_rows_apart_does(family: str) -> None:
    for op in all_ops().values():
        if op.family == family:
            for graph, proof, arrays, axes in islice(proven(op), 12):
                check_alone(graph, proof, arrays, axes, 1e-6)


def test_most_ops_are_proven_for_some_axis() -> None:
    names = [name for name, op in all_ops().items() if next(proven(op), None)]
    assert len(names) >= 190, f"{len(names)}: {names}"


def traced(function: Any, *shapes: tuple[Any, ...]) -> RowProof:
    return prove_rows(fw.trace(function, *[fw.Spec(shape, "float32") for shape in shapes]))


@pytest.mark.parametrize(
    ("function", "shapes", "reason"),
    [
        (lambda x: x - x.mean(), [("n", 4)], "mixes rows: inside, reduce_sum combines the el"),
        (lambda x: x.sum(0), [("n", 4)], "reduce_sum combines the elements of all rows"),
        (lambda x: np.cumsum(x, 0), [("n", 4)], "cumsum works along the axis of rows"),
        (lambda x: x[::-1], [("n", 4)], "takes a part of the rows"),
        (lambda x: x @ x.T, [("n", 4)], "combines"),
        (lambda x: x.reshape(2, -1), [("n", 4)], "splits rows into parts"),
        (lambda x: x * 2, [(1, 4)], "the input x (float32[1, 4]) has a fixed batch size of 1"),
        (lambda x: x.sum(1), [("n", "n")], "sizes depend on the number of rows"),
        (lambda x: x + np.ones((3, 4), np.float32), [("n", 4)], "makes float32[3, 4], "),
        (lambda x: np.ones(3, np.float32), [("n", 4)], "has no row for each row of the inputs"),
        (lambda x: x * x.shape[0], [("n", 4)], "number of rows"),
        (lambda x: np.concatenate([x, x]), [("n", 4)], "joins along the axis of rows"),
    ],
)
def test_graph_that_mixes_rows_is_refused_by_the_node(
    function: Any, shapes: Any, reason: str
) -> None:
    proof = traced(function, *shapes)
    assert not proof.is_proven
    assert reason in str(proof.refusal)


def test_rows_may_lie_along_other_axes_and_inputs_be_shared() -> None:
    proof = traced(lambda x, h, s: (x @ h[0].T * s, h * 2), ("n", 4), (1, "n", 4), ())
    assert "combines" in str(proof.refusal)
    proof = traced(lambda x, h, s: (x * h[0] * s, h * 2), ("n", 4), (1, "n", 4), ())
    assert proof == RowProof((0, 1, None), (0, 1))


# What the whole zoo proves is in docs/serving.md.
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("minilm-l3", None),
        ("ppocr-rec", None),
        ("ppocr-cls", None),
        ("magika", None),
        ("mnist", "the input Input3 (float32[1, 1, 28, 28]) has a fixed batch size of 1"),
        ("mel-frontend", "reduce_max combines the elements of all rows"),
    ],
)
def test_real_model_is_proven_or_refused_by_name(name: str, reason: str | None) -> None:
    if not zoo.path(name).exists():
        pytest.skip(f"{name} is not fetched")
    proof = prove_rows(Session().rewrite(fw.load(str(zoo.path(name)))))
    assert proof.refusal == reason or (reason is not None and reason in str(proof.refusal))


def test_rows_of_a_real_model_are_the_same_alone() -> None:
    if not zoo.path("ppocr-cls").exists():
        pytest.skip("ppocr-cls is not fetched")
    graph = fw.load(str(zoo.path("ppocr-cls")))
    proof = prove_rows(graph)
    x = np.random.default_rng(0).standard_normal((2, 3, 48, 64)).astype(np.float32)
    check_alone(graph, proof, [x], list(proof.inputs), 1e-4)
