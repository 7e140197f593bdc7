"""Known errors of ONNX Runtime that no dtype, attribute or shape predicts."""

from __future__ import annotations

from fusewire.contract.backend import Gap

_OPENVINO = "cpu:openvino"
_NAN = "its OpenVINO provider (1.8.1) makes a number of NaN."
_ORDER = "its OpenVINO provider (1.8.1) takes NaN for larger than any number, or for nothing."

GAPS: tuple[Gap, ...] = (
    *(
        Gap(op, "upstream", _NAN, device=_OPENVINO)
        for op in ("exp", "expm1", "erfc", "lgamma", "digamma", "hypot", "logaddexp")
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
    Gap(
        "split",
        "upstream",
        "its OpenVINO provider (1.8.1) has no parts without elements.",
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
