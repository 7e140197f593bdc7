"""Kernels one by one: the same alone as in the whole, and known whatever they are called."""

from typing import Any

import numpy as np

import fusewire as fw
from fusewire import ops
from fusewire.fusion.grouping import Fusion, fuse
from fusewire.ir.graph import Graph
from fusewire.kernel.lower.region import lower_fusion
from fusewire.kernel.tuning import DistinctKernel, distinct_kernels, key_of


def traced(f: Any, *shapes: tuple[int, ...]) -> Graph:
    return fw.trace(f, *(fw.Spec(shape, "float32") for shape in shapes))


def fused(graph: Graph) -> Fusion:
    return fuse(graph, lambda node: "It is given in parts." if node.op == "softmax" else None)


def parts(graph: Graph) -> list[DistinctKernel]:
    return list(distinct_kernels(fused(graph), fused, {}))


def test_all_kernels_of_a_graph_have_a_part() -> None:
    graph = traced(lambda x, w: np.max(ops.softmax(x @ w), axis=0) + 1, (6, 8), (8, 8))
    whole = [key_of(kernel) for kernel in lower_fusion(fused(graph)).kernels]
    assert len(whole) > 1
    assert [part.key for part in parts(graph)] == whole


def test_a_kernel_that_comes_again_is_one_part() -> None:
    graph = traced(lambda x, a, b: np.tanh(np.tanh(x @ a) @ b), (8, 8), (8, 8), (8, 8))
    (part,) = parts(graph)
    assert part.count == 2
    (kernel,) = lower_fusion(fused(part.graph)).kernels
    assert key_of(kernel) == part.key


def test_sizes_dtypes_and_operands_tell_kernels_apart() -> None:
    graphs = [
        traced(lambda x, y: x - y, (4, 4), (4, 4)),
        traced(lambda x, y: x - x * y, (4, 4), (4, 4)),
        traced(lambda x, y: x - y, (4, 5), (4, 5)),
        traced(lambda x, y: x - y, (4, 4), (1, 4)),
        fw.trace(lambda x, y: x - y, fw.Spec((4, 4), "int32"), fw.Spec((4, 4), "int32")),
    ]
    assert len({part.key for graph in graphs for part in parts(graph)}) == len(graphs)
    # What is taken from what is a name: the kernel is the same.
    assert parts(graphs[0])[0].key == parts(traced(lambda a, b: b - a, (4, 4), (4, 4)))[0].key
