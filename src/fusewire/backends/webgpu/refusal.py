"""What the WebGPU backend refuses, and why, in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from fusewire.backends.webgpu.expressions import compute
from fusewire.backends.webgpu.outside import call_refusal
from fusewire.backends.webgpu.printer import Configuration, print_kernel
from fusewire.backends.webgpu.storage import byte_size, computes, lacking
from fusewire.contract.backend import Device
from fusewire.errors import RefusedError
from fusewire.fusion.kinds import kind_of
from fusewire.ir.graph import Node, Value
from fusewire.ir.types import TensorType
from fusewire.kernel.form import Compute, Kernel
from fusewire.kernel.lower.table import expansion_refusal, refused_op
from fusewire.kernel.lower.table import refusal as no_kernel
from fusewire.kernel.outside import WgslKernel
from fusewire.kernel.refusal import PrintCheck, print_refusal
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


# Kernels that packages bring for their ops.
OutsideKernels = Mapping[str, WgslKernel]


def refusal(node: Node, device: Device, outside: OutsideKernels) -> str | None:
    """Answer None for a node that has kernels here, or whose expansion has; else why not."""
    if not all(_is_sized(v) for v in (*node.operands, *node.outputs)):
        taken = node.op in outside and call_refusal(node, outside[node.op], device) is None
        return None if taken else _unsized(node, device)
    return expansion_refusal(node, lambda part: primitive_refusal(part, device, outside))


def primitive_refusal(node: Node, device: Device, outside: OutsideKernels) -> str | None:
    """Answer None for a node that has kernels here, else why not."""
    if node.op in outside:
        return call_refusal(node, outside[node.op], device) or _size_refusal(node, device)
    reason = no_kernel(node) or _size_refusal(node, device)
    if reason is not None:
        return reason
    most = device.facts["max_bindings"]
    assert isinstance(most, int)
    return print_refusal(node, _WgslCheck(features_of(device), most))


def _is_sized(value: Value) -> bool:
    return not isinstance(value.type, TensorType) or value.type.is_static


@final
@dataclass(frozen=True)
class _WgslCheck(PrintCheck):
    """Prints kernels for a device with these features and so many bindings at most."""

    features: frozenset[str]
    most: int

    def refusal(self, node: Node, kernels: Sequence[Kernel]) -> str | None:
        """Print the kernels; what is raised is why not."""
        _check_dtypes(node, self.features)
        configuration = Configuration(self.features, 65535, 64, 8, (1, 1))
        for kernel in kernels:
            count = len({*kernel.reads, *kernel.writes})
            if count > self.most:
                return (
                    f"A kernel of {node.op} binds {count} buffers, and {self.most} is the most "
                    f"here."
                )
            print_kernel(kernel, configuration)
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
    op = get_op(node.op)
    if op.is_composite and op.kept_whole is None:
        return f"{node.op} is a composite of which sizes are not known yet: its parts are judged."
    if (reason := refused_op(node.op)) is not None:
        return f"{node.op} has no kernel: {reason}."
    for value in values:
        if not isinstance(value.type, TensorType) or value.type.dtype.kind == "string":
            return f"A device holds tensors of numbers, and {node.op} has {value.type}."
        of = value.type.dtype
        if node.op not in _MOVES and not computes(of, features_of(device)):
            return lacking(of, features_of(device))
    try:
        _check_dtypes(node, features_of(device))
    except RefusedError as error:
        return str(error)
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
