"""Ops called by name in traced code; branches and loops take Python functions for their bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusewire.frontends.trace.sizes import Size
from fusewire.ops.declare import Op

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording


def call(trace: Recording, op: Op[Any], operands: Any, attrs: Any) -> Any:
    """Apply an op to arrays under trace."""
    return op(*operands, **{k: _attr(v) for k, v in attrs.items()})


def _attr(attr: Any) -> Any:
    if isinstance(attr, Size):
        return attr.dim
    if isinstance(attr, tuple | list):
        return tuple(_attr(item) for item in attr)
    return attr
