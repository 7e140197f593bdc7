"""The dtypes for which ONNX Runtime has CPU kernels, by ONNX op.

Written down so that a claim needs no engine; a test compares it with the engine's own list. For
the ops the writer emits, at opset 26, which adds to opset 21 only what ``SINCE`` says.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusewire import dtypes
from fusewire.dtypes import DType

_SHORT = {
    "b1": dtypes.bool_,
    "i1": dtypes.int8, "i2": dtypes.int16, "i4": dtypes.int32, "i8": dtypes.int64,
    "u1": dtypes.uint8, "u2": dtypes.uint16, "u4": dtypes.uint32, "u8": dtypes.uint64,
    "f2": dtypes.float16, "bf": dtypes.bfloat16, "f4": dtypes.float32, "f8": dtypes.float64,
    "e4": dtypes.float8_e4m3fn, "e4z": dtypes.float8_e4m3fnuz,
    "e5": dtypes.float8_e5m2, "e5z": dtypes.float8_e5m2fnuz,
}  # fmt: skip
_INTS = "i1 i2 i4 i8 u1 u2 u4 u8"
_SMALL = "e4 e4z e5 e5z"
# Dtypes, and the ops whose deciding input takes them; "Op@1" is another input, "Op@-1" the output.
_GROUPS = (
    ("b1", "And Not Or Xor"),
    (
        "f4",
        "Acos Acosh Asin Asinh Atan Atanh AveragePool Celu Conv ConvTranspose Cosh "
        "Det DynamicQuantizeLinear Elu Erf Gelu GlobalAveragePool GlobalMaxPool HardSigmoid "
        "Hardmax InstanceNormalization LRN LeakyRelu NonMaxSuppression PRelu QLinearMatMul@1 "
        "RNN Selu Sinh Softplus Softsign Tan ThresholdedRelu",
    ),
    # These two are functions of other ops to the engine.
    ("f4", "HardSwish Mish"),
    ("f2 f4", "Attention DequantizeLinear@1 QuantizeLinear com.microsoft:MatMulNBits"),
    (
        "f4 f8",
        "BatchNormalization Ceil Cos DFT DeformConv Exp Floor GRU Gemm GridSample LSTM Log "
        "LogSoftmax LpNormalization Reciprocal RoiAlign STFT Sigmoid Sin Softmax Sqrt Tanh",
    ),
    ("i1 u1", "ConvInteger MatMulInteger QLinearConv QLinearMatMul"),
    ("f2 f4 f8", "RMSNormalization Round com.microsoft:Inverse"),
    ("i4 i8 f4", "OneHot"),
    ("u1 u4 u8", "BitShift"),
    ("f2 bf f4 f8", "LayerNormalization"),
    ("i1 i4 f4 f8", "Relu"),
    ("i1 i4 u1 f4", "Resize"),
    ("i1 i8 f4 f8", "Unique"),
    ("i1 u1 f4 f8", "MaxPool"),
    (
        "i4 i8 f4 f8",
        "CumSum Einsum Pow ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean "
        "ReduceProd ReduceSum ReduceSumSquare",
    ),
    ("b1 i4 i8 f4 f8", "Trilu"),
    ("b1 i4 i8 u1 f4", "NonZero"),
    ("i2 i4 i8 f4 f8", "Range"),
    ("i1 i2 i4 i8 f4 f8", "Neg"),
    ("i1 i4 i8 u1 f4 f8", "ArgMax ArgMin"),
    ("i4 i8 u4 u8 f4 f8", "CumProd MatMul"),
    ("b1 i1 i4 i8 u1 f4 f8", "ReduceMax ReduceMin"),
    ("i1 i2 i4 i8 u1 f4 f8", "TopK"),
    ("i1 i4 i8 u1 u4 f4 f8", "Where"),
    (f"f2 bf f4 f8 {_SMALL}", "IsInf IsNaN"),
    (_INTS, "BitwiseAnd BitwiseNot BitwiseOr BitwiseXor"),
    (f"i1 i2 u1 u2 {_SMALL}", "QuantizeLinear@-1"),
    ("b1 i1 i4 i8 u1 u4 u8 f4 f8", "Pad"),
    (f"i1 i2 i4 u1 u2 {_SMALL}", "DequantizeLinear"),
    ("i1 i4 i8 u1 u4 u8 f2 f4 f8", "Clip Max Min"),
    (
        f"{_INTS} f4 f8",
        "Abs Add BlackmanWindow Div Greater GreaterOrEqual HammingWindow HannWindow "
        "Less LessOrEqual MelWeightMatrix Mul Sub",
    ),
    (f"b1 {_INTS} f4 f8", "Equal Tile"),
    (f"{_INTS} f2 f4 f8", "Mod Shrink"),
    (f"b1 {_INTS} f2 f4 f8", "Compress Expand ReverseSequence"),
    (f"{_INTS} f2 bf f4 f8", "BitCast BitCast@-1 Sign"),
    (
        f"b1 {_INTS} f2 bf f4 f8",
        "Concat Gather GatherElements GatherND ScatterElements ScatterND "
        "Slice Split Squeeze Unsqueeze",
    ),
    (
        f"b1 {_INTS} f2 bf f4 f8 {_SMALL}",
        "Cast Cast@-1 ConstantOfShape Identity If Loop Reshape Scan Shape Transpose",
    ),
)
# The opset that an op is new in, where that is above the lowest we write.
SINCE: Mapping[str, int] = {"Attention": 23, "RMSNormalization": 23, "BitCast": 26, "CumProd": 26}
KERNELS: Mapping[str, frozenset[DType]] = {
    op: frozenset(_SHORT[name] for name in taken.split())
    for taken, ops in _GROUPS
    for op in ops.split()
}
