"""The kernels that graphs become: how many, of which shape, with what left in them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.errors import RefusedError
from fusewire.fusion.grouping import fuse
from fusewire.ir.graph import Graph
from fusewire.kernel.analysis import contraction_of, shape_of, walk
from fusewire.kernel.form import BufferLoad, BufferStore, Fold, Kernel, Loop, Lowered, Repeat
from fusewire.kernel.index import flatten, has_division
from fusewire.kernel.interpret import interpret
from fusewire.kernel.lower.region import lower, lower_fusion
from fusewire.kernel.lower.table import refusal
from fusewire.kernel.text import print_kernel
from fusewire.kernel.verify import verify_lowered
from fusewire.numerics.judge import judge_op


def traced(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32") -> Graph:
    return fw.trace(function, *(fw.Spec(shape, dtype) for shape in shapes))


def lowered(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Lowered:
    """Fuse and lower a function, and check that it computes the same."""
    graph = traced(function, *shapes)
    made = lower_fusion(fuse(graph, refusal))
    verify_lowered(made)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    verdict = judge_op(graph, inputs, interpret(made, inputs))
    assert verdict.status == "right", verdict.reason
    return made


def only(made: Lowered) -> Kernel:
    (kernel,) = made.kernels
    return kernel


def test_a_softmax_is_one_kernel_of_three_stages() -> None:
    kernel = only(lowered(lambda x: ops.softmax(x), (2, 3, 5)))
    assert shape_of(kernel) == "rows"
    assert print_kernel(kernel) == (
        "kernel divide_1 for i0_1 < 6\n"
        "  v4 = maximum over a2 < 5\n"
        "    v3: float32 = in0{5*i0_1 + a2}\n"
        "    give v3\n"
        "  v11 = add over a7 < 5\n"
        "    v8: float32 = in0{5*i0_1 + a7}\n"
        "    v9: float32 = subtract(v8, v4)\n"
        "    v10: float32 = exp(v9)\n"
        "    give v10\n"
        "  for i2 < 5\n"
        "    v1: float32 = in0{5*i0_1 + i2}\n"
        "    v5: float32 = subtract(v1, v4)\n"
        "    v6: float32 = exp(v5)\n"
        "    v12: float32 = divide(v6, v11)\n"
        "    out0{5*i0_1 + i2} = v12"
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_norms_are_one_kernel_along_any_axis(axis: int) -> None:
    kernel = only(lowered(lambda x: ops.softmax(x, axis=axis), (2, 3, 4)))
    assert shape_of(kernel) == "rows"
    assert shape_of(only(lowered(lambda x: ops.rms_norm(x, axis=axis), (2, 3, 4)))) == "rows"


def test_what_does_not_depend_on_a_loop_is_computed_before_it() -> None:
    kernel = only(lowered(lambda x, s: ops.layer_norm(x, s), (4, 6), (6,)))
    loop = kernel.body[-1]
    assert isinstance(loop, Loop)
    assert [type(s) for s in kernel.body].count(Fold) == 2
    assert not any(isinstance(s, Fold) for s in loop.body)
    assert "rsqrt" in print_kernel(kernel).split("for i1")[0].split("over")[-1]


def test_attention_is_one_kernel_that_keeps_a_row() -> None:
    shapes = (2, 4, 8, 16), (2, 2, 6, 16), (2, 2, 6, 16)
    kernel = only(lowered(lambda q, k, v: ops.attention(q, k, v, causal=True), *shapes))
    assert [buffer.shape for buffer in kernel.locals] == [(6,), (6,)]
    assert len([s for s in kernel.body if isinstance(s, Loop)]) == 3


def test_an_elementwise_chain_is_one_axis_without_divisions() -> None:
    kernel = only(lowered(lambda x, y: np.maximum(x * 2 + y, 0) * x, (2, 3, 4), (2, 3, 4)))
    assert shape_of(kernel) == "map"
    assert [axis.extent for axis in kernel.axes] == [24]
    places = [
        flatten(s.index, kernel.buffer(s.buffer).shape)
        for s in walk(kernel.body)
        if isinstance(s, BufferLoad | BufferStore)
    ]
    assert len(places) == 3
    assert not any(map(has_division, places))


def test_views_are_no_kernels() -> None:
    def moved(x: Any) -> Any:
        y = np.transpose(np.reshape(x, (4, 6)), (1, 0))[1:, ::-1]
        return np.exp(np.concatenate([y, y], 0))

    kernel = only(lowered(moved, (2, 3, 4)))
    assert sum(isinstance(s, BufferLoad) for s in walk(kernel.body)) == 2


def test_a_product_names_its_factors() -> None:
    kernel = only(lowered(lambda a, b: np.maximum(a @ b + 1, 0), (2, 5, 7), (2, 7, 3)))
    found = contraction_of(kernel)
    assert found is not None
    roles = [found.batch, found.rows, found.columns, found.depth]
    assert [[axis.extent for axis in axes] for axes in roles] == [[2], [5], [3], [7]]
    assert len(found.after) == 5
    assert [type(s) for s in (*found.left, *found.right)] == [BufferLoad, BufferLoad]


def test_a_convolution_is_a_product_with_guarded_loads() -> None:
    def conv(x: Any, w: Any, b: Any) -> Any:
        return ops.relu(ops.conv(x, w, b, padding=((1, 1), (1, 1))))

    kernel = only(lowered(conv, (2, 3, 8, 8), (4, 3, 3, 3), (4,)))
    found = contraction_of(kernel)
    assert found is not None
    assert [axis.extent for axis in found.columns] == [4]
    assert [axis.extent for axis in found.rows] == [2, 8, 8]
    (read,) = found.left
    assert isinstance(read, BufferLoad)
    assert len(read.guard) == 2


def test_an_explicit_pad_is_part_of_the_convolution() -> None:
    def conv(x: Any, w: Any) -> Any:
        return ops.conv(ops.pad(x, padding=((0, 0), (0, 0), (2, 1), (0, 1))), w)

    assert shape_of(only(lowered(conv, (1, 2, 5, 5), (3, 2, 3, 3)))) == "contraction"


def test_a_recurrent_layer_repeats_few_kernels() -> None:
    def layer(x: Any, w: Any, r: Any) -> Any:
        return ops.lstm(x, w, r)[0]

    made = lowered(layer, (7, 2, 3), (1, 16, 3), (1, 16, 4))
    (repeat,) = [step for step in made.steps if isinstance(step, Repeat)]
    assert repeat.step.extent == 7
    assert len(repeat.kernels) <= 3
    assert all(kernel.steps == (repeat.step,) for kernel in repeat.kernels)


def test_a_running_sum_is_serial() -> None:
    kernel = only(lowered(lambda x: ops.cumsum(ops.exp(x), axis=1), (3, 5)))
    assert shape_of(kernel) == "serial"


def test_an_output_that_is_a_reshape_is_stored_in_place() -> None:
    only(lowered(lambda x: np.reshape(ops.softmax(x), (12,)), (3, 4)))


def test_outputs_that_are_inputs_are_copied() -> None:
    made = lowered(lambda x, y: (x, x + y, np.transpose(x)), (3, 4), (3, 4))
    assert len(made.kernels) == 3


def test_without_fusion_every_node_is_a_kernel() -> None:
    graph = traced(lambda x, y: np.exp(x * y) + np.transpose(y), (4, 4), (4, 4))
    assert len(lower(graph).kernels) == 3
    assert len(lower_fusion(fuse(graph, refusal)).kernels) == 1


def test_a_graph_with_a_node_that_has_no_kernel_is_refused() -> None:
    graph = traced(lambda x: ops.det(x), (3, 3))
    with pytest.raises(RefusedError, match=r"det has no kernel: it is a factorisation"):
        lower(graph)


def test_a_shape_that_only_a_run_tells_is_refused() -> None:
    graph = fw.trace(np.exp, fw.Spec(("n", 4), "float32"))
    with pytest.raises(RefusedError, match=r"made for one shape"):
        lower(graph)
