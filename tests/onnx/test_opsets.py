"""What ONNX ops mean in each opset, where the backend suite has no case for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnx.models import graph, model, run, single

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4)).astype(np.float32)
W = RNG.standard_normal((6, 4)).astype(np.float32)
SLOPES = np.array([0.1, 0.2, 0.3], np.float32)
INTS = np.array([[-7, 2, -2], [9, 4, 4]], np.int32)
EXTREMES = np.array([3e-39, 2.0**-127, 1.0, 1.5, 3.0, 3e38, np.inf, np.nan], np.float32)


def _softmax(x: Any, axis: int) -> Any:
    grown = np.exp(x - x.max(axis, keepdims=True))
    return grown / grown.sum(axis, keepdims=True)


def _exponents(*codes: int) -> Any:
    return np.array(codes, np.uint8).view(ml_dtypes.float8_e8m0fnu)


@dataclass(frozen=True)
class Case:
    """One node, what it is given, and what it means in its opset."""

    op: str
    opset: int
    operands: tuple[Any, ...]
    wanted: Any
    attrs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.op}-{self.opset}-{'-'.join(map(str, self.attrs.values()))}"


CASES = [
    # Broadcasting had to be said, and could begin at any axis.
    Case("Add", 6, (X, SLOPES), X + SLOPES[:, None], {"broadcast": 1, "axis": 1}),
    Case("Mul", 1, (X, X[0, 0]), X * X[0, 0], {"broadcast": 1}),
    Case(
        "Pow", 6, (X**2, SLOPES[:2]), (X**2) ** SLOPES[:2, None, None], {"broadcast": 1, "axis": 0}
    ),
    Case("PRelu", 6, (X, SLOPES), np.where(X < 0, X * SLOPES[:, None], X)),
    Case("PRelu", 7, (X, X[0, 0]), np.where(X < 0, X * X[0, 0], X)),
    Case("Gemm", 6, (W.T, W, W[0]), W.T @ W + W[0], {"broadcast": 1}),
    Case("Gemm", 11, (INTS.T, INTS), INTS.T @ INTS),
    Case(
        "Gemm",
        13,
        (INTS.T, INTS, INTS[0]),
        np.trunc((INTS.T @ INTS) * 2 + INTS[0] * 0.5).astype("i4"),
        {"alpha": 2.0, "beta": 0.5},
    ),
    # Softmax took all axes from one on together.
    Case("Softmax", 11, (X,), _softmax(X.reshape(2, 12), 1).reshape(X.shape)),
    Case("Softmax", 12, (X,), _softmax(X, 2), {"axis": -1}),
    Case("Softmax", 13, (X,), _softmax(X, 2)),
    Case(
        "LogSoftmax", 1, (X,), np.log(_softmax(X.reshape(1, 24), 1)).reshape(X.shape), {"axis": 0}
    ),
    # What was an attribute is an operand.
    Case("Reshape", 1, (X,), X.reshape(2, 12), {"shape": [0, -1]}),
    Case("Reshape", 13, (X, [0, 0, 2, -1]), X.reshape(2, 3, 2, 2)),
    Case("Reshape", 14, (X[:0], [3, 0]), np.zeros((3, 0), "f4"), {"allowzero": 1}),
    Case("Squeeze", 11, (X[:1, :1],), X[0, :1], {"axes": [0]}),
    Case("Squeeze", 13, (X[:1, :1], [-2]), X[:1, 0]),
    Case("Squeeze", 13, (X[:1, :1],), X[0, 0]),
    Case("Unsqueeze", 11, (X,), X[:, None, :, :, None], {"axes": [-1, 1]}),
    Case("Unsqueeze", 13, (X, [4, 0]), X[None, :, :, :, None]),
    Case("Slice", 1, (X,), X[:, 1:, -2:], {"starts": [1, -2], "ends": [9, 9], "axes": [1, 2]}),
    Case("Slice", 13, (X, [-1, 0], [-9, 9], [2, 1], [-2, 2]), X[:, ::2, ::-2]),
    Case("Pad", 1, (X,), np.pad(X, ((0, 2), (1, 0), (0, 1))), {"paddings": [0, 1, 0, 2, 0, 1]}),
    Case(
        "Pad",
        2,
        (X,),
        np.pad(X, ((0, 0), (0, 0), (2, 1)), mode="edge"),
        {"pads": [0, 0, 2, 0, 0, 1], "mode": "edge"},
    ),
    Case(
        "Pad",
        18,
        (X, [1, 2, 0, -1], np.float32(7), [-1, 0]),
        np.pad(X[:1], ((2, 0), (0, 0), (1, 0)), constant_values=7),
    ),
    Case("Split", 1, (W,), [W[:2], W[2:]], {"split": [2, 4], "axis": 0}),
    Case("Split", 13, (W, [1, 5]), [W[:1], W[1:]]),
    Case("Split", 18, (W,), [W[:2], W[2:4], W[4:6], W[6:]], {"num_outputs": 4}),
    Case("TopK", 1, (X,), [-np.sort(-X, 1)[:, :2], np.argsort(-X, 1)[:, :2]], {"k": 2, "axis": 1}),
    Case("TopK", 11, (X, [2]), [np.sort(X, 2)[..., :2], np.argsort(X, 2)[..., :2]], {"largest": 0}),
    Case("Clip", 6, (X,), np.minimum(X, 0.25), {"max": 0.25}),
    Case("Clip", 11, (X, np.float32(-0.5)), np.maximum(X, -0.5)),
    Case("Clip", 13, (X,), X),
    Case("ReduceSum", 11, (X,), X.sum((0, 2), keepdims=True), {"axes": [0, -1]}),
    Case("ReduceSum", 13, (X, [0, -1]), X.sum((0, 2)), {"keepdims": 0}),
    Case("ReduceSumSquare", 18, (X, np.zeros(0, "i8")), X * X, {"noop_with_empty_axes": 1}),
    Case("ReduceMean", 18, (INTS, [1]), np.array([[-2], [5]], "i4")),
    Case("ReduceL2", 18, (X, [-1]), np.sqrt((X**2).sum(2)), {"keepdims": 0}),
    Case("ReduceLogSumExp", 18, (X, [1, 2]), np.log(np.exp(X).sum((1, 2))), {"keepdims": 0}),
    Case("CumSum", 14, (X, 1), X[:, ::-1].cumsum(1)[:, ::-1] - X, {"exclusive": 1, "reverse": 1}),
    Case("Trilu", 14, (W, -1), np.tril(W, -1), {"upper": 0}),
    Case("Expand", 13, (X[:, :1], [5, 1, 3, 1]), np.broadcast_to(X[:, :1], (5, 2, 3, 4))),
    Case("Tile", 13, (W, [1, 2]), np.tile(W, (1, 2))),
    Case("CenterCropPad", 18, (W, [3, 7]), np.pad(W[1:4], ((0, 0), (1, 2)))),
    Case("OneHot", 9, ([0, -1, 3], 3, [5, 7]), np.array([[7, 5, 5], [5, 5, 5], [5, 5, 5]])),
    Case("OneHot", 11, ([0, -1, 3], [3], [5, 7]), np.array([[7, 5, 5], [5, 5, 7], [5, 5, 5]])),
    Case("Range", 11, (7, 0, -3), np.array([7, 4, 1])),
    Case(
        "Range",
        27,
        (np.float16(2048), np.float16(2056), np.float16(2)),
        np.arange(2048, 2056, 2).astype("f2"),
    ),
    Case("ConstantOfShape", 9, ([2, 3],), np.zeros((2, 3), "f4")),
    # Integers as C has them.
    Case("Div", 14, (INTS, np.int32(2)), np.trunc(INTS / 2).astype("i4")),
    Case("Mod", 13, (INTS, np.int32(-4)), np.remainder(INTS, -4)),
    Case("Mod", 13, (INTS, np.int32(-4)), np.fmod(INTS, -4), {"fmod": 1}),
    Case("Pow", 15, (INTS[1], np.array([0.5, 2.0, 1.5], "f4")), np.array([3, 16, 8], "i4")),
    Case(
        "BitShift",
        28,
        (INTS[0], np.array([1, -1, 40], "i4")),
        np.array([-4, 0, -1], "i4"),
        {"direction": "RIGHT"},
    ),
    Case(
        "Shrink", 9, (INTS,), np.array([[-6, 0, 0], [8, 3, 3]], "i4"), {"lambd": 2.5, "bias": 1.0}
    ),
    # Dtypes by name, and floats of 8 bits.
    Case("Cast", 1, (X * 9,), (X * 9).astype("i4"), {"to": "INT32"}),
    Case(
        "Cast",
        19,
        ([500.0, -500.0],),
        np.array([448, -448], ml_dtypes.float8_e4m3fn),
        {"to": TensorProto.FLOAT8E4M3FN},
    ),
    Case(
        "Cast",
        19,
        ([500.0, -500.0],),
        np.array([np.nan, np.nan], ml_dtypes.float8_e4m3fn),
        {"to": TensorProto.FLOAT8E4M3FN, "saturate": 0},
    ),
    Case("Cast", 21, ([9.0, -9.0],), np.array([-7, 7], ml_dtypes.int4), {"to": TensorProto.INT4}),
    Case(
        "Cast",
        24,
        (EXTREMES,),
        _exponents(0, 0, 127, 128, 129, 254, 254, 255),
        {"to": TensorProto.FLOAT8E8M0},
    ),
    Case(
        "Cast",
        24,
        (EXTREMES,),
        _exponents(0, 0, 127, 127, 128, 254, 254, 255),
        {"to": TensorProto.FLOAT8E8M0, "round_mode": "down"},
    ),
    Case(
        "Cast",
        24,
        (EXTREMES,),
        _exponents(255, 0, 127, 128, 129, 255, 255, 255),
        {"to": TensorProto.FLOAT8E8M0, "round_mode": "nearest", "saturate": 0},
    ),
    Case(
        "Cast",
        13,
        (np.array([1.5, -2.0], "f4"),),
        np.array(["1.5", "-2.0"], object),
        {"to": TensorProto.STRING},
    ),
    Case("IsInf", 10, (EXTREMES,), np.zeros(8, bool), {"detect_positive": 0}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_node_means_what_its_opset_says(case: Case) -> None:
    wanted = case.wanted if isinstance(case.wanted, list) else [case.wanted]
    # What an operand tells is known ahead, or only by the run; sizes have names, or numbers.
    for constant, named in ((False, False), (True, True)):
        source, arrays = single(
            case.op,
            case.opset,
            case.operands,
            outputs=len(wanted),
            constant=constant,
            named=named,
            **case.attrs,
        )
        for got, expected in zip(run(source, *arrays), wanted, strict=True):
            assert got.dtype == expected.dtype
            assert got.shape == expected.shape
            if got.dtype.kind in "fV":
                got, expected = (x.astype(np.float64) for x in (got, expected))
                np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)
            else:
                assert got.tolist() == expected.tolist()


CONSTANTS: list[tuple[str, Any, Any]] = [
    ("value", numpy_helper.from_array(W), W),
    ("value_float", 1.5, np.float32(1.5)),
    ("value_floats", [1.5, 2.0], np.array([1.5, 2.0], "f4")),
    ("value_int", 3, np.int64(3)),
    ("value_ints", [3, 4], np.array([3, 4])),
    ("value_string", "a", np.array("a", object)),
    ("value_strings", ["a", "b"], np.array(["a", "b"], object)),
    (
        "sparse_value",
        helper.make_sparse_tensor(
            helper.make_tensor("v", TensorProto.FLOAT, [2], [5.0, 6.0]),
            helper.make_tensor("i", TensorProto.INT64, [2, 2], [0, 1, 1, 0]),
            [2, 2],
        ),
        np.array([[0, 5], [6, 0]], "f4"),
    ),
]


@pytest.mark.parametrize(("form", "held", "wanted"), CONSTANTS, ids=[c[0] for c in CONSTANTS])
def test_constant_in_each_form(form: str, held: Any, wanted: Any) -> None:
    node = helper.make_node("Constant", [], ["y"], **{form: held})
    (got,) = run(model(graph([node], {}, ["y"]), 13))
    assert got.dtype == wanted.dtype
    assert got.tolist() == wanted.tolist()
