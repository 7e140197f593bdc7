"""A region as a module of kernels and a list of launches: plain data, to bytes and back."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, final

from fusewire.backends.triton.printer import Printed, Tiles, order_of, print_kernel, print_module
from fusewire.backends.triton.storage import storage_of
from fusewire.dtypes import DType
from fusewire.ir.graph import Constant
from fusewire.kernel.form import Kernel, Lowered
from fusewire.kernel.parts import key_of

# A constant of at least so many bytes stays out of the artifact and comes by its digest.
WEIGHT_BYTES = 1024


@dataclass(frozen=True)
class Memory:
    """Elements on the device: of an input or output by number, of a constant, or scratch."""

    kind: Literal["input", "output", "constant", "scratch"]
    memory: str
    size: int
    place: int = 0
    digest: str = ""
    data: str = ""


@dataclass(frozen=True)
class Function:
    """A function of the module: the types that it points to, in order; then come its steps."""

    name: str
    pointers: tuple[str, ...]
    steps: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Launch:
    """One run of a function: memories in order, steps, and how many programs run."""

    function: int
    memories: tuple[str, ...]
    steps: tuple[int, ...]
    programs: int


@final
@dataclass
class Program:
    """What runs, in order. ``binaries`` are of one target, by function, if it was compiled."""

    text: str
    functions: list[Function] = field(default_factory=list)
    memories: dict[str, Memory] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    binaries: list[dict[str, Any]] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        held = {
            "text": self.text,
            "functions": [asdict(x) for x in self.functions],
            "memories": {name: asdict(x) for name, x in self.memories.items()},
            "launches": [asdict(x) for x in self.launches],
            "binaries": self.binaries,
        }
        return json.dumps(held).encode()

    @staticmethod
    def from_bytes(payload: bytes) -> Program:
        """Read what ``to_bytes`` wrote."""
        held: dict[str, Any] = json.loads(payload)
        functions = [
            Function(x["name"], tuple(x["pointers"]), x["steps"], x["warps"], x["stages"])
            for x in held["functions"]
        ]
        launches = [
            Launch(x["function"], tuple(x["memories"]), tuple(x["steps"]), x["programs"])
            for x in held["launches"]
        ]
        memories = {name: Memory(**x) for name, x in held["memories"].items()}
        return Program(held["text"], functions, memories, launches, held["binaries"])

    def files(self) -> dict[str, bytes]:
        """Give it as files: Triton, binaries, launches, and what each kernel takes."""
        found = {"module.py": self.text.encode()}
        kernels = []
        for function, about in zip(self.functions, self.binaries, strict=True):
            file = f"{function.name}.{about['kind']}"
            found[file] = base64.b64decode(about["data"])
            rest = {key: value for key, value in about.items() if key != "data"}
            kernels.append(
                {
                    "function": function.name,
                    "file": file,
                    **rest,
                    "pointers": function.pointers,
                    "steps": function.steps,
                }
            )
        memories = {
            name: {key: value for key, value in asdict(m).items() if key != "data"}
            for name, m in self.memories.items()
        }
        launches = [asdict(x) for x in self.launches]
        told = {"kernels": kernels, "memories": memories, "launches": launches}
        return {**found, "kernels.json": (json.dumps(told, indent=1) + "\n").encode()}

    @property
    def scratch_bytes(self) -> int:
        """Bytes of all that is computed and not given back."""
        widths = {"64": 8, "32": 4, "16": 2}
        return sum(
            m.size * widths.get(m.memory[-2:], 1)
            for m in self.memories.values()
            if m.kind == "scratch"
        )


def write_program(
    region: Lowered, tiles: Tiles, weights: set[str], tuned: Mapping[str, Tiles] = {}
) -> Program:
    """Print a region; constants whose digests are in ``weights`` come when it is loaded.

    Kernels whose keys are in ``tuned`` are cut as it says.
    """
    printed = {
        kernel.name: print_kernel(kernel, tuned.get(key_of(kernel), tiles) if tuned else tiles)
        for kernel in region.kernels
    }
    unique: dict[object, int] = {}
    kept: list[Printed] = []
    for item in printed.values():
        if item.code not in unique:
            unique[item.code] = len(kept)
            kept.append(item)
    program = Program(print_module(kept), [_function(item) for item in kept])
    program.memories.update(_memories(region, weights))
    for kernel, steps in order_of(region):
        item = printed[kernel.name]
        program.memories.update(_locals(kernel, item))
        function = unique[item.code]
        names = tuple(_memory_name(kernel, item, name) for name in item.buffers)
        given = tuple(steps[name] for name in item.steps)
        if item.programs:
            program.launches.append(Launch(function, names, given, item.programs))
    return program


def _function(item: Printed) -> Function:
    return Function(item.name, item.pointers, len(item.steps), item.warps, item.stages)


def _memory_name(kernel: Kernel, item: Printed, name: str) -> str:
    return f"{kernel.name}.{name}" if name in item.scratch else name


def _locals(kernel: Kernel, item: Printed) -> Mapping[str, Memory]:
    return {
        _memory_name(kernel, item, b.name): _scratch(b.dtype, item.scratch[b.name])
        for b in kernel.locals
    }


def _scratch(of: DType, size: int) -> Memory:
    return Memory("scratch", storage_of(of).memory, size)


def _memories(region: Lowered, weights: set[str]) -> Mapping[str, Memory]:
    found = {}
    inputs = {name: place for place, name in enumerate(region.inputs)}
    outputs = {name: place for place, name in enumerate(region.outputs)}
    for name, buffer in region.buffers.items():
        memory, size = storage_of(buffer.dtype).memory, math.prod(buffer.shape)
        if name in inputs:
            found[name] = Memory("input", memory, size, inputs[name])
        elif name in outputs:
            found[name] = Memory("output", memory, size, outputs[name])
        elif name in region.constants:
            found[name] = _constant(region.constants[name], memory, size, weights)
        else:
            found[name] = Memory("scratch", memory, size)
    return found


def _constant(constant: Constant, memory: str, size: int, weights: set[str]) -> Memory:
    if constant.digest in weights:
        return Memory("constant", memory, size, digest=constant.digest)
    data = base64.b64encode(constant.array.tobytes()).decode()
    return Memory("constant", memory, size, data=data)
