"""The child that imports Triton: ``interpret`` runs kernels, ``compile`` makes GPU code.

Triton decides when it is imported whether it compiles or interprets, so the two are processes of
their own, and neither is the caller's. It speaks in frames, as ``fusewire.process.worker`` does.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fusewire.backends.triton.module import execute, forget
from fusewire.backends.triton.printer import Function
from fusewire.backends.triton.program import Program, brought_functions
from fusewire.backends.triton.resources import of_amdgcn, of_cubin
from fusewire.errors import EngineError
from fusewire.ir.graph import Array
from fusewire.process import closed
from fusewire.process.frames import VERSION, Blobs, Frame, Incoming, Outgoing
from fusewire.process.guard import Phase, guarded
from fusewire.process.lifeline import watch
from fusewire.process.worker import away, settle

_ANY_SIZE = 1 << 62
# A pointer aligned to 16 bytes, as all memory that we make is, is read in wide words.
_ALIGNED = [["tt.divisibility", 16]]
_TYPES = {
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    **{f"{s}{n}": f"{'u' if s == 'u' else ''}int{n}" for s in "iu" for n in (8, 16, 32, 64)},
}


class Pointer:
    """As much of a torch tensor as Triton's interpreter asks for, over memory of NumPy."""

    def __init__(self, array: Array, dtype: str) -> None:
        self.array = array
        self.dtype = dtype

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self.array.ctypes.data)

    def untyped_storage(self) -> Pointer:
        """The memory as such."""
        return self

    def cpu(self) -> Pointer:
        """The memory on the host, where it is."""
        return self

    def new_empty(self, size: int, device: str) -> Pointer:
        """Another tensor on the same memory."""
        return Pointer(self.array, self.dtype)

    def set_(self, *given: object) -> None:
        """Nothing to set: it has its memory."""

    def storage_offset(self) -> int:
        """Where in the memory it starts."""
        return 0

    def size(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.array.shape)

    def stride(self) -> tuple[int, ...]:
        """Its strides, in elements."""
        return ()

    def copy_(self, other: Pointer) -> None:
        """Nothing to copy back: the memory is the same."""


