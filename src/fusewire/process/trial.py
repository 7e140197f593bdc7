"""The work of first contact, in either process: compile, load, run, and check the answers."""

from __future__ import annotations

import importlib
import math
import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusewire.contract.backend import (
    RUN_BYTES,
    Artifact,
    Backend,
    Config,
    Device,
    Executable,
    Held,
    Slot,
)
from fusewire.contract.buffer import Buffer
from fusewire.contract.extension import attach, holds_added_ops
from fusewire.contract.model_file import FileReader, ModelFile, known_constants
from fusewire.contract.region import edge_slots, weights_of
from fusewire.contract.tuning import Clocked
from fusewire.dtypes import dtype
from fusewire.errors import DTypeError, EngineGarbage, ShapeMismatchError
from fusewire.ir.graph import Array, Graph, HostValue
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type
from fusewire.ops import limits
from fusewire.ops.interpret import Bindings, bind
from fusewire.process.guard import Phase, described, failure, guarded

_REFERENCE = re.compile(r"[\w.]+:[\w.]+")


@dataclass(frozen=True)
class Trial:
    """A region that was loaded and run once; metrics are seconds by phase."""

    artifact: Artifact
    executable: Executable
    outputs: list[HostValue]
    metrics: dict[str, float]


def backend_of(reference: str) -> Backend:
    """Create the backend "module:Class", with extensions: "module:Class+module:Other"."""
    own, *added = reference.split("+")
    made = guarded(own, "import", "", _made, own)
    if not isinstance(made, Backend):
        found = f"{type(made).__name__} is not a Backend"
        raise failure(EngineGarbage, own, "import", "", found)
    # Messages need its name; fail now if it has none.
    guarded(own, "import", "", lambda: made.info.name)
    for other in added:
        guarded(other, "import", "", lambda other=other: attach(made, _made(other)))
    return made


def _made(reference: str) -> object:
    if not _REFERENCE.fullmatch(reference):
        raise ValueError(f"{reference!r} does not have the form module:Class")
    module, _, path = reference.partition(":")
    made: Any = importlib.import_module(module)
    for name in path.split("."):
        made = getattr(made, name)
    return made()


def attempt(
    backend: Backend,
    region: Graph,
    device: Device,
    config: Config,
    inputs: Sequence[HostValue],
    report: Callable[[Phase], None] = lambda phase: None,
    file: ModelFile | None = None,
) -> Trial:
    """Compile, load and run; the guard types the errors."""
    phases = _Phases(backend.info.name, described(region), report)
    given = backend, region, file, device, config
    artifact = phases.timed("compile", Artifact, compiled, *given)
    weights = weights_of(artifact, known_constants(region, file))
    shows = holds_added_ops(region, backend)
    return _loaded_and_run(backend, artifact, device, weights, inputs, phases, shows)


def attempt_artifact(
    backend: Backend,
    artifact: Artifact,
    device: Device,
    weights: Mapping[str, Array],
    inputs: Sequence[HostValue],
    what: str,
    report: Callable[[Phase], None] = lambda phase: None,
) -> Trial:
    """Load and run what was compiled before; ``what`` names it in messages."""
    phases = _Phases(backend.info.name, what, report)
    return _loaded_and_run(backend, artifact, device, weights, inputs, phases)


class _Phases:
    """Times and reports the phases of a trial."""

    def __init__(self, name: str, what: str, report: Callable[[Phase], None]) -> None:
        self.name, self.what, self._report = name, what, report
        self.metrics: dict[str, float] = {}

    def timed(self, phase: Phase, kind: type, call: Callable[..., Any], *given: object) -> Any:
        self._report(phase)
        start = time.perf_counter()
        made = guarded(self.name, phase, self.what, call, *given)
        seconds = self.metrics[f"{phase}_seconds"] = time.perf_counter() - start
        if phase != "run" and (meter := limits.meter()) is not None:
            meter.allow(seconds)
        if not isinstance(made, kind):
            found = f"expected {kind.__name__}, found {type(made).__name__}"
            raise self.garbage(phase, found)
        return made

    def garbage(self, phase: Phase, found: str) -> Exception:
        return failure(EngineGarbage, self.name, phase, self.what, found)


def _loaded_and_run(
    backend: Backend,
    artifact: Artifact,
    device: Device,
    weights: Mapping[str, Array],
    inputs: Sequence[HostValue],
    phases: _Phases,
    shows_unwritten: bool = False,
) -> Trial:
    """Load and run; with kernels of packages, into memory that shows what they do not write."""
    executable = phases.timed("load", Executable, backend.load, artifact, device, weights)
    before = _sums(inputs)
    own: list[Buffer] = []
    if shows_unwritten:
        own = guarded(phases.name, "load", phases.what, filled, backend, artifact, device)
    outputs = phases.timed("run", list, run, executable, inputs, own)
    if _sums(inputs) != before:
        raise phases.garbage("run", "it wrote into an input")
    if any(_shares(x, y) for x in outputs for y in inputs):
        raise phases.garbage("run", "an output shares memory with an input")
    plans = backend.info.plans_memory
    figures = guarded(phases.name, "load", phases.what, _figures, executable, plans)
    return Trial(artifact, executable, outputs, {**figures, **phases.metrics})


def _figures(executable: Executable, plans_memory: bool) -> dict[str, float]:
    count = executable.run_bytes() if plans_memory else None
    return {**executable.metrics, **({} if count is None else {RUN_BYTES: float(count)})}


