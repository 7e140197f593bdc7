"""ONNX models in: sizes kept as symbols, refusals, and bodies that use what is around them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fusewire as fw
from fusewire.errors import CheckError, FormatError, FusewireError, SizesNeededError
from fusewire.ir.types import TensorType, type_symbols
from fusewire.onnx.frontend import OnnxFrontend
from tests.onnx.models import Inputs, graph, model, run, single

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4)).astype(np.float32)
W = RNG.standard_normal((6, 4)).astype(np.float32)
INTS = np.array([[-7, 2, -2], [9, 4, 4]], np.int32)


def _chain(*nodes: onnx.NodeProto, **constants: Any) -> Any:
    inputs = {"x": ("float32", ["batch", "tokens", 12])}
    return OnnxFrontend().read(model(graph(nodes, inputs, ["y"], constants), 18))


def _make(op: str, inputs: str, output: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), output.split(), **attrs)


def _sizes(found: Any) -> set[str]:
    return {s.key for node in found.nodes for t in node.types for s in type_symbols(t)}


def test_shape_arithmetic_keeps_symbols() -> None:
    found = _chain(
        _make("Shape", "x", "shape"),
        _make("Gather", "shape zero", "batch"),
        _make("Gather", "shape one", "tokens"),
        _make("Unsqueeze", "batch axis", "batches"),
        _make("Unsqueeze", "tokens axis", "many"),
        _make("Concat", "batches many heads rest", "wanted", axis=0),
        _make("Reshape", "x wanted", "split"),
        _make("Transpose", "split", "y", perm=[0, 2, 1, 3]),
        zero=0,
        one=1,
        axis=[0],
        heads=[3],
        rest=[-1],
    )
    assert str(found.outputs[0].type) == "float32[batch, 3, tokens, 4]"
    assert [node.op for node in found.nodes] == ["reshape", "transpose"]


def test_sizes_computed_from_symbols_are_known() -> None:
    found = _chain(
        _make("Shape", "x", "many", start=1, end=2),
        _make("Squeeze", "many axis", "tokens"),
        _make("Range", "zero tokens one", "places"),
        _make("Mul", "many two", "twice"),
        _make("ConstantOfShape", "twice", "zeros"),
        _make("Slice", "zeros axis many", "first"),
        _make("Cast", "places", "numbers", to=TensorProto.FLOAT),
        _make("Add", "numbers first", "row"),
        _make("Concat", "three many", "wide", axis=0),
        _make("Expand", "row wide", "rows"),
        _make("Pad", "rows pads", "y"),
        zero=0,
        one=1,
        two=[2],
        axis=[0],
        three=[3],
        pads=[0, 1, 0, 1],
    )
    assert str(found.outputs[0].type) == "float32[3, tokens+2]"
    assert _sizes(found) == {"tokens"}


def test_size_that_only_the_run_tells_is_named_once() -> None:
    nodes = [
        _make("NonZero", "x", "places"),
        _make("Transpose", "places", "rows"),
        _make("Shape", "rows", "shape"),
        _make("ConstantOfShape", "shape", "zeros"),
        _make("EyeLike", "rows", "eye"),
        _make("Cast", "rows", "numbers", to=TensorProto.FLOAT),
        _make("Add", "numbers zeros", "sum"),
        _make("Cast", "eye", "more", to=TensorProto.FLOAT),
        _make("Add", "sum more", "total"),
        _make("Concat", "rest three", "flat", axis=0),
        _make("Reshape", "total flat", "y"),
    ]
    inputs = {"x": ("float32", ["batch", "tokens", 12])}
    constants = {"rest": [-1], "three": [3]}
    source = model(graph(nodes, inputs, ["y"], constants), 13)
    assert len(_sizes(OnnxFrontend().read(source)) - {"batch", "tokens"}) == 1
    x = (RNG.standard_normal((2, 2, 12)) > 0).astype(np.float32)
    rows = np.argwhere(x)
    (got,) = run(source, x)
    np.testing.assert_array_equal(got, rows + np.eye(*rows.shape))


def test_shape_known_in_part_keeps_what_is_known() -> None:
    nodes = [
        _make("Shape", "x", "many", start=1, end=2),
        _make("Concat", "count many four", "wanted", axis=0),
        _make("Reshape", "x wanted", "y"),
    ]
    inputs: Inputs = {"x": ("float32", ["batch", "tokens", 12]), "count": ("int64", [1])}
    source = model(graph(nodes, inputs, ["y"], {"four": [4]}), 18)
    found = OnnxFrontend().read(source).outputs[0].type
    assert isinstance(found, TensorType)
    assert list(map(str, found.shape[1:])) == ["tokens", "4"]
    x = RNG.standard_normal((2, 5, 12)).astype(np.float32)
    (got,) = run(source, x, np.array([6]))
    np.testing.assert_array_equal(got, x.reshape(6, 5, 4))


def test_one_open_size_follows_from_the_others_and_is_checked() -> None:
    nodes = [_make("Concat", "count four", "wanted", axis=0), _make("Reshape", "x wanted", "y")]
    inputs: Inputs = {"x": ("float32", ["batch", 12]), "count": ("int64", [1])}
    source = model(graph(nodes, inputs, ["y"], {"four": [4]}), 18)
    assert str(OnnxFrontend().read(source).outputs[0].type) == "float32[3*batch, 4]"
    x = RNG.standard_normal((2, 12)).astype(np.float32)
    for count in (6, -1):
        (got,) = run(source, x, np.array([count]))
        np.testing.assert_array_equal(got, x.reshape(6, 4))
    with pytest.raises(FusewireError):
        run(source, x, np.array([5]))


def test_size_below_zero_is_refused() -> None:
    nodes = [_make("ConstantOfShape", "shape", "y")]
    with pytest.raises(FormatError, match=r"it would make a float32\[2, -5\]"):
        OnnxFrontend().read(model(graph(nodes, {}, ["y"], {"shape": [2, -5]}), 9))


def test_function_takes_attributes_from_its_call_or_their_defaults() -> None:
    inner = helper.make_function(
        "own",
        "Leaky",
        ["a"],
        ["b"],
        [_make("LeakyRelu", "a", "b")],
        [helper.make_opsetid("", 16)],
        [],
        [helper.make_attribute("slope", 0.5)],
    )
    inner.node[0].attribute.append(
        onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    )
    nodes = [
        helper.make_node("Leaky", ["x"], ["y"], domain="own"),
        helper.make_node("Leaky", ["x"], ["z"], domain="own", slope=0.25),
    ]
    source = model(graph(nodes, {"x": ("float32", ["n"])}, ["y", "z"]), 16)
    source.opset_import.append(helper.make_opsetid("own", 1))
    source.functions.append(inner)
    x = np.array([-4, 4], np.float32)
    y, z = run(source, x)
    assert (y.tolist(), z.tolist()) == ([-2.0, 4.0], [-1.0, 4.0])


def _refusal(op: str, opset: int, operands: Any, **attrs: Any) -> str:
    source, _ = single(op, opset, operands, named=True, **attrs)
    with pytest.raises(FormatError) as caught:
        OnnxFrontend().read(source)
    return str(caught.value)


REFUSALS = [
    ("Pad", 13, (X, [0] * 6), {"mode": "mirror"}, "mode must be one of constant, reflect"),
    ("Gelu", 20, (X,), {"approximate": "sigmoid"}, "approximate must be none or tanh"),
    ("BitShift", 11, (INTS, INTS), {"direction": "UP"}, "direction must be LEFT or RIGHT"),
    ("ScatterND", 18, (X, [[0]], X[:1]), {"reduction": "avg"}, "reduction must be one of none"),
    ("Cast", 1, (X,), {"to": "TEXT"}, "to is 'TEXT', which is not a dtype. Known: FLOAT"),
    ("Cast", 13, (X,), {"to": 99}, "to is 99, which is not a dtype"),
    ("Cast", 24, (X,), {"to": TensorProto.FLOAT8E8M0, "round_mode": "odd"}, "round_mode must be"),
    ("Transpose", 13, (X,), {"perm": [0, 0, 1]}, "perm must name each of 3 axes once"),
    ("Concat", 13, (X, X[0]), {"axis": 0}, "ranks must be equal, found 3 and 2"),
    ("MatMul", 13, (X.astype("f8"), X), {}, "operands must have one dtype"),
    ("Tile", 1, (X, np.float32(2), np.float32(0)), {}, "Convert it to opset 6"),
    ("Tile", 13, (X, [1, 2]), {}, "one count an axis is needed, found 2"),
    ("Pad", 13, (X, [1, 2]), {}, "two pads an axis are needed, found 2"),
    ("EyeLike", 9, (X,), {}, "it is made like a matrix, found float32[n0, n1, n2]"),
    ("Gemm", 13, (X, W), {}, "it multiplies matrices"),
    ("Squeeze", 11, (X,), {"axes": [5]}, "axis 5 is outside a tensor of rank 3"),
    ("CumSum", 14, (X, [0, 1]), {}, "the axis must be one number, found int64[2]"),
    ("Split", 18, (W,), {"num_outputs": 2**62}, "and 1 outputs are named"),
    ("CumProd", 26, (X, np.uint8(1)), {}, "what it is given does not fit the op: "),
]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: f"{case[0]}-{case[1]}")
def test_refusal_names_the_node_and_what_would_help(case: Any) -> None:
    op, opset, operands, attrs, sentence = case
    said = _refusal(op, opset, operands, **attrs)
    assert f"node 'it' ({op}, opset {opset}): " in said
    assert sentence in said


def test_range_without_an_end_is_refused() -> None:
    for opset, bounds in ((11, (0, 5, 0)), (11, (0.0, 1.0, 0.0)), (11, (0.0, np.inf, 1.0))):
        nodes = [_make("Range", "start limit delta", "y")]
        held = dict(zip(("start", "limit", "delta"), map(np.array, bounds), strict=True))
        with pytest.raises(FormatError, match=r"has no (end|length)"):
            OnnxFrontend().read(model(graph(nodes, {}, ["y"], held), opset))


def test_index_that_is_out_of_range_is_left_to_the_run() -> None:
    nodes = [_make("Gather", "list place", "y")]
    source = model(graph(nodes, {}, ["y"], {"list": [1, 2], "place": 5}), 13)
    assert [node.op for node in OnnxFrontend().read(source).nodes] == ["gather"]
    with pytest.raises(CheckError, match="indices is 5; it must be from -2 to 1"):
        run(source)


@pytest.mark.parametrize("attrs", [{}, {"axis": 0}, {"axis": 1}])
def test_elements_are_scattered_along_the_first_axis_unless_another_is_named(attrs: Any) -> None:
    places, updates = np.array([[2, 0]]), np.array([[5.0, 6.0]], np.float32)
    source, arrays = single("ScatterElements", 18, (np.zeros((3, 3), np.float32), places, updates),
                            **attrs)  # fmt: skip
    (written,) = run(source, *arrays)
    expected = np.zeros((3, 3), np.float32)
    expected[([2, 0], [0, 1]) if attrs.get("axis", 0) == 0 else (0, [2, 0])] = updates
    np.testing.assert_array_equal(written, expected)


def test_uneven_split_is_refused_before_opset_18() -> None:
    source, _ = single("Split", 13, (W[:5],), outputs=2)
    with pytest.raises(FormatError, match=r"5 does not divide into 2 equal parts"):
        OnnxFrontend().read(source)


def test_rank_that_follows_from_sizes_waits_for_them() -> None:
    source, _ = single("Squeeze", 13, (X[:1],), named=True)
    with pytest.raises(SizesNeededError, match=r"all axes of size 1 of float32\[n0, n1, n2\]"):
        OnnxFrontend().read(source)
    program = fw.compile(source, backend="reference", fallback="error", isolate=False)
    for x in (X[:1], X[:, :1], X):
        np.testing.assert_array_equal(program(x), np.squeeze(x))


def test_rank_that_follows_from_the_run_is_checked_by_it() -> None:
    nodes = [_make("NonZero", "x", "places"), _make("Squeeze", "places", "y")]
    source = model(graph(nodes, {"x": ("float32", ["n"])}, ["y"]), 13)
    (got,) = run(source, np.array([1, 0, 1], np.float32))
    assert got.tolist() == [0, 2]
    with pytest.raises(FusewireError, match="Squeeze without axes found another size of 1"):
        run(source, np.array([0, 1], np.float32))


def _body(nodes: list[onnx.NodeProto], inputs: Any, outputs: list[str], **held: Any) -> Any:
    return graph(nodes, inputs, outputs, held)


def test_branches_close_over_values_around_them() -> None:
    then = _body([_make("Mul", "shared x", "a")], {}, ["a"])
    otherwise = _body([_make("Sub", "shared half", "b")], {}, ["b"], half=np.float32(0.5))
    nodes = [
        _make("Exp", "x", "shared"),
        _make("ReduceSum", "x", "sum", keepdims=0),
        _make("Greater", "sum zero", "flag"),
        _make("If", "flag", "y", then_branch=then, else_branch=otherwise),
    ]
    source = model(graph(nodes, {"x": ("float32", ["n"])}, ["y"], {"zero": np.float32(0)}), 13)
    for x in (np.array([1, 2], np.float32), np.array([-1, -2, -3], np.float32)):
        wanted = np.exp(x) * x if x.sum() > 0 else np.exp(x) - 0.5
        (got,) = run(source, x)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_loop_closes_over_values_around_it_and_collects() -> None:
    infos = {"i": ("int64", []), "go": ("bool", []), "total": ("float32", ["n"])}
    body = _body(
        [
            _make("Identity", "go", "on"),
            _make("Cast", "i", "step", to=TensorProto.FLOAT),
            _make("Mul", "x step", "part"),
            _make("Add", "total part", "next"),
            _make("Add", "next weight", "row"),
        ],
        infos,
        ["on", "next", "row"],
    )
    nodes = [_make("Abs", "x", "start"), _make("Loop", "trips yes start", "y rows", body=body)]
    inputs = {"x": ("float32", ["n"]), "trips": ("int64", [])}
    held = {"yes": True, "weight": np.float32(3)}
    source = model(graph(nodes, inputs, ["y", "rows"], held), 13)
    x = np.array([1, -2, 3], np.float32)
    steps = np.abs(x) + x * np.array([0, 1, 3], np.float32)[:, None]
    for trips in (3, 0):
        total, rows = run(source, x, np.int64(trips))
        np.testing.assert_allclose(total, steps[trips - 1] if trips else np.abs(x))
        np.testing.assert_allclose(rows, steps[:trips] + 3)


def test_scan_runs_backwards_over_a_chosen_axis() -> None:
    infos = {"total": ("float32", ["m"]), "row": ("float32", ["m"])}
    body = _body(
        [
            _make("Mul", "row scale", "part"),
            _make("Add", "total part", "next"),
            _make("Identity", "next", "out"),
        ],
        infos,
        ["next", "out"],
    )
    nodes = [
        _make("ReduceMax", "x", "scale", keepdims=0),
        _make(
            "Scan",
            "start x",
            "y rows",
            body=body,
            num_scan_inputs=1,
            scan_input_axes=[1],
            scan_input_directions=[1],
            scan_output_axes=[1],
        ),
    ]
    held = {"start": np.zeros(2, np.float32)}
    source = model(graph(nodes, {"x": ("float32", [2, "n"])}, ["y", "rows"], held), 13)
    x = X[0, :2]
    total, rows = run(source, x)
    wanted = (x[:, ::-1] * x.max()).cumsum(1)
    np.testing.assert_allclose(rows, wanted, rtol=1e-5)
    np.testing.assert_allclose(total, wanted[:, -1], rtol=1e-5)


def test_branch_that_sizes_rule_out_leaves_the_other_as_one_piece() -> None:
    """A matmul that does not fit stands in the branch for other sizes."""
    fits, other = ([helper.make_node("MatMul", ["x", w], ["y"])] for w in ("fits", "other"))
    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    branches = [
        helper.make_graph(nodes, name, [], [value("y", shape=["n", 4])])
        for nodes, name in ((fits, "fits"), (other, "other"))
    ]
    for order, due in ((branches, True), (branches[::-1], False)):
        node = helper.make_node("If", ["flag"], ["z"], then_branch=order[0], else_branch=order[1])
        flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
        weights = {"fits": np.eye(3, 4), "other": np.eye(5, 4)}
        graph = helper.make_graph(
            [node],
            "main",
            [value("x", shape=["n", 3]), flag],
            [value("z", shape=["n", 4])],
            [onnx.numpy_helper.from_array(w.astype(np.float32), k) for k, w in weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
        program = fw.compile(model, backend="reference")
        assert [node.op for node in program.graph.nodes][-1] == "check"
        x = np.ones((2, 3), np.float32)
        np.testing.assert_array_equal(program(x, np.array(due)), x @ weights["fits"])
        with pytest.raises(CheckError, match="branch that cannot be run"):
            program(x, np.array(not due))
