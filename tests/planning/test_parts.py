"""Nodes that may stay exact are measured in few parts, of about as much work each."""

import numpy as np

import fusewire as fw
from fusewire.planning.parts import joined


def test_parts_cover_the_nodes_in_order_and_small_ones_are_joined() -> None:
    graph = fw.trace(
        lambda x, y: np.tanh(np.exp(np.sin(x @ y)) @ y), *[fw.Spec((64, 64), "float32")] * 2
    )
    single = [[node] for node in graph.nodes]
    for most in (2, 3, 99):
        found = joined(single, {}, most)
        assert [node for part in found for node in part] == list(graph.nodes)
        assert len(found) == min(most, len(graph.nodes))
    # The products have the most to do: each is in a part of its own.
    assert [sum(x.op == "matmul" for x in part) for part in joined(single, {}, 2)] == [1, 1]