def compiled(
    backend: Backend, region: Graph, file: ModelFile | None, device: Device, config: Config
) -> Artifact:
    """Have a backend compile a region, or the file in its place."""
    if file is None:
        return backend.compile(region, device, config)
    if not isinstance(backend, FileReader):
        raise TypeError(f"{backend.info.name} reads no files")
    return backend.compile_file(file, region, device, config)


def filled(backend: Backend, artifact: Artifact, device: Device) -> list[Buffer]:
    """Make memory for outputs in which every byte is 0xFF: NaN, or -1; none if it is the host's.

    Memory that is used again holds what other runs left there, which may even be the answer.
    """
    found = []
    for slot in artifact.slots:
        if slot.role != "output":
            continue
        sizes = [dim for dim in slot.dims if isinstance(dim, int)]
        type_ = TensorType(slot.dtype, tuple(sizes))
        buffer = backend.allocate(type_, device) if len(sizes) == len(slot.dims) else None
        if buffer is None:
            return []
        count = math.prod(sizes) * slot.dtype.itemsize
        buffer.write(np.full(count, 0xFF, np.uint8).view(slot.dtype.numpy).reshape(sizes))
        found.append(buffer)
    return found


def run(
    executable: Executable, inputs: Sequence[HostValue], outputs: Sequence[Held] = ()
) -> list[HostValue]:
    """Run once, perhaps to memory that is given, and copy outputs from the device to the host."""
    found: object = executable.run(inputs, outputs)
    if not isinstance(found, list):
        raise TypeError(f"run must return a list of outputs, found {type(found).__name__}")
    return [x.read() if isinstance(x, Buffer) else x for x in found]


def run_timed(
    name: str, what: str, executable: Executable, inputs: Sequence[HostValue], count: int
) -> list[float]:
    """Run several times and return the seconds of each; outputs are freed in between."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        outputs = guarded(name, "run", what, run, executable, inputs)
        taken = time.perf_counter() - start
        own = executable.device_seconds if isinstance(executable, Clocked) else None
        seconds.append(taken if own is None else own)
        del outputs
    return seconds


def _sums(values: Sequence[HostValue]) -> list[int]:
    """Checksum arrays, to detect writes into them."""
    arrays = [x for x in values if isinstance(x, np.ndarray) and x.dtype.kind != "O"]
    return [zlib.crc32(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data) for x in arrays]


def _shares(output: HostValue, given: HostValue) -> bool:
    both = isinstance(output, np.ndarray) and isinstance(given, np.ndarray)
    return both and bool(np.may_share_memory(output, given))


def artifact_problem(
    artifact: Artifact, region: Graph, file: ModelFile | None = None
) -> str | None:
    """Return what is wrong with an artifact of a region, or None."""
    known = known_constants(region, file)
    for place, slot in enumerate(artifact.slots):
        problem = None
        if (slot.role == "weight") != (slot.digest is not None):
            problem = "a weight must have a digest, and nothing else may"
        elif slot.digest is not None and slot.digest not in known:
            problem = f"the region has no constant {slot.digest[:12]}"
        if problem:
            return f"slot {place} ({slot.role} {slot.name}): {problem}"
    found = [_edge(slot) for slot in artifact.slots if slot.role in ("input", "output")]
    expected = [_edge(slot) for slot in edge_slots(region)]
    if found != expected:
        return f"its inputs and outputs are {found}, expected {expected}"
    return None


def _edge(slot: Slot) -> tuple[str, str, int]:
    return slot.role, slot.dtype.name, len(slot.dims)


def bindings(region: Graph, inputs: Sequence[HostValue]) -> Bindings:
    """Read the sizes of symbols from inputs; ShapeMismatchError if they do not fit."""
    if len(inputs) != len(region.inputs):
        raise ShapeMismatchError(
            f"{described(region)} takes {len(region.inputs)} inputs, found {len(inputs)}."
        )
    bound: Bindings = {}
    for value, given in zip(region.inputs, inputs, strict=True):
        problem = _misfit(value.type, given, bound)
        if problem is not None:
            raise ShapeMismatchError(f"The input {value.name} {problem}.")
    return bound


def output_problem(region: Graph, bound: Bindings, outputs: Sequence[HostValue]) -> str | None:
    """Return what is wrong with the outputs of a region, or None."""
    if len(outputs) != len(region.outputs):
        return f"{len(outputs)} outputs, not {len(region.outputs)}"
    for value, name, found in zip(region.outputs, region.output_names, outputs, strict=True):
        problem = _misfit(value.type, found, bound)
        if problem:
            return f"the output {name} {problem}"
    return None


def _misfit(type_: Type, found: HostValue, bound: Bindings) -> str | None:
    if isinstance(type_, OptionalType):
        return None if found is None else _misfit(type_.element, found, bound)
    if isinstance(type_, SequenceType):
        if not isinstance(found, list):
            return f"is {type_}, found a {type(found).__name__}"
        # Sizes that differ between elements bind nothing.
        misfits = (_misfit(type_.element, item, dict(bound)) for item in found)
        return next(filter(None, misfits), None)
    if not isinstance(found, np.ndarray):
        return f"is {type_}, found a {type(found).__name__}"
    try:
        is_same = dtype(found.dtype) is type_.dtype
        bind(type_, found.shape, bound, "it")
    except (DTypeError, ShapeMismatchError) as error:
        return f"does not fit: {str(error).rstrip('.')}"
    return None if is_same else f"is {type_}, found {found.dtype}{list(found.shape)}"
