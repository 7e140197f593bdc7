"""Layers of ONNX as ONNX Runtime runs them, and what the backend suite has no case for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.onnx.models import run, single

RNG = np.random.default_rng(0)
MICROSOFT = "com.microsoft"


def _normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def _codes(dtype: str, *shape: int) -> Any:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def _numbers(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


def _scalar(number: float, dtype: str = "float32") -> Any:
    return np.array(number, dtype)


IMAGE = _normal(2, 3, 8, 9)
FILTERS = _normal(4, 3, 3, 2)
TURNED = _normal(3, 4, 3, 2)
CODES = _codes("uint8", 1, 2, 5, 5)
CODE_FILTERS = _codes("int8", 3, 2, 3, 3)
WAVE = _normal(7, 2, 5)
BOXES = _numbers(0, 1, 1, 6, 5, 1, 0, 2, 3, 7, 0, 5.4, 3.2, 30, 30).reshape(3, 5)
SCALE, ZERO = _scalar(0.05), _scalar(120, "uint8")


@dataclass(frozen=True)
class Case:
    """One node; ``named`` leaves all sizes of the first operand open, which then is the only one.

    Codes may differ by one where a sum lies in the middle between two.
    """

    op: str
    opset: int
    operands: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    named: bool = False

    def __str__(self) -> str:
        told = "-".join(str(v) for v in self.attrs.values() if isinstance(v, str | int))
        return f"{self.op}-{self.opset}-{told}{'-named' if self.named else ''}"

    @property
    def model(self) -> tuple[onnx.ModelProto, list[Any]]:
        source, given = single(
            self.op,
            self.opset,
            self.operands,
            outputs=self.outputs,
            constant=self.named,
            named=self.named,
            **self.attrs,
        )
        if "domain" in self.attrs:
            source.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
        return source, given


def _layer(gates: int, directions: int, **more: Any) -> tuple[Any, ...]:
    """Give operands of a recurrent layer of 5 inputs and 4 hidden; ``more`` fill the rest."""
    shapes = (directions, gates * 4, 5), (directions, gates * 4, 4), (directions, gates * 8)
    return WAVE, *(_normal(*shape) * 0.5 for shape in shapes), *more.values()


LENGTHS = np.array([7, 4], np.int32)


def _quantized_layer(directions: int, *, by_column: bool) -> tuple[Any, ...]:
    shape = (directions, 16) if by_column else (directions,)
    scale = (RNG.random(shape) * 0.01 + 0.005).astype(np.float32)
    states = [_normal(directions, 2, 4), _normal(directions, 2, 4), _normal(directions, 12)]
    codes = [_codes("int8", directions, n, 16) for n in (5, 4)]
    told = [scale, np.zeros(shape, np.int8)] * 2
    return WAVE, *codes, _normal(directions, 32) * 0.3, None, *states, *told


def _sliding() -> list[Case]:
    """Padding that ONNX works out, over sizes that are known and that are not."""
    found = []
    for pads in ("SAME_UPPER", "SAME_LOWER"):
        for stride, named in ((1, True), (2, True), (2, False)):
            told = {"auto_pad": pads, "strides": [stride, stride]}
            pool = {**told, "kernel_shape": [3, 2]}
            found += [
                Case("Conv", 11, (IMAGE, FILTERS), told, named=named),
                Case("MaxPool", 12, (IMAGE,), pool, named=named),
                Case("AveragePool", 11, (IMAGE,), pool, named=named),
                Case("ConvTranspose", 11, (IMAGE, TURNED), told, named=named),
            ]
    return found


def _resized() -> list[Case]:
    found = []
    for scales in ((1, 1, 2, 2), (1, 1, 0.5, 0.5), (1, 1, 2, 0.5), (1, 1, 1.7, 0.7)):
        for mode in ("nearest", "linear"):
            operands = (IMAGE, _numbers(*scales))
            found.append(Case("Resize", 10, operands, {"mode": mode}, named=mode == "linear"))
        told = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
        found.append(Case("Resize", 13, (IMAGE, None, _numbers(*scales)), told, named=True))
    half = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}
    empty = np.zeros(0, np.float32)
    return [
        *found,
        Case("Resize", 11, (IMAGE, empty, _numbers(1, 1, 2, 0.5)), half),
        Case("Upsample", 7, (IMAGE,), {"scales": [1.0, 1.0, 2.0, 3.0]}),
        Case("Upsample", 9, (IMAGE, _numbers(1, 1, 2, 3)), {"mode": "linear"}),
    ]


def _recurrent() -> list[Case]:
    both = {"direction": "bidirectional", "hidden_size": 4}
    bent = ["LeakyRelu", "ScaledTanh", "HardSigmoid"]
    return [
        Case("LSTM", 7, _layer(4, 1, n=LENGTHS), {"hidden_size": 4, "clip": 0.7}, 3),
        Case(
            "LSTM",
            14,
            _layer(4, 2, n=None, h=_normal(2, 2, 4), c=_normal(2, 2, 4), p=_normal(2, 12)),
            {**both, "input_forget": 1},
            3,
        ),
        Case(
            "LSTM",
            7,
            _layer(4, 1),
            {
                "hidden_size": 4,
                "activations": bent,
                "activation_alpha": [0.3, 1.5, 0.4],
                "activation_beta": [0.5, 0.6],
            },
            3,
        ),
        Case("GRU", 7, _layer(3, 2, n=LENGTHS), both, 2),
        Case(
            "GRU",
            14,
            _layer(3, 1),
            {"hidden_size": 4, "direction": "reverse", "linear_before_reset": 1},
            2,
        ),
        # Two activations are listed where there is one direction.
        Case("RNN", 7, _layer(1, 1), {"hidden_size": 4, "activations": ["Relu", "Tanh"][:1]}, 2),
        Case(
            "RNN",
            14,
            _layer(1, 2),
            {
                **both,
                "activations": ["Relu", "Affine"],
                "activation_alpha": [0.5],
                "activation_beta": [0.1],
            },
            2,
        ),
    ]


def _coded() -> list[Case]:
    one = np.array([0.1], np.float32)
    wide = {"auto_pad": "SAME_UPPER", "strides": [2, 2]}
    return [
        Case("QuantizeLinear", 10, (IMAGE, one, np.array([3], np.int8))),
        Case("QuantizeLinear", 13, (IMAGE, _numbers(0.1, 0.2, 0.3)), {"axis": 1}),
        Case("DequantizeLinear", 10, (CODES, one, np.array([3], np.uint8))),
        Case("ConvInteger", 10, (CODES, CODE_FILTERS, ZERO, _scalar(9, "int8")), wide, named=True),
        Case(
            "QLinearConv",
            10,
            (
                CODES,
                SCALE,
                ZERO,
                CODE_FILTERS,
                _numbers(0.1, 0.2, 0.3),
                np.zeros(3, np.int8),
                _scalar(9.0),
                ZERO,
            ),
            wide,
            named=True,
        ),
        Case("MatMulInteger", 10, (CODES[0, 0], CODES[0, 1], np.array([7], np.uint8))),
    ]


def _of_microsoft() -> list[Case]:
    def case(op: str, operands: tuple[Any, ...], outputs: int = 1, **attrs: Any) -> Case:
        held = op.startswith("Dynamic")
        return Case(op, 13, operands, {"domain": MICROSOFT, **attrs}, outputs, named=held)

    rows, bias = _normal(2, 5, 16), _normal(16)
    coded = CODES[0, 0], SCALE, ZERO
    ends: list[dict[str, Any]] = [
        *({"activation": name} for name in ("Relu", "Tanh", "Sigmoid")),
        {"activation": "LeakyRelu", "activation_params": [0.3]},
        {"activation": "Clip", "activation_params": [-0.5, 0.5]},
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    ]
    return [
        *(case("FusedConv", (IMAGE, FILTERS, _normal(4)), **end) for end in ends),
        case("FusedConv", (IMAGE, FILTERS, _normal(4), _normal(2, 4, 6, 8)), activation="Relu"),
        case("Gelu", (rows,)),
        case("BiasGelu", (rows, bias)),
        case("FastGelu", (rows, bias)),
        case("QuickGelu", (rows,), alpha=1.5),
        case("FusedMatMul", (rows, _normal(2, 3, 16)), alpha=0.5, transB=1),
        case("FusedMatMul", (rows, _normal(2, 5, 3)), transA=1),
        case("SkipLayerNormalization", (rows, rows * 2, bias, bias, bias), epsilon=1e-5),
        case("SkipSimplifiedLayerNormalization", (rows, rows * 2, bias), epsilon=1e-6),
        case(
            "DynamicQuantizeMatMul",
            (_normal(3, 8), _codes("int8", 8, 5), _scalar(0.02), _scalar(3, "int8"), _normal(5)),
        ),
        case("MatMulIntegerToFloat", (CODES[0, 0], CODES[0, 1], SCALE, SCALE, ZERO, ZERO)),
        case("QLinearAdd", (*coded, *coded, _scalar(0.1), ZERO)),
        case("QLinearMul", (*coded, *coded, _scalar(0.2), ZERO)),
        case("QLinearSigmoid", (*coded, _scalar(1 / 256), _scalar(0, "uint8"))),
        case("QLinearLeakyRelu", (*coded, SCALE, ZERO), alpha=0.2),
        case("QLinearGlobalAveragePool", (CODES, SCALE, ZERO, SCALE, ZERO)),
        case("QLinearConcat", (SCALE, ZERO, *coded, CODES[0, 1], _scalar(0.1), ZERO), axis=1),
        *(
            case(
                "DynamicQuantizeLSTM",
                _quantized_layer(1 + (way == "bidirectional"), by_column=by),
                3,
                direction=way,
                hidden_size=4,
            )
            for way, by in (("forward", False), ("reverse", True), ("bidirectional", True))
        ),
    ]


OTHERS = [
    Case("ConvTranspose", 11, (IMAGE, TURNED), {"strides": [2, 3], "output_shape": [17, 26]}),
    Case(
        "ConvTranspose",
        11,
        (IMAGE, TURNED),
        {"strides": [3, 3], "output_shape": [23, 27], "auto_pad": "SAME_UPPER"},
    ),
    Case(
        "MaxPool",
        12,
        (IMAGE,),
        {
            "kernel_shape": [3, 2],
            "strides": [2, 2],
            "pads": [1, 1, 1, 0],
            "dilations": [2, 1],
            "ceil_mode": 1,
        },
        2,
    ),
    Case("MaxPool", 12, (IMAGE,), {"kernel_shape": [3, 2], "storage_order": 1}, 2),
    Case("LpPool", 11, (IMAGE,), {"kernel_shape": [3, 2], "p": 3, "pads": [1, 0, 1, 1]}),
    Case("GlobalLpPool", 2, (IMAGE,), {"p": 3}),
    Case("GlobalLpPool", 2, (IMAGE,), {"p": 1}),
    Case("MaxRoiPool", 11, (IMAGE, BOXES), {"pooled_shape": [3, 2], "spatial_scale": 0.7}),
    Case(
        "RoiAlign",
        10,
        (IMAGE, BOXES[:, 1:], np.array([0, 1, 0])),
        {"output_height": 2, "output_width": 3, "sampling_ratio": 2},
    ),
    Case("LRN", 13, (IMAGE,), {"size": 3, "alpha": 0.5, "bias": 2.0}),
    Case("LayerNormalization", 17, (IMAGE, IMAGE[0, 0, 0], IMAGE[1, 0, 0]), {}, 3),
    Case("BatchNormalization", 7, (IMAGE, *(_normal(3) for _ in range(3)), _normal(3) ** 2)),
    Case(
        "BatchNormalization",
        14,
        (IMAGE, *(_normal(3) for _ in range(3)), _normal(3) ** 2),
        {"training_mode": 1, "momentum": 0.7},
        3,
    ),
]
CASES = [*_sliding(), *_resized(), *_recurrent(), *_coded(), *_of_microsoft(), *OTHERS]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layer_is_what_onnx_runtime_makes_of_it(case: Case) -> None:
    source, given = case.model
    options = onnxruntime.SessionOptions()
    # With more threads, what it makes of batches of codes is another.
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    # Without instructions for int8, sums of products of codes would saturate.
    options.add_session_config_entry("session.x64quantprecision", "1")
    engine = onnxruntime.InferenceSession(source.SerializeToString(), options)
    wanted = engine.run(None, dict(zip([i.name for i in engine.get_inputs()], given, strict=True)))
    for found, right in zip(run(source, *given), wanted, strict=True):
        assert (found.shape, found.dtype) == (right.shape, right.dtype)
        nearly = 1.0 if right.dtype.kind in "iu" and "Q" in case.op else 1e-5
        np.testing.assert_allclose(
            found.astype(np.float64), right.astype(np.float64), rtol=2e-5, atol=nearly
        )
