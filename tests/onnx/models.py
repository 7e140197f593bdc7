"""Small ONNX models for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

import fusewire as fw

# Dtypes and dims by name; a dim may be a name.
Inputs: TypeAlias = Mapping[str, tuple[str, Sequence[Any]]]


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Inputs,
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
) -> onnx.GraphProto:
    """Make a graph over inputs and constants."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(of)), dims)
        for name, (of, dims) in inputs.items()
    ]
    held = [numpy_helper.from_array(np.asarray(x), name) for name, x in (constants or {}).items()]
    made = [onnx.ValueInfoProto(name=name) for name in outputs]
    return helper.make_graph(list(nodes), "g", infos, made, held)


def model(of: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    """Close a graph into a model."""
    return helper.make_model(of, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def single(
    op: str,
    opset: int,
    operands: Sequence[Any],
    *,
    outputs: int = 1,
    constant: bool = False,
    named: bool = False,
    **attrs: Any,
) -> tuple[onnx.ModelProto, list[Any]]:
    """Make a model of one node, and what it is called with.

    ``constant`` operands but the first are part of the model; dims of the first can be ``named``.
    """
    arrays = {f"x{i}": np.asarray(x) for i, x in enumerate(operands) if x is not None}
    held = {name: x for name, x in arrays.items() if constant and name != "x0"}
    given = {name: x for name, x in arrays.items() if name not in held}
    infos = {name: (str(x.dtype), list(x.shape)) for name, x in given.items()}
    if named:
        first = arrays["x0"]
        infos["x0"] = (str(first.dtype), [f"n{axis}" for axis in range(first.ndim)])
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(operands)]
    made = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, made, name="it", **attrs)
    return model(graph([node], infos, made, held), opset), list(given.values())


def run(source: onnx.ModelProto, *arrays: Any) -> list[Any]:
    """Run a model on the reference, as it is."""
    program = fw.compile(source, backend="reference", fallback="error", isolate=False)
    found = program(*arrays)
    return list(found) if isinstance(found, tuple) else [found]
