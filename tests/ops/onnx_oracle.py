"""Run one ONNX operator by onnx's own reference."""

from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from fusewire.ir.graph import Array


def run_onnx(
    op: str, *inputs: Array | None, outputs: int = 1, opset: int = 22, **attrs: Any
) -> Any:
    """Give the output, or a list of them when there are several."""
    names = ["" if x is None else f"i{k}" for k, x in enumerate(inputs)]
    given = {n: x for n, x in zip(names, inputs, strict=True) if x is not None}
    results = [f"o{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, **attrs)
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in given.items()
    ]
    ends = [helper.make_value_info(n, onnx.TypeProto()) for n in results]
    graph = helper.make_graph([node], "one", types, ends)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    found = ReferenceEvaluator(model).run(None, {n: np.asarray(x) for n, x in given.items()})
    return found[0] if outputs == 1 else found
