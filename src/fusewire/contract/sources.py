"""What to do about a source that no frontend reads, in a sentence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath
from types import MethodType

_EXPORT = (
    'Export it to ONNX: torch.onnx.export(module, example, "model.onnx", dynamo=True), which needs '
    'the package onnxscript (pip install onnxscript), then fw.compile("model.onnx").'
)
# What a file holds, by its suffix, and how it becomes one that can be read.
_FILES: Mapping[str, str] = {
    **dict.fromkeys((".pt", ".pth", ".pt2", ".ckpt"), f"It belongs to PyTorch. {_EXPORT}"),
    ".safetensors": f"It has weights and no program. Load them into their module. {_EXPORT}",
    ".tflite": "Convert it: python -m tf2onnx.convert --tflite FILE --output model.onnx.",
    ".pb": "Convert it: python -m tf2onnx.convert --graphdef FILE --output model.onnx.",
    ".xml": "It is OpenVINO's own format. Give the ONNX file that it was made from.",
}


def unread(source: object) -> str:
    """Say that nothing reads a source, and what does."""
    if isinstance(source, str | os.PathLike):
        return _unread_file(os.fspath(source))
    if isinstance(source, bytes | bytearray | memoryview):
        return (
            "A model was given as bytes. Give the path of its file, or onnx.load_from_string(it)."
        )
    if isinstance(source, type):
        return f"{source.__name__} is a class. Give a function, or an object that can be called."
    if is_of_torch(source):
        return (
            f"No frontend reads this {type(source).__name__}, which belongs to PyTorch's "
            f"{type(_owner(source)).__name__}. Give a module, or what torch.export.export returns."
        )
    return (
        f"No frontend reads a {type(source).__name__}. "
        "Give a Python function, the path of an ONNX file, or a Graph."
    )


def _unread_file(path: str | bytes) -> str:
    name = os.fsdecode(path)
    advice = _FILES.get(PurePath(name).suffix.lower(), "Models are read from .onnx files.")
    return f"No frontend reads {name!r}. {advice}"


def is_of_torch(source: object) -> bool:
    """Tell whether PyTorch, or a class derived from one of its own, made an object.

    Its modules can be called, but not with the arrays of a trace. Looked up by name: importing
    torch takes seconds.
    """
    kinds = type(_owner(source)).__mro__
    return any(kind.__module__.partition(".")[0] == "torch" for kind in kinds)


def _owner(source: object) -> object:
    """Return the object that a method belongs to, or the source itself."""
    return source.__self__ if isinstance(source, MethodType) else source
