"""What WebGPU will not run, and why, in sentences.

A node is taken if its kernels can be printed: that is tried, once for each kind of node.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from fusewire.backends.webgpu.printer import Target, print_kernel
from fusewire.backends.webgpu.scalars import compute, computes, lacking
from fusewire.backends.webgpu.storage import byte_size
from fusewire.contract.backend import Device
from fusewire.errors import FusewireError, RefusedError
from fusewire.fusion.kinds import kind_of
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.kernel.form import Compute
from fusewire.kernel.lower.region import lower
from fusewire.kernel.lower.table import expansion_refusal, refused_op
from fusewire.kernel.lower.table import refusal as no_kernel
from fusewire.ops.declare import Kind, Trait
from fusewire.ops.table import get_op

_COMPARING = ("sort", "argsort", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
# Ops that move elements, whatever they mean: of these only bits are asked.
_MOVES = ("broadcast_to", "transpose", "slice", "where", "reshape", "bitcast")


def features_of(device: Device) -> frozenset[str]:
    """List what the shaders of a device may use."""
    features = device.facts["features"]
    assert isinstance(features, tuple)
    return frozenset(map(str, features))


def refusal(node: Node, device: Device) -> str | None:
    """Answer None for a node that has kernels here, or whose expansion has; else why not."""
    if not all(_is_sized(v) for v in (*node.operands, *node.outputs)):
        return _unsized(node, device)
    return expansion_refusal(node, lambda part: node_refusal(part, device))


def node_refusal(node: Node, device: Device) -> str | None:
    """Answer None for a node that has kernels here, else why not."""
    reason = no_kernel(node) or _size_refusal(node, device)
    if reason is not None:
        return reason
    most = device.facts["max_bindings"]
    assert isinstance(most, int)
    return _tried(_Kind(node), features_of(device), most)


def _is_sized(value: Value) -> bool:
    return not isinstance(value.type, TensorType) or value.type.is_static


class _Kind:
    """A node by what its kernels depend on."""

    def __init__(self, node: Node) -> None:
        self.node = node
        types = tuple(str(v.type) for v in (*node.operands, *node.outputs))
        given = tuple(v is None for v in node.inputs)
        attrs = tuple((key, _hashed(value)) for key, value in sorted(node.attrs.items()))
        self._key = (node.op, types, given, attrs)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kind) and self._key == other._key


def _hashed(value: Any) -> Any:
    # A graph in an attribute is one of its own kind.
    return id(value) if isinstance(value, Graph) else repr(value)


@lru_cache(4096)
def _tried(kind: _Kind, features: frozenset[str], most: int) -> str | None:
    node = kind.node
    target = Target(features, 65535, 64, 8, (1, 1))
    try:
        _check_dtypes(node, features)
        for kernel in lower(Graph(node.operands, node.outputs, [node])).kernels:
            count = len({*kernel.reads, *kernel.writes})
            if count > most:
                return f"A kernel of {node.op} binds {count} buffers, and {most} is the most here."
            print_kernel(kernel, target)
    except FusewireError as error:
        return str(error)
    return None


def _check_dtypes(node: Node, features: frozenset[str]) -> None:
    """Raise what the kernels of other sizes would: of a tensor without elements there are none."""
    given = tuple(v.tensor.dtype for v in node.operands)
    made = node.outputs[0].tensor.dtype
    if kind_of(node) is Kind.MAP and get_op(node.op).is_(Trait.ELEMENTWISE):
        compute(Compute("", made, node.op, (), tuple(node.attrs.items())), given, features)
    elif kind_of(node) in (Kind.FOLD, Kind.CONTRACT) or node.op in _COMPARING:
        for of in given:
            if not computes(of, features):
                raise RefusedError(lacking(of, features))


def _unsized(node: Node, device: Device) -> str | None:
    """Judge a node whose sizes are not known yet by its op and dtypes."""
    values = (*node.operands, *node.outputs)
    if get_op(node.op).is_composite:
        return f"{node.op} is a composite of which sizes are not known yet: its parts are judged."
    if (reason := refused_op(node.op)) is not None:
        return f"{node.op} has no kernel: {reason}."
    for value in values:
        if not isinstance(value.type, TensorType) or value.type.dtype.kind == "string":
            return f"A device holds tensors of numbers, and {node.op} has {value.type}."
        of = value.type.dtype
        if node.op not in _MOVES and not computes(of, features_of(device)):
            return lacking(of, features_of(device))
    return None


def _size_refusal(node: Node, device: Device) -> str | None:
    most = device.facts["max_binding_bytes"]
    assert isinstance(most, int)
    for value in (*node.operands, *node.outputs):
        type_ = value.tensor
        size = byte_size(math.prod(d for d in type_.shape if isinstance(d, int)), type_.dtype)
        if size > most:
            return f"{type_} takes {size:,} bytes, and {device.name} binds {most:,} at most."
    return None
