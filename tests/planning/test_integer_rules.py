"""What is proven of an integer is what runs: on the reference, and in each engine's arithmetic."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.dtypes import float32, int64
from fusewire.facts.proof import Prover
from fusewire.facts.ranges import ranges
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.ranges import Range
from fusewire.rewrite.narrowing import Narrowing
from tests.planning.integer_rules import RULES, graph_inputs, sets

SETS = 40
TOP = 60
TABLE = np.arange(TOP + 1, dtype=np.float32) + 0.5
# So far that 32 bits are too few for some, and 63 for others.
FAR = 2**31 + 5


def _made(name: str) -> tuple[Graph, Value]:
    inputs = graph_inputs()
    value = RULES[name](inputs)
    return Graph(list(inputs.values()), [value]), value


@cache
def _answers() -> Mapping[str, list[Any]]:
    """Compute what each rule gives for each set, on the reference."""
    inputs = graph_inputs()
    graph = Graph(list(inputs.values()), [rule(inputs) for rule in RULES.values()])
    program = fw.compile(graph, backend="reference", cache=False)
    rows = [program(*given) for given in sets(SETS)]
    return {name: [np.asarray(row[at]) for row in rows] for at, name in enumerate(RULES)}


def _extremes(name: str) -> Range:
    found = [array for array in _answers()[name] if array.size]
    return Range(min(int(x.min()) for x in found), max(int(x.max()) for x in found))


@pytest.mark.parametrize("name", RULES)
def test_no_proof_excludes_what_happens(name: str) -> None:
    graph, value = _made(name)
    seen, prover = _extremes(name), Prover(graph)
    least, most = -(2**63), 2**63 - 1
    for high in (seen.high - 1, seen.high // 2, seen.low, -1, 0, 9, TOP):
        assert high >= seen.high or not prover.proves(value, [(least, high)])
    for low in (seen.low + 1, seen.low // 2, seen.high, 0, 1):
        assert low <= seen.low or not prover.proves(value, [(low, most)])


@pytest.mark.parametrize("name", RULES)
def test_range_has_all_that_happens(name: str) -> None:
    graph, value = _made(name)
    seen, known = _extremes(name), ranges(graph)[value]
    assert seen.within(known.low, known.high)


@pytest.mark.parametrize("name", RULES)
def test_what_is_narrow_fits(name: str) -> None:
    graph, value = _made(name)
    # It is data here, and so is what it is made of: nothing is checked of that as it enters.
    assert not Narrowing(graph).is_narrow(value) or _extremes(name).fits_int32


def _indices(value: Value) -> list[Value]:
    """Make places in the table of a value, as programs limit it."""
    whole = ops.cast(value, dtype=int64)
    far = ops.multiply(whole, np.array(FAR, np.int64))
    limited = ops.clip(far, np.array(0, np.int64), np.array(TOP, np.int64))
    return [limited, ops.remainder(whole, np.array(TOP + 1, np.int64))]


def _program(names: list[str], engine: str) -> Any:
    inputs = graph_inputs()
    outputs = []
    for name in names:
        for index in _indices(RULES[name](inputs)):
            outputs.append(ops.gather(TABLE, index, axis=0))
    graph = Graph(list(inputs.values()), outputs)
    return fw.compile(graph, backend=engine, cache=False, fallback="allow", isolate=False)


NAMES = list(RULES)
GROUPS = [NAMES[start : start + 12] for start in range(0, len(NAMES), 12)]


@pytest.mark.parametrize("group", GROUPS, ids=lambda names: names[0])
@pytest.mark.parametrize("engine", ["openvino", "onnxruntime", "xla", "webgpu", "torch"])
def test_engine_takes_the_index_that_the_reference_takes(engine: str, group: list[str]) -> None:
    """The elements of the table are distinct, so that its answer is its index tensor."""
    program, reference = _program(group, engine), _program(group, "reference")
    for given in sets(4, seed=1):
        pairs = zip(program(*given), reference(*given), strict=True)
        for place, (found, wanted) in enumerate(pairs):
            np.testing.assert_array_equal(found, wanted, err_msg=group[place // 2])


def test_a_product_of_more_sizes_than_any_memory_has_costs_nothing() -> None:
    x = Value(TensorType(float32, (0, 2**40)), "x")
    sizes = ops.broadcast_to(ops.shape_of(x), shape=(2**40, 2))
    product = ops.reduce_prod(sizes, axes=(0,))
    known = ranges(Graph([x], [product]))[product]
    assert (known.low, known.high) == (-(2**63), 2**63 - 1)
