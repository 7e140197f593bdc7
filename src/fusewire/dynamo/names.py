"""What a graph of Dynamo and its arguments are called in the user's code."""

from __future__ import annotations

import re
from typing import Any

# The parts of a module on the way to one of its tensors, as Dynamo writes it.
_PART = re.compile(r"\._(?:modules|parameters|buffers)\['(.+?)'\]")


def graph_name() -> str:
    """Name the module or function whose graph Dynamo is compiling."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    codes = list(context.get_traced_code() or ()) if context is not None else []
    if not codes:
        return "graph"
    # A module of PyTorch itself is called by a function of Dynamo; what that calls ends last.
    is_wrapped = codes[0].co_filename.endswith("external_utils.py")
    name: str = codes[-1 if is_wrapped else 0].co_qualname.rpartition("<locals>.")[2]
    owner, _, function = name.rpartition(".")
    return (owner or function).strip("<>")


def parameter_path(place: Any) -> str | None:
    """Name a parameter or buffer as its module does ("layers.0.weight"); None if unknown."""
    source = getattr(place, "_dynamo_source", None)
    name = getattr(source, "name", "")
    return ".".join(_PART.findall(name() if callable(name) else name)) or None
