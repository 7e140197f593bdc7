"""One model for each refusal of the ONNX importer: one node, and words of the reason.

Operands are ``"float32[2, n]"`` for an input, an array for a constant, and None for an absent one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper

from tests.onnx.models import Inputs, graph

Operand: TypeAlias = Any  # str, array or None
LATEST = 23
ML, MICROSOFT = "ai.onnx.ml", "com.microsoft"
NBITS, ROWS_32 = f"{MICROSOFT}:MatMulNBits", "float32[2, 32]"
CODES, SCALES = np.zeros((3, 1, 16), np.uint8), np.ones(3, np.float32)
SIZES: dict[str, Any] = {"K": 32, "N": 3, "bits": 4, "block_size": 32, "opset": 1}


@dataclass(frozen=True)
class Refusal:
    """A node that is refused. ``op`` may begin with a domain: ``ai.onnx.ml:LabelEncoder``."""

    reason: str
    op: str
    operands: tuple[Operand, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    opset: int = LATEST
    outputs: int = 1
    # In a function of the model, whose call leaves out operands: ONNX's checker looks at neither.
    is_inside: bool = False
    # An op of the last operand that comes before the node; its output is called "before".
    after: str | None = None

    @property
    def id(self) -> str:
        return f"{self.op}: {self.reason}"

    def model(self) -> onnx.ModelProto:
        """Make the model of the one node."""
        domain, _, op = self.op.rpartition(":")
        inputs: dict[str, tuple[str, list[Any]]] = {}
        constants = {}
        names = []
        for place, operand in enumerate(self.operands):
            names.append("" if operand is None else f"x{place}")
            if isinstance(operand, str):
                inputs[names[-1]] = _info(operand)
            elif operand is not None:
                constants[names[-1]] = operand
        made = [f"y{place}" for place in range(self.outputs)]
        node = helper.make_node(op, names, made, name="it", domain=domain, **self.attrs)
        opsets = {"": LATEST, domain: self.opset}
        imports = [helper.make_opsetid(name, version) for name, version in opsets.items()]
        functions = []
        if self.is_inside:
            taken = [f"a{place}" for place in range(len(names))]
            inner = helper.make_node(op, taken, made, name="it", **self.attrs)
            functions = [helper.make_function("own", "Whole", taken, made, [inner], imports)]
            node = helper.make_node("Whole", names, made, domain="own")
            imports = [*imports, helper.make_opsetid("own", 1)]
        # An input that a model has anyway: a graph must have one.
        held: Inputs = inputs or {"unused": ("float32", [1])}
        first = [helper.make_node(self.after, names[-1:], ["before"])] if self.after else []
        whole = graph([*first, node], held, made, constants)
        return helper.make_model(whole, opset_imports=imports, ir_version=8, functions=functions)


def _info(text: str) -> tuple[str, list[Any]]:
    found = re.fullmatch(r"(\w+)\[(.*)\]", text)
    assert found, text
    dims = [dim.strip() for dim in found[2].split(",") if dim.strip()]
    return found[1], [int(dim) if dim.isdigit() else dim for dim in dims]


def no(
    reason: str,
    op: str,
    *operands: Operand,
    opset: int = LATEST,
    outputs: int = 1,
    is_inside: bool = False,
    after: str | None = None,
    **attrs: Any,
) -> Refusal:
    """Describe a refusal in one line."""
    return Refusal(reason, op, operands, attrs, opset, outputs, is_inside, after)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


IMAGE, ROW = "float32[1, 2, 5, 6]", "float32[1, 2, 5]"
VECTOR, MATRIX = "float32[4]", "float32[2, 3]"
FILTERS = np.zeros((3, 2, 3, 3), np.float32)


def _body(inputs: Inputs, outputs: list[str], *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return graph(nodes, inputs, outputs)


def _growing() -> onnx.GraphProto:
    """Replace a carried value by one of another rank, whose size only the run can tell."""
    inputs: Inputs = {"i": ("int64", []), "go": ("bool", []), "v": ("float32", ["k"])}
    return _body(
        inputs,
        ["going", "w"],
        helper.make_node("Identity", ["go"], ["going"]),
        helper.make_node("Cast", ["before"], ["w"], to=1),
    )


def _row(*names: str) -> onnx.GraphProto:
    inputs: Inputs = {name: ("float32", [3]) for name in names}
    return _body(inputs, ["out"], helper.make_node("Identity", [names[-1]], ["out"]))


def _tree(**attrs: Any) -> dict[str, Any]:
    """Describe a tree of one split and two leaves."""
    return {
        "n_targets": 1,
        "tree_roots": [0],
        "nodes_modes": helper.make_tensor("m", onnx.TensorProto.UINT8, [1], [0]),
        "nodes_featureids": [0],
        "nodes_splits": helper.make_tensor("s", onnx.TensorProto.FLOAT, [1], [0.5]),
        "nodes_truenodeids": [0],
        "nodes_trueleafs": [1],
        "nodes_falsenodeids": [1],
        "nodes_falseleafs": [1],
        "leaf_targetids": [0, 0],
        "leaf_weights": helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1.0, 2.0]),
        **attrs,
    }


_SAID = "is needed and absent"
_UINT8 = np.zeros((), np.uint8)
REFUSALS = (
    # What any op may be refused for.
    no(f"operand 1 {_SAID}", f"{MICROSOFT}:FusedMatMul", MATRIX, opset=1),
    no(f"operand 0 {_SAID}", f"{MICROSOFT}:FusedMatMul", None, MATRIX, opset=1),
    no(
        f"the attribute axis {_SAID}",
        f"{MICROSOFT}:QLinearConcat",
        floats(1),
        _UINT8,
        "uint8[2]",
        floats(1),
        _UINT8,
        opset=1,
    ),
    no("to is 99, which is not a dtype", "Cast", VECTOR, to=99),
    no("dtype is 77, which is not a dtype", "EyeLike", MATRIX, dtype=77),
    no("no op of that name is known", f"{ML}:SVMRegressor", MATRIX, opset=1),
    no("no size is below 0", "Pad", VECTOR, ints(-3, -2)),
    no(
        "output 1 (y1) is not made by this importer",
        f"{MICROSOFT}:FastGelu",
        VECTOR,
        opset=1,
        outputs=2,
    ),
    # images
    no("mode is one of bilinear", "GridSample", IMAGE, "float32[1, 2, 2, 2]", mode="odd"),
    no(
        "mode is avg or max, found 'sum'",
        "RoiAlign",
        IMAGE,
        "float32[1, 4]",
        "int64[1]",
        mode="sum",
    ),
    # windows
    no("strides has 1 numbers, and there are 2", "Conv", IMAGE, FILTERS, strides=[1]),
    no("dilations has 3 numbers, and there are 2", "Conv", IMAGE, FILTERS, dilations=[1, 1, 1]),
    no("pads has 2 numbers, and there are 4", "Conv", IMAGE, FILTERS, pads=[1, 1]),
    no("SAME_LOWER, found 'SAME'", "Conv", IMAGE, FILTERS, auto_pad="SAME"),
    no("kernel_shape is [3], and the filters are", "Conv", IMAGE, FILTERS, kernel_shape=[3]),
    no(
        "its indices count elements of x",
        "MaxPool",
        "float32[1, 2, n]",
        outputs=2,
        kernel_shape=[3],
        strides=[2],
        auto_pad="SAME_UPPER",
    ),
    # resampling
    no("mode is one of nearest", "Resize", ROW, None, floats(1, 1, 2), mode="odd"),
    no(
        "tf_half_pixel_for_nn is for mode nearest",
        "Resize",
        ROW,
        None,
        floats(1, 1, 2),
        mode="linear",
        coordinate_transformation_mode="tf_half_pixel_for_nn",
    ),
    no(
        "coordinate_transformation_mode is one of",
        "Resize",
        ROW,
        None,
        floats(1, 1, 2),
        coordinate_transformation_mode="odd",
    ),
    no(
        "nearest_mode is one of",
        "Resize",
        ROW,
        None,
        floats(1, 1, 2),
        nearest_mode="odd",
    ),
    no(
        "nearest_mode is one of",
        "Resize",
        ROW,
        None,
        floats(1, 1, 2),
        nearest_mode="odd",
        coordinate_transformation_mode="tf_half_pixel_for_nn",
    ),
    no(
        "not_larger or not_smaller, found 'odd'",
        "Resize",
        ROW,
        None,
        None,
        ints(1, 2, 7),
        keep_aspect_ratio_policy="odd",
    ),
    no("both are absent", "Resize", ROW),
    # conversion
    no("round_mode must be one of", "Cast", VECTOR, to=24, round_mode="odd", opset=24),
    no("to is 'ODD', which is not a dtype", "Cast", VECTOR, to="ODD", opset=1),
    no("they must have the same width", "BitCast", "bool[4]", to=1, opset=26),
    # com.microsoft
    no(
        "transBatchA and transBatchB",
        f"{MICROSOFT}:FusedMatMul",
        MATRIX,
        MATRIX,
        opset=1,
        transBatchA=1,
    ),
    no(
        "transBatchA and transBatchB",
        f"{MICROSOFT}:FusedMatMul",
        MATRIX,
        MATRIX,
        opset=1,
        transBatchB=1,
    ),
    no("g_idx reorders", NBITS, ROWS_32, CODES, SCALES, None, np.zeros(32, np.int32), **SIZES),
    no("codes of 3 bits", NBITS, ROWS_32, CODES, SCALES, **{**SIZES, "bits": 3}),
    no("zero points are float32", NBITS, ROWS_32, CODES, SCALES, SCALES, **SIZES),
    no("must be constants of uint8", NBITS, ROWS_32, "uint8[3, 1, 16]", SCALES, **SIZES),
    no("3 rows of 32 codes are 48 bytes", NBITS, ROWS_32, CODES[:2], SCALES, **SIZES),
    no(
        "channels_last is not known",
        f"{MICROSOFT}:QLinearGlobalAveragePool",
        "uint8[1, 2, 3, 3]",
        floats(1),
        _UINT8,
        floats(1),
        _UINT8,
        opset=1,
        channels_last=1,
    ),
    no(
        "activation is one of Clip",
        f"{MICROSOFT}:FusedConv",
        IMAGE,
        FILTERS,
        opset=1,
        activation="Odd",
    ),
    # logic, reduction, creation
    no("direction must be LEFT or RIGHT", "BitShift", "uint8[4]", "uint8[4]", direction="UP"),
    no("the axis must be one number", "CumSum", MATRIX, ints(0, 1)),
    no("a Constant has one of value", "Constant"),
    no("a Constant has one of value", "Constant", value_int=1, value_float=1.0),
    no("delta is 0", "Range", np.int64(0), np.int64(4), np.int64(0)),
    no("has no length", "Range", np.float32(0), np.float32(np.inf), np.float32(1)),
    no("it is made like a matrix", "EyeLike", VECTOR),
    no("it is made like a matrix", "EyeLike", "float32[2, 2, 2]"),
    # recurrent
    no(
        "activations are",
        "RNN",
        "float32[2, 2, 3]",
        np.zeros((1, 2, 3), np.float32),
        np.zeros((1, 2, 2), np.float32),
        hidden_size=2,
        activations=["Odd"],
    ),
    no(
        "direction is one of",
        "RNN",
        "float32[2, 2, 3]",
        np.zeros((1, 2, 3), np.float32),
        np.zeros((1, 2, 2), np.float32),
        hidden_size=2,
        direction="sideways",
    ),
    # ai.onnx.ml
    no("one of keys_tensor", f"{ML}:LabelEncoder", "int64[4]", opset=4, values_int64s=[1]),
    no("one of values_tensor", f"{ML}:LabelEncoder", "int64[4]", opset=2, keys_int64s=[1]),
    no(
        "post_transform 3 is not known",
        f"{ML}:TreeEnsemble",
        MATRIX,
        opset=5,
        **_tree(post_transform=3),
    ),
    no("n_targets is -1, and 0 to", f"{ML}:TreeEnsemble", MATRIX, opset=5, **_tree(n_targets=-1)),
    # activation, contraction, normalization
    no("approximate must be none or tanh", "Gelu", VECTOR, approximate="erf"),
    no("it multiplies matrices", "Gemm", VECTOR, MATRIX),
    no("it multiplies matrices", "Gemm", MATRIX, "float32[3]"),
    no(
        "it trains with spatial = 0",
        "BatchNormalization",
        MATRIX,
        *(["float32[3]"] * 4),
        opset=7,
        outputs=5,
        spatial=0,
    ),
    # movement, scatter
    no(
        "reduction must be one of",
        "ScatterND",
        VECTOR,
        ints(0).reshape(1, 1),
        floats(1),
        reduction="odd",
    ),
    no("reduction must be one of", "ScatterElements", VECTOR, ints(0), floats(1), reduction="odd"),
    no(
        "mode must be linear or circular",
        "TensorScatter",
        "float32[2, 5, 3]",
        "float32[2, 1, 3]",
        mode="odd",
        opset=24,
    ),
    no(
        "tiles and axis are known only when it runs",
        "Tile",
        VECTOR,
        "float32[]",
        floats(0),
        opset=1,
    ),
    no(
        "tiles and axis are known only when it runs",
        "Tile",
        VECTOR,
        floats(2),
        "float32[]",
        opset=1,
    ),
    no("one count an axis is needed, found 1", "Tile", MATRIX, ints(2)),
    no("a triangle is part of a matrix", "Trilu", VECTOR),
    # slicing
    no("starts and ends are needed", "Slice", VECTOR, ints(0), None, is_inside=True),
    no("starts and ends are needed", "Slice", VECTOR, None, ints(1), is_inside=True),
    no("mode must be one of", "Pad", VECTOR, ints(1, 1), mode="odd"),
    no("pads are needed", "Pad", VECTOR, None, is_inside=True),
    no("two pads an axis are needed, found 2", "Pad", MATRIX, ints(1, 1)),
    no("one size an axis is needed, found 1", "CenterCropPad", MATRIX, ints(1), axes=[0, 1]),
    no("num_outputs is 3, and 2 outputs are named", "Split", VECTOR, outputs=2, num_outputs=3),
    no("4 does not divide into 3 equal parts", "Split", VECTOR, outputs=3, opset=13),
    # spectrum
    no(
        "no axis of float32[1, 1, 2] can be transformed",
        "DFT",
        "float32[1, 1, 2]",
        None,
        "int64[]",
        inverse=1,
        onesided=1,
        opset=20,
    ),
    no(
        "made of half its spectrum",
        "DFT",
        "float32[1, 5, 2]",
        "int64[]",
        np.int64(1),
        inverse=1,
        onesided=1,
        opset=20,
    ),
    # control
    no(
        "of another rank than before",
        "Loop",
        np.int64(3),
        None,
        "float32[4]",
        after="NonZero",
        body=_growing(),
    ),
    no(
        "sequence_lens of opset 8 are not read",
        "Scan",
        "int64[1]",
        "float32[1, 3, 3]",
        opset=8,
        body=_row("a"),
        num_scan_inputs=1,
    ),
    no(
        "num_scan_inputs is 2, and 0 to 1 are taken",
        "Scan",
        None,
        "float32[1, 3, 3]",
        opset=8,
        body=_row("a"),
        num_scan_inputs=2,
    ),
    # transformer
    no(
        "qk_matmul_output_mode is 0, 1, 2 or 3",
        "Attention",
        *(["float32[1, 2, 3, 4]"] * 3),
        outputs=4,
        qk_matmul_output_mode=4,
    ),
    no("num_heads is needed", "RotaryEmbedding", "float32[1, 3, 8]", *(["float32[1, 3, 2]"] * 2)),
    no(
        "elements are turned by half as many angles",
        "RotaryEmbedding",
        "float32[1, 2, 3, 8]",
        *(["float32[1, 3, 3]"] * 2),
    ),
    # ops of packages
    no(
        "has no attribute times. It has by", "com.refusals:Scaled", "float32[2]", opset=1, times=2.0
    ),
    no("is float, found 'two'", "com.refusals:Scaled", "float32[2]", opset=1, by="two"),
)
