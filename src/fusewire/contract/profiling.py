"""Kernel times of an engine: an optional part of the contract, asked for while a profile is on."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass

from fusewire.contract.backend import Held, Into


@dataclass(frozen=True)
class KernelTime:
    """One kernel, or node of the engine's own graph, of a run.

    ``start`` is in seconds of ``time.perf_counter``, as well as the engine's clock can be placed.
    """

    name: str
    start: float
    seconds: float


class Profiled(abc.ABC):
    """An executable whose engine tells how long each of its kernels takes."""

    def begin_profile(self) -> None:  # noqa: B027 - most need nothing for it
        """Make ready what only profiles need, before the first profiled run; safe to repeat."""

    @abc.abstractmethod
    def run_profiled(
        self, inputs: Sequence[Held], into: Into = ()
    ) -> tuple[list[Held], Sequence[KernelTime]]:
        """Run as ``run`` does, to the end; returns the outputs, and the kernels in order.

        There are none if the device cannot tell, or if the engine tells them at the end only.
        """

    def end_profile(self) -> Sequence[KernelTime]:
        """Let go of what only profiles need; returns the kernels that are known only now."""
        return ()
