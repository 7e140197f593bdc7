"""Graphs: constants, printing, hashing, verifying. Ops here are names; the IR knows none."""

from collections.abc import Callable

import numpy as np
import pytest

from fusewire import dtypes
from fusewire.dtypes import bool_, float32, int64
from fusewire.errors import GraphError, ParseError, VerifyError
from fusewire.ir.builder import Builder, Rebuild, bind_symbols, constant, inline
from fusewire.ir.dims import Symbol, symbol, unbacked
from fusewire.ir.graph import Attr, Constant, Graph, Node, Value
from fusewire.ir.hash import exact_hash, structural_hash
from fusewire.ir.text import constants_of, parse_graph, print_graph
from fusewire.ir.types import OptionalType, SequenceType, TensorType
from fusewire.ir.verify import CHECKS, broken, verify_graph

F3 = TensorType(float32, (3,))


def _value(shape: tuple[object, ...] = (3,), name: str = "x") -> Value:
    return Value(TensorType(float32, shape), name)  # type: ignore[arg-type]


def _rich() -> Graph:
    """A graph with everything the text must carry."""
    n = symbol("batch size")
    builder = Builder("all of it")
    x = builder.input(TensorType(float32, (n, 3)), "x")
    flag = builder.input(TensorType(bool_, ()), "weird name%")
    words = builder.input(SequenceType(OptionalType(TensorType(dtypes.string, (n,)))), "words")
    small = builder.constant(np.array([1.5, -0.0, np.nan, np.inf], np.float32), "small")
    large = builder.constant(np.arange(400, dtype=np.int64), "large")
    half = builder.constant(np.array([1, 2], dtypes.bfloat16.numpy))
    text = builder.constant(np.array(["a", 'b"\n'], object))
    operand = Value(TensorType(float32, (n, 3)), "x")
    inner = Node("relu", [operand], {}, [operand.type])
    body = Graph([operand], inner.outputs, name="then", output_names=["y"])
    attrs: dict[str, Attr] = {
        "axis": -1,
        "scale": 0.1,
        "mode": 'quoted "mode"',
        "to": float32,
        "on": True,
        "off": None,
        "sizes": (n, 2 * n + 1, 4),
        "one": (1,),
        "none": (),
        "nested": ((1, 2), (3.0, "x")),
        "limit": float("-inf"),
        "count": unbacked("u0"),
        "kind": F3,
        "then": body,
    }
    made = builder.node(
        "everything",
        [x, None, flag, words, small, large, half, text],
        attrs,
        [TensorType(float32, (n, unbacked("u0"))), F3],
        "the node",
    )
    twice = Node("twice", [made[1]], {}, [F3], names=["x"])
    builder._nodes.append(twice)
    return builder.finish([made[0], twice.outputs[0], x], ["first", "second out", "third"])


def test_text_parses_back_to_the_same_graph() -> None:
    graph = _rich()
    text = print_graph(graph)
    again = parse_graph(text, constants_of(graph))
    assert print_graph(again) == text
    assert exact_hash(again) == exact_hash(graph)
    assert [v.name for v in again.inputs] == [v.name for v in graph.inputs]
    assert again.nodes[0].name == "the node"
    assert again.nodes[1].outputs[0].name == "x"
    verify_graph(again)


def test_every_prefix_of_a_text_is_a_parse_error() -> None:
    text = print_graph(_rich())
    for end in range(0, len(text) - 1, 7):
        with pytest.raises(ParseError, match="line"):
            parse_graph(text[:end])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph a(%x: float32[3]) { return %y as y }", "used before it is defined"),
        ("graph a(%x: float33[3]) { return %x as y }", "not a type"),
        ("graph a(%x: float32[3], %x: float32[3]) { return %x as y }", "defined twice"),
        ("graph a() { %c = constant float32[2] {1.0} return %c as y }", "do not fit float32"),
        ("graph a() { %c = constant float32[n] {1.0} return %c as y }", "known dims"),
        (f"graph a() {{ %c = constant float32[9] sha256:{'0' * 64} return %c as c }}", "constants"),
        ("graph a() { %a, %b = f() : float32[] return %a as y }", "2 values and 1 types"),
        ("graph a() { return } graph", "expected the end"),
        ("graph a(%x: float32[~]) { return }", "unexpected character"),
        ("graph a(%x: " + "sequence<" * 100 + "float32[]" + ">" * 100 + ") { return }", "nested"),
        ("graph a(%x: float32[" + "(" * 100 + "1" + ")" * 100 + "]) { return }", "nested"),
    ],
)
def test_bad_text_says_where_and_what(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_graph(text)


@pytest.mark.parametrize("of", [d for d in dtypes.ALL if d is not dtypes.string])
def test_constants_keep_their_bits_in_text(of: dtypes.DType) -> None:
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, 16 * of.itemsize, dtype=np.uint8)
    if of.bits < 8:
        array = rng.integers(0, 2, 16).astype(of.numpy)
    else:
        array = raw.view(of.numpy)
    x = constant(array)
    graph = Graph([], [x])
    (again,) = parse_graph(print_graph(graph)).outputs
    assert again.constant is not None
    assert again.constant.array.tobytes() == array.tobytes()


