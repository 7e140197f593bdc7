"""What the graph proves of an index is the least interval, and nothing narrower is proven."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from fusewire import ops
from fusewire.dtypes import bool_, float32, int32, int64
from fusewire.ir.dims import Dim, symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.planning.proof import Prover

N, M = symbol("n"), symbol("m")
Given: TypeAlias = "dict[str, Value]"


def given() -> Given:
    """The inputs of the graphs: their elements may be anything."""
    types = {
        "x": TensorType(float32, (N, 5)),
        "y": TensorType(float32, (M, N)),
        "ids": TensorType(int64, (N,)),
        "ten": TensorType(float32, (10,)),
        "few": TensorType(int32, (5,)),
        "mask": TensorType(bool_, (N,)),
    }
    return {name: Value(of, name) for name, of in types.items()}


def proves(made: Value, low: Dim, high: Dim, inputs: Given) -> bool:
    return Prover(Graph([*inputs.values()], [made])).proves(made, ((low, high),))


# The least interval, which is proven.
LEAST: dict[str, tuple[Callable[[Given], Value], Dim, Dim]] = {
    "a sum of two ranges": (
        lambda v: ops.add(ops.clip(v["few"], 0, 5), ops.clip(v["few"], -3, 9)), -3, 14
    ),
    "a number and a place": (
        lambda v: ops.add(ops.clip(v["ids"], 0, 5), ops.argmax(v["ten"], axis=0)), 0, 14
    ),
    "a range and places of an order": (
        lambda v: ops.add(ops.clip(v["ids"], 0, 5), ops.argsort(v["y"], axis=0)), 0, M + 4
    ),
    "places of an order and a range": (
        lambda v: ops.add(ops.argsort(v["y"], axis=0), ops.clip(v["ids"], 0, 5)), 0, M + 4
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEAST)
def test_least_interval_is_proven_and_no_narrower_one(name: str) -> None:
    build, low, high = LEAST[name]
    inputs = given()
    made = build(inputs)
    assert proves(made, low, high, inputs)
    assert not proves(made, low + 1, high, inputs)
    assert not proves(made, low, high - 1, inputs)
