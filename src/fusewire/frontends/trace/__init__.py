"""Trace Python functions that use NumPy, an array namespace, or ops."""

from __future__ import annotations

from fusewire.frontends.trace.frontend import TraceFrontend

__all__ = ["TraceFrontend"]
