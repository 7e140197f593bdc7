"""Kernels in Triton that packages bring: write their constants into them, or take their binaries.

The text of such a kernel comes from the module of an installed package, through its extension.
Artifacts hold none of it: they name the op and the digest of the kernel, and whoever loads one has
the package, or is sent the text by the process that has it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fusewire.backends.triton.printer import Configuration, Function
from fusewire.backends.triton.program import Program, Source
from fusewire.backends.triton.storage import STORAGES, storage_of
from fusewire.errors import RefusedError
from fusewire.ir.graph import Node
from fusewire.kernel.form import Kernel, OutsideCall
from fusewire.kernel.outside import (
    KernelTable,
    TritonBinary,
    TritonKernel,
    buffers_of,
    chosen,
    grid_of,
    node_refusal,
    numbers_of,
)
from fusewire.kernel.printed import PrintedKernel

Kernels = KernelTable[TritonKernel]


def print_call(
    kernel: Kernel, call: OutsideCall, kernels: Kernels, configuration: Configuration
) -> PrintedKernel[Function]:
    """Print a kernel of a package, in one of its configurations."""
    source = kernels.of(call)
    tensors, number = buffers_of(source, call), configuration.variant
    numbers = chosen(source, number)
    warps, stages = (numbers[x] if isinstance(x, str) else x for x in (source.warps, source.stages))
    pointers = tuple(storage_of(b.dtype).pointer for b in tensors.values())
    text = _text(source, numbers_of(tensors, call.attrs, numbers))
    function = Function(kernel.name, text, pointers, 0, warps, stages)
    held = {buffer.name: buffer for buffer in (*kernel.reads, *kernel.writes)}
    buffers = tuple(held[b.name] for b in tensors.values())
    return PrintedKernel(function, buffers, grid_of(source, tensors, numbers))


def _text(source: TritonKernel, numbers: Mapping[str, Any]) -> str:
    """Write constants as the first statements of the function; give all that follows its name."""
    first = source.function.body[0]
    lines = source.source.splitlines()
    indent = " " * first.col_offset
    constants = [
        f"{indent}{name}: tl.constexpr = {value!r}"
        for key, given in numbers.items()
        for name, value in _named(key, given)
    ]
    body = lines[first.lineno - 1 :]
    parameters = ", ".join((*source.inputs, *source.outputs))
    return "\n".join([f"({parameters}):", *constants, *body])


def _named(name: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, tuple):
        return [(f"{name}{axis}", size) for axis, size in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise RefusedError(f"{name} is {value}, which is not a constant of Triton's language.")
    return [(name, value)]


def call_refusal(node: Node, kernel: TritonKernel) -> str | None:
    """Say why a kernel of a package does not take a node; None if it does."""
    if (reason := node_refusal(kernel, node)) is not None:
        return reason
    strange = [v.tensor.dtype.name for v in node.operands if v.tensor.dtype.name not in STORAGES]
    return f"Triton's kernels do not compute in {strange[0]}." if strange else None


def _described(binary: TritonBinary) -> dict[str, Any]:
    return {
        "name": binary.name,
        "kind": binary.kind,
        "shared": binary.shared,
        "warps": binary.warps,
        "threads": binary.threads,
        "bytes": len(binary.data),
        "seconds": 0.0,
        "data": base64.b64encode(binary.data).decode(),
    }


def printed_calls(sources: Sequence[Source], kernels: Kernels) -> dict[int, Function]:
    """Print those of the sources that are kernels of packages, by their places."""
    calls = [(place, x, x.kernel.call) for place, x in enumerate(sources)]
    return {
        place: print_call(source.kernel, call, kernels, source.configuration).code
        for place, source, call in calls
        if call is not None
    }


def given_binaries(program: Program, kernels: Kernels, target: str) -> dict[int, dict[str, Any]]:
    """Give the compiled code that packages have for a target, by the places of functions."""
    found: dict[int, dict[str, Any]] = {}
    for place, source in enumerate(program.sources):
        call = source.kernel.call
        binary = None if call is None else kernels.of(call).binaries.get(target)
        if binary is not None and source.configuration.variant == 0:
            found[place] = _described(binary)
    return found
