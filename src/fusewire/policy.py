"""What people say about where to run: plain words and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

# What becomes of nodes that a backend refuses.
Fallback = Literal["error", "warn", "allow"]
# Runs every graph, and is always there.
FALLBACK = "reference"


@dataclass(frozen=True)
class ForDevice:
    """Prefer backends that run on a device: ``ForDevice("webgpu:0")`` or a kind of device."""

    device: str


@dataclass(frozen=True)
class FirstWith:
    """Prefer the first backend that takes every one of these ops whole.

    With ``capabilities`` it must also have been shown to hold these flags of ``capability.FLAGS``.
    """

    ops: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


# A name, "auto", one of the policies above, or a function from homes and a graph to a home.
Chooser: TypeAlias = Callable[[Sequence[Any], Any], Any]
Policy: TypeAlias = "str | ForDevice | FirstWith | Chooser"
