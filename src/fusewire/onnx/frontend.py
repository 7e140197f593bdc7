"""Turn ONNX models into graphs: files, bytes of files, and ModelProtos.

Every source is shown to every frontend, so importing this module imports nothing of the reader.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fusewire.contract.frontend import Document, Frontend, Limits
from fusewire.ir.graph import Graph


class OnnxFrontend(Frontend):
    """Reads ONNX models; arguments are the model's inputs in their order, or by name."""

    needs_example = False
    package = "onnx"

    def accepts(self, source: object) -> bool:
        if isinstance(source, str | os.PathLike):
            return os.fspath(source).endswith(".onnx")
        # Looked up by name, because importing onnx takes a quarter of a second.
        kind = type(source)
        return kind.__name__ == "ModelProto" and kind.__module__.startswith("onnx")

    def open(self, source: Any, limits: Limits) -> Document:
        from fusewire.onnx.read.document import OnnxDocument

        return OnnxDocument(source, limits)

    def save(
        self,
        graph: Graph,
        path: str | os.PathLike[str],
        opset: int | None,
        inside_bytes: int | None,
    ) -> None:
        from fusewire.onnx.saving import INSIDE_BYTES, save_graph
        from fusewire.onnx.write.target import DEFAULT

        inside_bytes = INSIDE_BYTES if inside_bytes is None else inside_bytes
        save_graph(graph, path, opset or DEFAULT, inside_bytes=inside_bytes)

    def annotate(
        self,
        source: str | os.PathLike[str],
        path: str | os.PathLike[str],
        notes: Mapping[str, Mapping[str, str]],
        otherwise: Mapping[str, str],
    ) -> None:
        from fusewire.onnx.annotating import annotate

        annotate(source, path, notes, otherwise)
