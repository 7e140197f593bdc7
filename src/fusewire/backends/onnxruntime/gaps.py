"""Known errors of ONNX Runtime that no dtype, attribute or shape predicts."""

from __future__ import annotations

from fusewire.contract.backend import Gap

_OPENVINO = "cpu:openvino"
_NAN = "its OpenVINO provider (1.8.1) makes a number of NaN."
_ORDER = "its OpenVINO provider (1.8.1) takes NaN for larger than any number, or for nothing."

GAPS: tuple[Gap, ...] = (
    *(
        Gap(op, "upstream", _NAN, device=_OPENVINO)
        for op in (
            *("exp", "expm1", "erfc", "lgamma", "digamma", "hypot", "logaddexp"),
            *("relu", "relu6", "hard_tanh", "celu", "hard_sigmoid"),
        )
    ),
    *(
        Gap(op, "upstream", _ORDER, device=_OPENVINO)
        for op in ("greater", "greater_equal", "argmax", "argmin")
    ),
    *(
        Gap(
            op,
            "upstream",
            "its OpenVINO provider (1.8.1) refuses blocks that do not divide an axis.",
            device=_OPENVINO,
        )
        for op in ("quantize", "dequantize")
    ),
    Gap("sigmoid", "upstream", _NAN, "bfloat16", _OPENVINO),
    *(
        Gap(op, "upstream", "its OpenVINO provider (1.8.1) keeps NaN.", device=_OPENVINO)
        for op in ("thresholded_relu", "shrink")
    ),
    Gap(
        "attention",
        "upstream",
        "its OpenVINO provider (1.8.1) makes NaN where all keys of a query are masked, unless "
        "attention is one node.",
        device=_OPENVINO,
    ),
    *(
        Gap(
            op,
            "upstream",
            "its OpenVINO provider (1.8.1) makes the largest number of infinities.",
            device=_OPENVINO,
        )
        for op in ("reduce_max", "reduce_min")
    ),
    Gap(
        "dense_to_csr",
        "upstream",
        "its OpenVINO provider (1.8.1) gives the columns in another order.",
        device=_OPENVINO,
    ),
    Gap(
        "gelu",
        "upstream",
        "its OpenVINO provider (1.8.1) makes NaN of infinity.",
        device=_OPENVINO,
    ),
    Gap(
        "matmul_integer",
        "upstream",
        "its OpenVINO provider (1.8.1) keeps an axis of 1 in products of vectors.",
        device=_OPENVINO,
    ),
    Gap(
        "dynamic_quantize",
        "upstream",
        "its OpenVINO provider (1.8.1) gives zeros the scale 0.",
        device=_OPENVINO,
    ),
    Gap(
        "cast",
        "upstream",
        "its OpenVINO provider (1.8.1) casts what no integer holds in another way.",
        device=_OPENVINO,
    ),
    Gap(
        "erf",
        "upstream",
        "its OpenVINO provider (1.8.1) has an error of 4e-7 near 0.",
        "float32",
        _OPENVINO,
    ),
)