def test_constant_is_loaded_once_and_cannot_change() -> None:
    loads = []

    def load() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        loads.append(1)
        return np.ones(3, np.float32)

    held = Constant(F3, load)
    assert not loads
    assert held.digest == Constant.of(np.ones(3, np.float32)).digest
    assert held.array is held.array
    assert len(loads) == 1
    with pytest.raises(ValueError, match="read-only"):
        held.array[0] = 2
    mine = np.ones(3, np.float32)
    copied = Constant.of(mine)
    mine[0] = 5
    assert copied.array[0] == 1


def test_constant_that_lies_about_its_type_is_refused() -> None:
    with pytest.raises(GraphError, match="declared as"):
        _ = Constant(F3, lambda: np.ones(4, np.float32)).array


def _chain(names: list[str], array: list[float], first: str = "x") -> Graph:
    x = _value((symbol(names[0]), 3), first)
    weight = constant(np.array(array, np.float32), names[1])
    add = Node("add", [x, weight], {"size": symbol(names[0])}, [x.type], name=names[2])
    return Graph([x], add.outputs, name=names[3])


BIG = [float(i) for i in range(30)]


def test_structural_hash_is_blind_to_names_and_weights() -> None:
    one = _chain(["n", "w", "add1", "main"], BIG)
    other = _chain(["batch", "v", "add2", "net"], BIG[::-1], "y")
    assert structural_hash(one) == structural_hash(other)
    assert exact_hash(one) != exact_hash(other)


def test_exact_hash_is_blind_to_names() -> None:
    one = _chain(["n", "w", "add1", "main"], BIG)
    other = _chain(["batch", "v", "add2", "net"], BIG, "y")
    assert exact_hash(one) == exact_hash(other)


def test_small_constants_belong_to_the_structure() -> None:
    one, other = (
        _chain(["n", "w", "a", "m"], values) for values in ([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])
    )
    assert structural_hash(one) != structural_hash(other)


def test_hashes_do_not_depend_on_the_order_of_independent_nodes() -> None:
    x = _value()
    a, b = (Node(op, [x], {}, [F3]) for op in ("exp", "log"))
    both = Node("add", [a.outputs[0], b.outputs[0]], {}, [F3])
    one = Graph([x], both.outputs, [a, b, both])
    other = Graph([x], both.outputs, [b, a, both])
    assert exact_hash(one) == exact_hash(other)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: Node("mul", [x, x], {"axis": 1}, [F3]),
        lambda x: Node("add", [x, None], {"axis": 1}, [F3]),
        lambda x: Node("add", [x, x], {"axis": 2}, [F3]),
        lambda x: Node("add", [x, x], {"axis": 1.0}, [F3]),
        lambda x: Node("add", [x, x], {"axis": 1}, [TensorType(float32, (4,))]),
    ],
)
def test_hashes_see_every_change(change: Callable[[Value], Node]) -> None:
    x = _value()
    plain = Graph([x], Node("add", [x, x], {"axis": 1}, [F3]).outputs)
    assert structural_hash(Graph([x], change(x).outputs)) != structural_hash(plain)


def test_rebuilding_shares_what_does_not_change() -> None:
    x = _value()
    a = Node("exp", [x], {}, [F3])
    b = Node("log", [a.outputs[0]], {}, [F3], name="b")
    other = Node("abs", [x], {}, [F3])
    c = Node("add", [b.outputs[0], other.outputs[0]], {}, [F3])
    rebuild = Rebuild(Graph([x], c.outputs))
    for node in rebuild.graph.nodes:
        copied = rebuild.copied(node)
        rebuild.replace(node, [x] if node is a else copied.outputs)
    new = rebuild.finish()
    assert [node.op for node in new.nodes] == ["log", "abs", "add"]
    assert new.nodes[0].name == "b"
    assert new.nodes[1] is other
    with pytest.raises(GraphError, match="1 outputs"):
        rebuild.replace(a, [])


