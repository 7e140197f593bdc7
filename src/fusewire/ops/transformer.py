"""Ops: transformer."""

from __future__ import annotations

from fusewire.ops.declare import Family

FAMILY = Family("transformer")