class Loaded:
    """A program, its functions and its memory."""

    def __init__(self, module: ModuleType, program: Program, weights: dict[str, Array]) -> None:
        self.module = module
        self._program = program
        self._functions = [getattr(module, f.name) for f in program.functions]
        self._turns = program.turns()
        slots = [_space(size) for size in program.schedule.scratch]
        # What lies where, by number; inputs and outputs come with a run.
        self._fixed: dict[int, Array] = {}
        for number, m in enumerate(program.schedule.allocations):
            if m.kind == "scratch":
                self._fixed[number] = slots[m.place]
            elif m.kind == "constant":
                self._fixed[number] = _filled(m.constant(weights))

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run all launches in order."""
        memory = dict(self._fixed)
        outputs: dict[int, Array] = {}
        for number, m in enumerate(self._program.schedule.allocations):
            if m.kind == "input":
                memory[number] = _filled(inputs[m.place])
            elif m.kind == "output":
                memory[number] = whole = _space(m.size)
                outputs[m.place] = whole[: m.size]
        with np.errstate(all="ignore"):
            for launch, steps in self._turns:
                function = self._program.functions[launch.kernel]
                pointers = [
                    Pointer(memory[number], _TYPES[of])
                    for number, of in zip(launch.allocations, function.pointers, strict=True)
                ]
                self._functions[launch.kernel][launch.grid](*pointers, *steps)
        return [outputs[place] for place in sorted(outputs)]


def _space(size: int) -> Array:
    # Nothing of no size has an address. Memory of a device holds anything: here, what shows.
    return np.full(max(size, 16), 0xFF, np.uint8)


def _filled(array: Array) -> Array:
    return array if array.size else _space(0)


class Worker:
    """Answers jobs."""

    def __init__(self, replies: int) -> None:
        self._replies = replies
        self._loaded: dict[str, Loaded] = {}
        self._count = 0
        self._jobs: dict[str, Callable[..., Any]] = {
            "load": self._load,
            "run": self._run,
            "compile": self._compile,
            "drop": self._drop,
        }

    def serve(self, incoming: Incoming) -> None:
        """Answer until the parent is gone."""
        self._say({"hello": VERSION}, [])
        while True:
            try:
                frame = incoming.read()
            except EOFError:
                return
            if frame is not None:
                self._serve(frame)

    def _say(self, header: dict[str, Any], blobs: Blobs) -> None:
        Outgoing(self._replies, Frame(header, blobs)).write()

    def _serve(self, frame: Frame) -> None:
        kind, blobs = frame.header["kind"], list[Array]()
        what = frame.header.get("what", kind)
        phase: Phase = "run" if kind == "run" else "compile"
        answer: dict[str, Any]
        try:
            found = guarded(
                "triton", phase, what, self._jobs[kind], frame.header, frame.blobs, blobs
            )
            answer = {"result": found}
        except EngineError as error:
            answer, blobs = {"error": error.reason}, []
        self._say({"job": frame.header["job"], **answer}, blobs)

    def _module(self, program: Program) -> ModuleType:
        self._count += 1
        return execute(program, f"module{self._count}")

    def _load(self, header: dict[str, Any], given: Blobs, blobs: Blobs) -> None:
        program = _program(header, given[0])
        weights = dict(zip(header["digests"], given[1:], strict=True))
        self._loaded[header["held"]] = Loaded(self._module(program), program, weights)

    def _run(self, header: dict[str, Any], given: Blobs, blobs: Blobs) -> None:
        blobs += self._loaded[header["held"]].run(given)

    def _drop(self, header: dict[str, Any], given: Blobs, blobs: Blobs) -> None:
        forget(self._loaded.pop(header["held"]).module)

    def _compile(self, header: dict[str, Any], given: Blobs, blobs: Blobs) -> list[dict[str, Any]]:
        program = _program(header, given[0])
        module = self._module(program)
        try:
            return [
                _compiled(getattr(module, function.name), function, header, blobs)
                for function in program.functions
            ]
        finally:
            forget(module)


def _program(header: dict[str, Any], payload: Array) -> Program:
    """Read a program; functions of packages are sent by the parent, which has imported them."""
    brought = brought_functions(header["brought"])
    return Program.from_bytes(payload.tobytes(), lambda sources: brought)


def _compiled(
    function: Any, about: Function, header: dict[str, Any], blobs: Blobs
) -> dict[str, Any]:
    """Compile one function for one target; its binary is a blob, and the rest is said."""
    import triton
    from triton.backends.compiler import GPUTarget

    names, pointers = function.arg_names, about.pointers
    types = [f"*{p}" for p in pointers] + ["i32"] * (len(names) - len(pointers))
    attrs = {(place,): _ALIGNED for place in range(len(pointers))}
    source = triton.compiler.ASTSource(
        fn=function, signature=dict(zip(names, types, strict=True)), constexprs={}, attrs=attrs
    )
    start = time.perf_counter()
    options = {"num_warps": about.warps}
    options |= {"num_stages": about.stages} if about.stages else {}
    made = triton.compile(source, target=GPUTarget(*header["target"]), options=options)
    seconds = time.perf_counter() - start
    kind = "cubin" if "cubin" in made.asm else "hsaco"
    binary = np.frombuffer(made.asm[kind], np.uint8)
    blobs.append(binary)
    return {
        "name": made.metadata.name,
        "kind": kind,
        "shared": made.metadata.shared,
        "warps": made.metadata.num_warps,
        "threads": made.metadata.warp_size,
        "bytes": len(binary),
        "seconds": seconds,
        **(_resources(made.asm, kind) if header["measured"] else {}),
    }


def _resources(asm: Any, kind: str) -> dict[str, int]:
    return of_cubin(asm["cubin"]) if kind == "cubin" else of_amdgcn(asm["amdgcn"])


def main(mode: str, requests: int, replies: int, life: int) -> None:
    """Serve until the parent is gone."""
    settle()
    watch(away(life))
    os.environ["TRITON_INTERPRET"] = "1" if mode == "interpret" else "0"
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    warnings.simplefilter("ignore")
    # Its own folder for files is closed to it, and what is kept is ours to keep.
    os.environ["TRITON_CACHE_DIR"] = str(Path(tempfile.gettempdir(), "triton"))
    importlib.import_module("triton")
    closed.finish()
    worker = Worker(away(replies))
    worker.serve(Incoming(away(requests), _ANY_SIZE))
    os._exit(0)
