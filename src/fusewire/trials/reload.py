"""Load what was made before: an artifact out of the memory, or one that was compiled just now."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fusewire.contract.backend import Artifact, Backend, Exchange, Executable
from fusewire.errors import EngineError
from fusewire.ir.graph import Array, Graph
from fusewire.process.guard import guarded
from fusewire.records.remember import Kept, Memory
from fusewire.runtime.plan import Outline
from fusewire.store.key import Key


@dataclass(frozen=True)
class Reloaded:
    """What was loaded, how tensors go into it, and how many seconds it took."""

    executable: Executable
    exchange: Exchange
    seconds: float


def reload(
    memory: Memory,
    key: Key,
    held: Kept,
    outline: Outline,
    backend: Backend,
    graph: Callable[[], Graph],
) -> Reloaded | None:
    """Load what is remembered; None where it cannot be used any more."""
    start = time.perf_counter()
    artifact, weights = held
    if any(slot.digest not in weights for slot in artifact.slots if slot.digest is not None):
        from fusewire.contract.region import weights_of
        from fusewire.ir.text import constants_of

        weights = weights_of(artifact, constants_of(graph()))
    try:
        made, exchange = loaded(outline, backend, artifact, weights)
    except EngineError:
        # It loaded once: whatever changed, it is made anew.
        memory.drop(key)
        return None
    return Reloaded(made, exchange, time.perf_counter() - start)


def loaded(
    outline: Outline, backend: Backend, artifact: Artifact, weights: Mapping[str, Array]
) -> tuple[Executable, Exchange]:
    """Have a backend load an artifact, and see that what it gives is of its kind."""
    name = outline.backend
    made = guarded(name, "load", name, backend.load, artifact, outline.device, weights)
    return made, guarded(name, "load", name, _exchange, backend, made)


def _exchange(backend: Backend, made: object) -> Exchange:
    """Ask how tensors go into what was loaded, and see that it can be asked."""
    exchange: object = backend.exchange
    if not (isinstance(made, Executable) and isinstance(exchange, Exchange)):
        kinds = f"{type(made).__name__} and {type(exchange).__name__}"
        raise TypeError(f"expected Executable and Exchange, found {kinds}")
    bool(made.is_reentrant)
    return exchange
