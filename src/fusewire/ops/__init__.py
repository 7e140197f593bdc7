"""Ops by name: ``fusewire.ops.softmax(x, axis=-1)`` on arrays, or on values while tracing."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Find an op when it is asked for, so that importing this package loads no family."""
    from fusewire.ops.table import all_ops

    found = all_ops().get(name.removesuffix("_"))
    if found is None:
        raise AttributeError(f"fusewire.ops has no op {name!r}; `fusewire ops` lists all.")
    return found
