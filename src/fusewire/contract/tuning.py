"""Tuning of a backend's kernels: an optional part of the contract.

The backend says what can be chosen; the core times, judges and records it. A record is data: only
names and values that the backend offers are accepted.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from fusewire.contract.backend import Config, Device, Fact
from fusewire.errors import OptionsError
from fusewire.ir.graph import Graph

# The option that configures single kernels, each by its key.
TUNED = "tuned"
# What may be chosen, by name.
Axes = Mapping[str, tuple[Fact, ...]]
_LINE = re.compile(r"([0-9a-f]{16})((?: [a-z]+=\d{1,6}(?:,\d{1,6})*)+)")


@dataclass(frozen=True, eq=False)
class Piece:
    """A kernel of a region, as a region by itself, and what may be chosen for it.

    ``key`` tells it from other kernels and other sizes; the region runs it ``count`` times. Of each
    of the ``axes`` the first value is what it has untuned, and the order is that in which to try.
    """

    key: str
    name: str
    graph: Graph
    count: int
    axes: Axes

    @property
    def untuned(self) -> dict[str, Fact]:
        """The default configuration."""
        return {name: values[0] for name, values in self.axes.items()}


@dataclass(frozen=True)
class Estimate:
    """What was chosen for a kernel that nobody timed, of how many, and what it takes."""

    key: str
    name: str
    chosen: Mapping[str, Fact]
    tried: int
    left_out: Mapping[str, int]
    takes: Mapping[str, int] = field(default_factory=dict)


class Tuner(abc.ABC):
    """A backend whose kernels may be configured: options configure all alike, ``tuned`` each."""

    @abc.abstractmethod
    def pieces(self, region: Graph, device: Device, config: Config) -> Sequence[Piece]:
        """List the distinct kernels of a region that can be tuned."""

    @abc.abstractmethod
    def clock(self, device: Device) -> Mapping[str, Fact]:
        """Return the options that time a kernel by the device's own clock."""


class Estimator(abc.ABC):
    """A backend that chooses configurations for an absent device: nothing is timed."""

    @abc.abstractmethod
    def estimates(self, region: Graph, device: Device) -> tuple[str, Sequence[Estimate]]:
        """Choose for each kernel of a region, by a rule that is told first."""


class Clocked(abc.ABC):
    """An executable whose device measures its own time."""

    @property
    @abc.abstractmethod
    def device_seconds(self) -> float | None:
        """The device seconds of the last run; None if they were not measured."""


def written(kept: Mapping[str, Mapping[str, Fact]]) -> tuple[str, ...]:
    """Write what was chosen, by key, as an option: one line a kernel."""
    return tuple(
        " ".join([key, *(f"{name}={shown(value)}" for name, value in chosen.items())])
        for key, chosen in kept.items()
    )


def shown(value: Fact) -> str:
    """Format one number, or several."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def parsed(told: object, names: Set[str]) -> dict[str, dict[str, Fact]]:
    """Read what ``written`` wrote; OptionsError if it is malformed or has unknown names."""
    lines = told if isinstance(told, tuple | list) else (told,)
    found: dict[str, dict[str, Fact]] = {}
    for line in lines:
        match = _LINE.fullmatch(line) if isinstance(line, str) else None
        if match is None:
            raise OptionsError(f"{TUNED}={line!r}: a line is KEY name=4 name=8,8 and so on.")
        chosen = dict(part.split("=") for part in match.group(2).split())
        if unknown := ", ".join(sorted({*chosen} - names)):
            known = ", ".join(sorted(names))
            raise OptionsError(f"{TUNED}={line!r}: {unknown} configures no kernel. Known: {known}.")
        found[match.group(1)] = {name: _value(text) for name, text in chosen.items()}
    return found


def _value(text: str) -> Fact:
    numbers = tuple(map(int, text.split(",")))
    return numbers if len(numbers) > 1 else numbers[0]
