"""What ops require of the integers of their operands: declared once, checked at each node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusewire.errors import CheckError
from fusewire.ops import (
    container,
    detection,
    indexing,
    loss,
    pooling,
    recurrent,
    scatter,
    sorting,
    sparse,
)
from fusewire.ops.interpret import graph_of
from fusewire.ops.requires import Operands
from fusewire.ops.table import all_ops

# Index operands of these may be any integer, or are sizes and counts.
ANY_INTEGER = {
    "one_hot": "an index outside writes nothing",
    "dynamic_update_slice": "a start is moved to fit inside",
    "dynamic_slice": "bounds are cut to the axis, as Python does",
    "non_max_suppression": "a limit",
    "range": "its ends are what its elements are made of",
    "dynamic_reshape": "sizes",
    "dynamic_broadcast_to": "sizes",
    "dynamic_full": "sizes",
    "dynamic_tile": "counts",
    "dynamic_pad": "widths",
    "dynamic_resize": "sizes",
    "split_to_sequence": "sizes",
    "sequence_at": "the length of a sequence is in no type: the reference checks",
    "sequence_insert": "a position outside is one of the ends",
    "sequence_erase": "the length of a sequence is in no type: the reference checks",
}


def test_every_index_operand_has_a_requirement_or_takes_any_integer() -> None:
    for op in all_ops().values():
        operands = {requirement.operand for requirement in op.requires}
        assert operands <= set(op.parameters[0]), op.name
        if op.index_operands and op.name not in ANY_INTEGER:
            assert operands, f"{op.name} says nothing of {', '.join(op.index_operands)}"


def float_array(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def ints(*items: Any) -> Any:
    return np.array(items, np.int64)


X = float_array(4, 3)
LAYER = float_array(5, 2, 3), float_array(1, 8, 3), float_array(1, 8, 2)
BOX = np.zeros((1, 4), np.float32)
# An op on values that it allows just so, and on one that it does not.
CASES: dict[str, tuple[Callable[[Any], Any], list[int], list[int]]] = {
    "gather": (lambda i: indexing.gather(X, ints(i), axis=0), [-4, 3], [-5, 4]),
    "embedding": (lambda i: indexing.embedding(X, ints(i)), [-4, 3], [-5, 4]),
    "gather_elements": (
        lambda i: indexing.gather_elements(X, ints([0, i]), axis=1),
        [-3, 2],
        [-4, 3],
    ),
    "gather_nd": (lambda i: indexing.gather_nd(X, ints([3, i])), [-3, 2], [-4, 3]),
    "reverse_sequence": (
        lambda n: indexing.reverse_sequence(X, ints(1, n, 1), batch_axis=1, time_axis=0),
        [0, 4],
        [-1, 5],
    ),
    "scatter_elements": (
        lambda i: scatter.scatter_elements(X, ints([i]), float_array(1, 1), axis=0),
        [-4, 3],
        [-5, 4],
    ),
    "scatter_nd": (
        lambda i: scatter.scatter_nd(X, ints([i]), float_array(1, 3)),
        [-4, 3],
        [-5, 4],
    ),
    "tensor_scatter": (
        lambda i: scatter.tensor_scatter(float_array(1, 5, 2), float_array(1, 2, 2), ints(i)),
        [0, 3],
        [-1, 4],
    ),
    "lstm": (
        lambda n: recurrent.lstm(*LAYER, None, np.array([n, 1], np.int32)),
        [0, 5],
        [-1, 6],
    ),
    "nll_loss": (
        lambda i: loss.nll_loss(X, ints(0, i, 0, 0), ignore_index=-7),
        [0, 2, -7],
        [-1, 3],
    ),
    "cross_entropy": (lambda i: loss.cross_entropy(X, ints(0, i, 0, 0)), [0, 2], [-1, 3]),
    "max_unpool": (
        lambda i: pooling.max_unpool(float_array(1, 1, 1), ints([[i]]), shape=(1, 1, 4)),
        [-4, 3],
        [-5, 4],
    ),
    "roi_align": (
        lambda i: detection.roi_align(float_array(2, 1, 4, 4), BOX, ints(i), sizes=(1, 1)),
        [0, 1],
        [-1, 2],
    ),
    "coo_matmul": (
        lambda i: sparse.coo_matmul(ints([1, i]), float_array(1), X, rows=2),
        [-4, 3],
        [-5, 4],
    ),
    "coo_to_dense": (
        lambda i: sparse.coo_to_dense(ints([i, 0]), float_array(1), rows=2, columns=9),
        [-2, 1],
        [-3, 2],
    ),
    "csr_matmul": (
        lambda i: sparse.csr_matmul(ints(0, 1), ints(i), float_array(1), X),
        [-4, 3],
        [-5, 4],
    ),
    "csr_to_dense": (
        lambda i: sparse.csr_to_dense(ints(0, 1), ints(i), float_array(1), columns=3),
        [-3, 2],
        [-4, 3],
    ),
    "dynamic_top_k": (lambda k: sorting.dynamic_top_k(X, np.array(k)), [0, 3], [-1, 4]),
    "sequence_at": (
        lambda i: container.sequence_at([X, X], np.array(i)),
        [-2, 1],
        [-3, 2],
    ),
    "sequence_erase": (
        lambda i: container.sequence_erase([X, X], np.array(i)),
        [-2, 1],
        [-3, 2],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_check_error_begins_where_the_interval_ends(name: str) -> None:
    run, allowed, refused = CASES[name]
    for number in allowed:
        run(number)
    for number in [*refused, -(2**62), 2**62]:
        if name == "lstm" and abs(number) > 2**31:
            continue
        with pytest.raises(CheckError, match=rf"^{name}\b.* is {number}; it must be from"):
            run(number)


def test_message_names_node_operand_and_element() -> None:
    with pytest.raises(CheckError) as caught:
        indexing.gather(X, ints([0, 1], [2, 9]), axis=0)
    assert str(caught.value) == "gather: indices[1, 1] is 9; it must be from -4 to 3."


def test_nothing_can_be_read_from_an_empty_axis() -> None:
    indexing.gather(X[:0], ints(), axis=0)
    with pytest.raises(CheckError, match="no number is allowed"):
        indexing.gather(X[:0], ints(0), axis=0)


def test_composites_declare_what_engines_would_lose_by_expanding_them() -> None:
    """A composite with lengths has no index left in it once it is expanded."""
    assert {"rnn", "lstm", "gru"} <= {op.name for op in all_ops().values() if op.requires}


def test_requirements_follow_from_types_alone() -> None:
    graph, _ = graph_of(indexing.gather, [X, ints(0)], {"axis": -1})
    (node,) = graph.nodes
    (requirement,) = indexing.gather.requires
    operands = Operands(node, indexing.gather.parameters[0])
    assert requirement.intervals(operands) == ((-3, 2),)
