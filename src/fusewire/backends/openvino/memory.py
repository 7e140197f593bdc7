"""Constants and parameters of the engine, over NumPy's memory. Imports the engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.backends.openvino.api import openvino, ops
from fusewire.backends.openvino.lowering.entry import Ov, concat, const, convert
from fusewire.backends.openvino.storage import LONG, Storage, writable
from fusewire.ir.graph import Array, Constant
from fusewire.ir.types import TensorType

# Of this many bytes or more a constant is not copied into the engine.
SHARED_BYTES = 4096


def type_of(name: str) -> Any:
    """Find an element type of the engine by its short name."""
    return getattr(openvino.Type, name)


def parameter_of(type_: TensorType, element: str, parts: int = 1, name: str | None = None) -> Ov:
    """Make a parameter; dims that the run tells stay open, pieces lie on an axis of their own."""
    dims = [dim if isinstance(dim, int) else -1 for dim in type_.shape]
    return ops.parameter([*dims, *([parts] if parts > 1 else [])], type_of(element), name)


def apart(x: Ov, parts: int) -> tuple[Ov, ...]:
    """Take pieces off the last axis."""
    if parts == 1:
        return (x,)
    pieces = ops.split(x, const(-1), parts).outputs()
    return tuple(ops.squeeze(piece, const([-1])) for piece in pieces)


def joined(pieces: tuple[Ov, ...]) -> Ov:
    """Put pieces on a last axis."""
    if len(pieces) == 1:
        return pieces[0]
    return concat([ops.unsqueeze(piece, const(-1)) for piece in pieces], -1)


def constant_pieces(constant: Constant, storage: Storage, kept: list[Array]) -> tuple[Ov, ...]:
    """Make the pieces of a constant; what the engine reads where it lies is added to ``kept``."""
    array, of = constant.array, constant.type.dtype
    if storage.parts > 1:
        cut = np.ascontiguousarray(array).reshape(-1).view(storage.carrier)
        whole = cut.reshape(*array.shape, storage.parts)
        return tuple(ops.constant(whole[..., i].copy()) for i in range(storage.parts))
    if of in LONG:
        array = np.asarray(np.clip(array, -(2**31), 2**31 - 1)).astype(np.int32)
    small = of.is_integer and of.bits < 8
    if of.is_float and storage.edge != storage.inner and array.nbytes < SHARED_BYTES:
        # Known to be a number where a node asks for one.
        return (const(array.astype(np.float32), storage.inner),)
    array = array.astype(storage.carrier) if small else array.view(storage.carrier)
    # The engine keeps no hold of this memory, and reads it for as long as it runs.
    kept.append(array)
    tensor = openvino.Tensor(writable(array), list(array.shape), type_of(storage.edge))
    made = ops.constant(tensor, shared_memory=array.nbytes >= SHARED_BYTES)
    return (convert(made, storage.inner),)
