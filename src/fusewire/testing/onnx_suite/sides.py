"""Who runs the cases: a backend, alone or with the reference behind it, or any runner of models.

A side is a word: "xla" is the backend alone, "xla+reference" the same with fallback, and
"module:function" names a function that takes a ModelProto and gives what runs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from fusewire import compiler
from fusewire.testing.onnx_suite.cases import Prepare, Run

WITH_FALLBACK = f"+{compiler.FALLBACK}"


def backend_of(side: str) -> str | None:
    """Name the backend of a side, or None if it is someone else's runner."""
    return None if ":" in side else side.removesuffix(WITH_FALLBACK)


def prepare_of(side: str) -> Prepare:
    """Find what a side prepares models with."""
    backend = backend_of(side)
    if backend is None:
        module, name = side.split(":")
        found: Prepare = getattr(importlib.import_module(module), name)
        return found
    fallback = "error" if backend == side else "allow"

    def prepare(model: Any) -> Run:
        # Not isolated: the process that runs cases is a child already.
        program = compiler.compile(
            model, backend=backend, fallback=fallback, threads=1, isolate=False
        )

        def run(inputs: Sequence[Any]) -> Sequence[Any]:
            found = program(*inputs)
            return found if isinstance(found, tuple) else (found,)

        return run

    return prepare
