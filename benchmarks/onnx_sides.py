"""Runners of ONNX models to compare with: ONNX Runtime bare, and the evaluator of onnx itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

# Lets ONNX Runtime try opsets that it does not know to be released; read when it is imported.
os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"


def onnxruntime(model: Any) -> Any:
    """Open a session on the model as it is."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    names = [info.name for info in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=False)))


def evaluator(model: Any) -> Any:
    """Make onnx's own ReferenceEvaluator."""
    from onnx.reference import ReferenceEvaluator

    session = ReferenceEvaluator(model)
    held = {tensor.name for tensor in model.graph.initializer}
    names = [name for name in session.input_names if name not in held]

    def run(inputs: Sequence[Any]) -> Any:
        return session.run(None, dict(zip(names, inputs, strict=False)))

    return run
