"""What WebGPU will not run, and why, in sentences."""

from __future__ import annotations

import math

from fusewire.backend import Device
from fusewire.backends.webgpu.lowering import BY_NODE, MOVES, TABLE, VIEWS, expression
from fusewire.backends.webgpu.storage import byte_size, storage_of
from fusewire.ir.graph import Node, Value
from fusewire.ir.types import TensorType

_HAS = "It has elementwise ops, reshape, transpose, broadcast_to and slice."


def refusal(node: Node, device: Device) -> str | None:
    """Answer None for a node that has a kernel here, else why it has none."""
    known = node.op in TABLE or node.op in BY_NODE or node.op in MOVES or node.op in VIEWS
    if not known:
        return f"WebGPU has no kernel for {node.op} yet. {_HAS}"
    for value in (*node.operands, *node.outputs):
        reason = _type_refusal(node, value, device) or _size_refusal(value, device)
        if reason is not None:
            return reason
    if node.op not in VIEWS and expression(node) is None:
        name = node.operands[0].tensor.dtype.name
        return (
            f"WGSL computes {node.op} in 32 bits at most, and {name} has 64. "
            f"Cast to float32, or run it elsewhere."
        )
    return None


def _type_refusal(node: Node, value: Value, device: Device) -> str | None:
    if not isinstance(value.type, TensorType) or value.type.dtype.kind == "string":
        return f"A device holds tensors of numbers, and {node.op} has {value.type}."
    of = value.type.dtype
    moved = node.op in VIEWS or node.op in MOVES
    storage = storage_of(of, moved=moved)
    if storage is None:
        return (
            f"WebGPU's kernels do not compute in {of.name}: they take bool, integers of 8 to 64 "
            f"bits, float16, bfloat16, float32, float64 and complex64."
        )
    features = device.facts["features"]
    assert isinstance(features, tuple)
    if missing := ", ".join(sorted(set(storage.features) - set(map(str, features)))):
        return f"{device.name} has no {of.name} in shaders: it lacks {missing}."
    return None


def _size_refusal(value: Value, device: Device) -> str | None:
    type_ = value.tensor
    if not type_.is_static:
        return None
    size = byte_size(math.prod(d for d in type_.shape if isinstance(d, int)), type_.dtype)
    most = device.facts["max_binding_bytes"]
    assert isinstance(most, int)
    if size > most:
        return f"{type_} takes {size:,} bytes, and {device.name} binds {most:,} at most."
    return None
