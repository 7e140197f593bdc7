"""The parent's side of the children that import Triton: one interprets, one compiles."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, final

import numpy as np

from fusewire.backends.triton.info import INFO
from fusewire.backends.triton.printer import Function
from fusewire.backends.triton.program import Program, brought_data
from fusewire.errors import EngineRaised
from fusewire.kernel.program import Schedule
from fusewire.process.child import Child
from fusewire.process.confinement import Confinement
from fusewire.process.frames import Blobs, Frame
from fusewire.process.guard import failure
from fusewire.process.limits import ChildLimits

Mode = Literal["interpret", "compile"]
# The caller has a deadline of its own; this one is for a child that hangs when nobody looks.
_LIMITS = ChildLimits(3600.0)
_START = 60.0
# Binaries that were made before, by text and target.
_MOST_KEPT = 4096


def programs() -> tuple[str, ...]:
    """List the programs that Triton runs to compile: the assembler of its wheel, and its tools."""
    spec = importlib.util.find_spec("triton")
    folders = (spec and spec.submodule_search_locations) or ()
    return tuple(str(x) for folder in folders for x in Path(folder).glob("backends/*/bin/*"))


@final
class Client:
    """Speaks to one child, which is started when it is first needed, and anew when it died."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._child: Child | None = None
        self._lock = threading.Lock()
        self.started = 0

    def ask(self, header: Mapping[str, Any], blobs: Blobs, what: str) -> Frame:
        """Have a job done; what Triton raises is an EngineRaised."""
        with self._lock:
            frame = self._alive().ask({**header, "what": what}, blobs, _LIMITS, what)
        if "error" in frame.header:
            phase: Literal["run", "compile"] = "run" if header["kind"] == "run" else "compile"
            raise failure(EngineRaised, "triton", phase, what, str(frame.header["error"]))
        return frame

    def start(self) -> None:
        """Start the child without waiting for it."""
        with self._lock:
            self._running()

    def _running(self) -> Child:
        if self._child is None or not self._child.is_usable:
            self._end()
            self._child = Child(
                self._mode,
                "fusewire.backends.triton.worker",
                confinement=self._confinement(),
            )
            self.started += 1
        return self._child

    def _confinement(self) -> Confinement:
        if self._mode == "compile":
            return Confinement("compile", programs(), INFO.environment)
        return Confinement("run", (), INFO.environment)

    def _alive(self) -> Child:
        child = self._running()
        child.greet(_START)
        return child

    @property
    def generation(self) -> int:
        """A number that is another one when all that a child held is gone."""
        with self._lock:
            self._alive()
            return self.started

    def drop(self, held: str, generation: int) -> None:
        """Have the child let go of a program, if it is still the one that has it."""
        with self._lock:
            child = self._child
            if child is not None and child.is_usable and self.started == generation:
                child.ask({"kind": "drop", "held": held}, [], _LIMITS, "a module")

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


@final
class Compiler:
    """Compiles functions for targets; the same text is compiled once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kept: dict[str, dict[str, Any]] = {}

    def compile(
        self,
        program: Program,
        target: tuple[str, int | str, int],
        measured: bool = False,
        given: Mapping[int, dict[str, Any]] = MappingProxyType({}),
    ) -> list[dict[str, Any]]:
        """Give for each function of a program its binary, in base64, and what it takes.

        ``given`` are binaries that packages bring, by the places of their functions.
        """
        keys = [_key(function, target, measured) for function in program.functions]
        binaries = {key: kept for key in keys if (kept := self._kept.get(key)) is not None}
        binaries |= {keys[place]: about for place, about in given.items()}
        missing = [place for place, key in enumerate(keys) if key not in binaries]
        if missing:
            frame = self._asked(program, missing, target, measured)
            for place, about, blob in zip(
                missing, frame.header["result"], frame.blobs, strict=True
            ):
                data = base64.b64encode(blob.tobytes()).decode()
                self._kept[keys[place]] = binaries[keys[place]] = {**about, "data": data}
            for key in list(self._kept)[:-_MOST_KEPT]:
                self._kept.pop(key, None)
        return [binaries[key] for key in keys]

    def _asked(
        self,
        program: Program,
        missing: Sequence[int],
        target: tuple[str, int | str, int],
        measured: bool,
    ) -> Frame:
        """Have the child compile some functions of a program."""
        brought = {
            at: program.brought[place]
            for at, place in enumerate(missing)
            if place in program.brought
        }
        part = Program([program.sources[place] for place in missing], Schedule(), brought=brought)
        blob = np.frombuffer(part.to_bytes(), np.uint8)
        header: dict[str, Any] = {"kind": "compile", "target": target, "measured": measured}
        header["brought"] = brought_data(brought)
        return self._client.ask(header, [blob], f"{len(missing)} kernels for {target[1]}")


def _key(function: Function, target: Sequence[int | str], measured: bool) -> str:
    # What a function is called does not matter: the binary says how to find it.
    about = function.text, function.pointers, function.warps, function.stages
    return hashlib.sha256(repr((*about, tuple(target), measured)).encode()).hexdigest()
