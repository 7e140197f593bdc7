"""The frontend that reads ONNX models."""

from __future__ import annotations

from fusewire.frontends.onnx.frontend import OnnxFrontend

__all__ = ["OnnxFrontend"]
