"""First contact with an engine: in a child process, where it can break nothing of ours.

Whatever an engine does there, the caller gets an answer that was checked, or a refusal that says
what happened. Raised are only the OptionsError of a wrong option, the ShapeMismatchError of inputs
that do not fit, the CheckError of those that the program does not allow, and the IsolationError of
a machine that starts no children: none is the engine's.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fusewire.backend import Artifact, Config, Device, Executable, Offer, Refusal, Unavailable
from fusewire.dtypes import string
from fusewire.errors import (
    BackendCrashed,
    EngineError,
    EngineGarbage,
    EngineOutOfMemory,
    OptionsError,
)
from fusewire.ir.graph import Array, Graph
from fusewire.ir.text import INLINE_BYTES, constants_of, print_graph
from fusewire.ops.interpret import Bindings
from fusewire.ops.sample import HostValue
from fusewire.process.codec import (
    LIST,
    NUMBERS,
    OBJECT,
    TIMES,
    read_record,
    read_value,
    write_record,
    write_value,
)
from fusewire.process.frames import Blobs
from fusewire.process.guard import blaming, described, refusal
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import Pool, Seat, shared_pool
from fusewire.process.trial import (
    artifact_problem,
    attempt,
    backend_of,
    bindings,
    output_problem,
    run_again,
)

_KEPT_EXECUTABLES = 8
_KEPT_BYTES = 1 << 30

# Where nothing is isolated: backends are made once, as in a child.
_here = functools.cache(backend_of)


@dataclass(frozen=True, eq=False)
class Source:
    """What a contact is made of; ``reference`` is the "module:Class" of a backend."""

    reference: str
    region: Graph
    device: Device
    config: Config


@dataclass(frozen=True, eq=False)
class Contact:
    """A region that an engine compiled, loaded and ran; its outputs fit, but nobody judged them.

    ``metrics`` are seconds by phase, the peak of the child's memory in bytes, and the seconds in
    which the child started, 0 if it was there.
    """

    artifact: Artifact
    outputs: list[HostValue]
    metrics: dict[str, float]
    source: Source = field(repr=False)
    # The name of the executable in the child, or the executable itself where there is no child.
    held: str | Executable = field(repr=False)


@dataclass(frozen=True)
class Rerun:
    """The outputs of the last of several runs, and the seconds of each."""

    outputs: list[HostValue]
    seconds: list[float]


def probe(
    reference: str, limits: ChildLimits = ChildLimits(), *, pool: Pool | None = None
) -> list[Device | Unavailable]:
    """Ask a backend for its devices; one that cannot answer is unavailable."""

    def read(result: Any, blobs: Iterator[Array]) -> list[Device | Unavailable]:
        return [read_record(x, blobs, Device, Unavailable) for x in LIST.read(result, blobs)]

    try:
        with (pool or shared_pool()).seated(reference) as (seat, _):
            return seat.ask({"kind": "probe"}, [], limits, "", read)
    except EngineError as error:
        return [Unavailable(error.code, error.reason, error.advice)]


def claim(
    reference: str,
    graph: Graph,
    device: Device,
    limits: ChildLimits = ChildLimits(),
    *,
    pool: Pool | None = None,
) -> list[Offer | Refusal]:
    """Ask a backend what of a graph it would run; one that cannot answer refuses all of it."""

    def read(result: Any, blobs: Iterator[Array]) -> list[Offer | Refusal]:
        found = [read_record(x, blobs, Offer, Refusal) for x in LIST.read(result, blobs)]
        if any(place not in range(len(graph.nodes)) for item in found for place in item.nodes):
            raise EngineGarbage(f"nodes outside of the {len(graph.nodes)} of the graph")
        return found

    try:
        with (pool or shared_pool()).seated(reference) as (seat, _):
            blobs: Blobs = []
            job = {"kind": "claim", "device": write_record(device, blobs)}
            job |= _written(seat, graph, blobs)
            return seat.ask(job, blobs, limits, described(graph), read)
    except EngineError as error:
        return [refusal(error, graph)]


def first_contact(
    reference: str,
    region: Graph,
    device: Device,
    config: Config,
    inputs: Sequence[HostValue],
    limits: ChildLimits = ChildLimits(),
    *,
    isolate: bool = True,
    pool: Pool | None = None,
) -> Contact | Refusal:
    """Compile, load and run a region on the backend that "module:Class" names.

    Without ``isolate`` it all happens in this process: limits do not hold, and a crash is ours.
    """
    source = Source(reference, region, device, config)
    bound = bindings(region, inputs)
    try:
        if not isolate:
            return _in_process(source, inputs, bound)
        return _in_some_child(pool or shared_pool(), source, inputs, bound, limits)
    except EngineError as error:
        return refusal(error, region)


def rerun(
    contact: Contact,
    inputs: Sequence[HostValue],
    limits: ChildLimits = ChildLimits(),
    *,
    repeat: int = 1,
    pool: Pool | None = None,
) -> Rerun | Refusal:
    """Run a contact again, where it was made; a child that lost it loads its artifact again."""
    source, held = contact.source, contact.held
    what, bound = described(source.region), bindings(source.region, inputs)

    def read(result: Any, blobs: Iterator[Array]) -> Rerun:
        row = OBJECT.read(result, blobs)
        outputs = [read_value(x, blobs) for x in LIST.read(row.get("outputs"), blobs)]
        _check(source.region, bound, contact.artifact, outputs)
        return Rerun(outputs, list(TIMES.read(row.get("seconds"), blobs)))

    try:
        if isinstance(held, Executable):
            name = _here(source.reference).info.name
            outputs, seconds = run_again(name, what, held, inputs, repeat)
            with blaming(name, "run", what):
                _check(source.region, bound, contact.artifact, outputs)
            return Rerun(outputs, seconds)
        with (pool or shared_pool()).seated(source.reference) as (seat, _):
            if held not in seat.executables:
                _in_child(seat, source, inputs, bound, limits, held, contact.artifact)
            blobs: Blobs = []
            given = [write_value(x, blobs) for x in inputs]
            job = {"kind": "run", "held": held, "inputs": given, "repeat": repeat}
            return seat.ask(job, blobs, limits, what, read)
    except EngineError as error:
        return refusal(error, source.region)


def _in_process(source: Source, inputs: Sequence[HostValue], bound: Bindings) -> Contact:
    backend, region = _here(source.reference), source.region
    trial = attempt(backend, region, source.device, source.config, inputs)
    with blaming(backend.info.name, "run", described(region)):
        _check(region, bound, trial.artifact, trial.outputs)
    return Contact(trial.artifact, trial.outputs, trial.metrics, source, trial.executable)


def _in_some_child(
    pool: Pool,
    source: Source,
    inputs: Sequence[HostValue],
    bound: Bindings,
    limits: ChildLimits,
) -> Contact:
    """Have a child make contact; what only a child that did other jobs dies of is not counted."""
    for is_last in (False, True):
        with pool.seated(source.reference) as (seat, start):
            try:
                contact = _in_child(seat, source, inputs, bound, limits, uuid.uuid4().hex)
            except (BackendCrashed, EngineOutOfMemory):
                if start or is_last:
                    raise
                continue
        return replace(contact, metrics={**contact.metrics, "start_seconds": start})
    raise AssertionError("the last child was asked")


def _in_child(
    seat: Seat,
    source: Source,
    inputs: Sequence[HostValue],
    bound: Bindings,
    limits: ChildLimits,
    held: str,
    known: Artifact | None = None,
) -> Contact:
    """Have a child make contact, or load what an earlier child compiled."""
    region = source.region

    def read(result: Any, blobs: Iterator[Array]) -> Contact:
        row = OBJECT.read(result, blobs)
        artifact = known or read_record(row.get("artifact"), blobs, Artifact)
        outputs = [read_value(x, blobs) for x in LIST.read(row.get("outputs"), blobs)]
        _check(region, bound, artifact, outputs)
        return Contact(artifact, outputs, NUMBERS.read(row.get("metrics"), blobs), source, held)

    blobs: Blobs = []
    job = {"kind": "contact", "held": held, "device": write_record(source.device, blobs)}
    try:
        job["config"] = write_record(source.config, blobs)
    except EngineGarbage as error:
        raise OptionsError(
            f"{error.reason}: options are words, numbers, or tuples of them."
        ) from None
    job["inputs"] = [write_value(x, blobs) for x in inputs]
    job["artifact"] = known and write_record(known, blobs)
    job["drop"] = seat.executables[: 1 - _KEPT_EXECUTABLES]
    del seat.executables[: 1 - _KEPT_EXECUTABLES]
    job |= _written(seat, region, blobs)
    contact = seat.ask(job, blobs, limits, described(region), read)
    seat.executables.append(held)
    return contact


def _written(seat: Seat, region: Graph, blobs: Blobs) -> dict[str, Any]:
    """Write a region, as the last thing of a job; constants that the child holds are not sent."""
    needed = {
        digest: constant.array
        for digest, constant in constants_of(region).items()
        if constant.array.nbytes > INLINE_BYTES and constant.type.dtype is not string
    }
    new = {digest: array for digest, array in needed.items() if digest not in seat.constants}
    forget: list[str] = []
    if sum(seat.constants.values()) + sum(array.nbytes for array in new.values()) > _KEPT_BYTES:
        forget = [digest for digest in seat.constants if digest not in needed]
    for digest in forget:
        del seat.constants[digest]
    seat.constants |= {digest: array.nbytes for digest, array in new.items()}
    blobs.append(np.frombuffer(print_graph(region).encode(), np.uint8))
    constants = {digest: write_value(array, blobs) for digest, array in new.items()}
    return {"constants": constants, "forget": forget}


def _check(
    region: Graph, bound: Bindings, artifact: Artifact, outputs: Sequence[HostValue]
) -> None:
    problem = artifact_problem(artifact, region) or output_problem(region, bound, outputs)
    if problem is not None:
        raise EngineGarbage(problem)
