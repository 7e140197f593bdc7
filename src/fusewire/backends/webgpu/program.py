"""A region as kernels in a line: plain data that goes to bytes and back.

Values share memories: a view is its operand's memory, and what is computed and not given back
lies in scratch memory that is used again once nobody reads it.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np

from fusewire.backends.webgpu.indexing import Ints, accesses, merged
from fusewire.backends.webgpu.kernel import Kernel, grid
from fusewire.backends.webgpu.lowering import MOVES, VIEWS, expression
from fusewire.backends.webgpu.storage import byte_size, storage_of
from fusewire.ir.graph import Graph, Node, Value

# A constant of at least so many bytes stays out of the artifact and comes by its digest.
WEIGHT_BYTES = 1024


@dataclass(frozen=True)
class Memory:
    """Bytes on the device: of an input or output by number, of a constant, or scratch."""

    kind: Literal["input", "output", "constant", "scratch"]
    size: int
    place: int = 0
    digest: str = ""
    data: str = ""


@dataclass(frozen=True)
class Dispatch:
    """One run of a kernel: memories of its operands and, last, of its result."""

    kernel: int
    memories: tuple[int, ...]
    params: tuple[int, ...]
    groups: tuple[int, int]


@final
@dataclass
class Program:
    """What runs, in order: dispatches, then copies from memory to memory."""

    kernels: list[str] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    scratch: list[int] = field(default_factory=list)
    dispatches: list[Dispatch] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        held = {
            "kernels": self.kernels,
            "memories": [vars(memory) for memory in self.memories],
            "scratch": self.scratch,
            "dispatches": [vars(dispatch) for dispatch in self.dispatches],
            "copies": self.copies,
        }
        return json.dumps(held).encode()

    @staticmethod
    def from_bytes(payload: bytes) -> Program:
        """Read what ``to_bytes`` wrote."""
        held: dict[str, Any] = json.loads(payload)
        return Program(
            held["kernels"],
            [Memory(**fields) for fields in held["memories"]],
            held["scratch"],
            [
                Dispatch(d["kernel"], tuple(d["memories"]), tuple(d["params"]), tuple(d["groups"]))
                for d in held["dispatches"]
            ],
            [(source, target) for source, target in held["copies"]],
        )


def shape_of(value: Value) -> Ints:
    """Give the shape of a value whose dims are all ints."""
    shape = value.tensor.shape
    assert all(isinstance(dim, int) for dim in shape), f"{value!r} needs a shape of ints"
    return tuple(dim for dim in shape if isinstance(dim, int))


@final
class Writer:
    """Writes the program of a region."""

    def __init__(self, region: Graph, workgroup: int, widest: int) -> None:
        self._region = region
        self._workgroup = workgroup
        self._widest = widest
        self._program = Program()
        self._kernels: dict[Kernel, int] = {}
        self._memory: dict[Value, int] = {}
        # The value whose memory a view shares.
        self._origin: dict[Value, Value] = {}
        self._free: list[int] = []

    def write(self) -> Program:
        """Write it all."""
        region = self._region
        for place, value in enumerate(region.inputs):
            self._memory[value] = self._add(Memory("input", _size(value), place))
        for value in region.constants:
            self._memory[value] = self._add(_constant(value))
        for node in region.nodes:
            if node.op in VIEWS:
                (operand,) = node.operands
                self._origin[node.outputs[0]] = self._origin.get(operand, operand)
        self._give_outputs()
        last = self._last_uses()
        for position, node in enumerate(region.nodes):
            if node.op not in VIEWS:
                self._dispatch(node)
            for value in last.get(position, ()):
                self._let_go(value)
        return self._program

    def _add(self, memory: Memory) -> int:
        self._program.memories.append(memory)
        return len(self._program.memories) - 1

    def _where(self, value: Value) -> int:
        return self._memory[self._origin.get(value, value)]

    def _give_outputs(self) -> None:
        """Give computed outputs memory of their own; copy what is also something else."""
        for place, value in enumerate(self._region.outputs):
            memory = self._add(Memory("output", _size(value), place))
            origin = self._origin.get(value, value)
            if origin in self._memory:
                self._program.copies.append((self._memory[origin], memory))
            else:
                self._memory[origin] = memory

    def _last_uses(self) -> dict[int, list[Value]]:
        """Map positions of nodes to the values that are read there for the last time."""
        last: dict[Value, int] = {}
        for position, node in enumerate(self._region.nodes):
            for value in (*node.operands, *node.outputs):
                last[self._origin.get(value, value)] = position
        uses: dict[int, list[Value]] = {}
        for value, position in last.items():
            uses.setdefault(position, []).append(value)
        return uses

    def _scratch(self, size: int) -> int:
        """Take the smallest free memory that is large enough, else a new one."""
        sizes = self._program.scratch
        fitting = [slot for slot in self._free if sizes[slot] >= size]
        if fitting:
            slot = min(fitting, key=lambda s: sizes[s])
            self._free.remove(slot)
        else:
            slot = len(sizes)
            sizes.append(size)
        return self._add(Memory("scratch", size, slot))

    def _let_go(self, value: Value) -> None:
        memory = self._program.memories[self._memory[value]] if value in self._memory else None
        if memory is not None and memory.kind == "scratch":
            self._free.append(memory.place)

    def _dispatch(self, node: Node) -> None:
        (output,) = node.outputs
        shape = shape_of(output)
        if output not in self._memory:
            self._memory[output] = self._scratch(_size(output))
        count = math.prod(shape)
        if count == 0:
            return
        found = accesses(node, [shape_of(v) for v in node.operands], shape)
        dims, found = merged(shape, found)
        kernel = _kernel(node, dims, [access.walk(dims) for access in found])
        number = self._kernels.setdefault(kernel, len(self._kernels))
        if number == len(self._program.kernels):
            self._program.kernels.append(kernel.wgsl(self._workgroup))
        words = -(-count // kernel.result.lanes)
        self._program.dispatches.append(
            Dispatch(
                number,
                (*(self._where(v) for v in node.operands), self._memory[output]),
                tuple(kernel.params(count, dims, found)),
                grid(words, self._workgroup, self._widest),
            )
        )


def _kernel(node: Node, dims: Ints, walks: Sequence[Any]) -> Kernel:
    moved = node.op in MOVES
    operands = [storage_of(v.tensor.dtype, moved=moved) for v in node.operands]
    if node.op == "where":
        operands[0] = storage_of(node.operands[0].tensor.dtype)
    result = storage_of(node.outputs[0].tensor.dtype, moved=moved)
    code = expression(node)
    assert code is not None
    assert result is not None
    stored = tuple(operand for operand in operands if operand is not None)
    rank = len(dims) if "strided" in walks else 0
    return Kernel(code, stored, result, tuple(walks), rank)


def _size(value: Value) -> int:
    return byte_size(math.prod(shape_of(value)), value.tensor.dtype)


def _constant(value: Value) -> Memory:
    held = value.constant
    assert held is not None
    size = _size(value)
    if math.prod(shape_of(value)) * held.type.dtype.itemsize >= WEIGHT_BYTES:
        return Memory("constant", size, digest=held.digest)
    raw = np.ascontiguousarray(held.array).reshape(-1).view(np.uint8).tobytes()
    return Memory("constant", size, data=base64.b64encode(raw).decode())
