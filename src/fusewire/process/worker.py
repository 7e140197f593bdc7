"""The child process, which ``start`` begins: runs one request at a time.

It holds what the parent sent and has not dropped: constants by digest, executables by name. The
parent decides what to keep and when to end; the child ends with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from fusewire.contract.backend import Artifact, Backend, Config, Device, Executable
from fusewire.contract.model_file import ModelFile, SentFile
from fusewire.contract.timing import take_times
from fusewire.errors import EngineError, EngineGarbage
from fusewire.ir.graph import Array, Constant, Graph, HostValue
from fusewire.ir.parse import parse_graph
from fusewire.ops.limits import RunLimits, limited
from fusewire.ops.outside import OUTSIDE
from fusewire.process.closed import finish, missing_programs
from fusewire.process.codec import read_record, read_value, write_record, write_value
from fusewire.process.frames import VERSION, Blobs, Frame, Incoming, Outgoing
from fusewire.process.guard import CALLERS, Phase, blaming, described, guarded
from fusewire.process.lifeline import watch
from fusewire.process.trial import attempt, attempt_artifact, backend_of, compiled, run, run_timed
from fusewire.system.processes import limit_descriptors, peak_memory, resident

_DESCRIPTORS = 4096
# Above the numbers that engines use, so that an engine that closes a wrong one misses ours.
_FIRST_DESCRIPTOR = 200
_CHILD_SUBREAPER = 36
# The parent is trusted.
_ANY_SIZE = 1 << 62


@dataclass(frozen=True)
class Request:
    """What the parent asks for; each kind of request uses the fields it needs."""

    kind: str
    device: Device
    config: Config
    inputs: list[HostValue]
    artifact: Artifact | None
    weights: dict[str, Array]
    region: Graph
    file: ModelFile | None
    what: str
    held: str
    count: int
    is_same: bool


class Worker:
    """Serves one backend."""

    def __init__(self, reference: str, requests: int, replies: int) -> None:
        self._reference = reference
        self._incoming = Incoming(requests, _ANY_SIZE)
        self._replies = replies
        self._backend: Backend | None = None
        self._constants: dict[str, Constant] = {}
        self._held: dict[str, tuple[str, Executable]] = {}
        self._timed: list[HostValue] = []
        self._is_closed = False

    def serve(self) -> None:
        """Answer jobs until the parent is gone."""
        self._say({"hello": VERSION})
        while True:
            try:
                frame = self._incoming.read()
            except EOFError:
                return
            if frame is not None:
                self._serve(frame)

    def _serve(self, frame: Frame) -> None:
        blobs: Blobs = []
        answer: dict[str, Any]
        own = frame.header["limits"]
        try:
            with limited(RunLimits(own["seconds"], own["memory"])):
                answer = {"result": self._do(self._request(frame.header, iter(frame.blobs)), blobs)}
        except EngineError as error:
            about = {"code": error.code, "reason": error.reason, "advice": error.advice}
            answer, blobs = {"error": about}, []
        except CALLERS as error:
            answer, blobs = {"error": {"code": type(error).__name__, "reason": str(error)}}, []
        self._say({"job": frame.header["job"], **answer}, blobs)
        # After the answer: if an engine crashes here, the request itself succeeded.
        for held in frame.header.get("drop", ()):
            what, executable = self._held.pop(held)
            guarded(self._reference, "run", what, executable.close)

    def _say(self, header: dict[str, Any], blobs: Blobs | None = None) -> None:
        Outgoing(self._replies, Frame(header, blobs or [])).write()

    def _report(self, phase: Phase, **more: Any) -> None:
        """Report the phase to the parent, in case of a crash."""
        name = self._reference.split("+")[0] if self._backend is None else self._backend.info.name
        held = resident(os.getpid())
        self._say({"phase": phase, "name": name, "resident": held, **more})

    def _request(self, header: Any, given: Iterator[Array]) -> Request:
        """Read a request in the order in which the parent writes it, and keep what it sends."""

        def record(name: str, kind: type) -> Any:
            return read_record(header[name], given, kind) if header.get(name) else None

        device, config = record("device", Device), record("config", Config)
        inputs = [read_value(x, given) for x in header.get("inputs", ())]
        artifact = record("artifact", Artifact)
        region, file = self._region(header, given)
        weights = {digest: self._constants[digest].array for digest in header.get("lent", ())}
        # Kinds of jobs that lack one of these do not use it.
        return Request(
            header["kind"],
            device,
            config,
            inputs,
            artifact,
            weights,
            cast(Graph, region),
            file,
            header.get("what", ""),
            header.get("held", ""),
            header.get("count", 0),
            header.get("is_same", False),
        )

    def _region(self, header: Any, given: Iterator[Array]) -> tuple[Graph | None, ModelFile | None]:
        """Keep the constants that are sent, and read the region that is sent with them, if any."""
        has_region = header.get("has_region", False)
        text = next(given).tobytes().decode() if has_region else ""
        payload = next(given).tobytes() if "file" in header else b""
        for digest in header.get("forget", ()):
            del self._constants[digest]
        for digest, value in header.get("constants", {}).items():
            array = read_value(value, given)
            array.flags.writeable = False
            self._constants[digest] = Constant.of(array)
            self._constants[digest].is_held = digest in header.get("kept", ())
        guarded(self._reference, "import", "", OUTSIDE.know, header.get("ops", ()))
        if not has_region:
            return None, None
        region = parse_graph(text, self._constants)
        if "file" not in header:
            return region, None
        format_, digest, names = header["file"]
        weights = {name: self._constants[name] for name in names}
        return region, SentFile(format_, digest, region, payload, weights)

    def _do(self, request: Request, blobs: Blobs) -> Any:
        if self._backend is None:
            self._report("import")
            self._backend = backend_of(self._reference)
            self._report("import", environment=list(self._backend.info.environment))
        backend, name = self._backend, self._backend.info.name
        if request.kind == "probe":
            self._report("probe")
            return _records(name, "probe", "", guarded(name, "probe", "", backend.probe), blobs)
        self.close_process(backend, request.config)
        if request.kind == "compile":
            return self._compile(backend, request, blobs)
        if (
            request.kind == "contact"
            and not request.artifact
            and missing_programs(backend.info.programs)
        ):
            # Another child compiles; this one then loads what it made.
            return {"programs": list(backend.info.programs)}
        if request.kind == "contact":
            return self._contact(backend, request, blobs)
        if request.kind in ("run", "time"):
            return (self._run if request.kind == "run" else self._time)(name, request, blobs)
        self._report("claim")
        what = described(request.region)
        offers = guarded(name, "claim", what, backend.claim, request.region, request.device)
        return _records(name, "claim", what, offers, blobs)

    def close_process(self, backend: Backend, config: Config | None) -> None:
        """Close this process before the engine sees anything of a model."""
        if not self._is_closed:
            self._report("import")
            take_times()
            guarded(backend.info.name, "import", "", backend.prepare, config or Config())
            self._report("import", environment=list(backend.info.environment))
            finish()
            self._is_closed = True

    def _compile(self, backend: Backend, request: Request, blobs: Blobs) -> Any:
        """Compile with the programs that the backend declares, and run nothing."""
        name, what = backend.info.name, described(request.region)
        if missing_programs(backend.info.programs):
            raise EngineGarbage(f"{name} declares other programs than before")
        self._report("compile")
        start = time.perf_counter()
        given = backend, request.region, request.file, request.device, request.config
        artifact = guarded(name, "compile", what, compiled, *given)
        seconds = time.perf_counter() - start
        with blaming(name, "compile", what):
            made = write_record(artifact, blobs)
        return {"artifact": made, "metrics": {"compile_seconds": seconds}}

    def _contact(self, backend: Backend, request: Request, blobs: Blobs) -> Any:
        name, what = backend.info.name, request.what
        if request.artifact is None:
            given = request.region, request.device, request.config, request.inputs
            trial = attempt(backend, *given, self._report, request.file)
        else:
            held = request.device, request.weights, request.inputs, what
            trial = attempt_artifact(backend, request.artifact, *held, self._report)
        with blaming(name, "compile", what):
            made = None if request.artifact else write_record(trial.artifact, blobs)
        with blaming(name, "run", what):
            outputs = [write_value(x, blobs) for x in trial.outputs]
        self._held[request.held] = (what, trial.executable)
        peak = peak_memory()
        metrics = {**trial.metrics, **({} if peak is None else {"peak_bytes": peak})}
        return {"artifact": made, "outputs": outputs, "metrics": metrics}

    def _run(self, name: str, request: Request, blobs: Blobs) -> Any:
        what, executable = self._held[request.held]
        self._report("run")
        outputs = guarded(name, "run", what, run, executable, request.inputs)
        with blaming(name, "run", what):
            return [write_value(x, blobs) for x in outputs]

    def _time(self, name: str, request: Request, blobs: Blobs) -> Any:
        """Run several times on the given inputs, or on the last ones."""
        what, executable = self._held[request.held]
        self._report("run")
        if not request.is_same:
            self._timed = request.inputs
        return run_timed(name, what, executable, self._timed, request.count)


def _records(name: str, phase: Phase, what: str, found: Any, blobs: Blobs) -> Any:
    with blaming(name, phase, what):
        if not isinstance(found, list):
            raise EngineGarbage(f"expected a list, found a {type(found).__name__}")
        return [write_record(item, blobs) for item in found]


def settle() -> None:
    """Set limits, and say what happens on signals; the parent has tied this process to itself."""
    limit_descriptors(_DESCRIPTORS)
    if sys.platform == "linux":
        # Orphans are reparented to this process, so that the parent can find them.
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Both write a traceback to stderr without the interpreter lock, which a hang may hold.
    faulthandler.enable()
    if sys.platform != "win32":
        faulthandler.register(signal.SIGTERM, chain=True)


def away(descriptor: int) -> int:
    """Move a descriptor out of the way of engines, and close it in their children."""
    moved = next(filter(_is_free, itertools.count(_FIRST_DESCRIPTOR)))
    os.dup2(descriptor, moved, inheritable=False)
    os.close(descriptor)
    return moved


def _is_free(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False


def main(reference: str, requests: int, replies: int, life: int) -> None:
    """Serve until the parent is gone."""
    settle()
    # Held, and out of the way of engines: see lifeline.
    watch(away(life))
    Worker(reference, away(requests), away(replies)).serve()
    # Engines crash and hang at exit too; nobody needs to know.
    os._exit(0)
