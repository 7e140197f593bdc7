"""What runs the cases: a backend, alone or with fallback, or any runner of models.

A side is a word: "xla" is the backend alone, "xla+reference" the same with fallback,
"xla@cuda:0" the backend on a device that is not its first, and "module:function" names a function
that takes a ModelProto and returns a function.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from fusewire import compiler
from fusewire.options import FALLBACK, Fallback
from fusewire.program.program import Program
from fusewire.testing.onnx_suite.cases import Prepare, Run

WITH_FALLBACK = f"+{FALLBACK}"


def backend_of(side: str) -> str | None:
    """Return the backend of a side, or None if it is another runner."""
    is_runner = ":" in side and "@" not in side
    return None if is_runner else side.removesuffix(WITH_FALLBACK).partition("@")[0]


def device_of(side: str) -> str | None:
    """Return the device that a side names, if it names one."""
    return side.removesuffix(WITH_FALLBACK).partition("@")[2] or None


class Side:
    """Prepares models, and counts how many nodes of the last one ran elsewhere."""

    def __init__(self, name: str) -> None:
        self._backend, self._device = backend_of(name), device_of(name)
        self._fallback: Fallback = "allow" if name.endswith(WITH_FALLBACK) else "error"
        self._program: Program | None = None
        self._others: Prepare | None = None
        if self._backend is None:
            module, function = name.split(":")
            self._others = getattr(importlib.import_module(module), function)

    def prepare(self, model: Any) -> Run:
        """Prepare a model; nothing is isolated, because this is already a child."""
        if self._others is not None:
            return self._others(model)
        program = self._program = compiler.compile(
            model,
            backend=self._backend or "auto",
            device=self._device,
            fallback=self._fallback,
            threads=1,
            isolate=False,
        )

        def run(inputs: Sequence[Any]) -> Sequence[Any]:
            found = program(*inputs)
            return found if isinstance(found, tuple) else (found,)

        return run

    def elsewhere(self) -> int:
        """Count the nodes of the last model that the host or the reference ran."""
        if self._program is None:
            return 0
        regions = self._program.plan.regions()
        return sum(len(x.graph.nodes) for x in regions if x.backend != self._backend)
