"""Say what to install if the onnx package is missing."""

from __future__ import annotations

from importlib.util import find_spec

from fusewire.errors import SourceError, install_advice


def need_onnx(what: str) -> None:
    """Raise SourceError if the package cannot be found; imports nothing."""
    for name in ("onnx", "google.protobuf"):
        try:
            is_there = find_spec(name) is not None
        except (ImportError, ValueError):
            is_there = False
        if not is_there:
            raise SourceError(
                f"{what} ONNX models needs the package onnx, which is not installed. "
                f"{install_advice('onnx')}"
            )
