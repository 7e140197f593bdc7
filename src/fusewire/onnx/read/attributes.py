"""Attributes of ONNX nodes as Python values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

# By AttributeProto.AttributeType; GRAPH, TENSOR, SPARSE_TENSOR and TYPE_PROTO stay messages.
_READERS: Mapping[int, Callable[[Any], Any]] = {
    1: lambda a: number(a),
    2: lambda a: int(a.i),
    3: lambda a: text(a.s),
    4: lambda a: a.t,
    5: lambda a: a.g,
    6: lambda a: tuple(a.floats),
    7: lambda a: tuple(a.ints),
    8: lambda a: tuple(text(s) for s in a.strings),
    9: lambda a: tuple(a.tensors),
    10: lambda a: tuple(a.graphs),
    11: lambda a: a.sparse_tensor,
    12: lambda a: tuple(a.sparse_tensors),
    13: lambda a: a.tp,
    14: lambda a: tuple(a.type_protos),
}
_LONGEST_NUMBER = 32
# Files from before the type was written down say it by the field they fill.
_FIELDS = {"f": 1, "i": 2, "s": 3, "t": 4, "g": 5, "floats": 6, "ints": 7, "strings": 8}


def number(attribute: Any) -> float:
    """Read a float; our own files note the digits that float32 has no room for."""
    held, noted = float(attribute.f), attribute.doc_string
    if not noted or len(noted) > _LONGEST_NUMBER:
        return held
    try:
        exact = float(noted)
    except ValueError:
        return held
    return exact if np.float32(exact) == np.float32(held) else held


def text(held: bytes) -> str:
    """Read bytes as text; what is no UTF-8 is shown, not lost."""
    return held.decode("utf-8", "backslashreplace")


def read_attributes(protos: Iterable[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Read attributes by name; ``given`` are those of the function call around the node."""
    found: dict[str, Any] = {}
    for attribute in protos:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                found[attribute.name] = given[attribute.ref_attr_name]
            continue
        kind = attribute.type
        if not kind:
            filled = [field.name for field, _ in attribute.ListFields()]
            kind = next((_FIELDS[name] for name in filled if name in _FIELDS), 7)
        found[attribute.name] = _READERS[kind](attribute)
    return found
