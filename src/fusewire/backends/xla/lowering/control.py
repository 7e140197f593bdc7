"""Ops that run subgraphs. ``run(body, operands)`` traces one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax

from fusewire.backends.xla.lowering.signature import shape_of
from fusewire.backends.xla.storage import Traced
from fusewire.ir.graph import Graph, Node

Run: TypeAlias = Callable[[Graph, Sequence[Traced]], tuple[Traced, ...]]
Control: TypeAlias = Callable[..., tuple[Traced, ...]]


def _graph(node: Node, key: str) -> Graph:
    found = node.attrs[key]
    assert isinstance(found, Graph)
    return found


def _cond(run: Run, node: Node, predicate: Traced, *operands: Traced) -> tuple[Traced, ...]:
    then, otherwise = _graph(node, "then"), _graph(node, "otherwise")
    found: tuple[Traced, ...] = lax.cond(
        predicate, lambda *xs: run(then, xs), lambda *xs: run(otherwise, xs), *operands
    )
    return found


def _while(run: Run, node: Node, *operands: Traced) -> tuple[Traced, ...]:
    condition, body = _graph(node, "condition"), _graph(node, "body")
    carries: Any = node.attrs["carries"]
    count = len(operands) if carries is None else carries
    rest = operands[count:]
    found: tuple[Traced, ...] = lax.while_loop(
        lambda values: run(condition, (*values, *rest))[0],
        lambda values: run(body, (*values, *rest)),
        operands[:count],
    )
    return found


def _scan(run: Run, node: Node, *operands: Traced) -> tuple[Traced, ...]:
    body = _graph(node, "body")
    attrs: Any = node.attrs
    carries, last = attrs["carries"], attrs["carries"] + attrs["scans"]
    rest = operands[last:]

    def step(values: tuple[Traced, ...], rows: tuple[Traced, ...]) -> tuple[Any, Any]:
        found = run(body, (*values, *rows, *rest))
        return found[:carries], found[carries:]

    values, added = lax.scan(
        step, operands[:carries], operands[carries:last], attrs["length"], attrs["reverse"]
    )
    return (*values, *added)


def _loop(
    run: Run, node: Node, trips: Traced | None, condition: Traced | None, *operands: Traced
) -> tuple[Traced, ...]:
    body = _graph(node, "body")
    carries: Any = node.attrs["carries"]
    rest = operands[carries:]

    def step(index: Traced, going: Traced, values: Sequence[Traced]) -> tuple[Traced, ...]:
        flag, *found = run(body, (index, going, *values, *rest))
        return (going if condition is None else flag, *found)

    if len(body.outputs) > 1 + carries:
        return _counted(step, shape_of(node, carries)[0], operands[:carries])

    def is_going(state: tuple[Traced, ...]) -> Traced:
        return state[1] if trips is None else state[1] & (state[0] < trips)

    first = jnp.asarray(True) if condition is None else condition
    state = lax.while_loop(
        is_going,
        lambda state: (state[0] + 1, *step(state[0], state[1], state[2:])),
        (jnp.zeros((), np.int64), first, *operands[:carries]),
    )
    return tuple(state[2:])


def _counted(
    step: Callable[..., tuple[Traced, ...]], count: int, values: Sequence[Traced]
) -> tuple[Traced, ...]:
    """Run a loop that stacks what it adds: its type says how often it runs, so it runs."""

    def run(carried: tuple[Traced, ...], index: Traced) -> tuple[Any, Any]:
        flag, *found = step(index, carried[0], carried[1:])
        return (flag, *found[: len(values)]), tuple(found[len(values) :])

    carried, added = lax.scan(run, (jnp.asarray(True), *values), np.arange(count))
    return (*carried[1:], *added)


CONTROL: dict[str, Control] = {"cond": _cond, "while": _while, "scan": _scan, "loop": _loop}