def test_deep_graphs_need_no_recursion() -> None:
    x = value = _value()
    for _ in range(50_000):
        value = Node("exp", [value], {}, [F3]).outputs[0]
    graph = Graph([x], [value])
    assert len(graph.nodes) == 50_000
    assert len(inline(graph, [_value()])) == 1


def test_symbols_are_bound_everywhere_but_where_a_subgraph_names_its_own() -> None:
    graph = _rich()
    bound = bind_symbols(graph, {Symbol("batch size"): 4})
    text = print_graph(bound)
    assert "%x: float32[4, 3]" in text
    assert "sizes=(4, 9, 4)" in text
    assert bound.nodes[0].attrs["then"] is graph.nodes[0].attrs["then"]
    verify_graph(bound)


# One planted fault for every check of the verifier.


def _good() -> tuple[Value, Node, Node]:
    x = _value()
    first = Node("exp", [x], {}, [F3])
    return x, first, Node("log", [first.outputs[0]], {}, [F3])


def _unique_inputs() -> Graph:
    x, a, b = _good()
    return Graph([x, x], b.outputs, [a, b])


def _plain_inputs() -> Graph:
    _, a, b = _good()
    return Graph([a.outputs[0]], b.outputs, [b])


def _input_names() -> Graph:
    x, a, b = _good()
    return Graph([x, _value()], b.outputs, [a, b])


def _unique_nodes() -> Graph:
    x, a, b = _good()
    return Graph([x], b.outputs, [a, b, b])


def _node_outputs() -> Graph:
    x, a, b = _good()
    return Graph([x], b.outputs, [a, b, Node("nothing", [x], {}, [])])


def _defined_before_use() -> Graph:
    x, a, b = _good()
    return Graph([x], b.outputs, [b, a])


def _outputs_defined() -> Graph:
    x, a, b = _good()
    return Graph([x], b.outputs, [a])


def _output_names() -> Graph:
    x, a, b = _good()
    return Graph([x], [*a.outputs, *b.outputs], [a, b], output_names=["y", "y"])


def _constant_types() -> Graph:
    lie = Value(TensorType(float32, (4,)), None, Constant.of(np.ones(3, np.float32)))
    return Graph([], Node("exp", [lie], {}, [F3]).outputs)


def _dims() -> Graph:
    x = _value((-1,))
    return Graph([x], Node("exp", [x], {}, [F3]).outputs)


def _attr_kinds() -> Graph:
    x = _value()
    return Graph([x], Node("exp", [x], {"a": [1]}, [F3]).outputs)  # type: ignore[dict-item]


def _symbols_bound() -> Graph:
    x = _value((symbol("n") * 2,))
    return Graph([x], Node("exp", [x], {}, [x.type]).outputs)


def _types_agree() -> Graph:
    x = _value()
    return Graph([x], Node("exp", [x], {}, [TensorType(int64, (3,))]).outputs)


FAULTS: list[Callable[[], Graph]] = [
    _unique_inputs, _plain_inputs, _input_names, _unique_nodes, _node_outputs,
    _defined_before_use, _outputs_defined, _output_names, _constant_types, _dims, _attr_kinds,
    _symbols_bound, _types_agree,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_verifier_names_the_broken_check(fault: Callable[[], Graph]) -> None:
    check = fault.__name__.strip("_").replace("_", "-")
    found = dict(broken(fault(), lambda node: [v.type for v in node.operands]))
    assert check in found, found
    x, a, b = _good()
    assert not list(broken(Graph([x], b.outputs, [a, b]), lambda node: [F3]))


def test_every_check_has_a_fault() -> None:
    assert {fault.__name__.strip("_").replace("_", "-") for fault in FAULTS} == set(CHECKS)


def test_verifier_looks_into_subgraphs() -> None:
    body = _outputs_defined()
    x = _value()
    graph = Graph([x], Node("cond", [x], {"then": body}, [F3]).outputs)
    with pytest.raises(VerifyError, match="outputs-defined"):
        verify_graph(graph)
