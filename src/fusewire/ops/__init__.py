"""Ops by name: ``fusewire.ops.softmax(x, axis=-1)`` on arrays, or on values while tracing."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any


def __getattr__(name: str) -> Any:
    """Find an op when it is asked for, so that importing this package loads no family."""
    # `from fusewire.ops import ranges` asks here before it looks for a module of that name, and
    # families are not to be loaded while one of them is.
    if find_spec(f"{__name__}.{name}") is not None:
        raise AttributeError(f"fusewire.ops.{name} is a module; import it.")
    from fusewire.ops.table import all_ops

    found = all_ops().get(name.removesuffix("_"))
    if found is None:
        raise AttributeError(f"fusewire.ops has no op {name!r}; `fusewire ops` lists all.")
    return found
