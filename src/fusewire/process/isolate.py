"""First contact with an engine, in a child process, where it cannot break this one.

Whatever the engine does there, the caller gets a checked answer, or a refusal that says what
happened. Only errors that are not the engine's are raised: OptionsError for a wrong option,
ShapeMismatchError for inputs that do not fit, CheckError for values that the program does not
allow, and IsolationError if no child can be started.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fusewire.contract.backend import (
    Artifact,
    Config,
    Device,
    Executable,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.model_file import ModelFile, known_constants
from fusewire.contract.region import weights_of
from fusewire.errors import (
    BackendCrashed,
    BackendKilled,
    BackendNotStarted,
    EngineError,
    EngineGarbage,
    EngineOutOfMemory,
    OptionsError,
)
from fusewire.ir.graph import Array, Graph, HostValue
from fusewire.ops.interpret import Bindings
from fusewire.process.codec import (
    LIST,
    NUMBERS,
    OBJECT,
    TEXT,
    TIMES,
    read_record,
    read_value,
    write_record,
    write_value,
)
from fusewire.process.frames import Blobs
from fusewire.process.guard import KINDS, Answer, blaming, described, guarded, refusal
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import ChildPool, Seat, alone, shared_pool
from fusewire.process.trial import (
    artifact_problem,
    attempt,
    backend_of,
    bindings,
    output_problem,
    run,
    run_timed,
)

LOG = logging.getLogger("fusewire")
_KEPT_EXECUTABLES = 8
# What may be the machine's fault, or that of another process.
_DEATHS = (BackendCrashed, BackendKilled, BackendNotStarted)
# A child that held less than such a share of its limit has met it by the job alone.
_FULL = 2

# Without isolation, backends are created once, as in a child.
_here = functools.cache(backend_of)


@dataclass(frozen=True, eq=False)
class ContactSource:
    """What first contact needs; ``reference`` is the "module:Class" of a backend.

    With a ``file``, the engine reads that in place of the region.
    """

    reference: str
    region: Graph
    device: Device
    config: Config
    file: ModelFile | None = None


@dataclass(frozen=True, eq=False)
class Contact:
    """A region that an engine compiled, loaded and ran; its outputs fit, but are not judged.

    ``metrics`` are seconds by phase, the peak memory of the child in bytes, and the seconds that
    the child took to start, 0 if it was running.
    """

    artifact: Artifact
    outputs: list[HostValue]
    metrics: dict[str, float]
    source: ContactSource = field(repr=False)
    # The name of the executable in the child, or the executable itself if there is no child.
    held: str | Executable = field(repr=False)


def probe(
    reference: str, limits: ChildLimits = ChildLimits(), *, pool: ChildPool | None = None
) -> list[Device | Unavailable]:
    """Ask a backend for its devices; one that cannot answer is unavailable."""

    def read(result: Any, blobs: Iterator[Array]) -> list[Device | Unavailable]:
        return [read_record(x, blobs, Device, Unavailable) for x in LIST.read(result, blobs)]

    def attempt() -> list[Device | Unavailable]:
        with (pool or shared_pool()).seated(reference) as (seat, _):
            return seat.ask({"kind": "probe"}, [], limits, "", read)

    try:
        return _retried(attempt)
    except EngineError as error:
        return [Unavailable(error.code, error.reason, error.advice)]


def claim(
    reference: str,
    graph: Graph,
    device: Device,
    limits: ChildLimits = ChildLimits(),
    *,
    pool: ChildPool | None = None,
) -> list[Offer | Refusal]:
    """Ask a backend which nodes of a graph it would run; no answer is a refusal of all."""

    def read(result: Any, blobs: Iterator[Array]) -> list[Offer | Refusal]:
        found = [read_record(x, blobs, Offer, Refusal) for x in LIST.read(result, blobs)]
        if any(place not in range(len(graph.nodes)) for item in found for place in item.nodes):
            raise EngineGarbage(f"nodes that are not among the {len(graph.nodes)} of the graph")
        return found

    def attempt() -> list[Offer | Refusal]:
        with (pool or shared_pool()).seated(reference) as (seat, _):
            blobs: Blobs = []
            job = {"kind": "claim", "device": write_record(device, blobs)}
            job |= seat.written(graph, blobs)
            return seat.ask(job, blobs, limits, described(graph), read)

    try:
        return _retried(attempt)
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
    file: ModelFile | None = None,
    artifact: Artifact | None = None,
    isolate: bool = True,
    pool: ChildPool | None = None,
) -> Contact | Refusal:
    """Compile, load and run a region on the backend that "module:Class" names.

    With a ``file``, the engine reads that in place of the region; an ``artifact`` of the region is
    only loaded and run. Without ``isolate`` this happens in this process: limits do not hold, and a
    crash ends it.
    """
    source = ContactSource(reference, region, device, config, file)
    bound = bindings(region, inputs)
    try:
        if not isolate:
            return _in_process(source, inputs, bound)
        children = pool or shared_pool()
        given = children, source, inputs, bound, limits, artifact
        return _retried(partial(_in_some_child, *given))
    except EngineError as error:
        return refusal(error, region)


def rerun(
    contact: Contact,
    inputs: Sequence[HostValue],
    limits: ChildLimits = ChildLimits(),
    *,
    pool: ChildPool | None = None,
) -> list[HostValue] | Refusal:
    """Run a contact again in its child; a child that lost it loads the artifact again."""
    region, held = contact.source.region, contact.held
    what, bound = described(region), bindings(region, inputs)

    def read(result: Any, blobs: Iterator[Array]) -> list[HostValue]:
        outputs = [read_value(x, blobs) for x in LIST.read(result, blobs)]
        _check(contact.source, bound, contact.artifact, outputs)
        return outputs

    def attempt() -> list[HostValue]:
        with _held(contact, inputs, limits, pool) as seat:
            blobs: Blobs = []
            given = [write_value(x, blobs) for x in inputs]
            job = {"kind": "run", "held": held, "inputs": given}
            return seat.ask(job, blobs, limits, what, read)

    try:
        if isinstance(held, Executable):
            name = _here(contact.source.reference).info.name
            outputs = guarded(name, "run", what, run, held, inputs)
            with blaming(name, "run", what):
                _check(contact.source, bound, contact.artifact, outputs)
            return outputs
        return _retried(attempt)
    except EngineError as error:
        return refusal(error, region)


def timed(
    contact: Contact,
    inputs: Sequence[HostValue],
    count: int,
    limits: ChildLimits = ChildLimits(),
    *,
    pool: ChildPool | None = None,
) -> list[float] | Refusal:
    """Run a contact several times and return the seconds of each; inputs are sent once."""
    region, held = contact.source.region, contact.held
    what = described(region)

    def attempt() -> list[float]:
        with _held(contact, inputs, limits, pool) as seat:
            blobs: Blobs = []
            is_same = seat.inputs is inputs
            job: dict[str, Any] = {"kind": "time", "held": held, "count": count}
            job["is_same"] = is_same
            if not is_same:
                job["inputs"] = [write_value(x, blobs) for x in inputs]
            # Until the child answers, it is not known what it holds.
            seat.inputs = None
            seconds = seat.ask(job, blobs, limits, what, TIMES.read)
            seat.inputs = inputs
            return list(seconds)

    try:
        if isinstance(held, Executable):
            return run_timed(_here(contact.source.reference).info.name, what, held, inputs, count)
        return _retried(attempt)
    except EngineError as error:
        return refusal(error, region)


def _retried(attempt: Callable[[], Answer]) -> Answer:
    """Try once more what a child died of, or did not start for: it may be the machine's fault.

    The other children of this process wait meanwhile. Only what happens again, alone, is held
    against the engine.
    """
    try:
        return attempt()
    except _DEATHS as error:
        LOG.info("%s It is tried once more, alone.", error.reason)
    with alone() as is_alone:
        try:
            return attempt()
        except BackendCrashed as error:
            if is_alone:
                raise
            raise BackendKilled(error.reason, KINDS[BackendKilled][1]) from error


@contextlib.contextmanager
def _held(
    contact: Contact, inputs: Sequence[HostValue], limits: ChildLimits, pool: ChildPool | None
) -> Iterator[Seat]:
    """Return the seat of the child that holds a contact, after loading it if needed."""
    source, held = contact.source, contact.held
    assert isinstance(held, str)
    with (pool or shared_pool()).seated(source.reference) as (seat, _):
        if held not in seat.executables:
            bound = bindings(source.region, inputs)
            _in_child(seat, source, inputs, bound, limits, held, contact.artifact)
        yield seat


def _in_process(source: ContactSource, inputs: Sequence[HostValue], bound: Bindings) -> Contact:
    backend, region = _here(source.reference), source.region
    trial = attempt(backend, region, source.device, source.config, inputs, file=source.file)
    with blaming(backend.info.name, "run", described(region)):
        _check(source, bound, trial.artifact, trial.outputs)
    return Contact(trial.artifact, trial.outputs, trial.metrics, source, trial.executable)


def _in_some_child(
    pool: ChildPool,
    source: ContactSource,
    inputs: Sequence[HostValue],
    bound: Bindings,
    limits: ChildLimits,
    known: Artifact | None,
) -> Contact:
    """Make contact in a child; one that earlier jobs have filled is replaced once."""
    for is_last in (False, True):
        with pool.seated(source.reference) as (seat, start):
            try:
                held = uuid.uuid4().hex
                given = inputs, bound, limits, held, known
                contact = _in_child(seat, source, *given, pool=pool)
            except EngineOutOfMemory:
                was_small = seat.held_before < limits.most_bytes // _FULL
                if start or is_last or was_small:
                    raise
                continue
        return replace(contact, metrics={**contact.metrics, "start_seconds": start})
    raise AssertionError("the last child was asked")


def _in_child(
    seat: Seat,
    source: ContactSource,
    inputs: Sequence[HostValue],
    bound: Bindings,
    limits: ChildLimits,
    held: str,
    known: Artifact | None = None,
    pool: ChildPool | None = None,
) -> Contact:
    """Make contact in this child, or load what an earlier child compiled."""
    region = source.region

    def read(result: Any, blobs: Iterator[Array]) -> Contact | tuple[str, ...]:
        row = OBJECT.read(result, blobs)
        if known is None and "programs" in row:
            return tuple(TEXT.read(x, blobs) for x in LIST.read(row["programs"], blobs))
        artifact = known or read_record(row.get("artifact"), blobs, Artifact)
        outputs = [read_value(x, blobs) for x in LIST.read(row.get("outputs"), blobs)]
        _check(source, bound, artifact, outputs)
        return Contact(artifact, outputs, NUMBERS.read(row.get("metrics"), blobs), source, held)

    blobs: Blobs = []
    job = _contact_job(seat, source, inputs, held, known, blobs)
    contact = seat.ask(job, blobs, limits, described(region), read)
    if isinstance(contact, Contact):
        seat.executables.append(held)
        return contact
    made, metrics = _compiled(pool or shared_pool(), source, contact, limits)
    contact = _in_child(seat, source, inputs, bound, limits, held, made)
    return replace(contact, metrics={**contact.metrics, **metrics})


def _contact_job(
    seat: Seat,
    source: ContactSource,
    inputs: Sequence[HostValue],
    held: str,
    known: Artifact | None,
    blobs: Blobs,
) -> dict[str, Any]:
    """Write a job in the order in which the child reads it."""
    job: dict[str, Any] = {
        "kind": "contact",
        "held": held,
        "device": write_record(source.device, blobs),
    }
    try:
        job["config"] = write_record(source.config, blobs)
    except EngineGarbage as error:
        raise OptionsError(
            f"{error.reason}: options must be words, numbers, or tuples of these."
        ) from None
    job["inputs"] = [write_value(x, blobs) for x in inputs]
    job["artifact"] = known and write_record(known, blobs)
    job["drop"] = seat.executables[: 1 - _KEPT_EXECUTABLES]
    del seat.executables[: 1 - _KEPT_EXECUTABLES]
    job["what"] = described(source.region)
    if known is None:
        return job | seat.written(source.region, blobs, source.file)
    # To load an artifact takes its weights, and not the region.
    constants = known_constants(source.region, source.file)
    wanted = weights_of(known, constants)
    return job | seat.lent({digest: constants[digest] for digest in wanted}, blobs)


def _compiled(
    pool: ChildPool, source: ContactSource, programs: tuple[str, ...], limits: ChildLimits
) -> tuple[Artifact, dict[str, float]]:
    """Compile in a child that may start these programs."""

    def read(result: Any, blobs: Iterator[Array]) -> tuple[Artifact, dict[str, float]]:
        row = OBJECT.read(result, blobs)
        artifact = read_record(row.get("artifact"), blobs, Artifact)
        return artifact, NUMBERS.read(row.get("metrics"), blobs)

    with pool.seated(source.reference, programs) as (seat, _):
        blobs: Blobs = []
        job = {"kind": "compile", "device": write_record(source.device, blobs)}
        job["config"] = write_record(source.config, blobs)
        job |= seat.written(source.region, blobs, source.file)
        return seat.ask(job, blobs, limits, described(source.region), read)


def _check(
    source: ContactSource, bound: Bindings, artifact: Artifact, outputs: Sequence[HostValue]
) -> None:
    region = source.region
    problem = artifact_problem(artifact, region, source.file)
    problem = problem or output_problem(region, bound, outputs)
    if problem is not None:
        raise EngineGarbage(problem)
