"""Reading and writing at places that operands tell; order, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusewire import dtypes
from fusewire.ir.builder import constant
from fusewire.ir.dims import Shape, unbacked
from fusewire.ir.graph import Value
from fusewire.onnx.ops.reading import cast, scalar, with_sizes
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import indexing, scatter, sorting
from fusewire.ops.declare import Op
from fusewire.ops.inference import axis_of

_REDUCTIONS = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}


def _along(op: Op[Any]) -> Read:
    """Take two operands and an axis."""
    return lambda call: op(call[0], call[1], axis=call.attr("axis", 0))


def _scatter(op: Op[Value], attrs: Callable[[OnnxCall], Mapping[str, Any]]) -> Read:
    def convert(call: OnnxCall) -> Converted:
        said = call.attr("reduction", "none")
        if said not in _REDUCTIONS:
            call.refuse(f"reduction must be one of {', '.join(_REDUCTIONS)}, found {said!r}.")
        return op(call[0], call[1], call[2], reduction=_REDUCTIONS[said], **attrs(call))

    return convert


_SCATTER = _scatter(scatter.scatter_elements, lambda call: {"axis": call.attr("axis", 0)})


def _tensor_scatter(call: OnnxCall) -> Converted:
    mode = call.attr("mode", "linear")
    if mode not in ("linear", "circular"):
        call.refuse(f"mode must be linear or circular, found {mode!r}.")
    return scatter.tensor_scatter(
        call[0], call[1], call.get(2), axis=call.attr("axis", -2), circular=mode == "circular"
    )


def _top_k(call: OnnxCall) -> Converted:
    x = call[0]
    if call.opset < 10:
        k = constant(np.int64(call.needed("k")))
    else:
        (k,) = call.settled(cast(scalar(call[1]) or call[1], dtypes.int64))
    axis = axis_of(call.attr("axis", -1), x.tensor.rank)
    shape: Shape = (*x.tensor.shape[:axis], unbacked(), *x.tensor.shape[axis + 1 :])
    return with_sizes(
        call,
        sorting.dynamic_top_k,
        [x, k],
        shape,
        lambda s: {"count": s[axis]},
        axis=axis,
        largest=call.flag("largest", 1),
    )


def _reverse_sequence(call: OnnxCall) -> Converted:
    return indexing.reverse_sequence(
        call[0], call[1], batch_axis=call.attr("batch_axis", 1), time_axis=call.attr("time_axis", 0)
    )


TABLE: Mapping[str, Read] = {
    "Gather": _along(indexing.gather),
    "GatherElements": _along(indexing.gather_elements),
    "GatherND": lambda call: indexing.gather_nd(
        call[0], call[1], batch_dims=call.attr("batch_dims", 0)
    ),
    "Scatter": _SCATTER,
    "ScatterElements": _SCATTER,
    "ScatterND": _scatter(scatter.scatter_nd, lambda call: {}),
    "TensorScatter": _tensor_scatter,
    "Compress": lambda call: indexing.compress(call[0], call[1], axis=call.attr("axis")),
    "NonZero": lambda call: indexing.nonzero(call[0]),
    "ReverseSequence": _reverse_sequence,
    "TopK": _top_k,
    "Unique": lambda call: sorting.unique(
        call[0], axis=call.attr("axis"), sorted=call.flag("sorted", 1)
    ),
}
