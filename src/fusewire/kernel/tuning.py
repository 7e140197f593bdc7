"""The tuning space of a kernel backend: the kernels of a region, and the choices for each.

A configuration is all that a printer may choose: tiles, rows, workgroups. Options configure all
kernels alike; ``tuned`` names kernels by their keys and configures each.
"""

from __future__ import annotations

import abc
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, final

from fusewire.contract.backend import Config, Fact
from fusewire.contract.tuning import TUNED, Axes, Piece, parsed
from fusewire.errors import RefusedError
from fusewire.fusion.grouping import Fusion, body_of
from fusewire.ir.graph import Graph
from fusewire.ir.hash import structural_hash
from fusewire.kernel.form import Kernel, Repeat
from fusewire.kernel.lower.region import OutsideKernels, lower_fusion
from fusewire.kernel.printed import Code, PrintedKernel
from fusewire.kernel.text import print_kernel

# What may be chosen, by the kind of kernel.
Choices = Mapping[str, Axes]
Configuration = TypeVar("Configuration")
_BUFFER = re.compile(r"\w+(?=[\[{:])")


@dataclass(frozen=True, eq=False)
class DistinctKernel:
    """A group of a fused graph: what it computes, the kernel that does, how often it is run."""

    key: str
    name: str
    graph: Graph
    kernel: Kernel
    count: int


def key_of(kernel: Kernel) -> str:
    """Tell a kernel from others, whatever it and its buffers are called."""
    buffers = dict.fromkeys((*kernel.reads, *kernel.writes, *kernel.locals))
    names = {buffer.name: f"b{place}" for place, buffer in enumerate(buffers)}
    types = [f"{buffer.dtype.name}{list(buffer.shape)}" for buffer in buffers]
    text = print_kernel(kernel).partition(" for ")[2]
    body = _BUFFER.sub(lambda match: names.get(match[0], match[0]), text)
    lines = [*types, str(len(kernel.reads)), str(len(kernel.locals)), body]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def distinct_kernels(
    fusion: Fusion, fused: Callable[[Graph], Fusion], outside: OutsideKernels
) -> Iterator[DistinctKernel]:
    """Yield each distinct kernel that a group becomes, alone as in the whole.

    ``fused`` fuses a graph as the whole was; ``outside`` are kernels that packages bring. Groups of
    several kernels, and those in loops of the host, have none.
    """
    whole = lower_fusion(fusion, outside)
    counts = Counter(key_of(step) for step in whole.steps if not isinstance(step, Repeat))
    seen: set[str] = set()
    for group in fusion.groups:
        body, _ = body_of(group)
        if (hashed := structural_hash(body)) in seen:
            continue
        seen.add(hashed)
        try:
            alone = lower_fusion(fused(body), outside).steps
        except RefusedError:
            continue
        if len(alone) != 1 or isinstance(alone[0], Repeat):
            continue
        key = key_of(alone[0])
        if key in counts:
            name = f"{group.pattern} {', '.join(str(v.type) for v in body.outputs)}"
            yield DistinctKernel(key, name, body, alone[0], counts.pop(key))


class TuningSpace(abc.ABC, Generic[Configuration, Code]):
    """What a backend may choose for its kernels on a device, and how a choice is printed."""

    @property
    @abc.abstractmethod
    def choices(self) -> Choices:
        """What is tried for each kind of kernel; each name is a field of a configuration."""

    @property
    @abc.abstractmethod
    def outside(self) -> OutsideKernels:
        """Digests of the kernels that packages bring for their ops."""

    @abc.abstractmethod
    def options(self, config: Config) -> Mapping[str, Fact]:
        """Complete and check the names of options; OptionsError for one that is not known."""

    @abc.abstractmethod
    def configuration(self, config: Config) -> Configuration:
        """Configure all kernels by options; OptionsError for options that cannot be."""

    @abc.abstractmethod
    def kind(self, kernel: Kernel, configuration: Configuration) -> str:
        """Name the kind of a kernel, one of those of ``choices``."""

    @abc.abstractmethod
    def print(self, kernel: Kernel, configuration: Configuration) -> PrintedKernel[Code]:
        """Print a kernel; RefusedError where the device lacks what it computes."""

    def configured(self, config: Config) -> Configurations[Configuration, Code]:
        """Configure kernels, each as options say that were given for it alone."""
        names = {name for axes in self.choices.values() for name in axes}
        tuned = {
            key: self.configuration(
                replace(config, options={**config.options, **chosen, TUNED: ()})
            )
            for key, chosen in parsed(self.options(config)[TUNED], names).items()
        }
        return Configurations(self, self.configuration(config), tuned)

    def pieces(
        self, fusion: Fusion, fused: Callable[[Graph], Fusion], config: Config
    ) -> Iterator[Piece]:
        """Yield the kernels for which there is something to choose; options are not tried again."""
        untuned = self.configuration(config)
        for part in distinct_kernels(fusion, fused, self.outside):
            axes = {
                name: values
                for name, values in self._axes(part.kernel, untuned).items()
                if len(values) > 1 and name not in config.options
            }
            if axes:
                yield Piece(part.key, part.name, part.graph, part.count, axes)

    def _axes(self, kernel: Kernel, untuned: Any) -> Axes:
        """Keep of each axis what prints another kernel, beginning with what is untuned."""
        axes = {}
        for name, values in self.choices[self.kind(kernel, untuned)].items():
            printed: dict[PrintedKernel[Code], Fact] = {}
            for value in (getattr(untuned, name), *values):
                printed.setdefault(self.print(kernel, replace(untuned, **{name: value})), value)
            axes[name] = tuple(printed.values())
        return axes


@final
@dataclass(frozen=True)
class Configurations(Generic[Configuration, Code]):
    """The configuration of all kernels of a region, and others of single ones by their keys."""

    space: TuningSpace[Configuration, Code]
    untuned: Configuration
    tuned: Mapping[str, Configuration]

    def configuration(self, kernel: Kernel) -> Configuration:
        """Return the configuration of a kernel."""
        # To find out a kernel's key takes longer than to print it.
        tuned = self.tuned.get(key_of(kernel)) if self.tuned else None
        return self.untuned if tuned is None else tuned

    def print(self, kernel: Kernel) -> PrintedKernel[Code]:
        """Print a kernel as it is configured."""
        return self.space.print(kernel, self.configuration(kernel))
