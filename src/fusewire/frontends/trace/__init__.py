"""The frontend that traces Python functions written with NumPy, an array namespace or ops."""

from __future__ import annotations

from fusewire.frontends.trace.frontend import TraceFrontend

__all__ = ["TraceFrontend"]
