"""Weights of products as int8, in blocks with a scale each.

The engine keeps them so, and rounds what they are multiplied with to int8 in blocks of the same
size, if it is told so: DYNAMIC_QUANTIZATION_GROUP_SIZE. Only for users who accept the error.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from fusewire.backends.openvino.api import openvino, ops
from fusewire.ir.graph import Array

_CODES = 127


def round_weights(model: Any, block: int, exact: Collection[str] = ()) -> Any:
    """Round the weights of a model's products, where blocks fit; returns the model.

    What was built under one of the ``exact`` names stays as it is.
    """
    for node in model.get_ordered_ops():
        is_exact = node.get_friendly_name().partition("/")[0] in exact
        if node.get_type_name() != "MatMul" or is_exact:
            continue
        weights = node.input_value(1).get_node()
        is_weights = weights.get_type_name() == "Constant" and len(weights.get_output_shape(0)) == 2
        if not is_weights or weights.get_output_element_type(0) != openvino.Type.f32:
            continue
        attributes = node.get_attributes()
        array = np.array(weights.data)
        rows = array if attributes["transpose_b"] else array.T
        if rows.shape[1] % block or not np.isfinite(rows).all():
            continue
        rounded = _decompressed(rows, block)
        product = ops.matmul(node.input_value(0), rounded, attributes["transpose_a"], True)
        product.set_friendly_name(node.get_friendly_name())
        node.output(0).replace(product.output(0))
    return model


def _decompressed(rows: Array, block: int) -> Any:
    """Make the nodes by which the engine knows weights that are stored as codes."""
    count, inputs = rows.shape
    blocks = rows.reshape(count, inputs // block, block)
    largest = np.abs(blocks).max(2, keepdims=True)
    scales = (np.where(largest > 0, largest, 1.0) / _CODES).astype(np.float32)
    codes = np.clip(np.rint(blocks / scales), -_CODES, _CODES).astype(np.int8)
    weights = ops.multiply(ops.convert(ops.constant(codes), "f32"), ops.constant(scales))
    return ops.reshape(weights, ops.constant(np.array([count, inputs])), False)
