"""Kernels in WGSL that packages bring: declare what they bind, and refuse what a device lacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fusewire.backends.webgpu.storage import computes, lacking, storage_of
from fusewire.contract.backend import Device
from fusewire.errors import RefusedError
from fusewire.ir.graph import Node
from fusewire.kernel.form import KernelBuffer, OutsideCall
from fusewire.kernel.outside import (
    WgslKernel,
    buffers_of,
    chosen,
    grid_of,
    node_refusal,
    numbers_of,
)
from fusewire.kernel.printed import PrintedKernel


def print_call(
    call: OutsideCall,
    kernel: WgslKernel,
    number: int,
    features: frozenset[str],
    buffers: Mapping[str, KernelBuffer],
) -> PrintedKernel[str]:
    """Print a kernel of a package, in one of its configurations; ``buffers`` are of the region."""
    tensors = buffers_of(kernel, call)
    configuration = chosen(kernel, number)
    lines = [_binding(at, name, kernel, tensors, features) for at, name in enumerate(tensors)]
    lines += _constants(numbers_of(tensors, call.attrs, configuration))
    size = ", ".join(map(str, kernel.sized(configuration)))
    before, main = kernel.parts
    text = "\n".join([*lines, before, f"@compute @workgroup_size({size})", main, ""])
    grid = grid_of(kernel, tensors, configuration)
    return PrintedKernel(text, tuple(buffers[b.name] for b in tensors.values()), grid)


def _binding(
    at: int,
    name: str,
    kernel: WgslKernel,
    tensors: Mapping[str, KernelBuffer],
    features: frozenset[str],
) -> str:
    access = "read" if name in kernel.inputs else "read_write"
    word = storage_of(tensors[name].dtype, features).word
    return f"@group(0) @binding({at}) var<storage, {access}> {name}: array<{word}>;"


def _constants(numbers: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, value in numbers.items():
        if isinstance(value, tuple):
            sizes = ", ".join(f"{dim}u" for dim in value)
            lines.append(f"const {name} = array<u32, {len(value)}>({sizes});")
        elif isinstance(value, bool):
            lines.append(f"const {name}: bool = {str(value).lower()};")
        elif isinstance(value, float):
            lines.append(f"const {name}: f32 = {_float(name, value)};")
        else:
            kind, mark = ("u32", "u") if value >= 0 else ("i32", "i")
            lines.append(f"const {name}: {kind} = {value}{mark};")
    return lines


def _float(name: str, value: float) -> str:
    if not math.isfinite(value):
        raise RefusedError(f"{name} is {value}, which WGSL cannot write. Run it elsewhere.")
    return f"{value!r}f"


def call_refusal(node: Node, kernel: WgslKernel, device: Device) -> str | None:
    """Say why a kernel of a package does not take a node on a device; None if it does."""
    if (reason := node_refusal(kernel, node)) is not None:
        return reason
    features = frozenset(map(str, _several(device, "features")))
    for value in (*node.operands, *node.outputs):
        of = value.tensor.dtype
        if not computes(of, features):
            return lacking(of, features)
        if storage_of(of, features).lanes > 1:
            return f"A kernel in WGSL reads whole words, and several {of.name} lie in one."
    for name, number in node.attrs.items():
        if type(number) is int and not -(1 << 31) <= number < 1 << 32:
            return f"{name} of {node.op} is {number}, and a constant of WGSL has 32 bits."
    most = device.facts["max_bindings"]
    assert isinstance(most, int)
    if len(node.operands) + len(node.outputs) > most:
        return f"The kernel of {node.op} binds more buffers than {most}, the most here."
    return _launch_refusal(node, kernel, device)


def _launch_refusal(node: Node, kernel: WgslKernel, device: Device) -> str | None:
    invocations, groups = device.facts["max_invocations"], device.facts["max_workgroups"]
    assert isinstance(invocations, int)
    assert isinstance(groups, int)
    sizes = [math.prod(kernel.sized(x)) for x in kernel.configurations]
    if max(sizes) > invocations:
        return f"The kernel of {node.op} has workgroups of {max(sizes)}; {invocations} is the most."
    if not all(value.tensor.is_static for value in (*node.operands, *node.outputs)):
        return None
    shapes = [[d for d in v.tensor.shape if isinstance(d, int)] for v in node.operands]
    shapes += [[d for d in v.tensor.shape if isinstance(d, int)] for v in node.outputs]
    names = (*kernel.inputs, *kernel.outputs)
    of = node.outputs[0].tensor.dtype
    buffers = {
        name: KernelBuffer(name, of, tuple(shape))
        for name, shape in zip(names, shapes, strict=True)
    }
    grids = [grid_of(kernel, buffers, x) for x in kernel.configurations]
    if (largest := max(max(grid) for grid in grids)) > groups:
        return f"The kernel of {node.op} needs {largest:,} workgroups; {groups:,} is the most."
    return None


def _several(device: Device, name: str) -> Sequence[Any]:
    found = device.facts[name]
    assert isinstance(found, tuple)
    return found
