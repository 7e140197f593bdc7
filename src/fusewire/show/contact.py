"""The outcome of the first contact of an engine with a region. Imports little: every start does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Contacted:
    """The outcome of building a region, for inputs of these types.

    ``outcome`` is "ready", or the code of the fault, in which case the fallback runs the region.
    ``metrics`` has the seconds of each phase and the bytes of memory, if a child built it.
    ``cache`` is "hit", "off", or how the key differs from the nearest one that is recorded.
    """

    region: str
    backend: str
    inputs: tuple[str, ...]
    outcome: str
    runs_on: str
    is_isolated: bool
    reason: str = ""
    suggestion: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    cache: str = ""
