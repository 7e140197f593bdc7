"""Attention and rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import DType, bool_, int64
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, floordiv, is_equal
from fusewire.ir.graph import Node, Value
from fusewire.onnx.elements import element_of
from fusewire.onnx.ops.reading import cast, counted
from fusewire.onnx.ops.writing import attrs_of, operand, require_filled
from fusewire.ops import elementwise, indexing, logic, movement, slicing, transformer
from fusewire.ops.shape import dim_of

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write


def _heads(x: Value, heads: int) -> Value:
    """Take the heads of [batch, positions, heads * size] apart: [batch, heads, positions, size]."""
    batch, positions, width = x.tensor.shape
    apart = movement.reshape(x, shape=(batch, positions, heads, floordiv(width, heads)))
    return movement.transpose(apart, perm=(0, 2, 1, 3))


def _padded(mask: Value, keys: Dim) -> Value:
    """Let a mask that is known to be shorter hide the keys it does not reach."""
    last = mask.tensor.shape[-1]
    if is_equal(last, keys) is not False:
        return mask
    hidden: Any = False if mask.tensor.dtype is bool_ else -math.inf
    sides = (*((0, 0) for _ in mask.tensor.shape[:-1]), (0, keys - last))
    return slicing.pad(mask, constant(np.array(hidden, mask.tensor.dtype.numpy)), padding=sides)


def _within(counts: Value, q: Value, k: Value, attrs: dict[str, Any]) -> Value:
    """Tell which keys are seen where each batch has filled so many, the queries being the last.

    What attention would say of places in one line with the keys is said here instead.
    """
    count = movement.expand_dims(cast(counts, int64), axes=(1, 2, 3))
    key = counted(k, 2)
    seen = logic.less(key, count)
    causal, left, right = attrs["causal"], attrs["left"], attrs["right"]
    if not causal and left is None and right is None:
        return seen
    query = movement.expand_dims(counted(q, 2), axes=(1,))
    place = elementwise.subtract(elementwise.add(query, count), dim_of(q, 2))
    behind = elementwise.subtract(place, key)
    if causal or right is not None:
        seen = logic.logical_and(seen, logic.greater_equal(behind, 0 if causal else -right))
    if left is not None:
        seen = logic.logical_and(seen, logic.less_equal(behind, left))
    attrs |= {"causal": False, "left": None, "right": None}
    return seen


def _combined(mask: Value | None, seen: Value) -> Value:
    if mask is None:
        return seen
    if mask.tensor.dtype is bool_:
        return logic.logical_and(mask, seen)
    return logic.where(seen, mask, -math.inf)


def _read_attention(call: OnnxCall) -> Converted:
    q, k, v = call[0], call[1], call[2]
    is_flat = q.tensor.rank == 3
    if is_flat:
        heads, shared = call.needed("q_num_heads"), call.needed("kv_num_heads")
        q, k, v = _heads(q, heads), _heads(k, shared), _heads(v, shared)
    past_k, past_v, counts = call.get(4), call.get(5), call.get(6)
    offset: Dim = 0
    if past_k is not None and past_v is not None:
        offset = past_k.tensor.shape[2]
        k, v = movement.concat(past_k, k, axis=2), movement.concat(past_v, v, axis=2)
    mask, attrs = call.get(3), _settings(call, offset)
    if mask is not None:
        mask = _padded(mask, k.tensor.shape[2])
    if counts is not None:
        mask = _combined(mask, _within(counts, q, k, attrs))
    y = transformer.attention(q, k, cast(v, q.tensor.dtype), mask, **attrs)
    if is_flat:
        batch, heads, queries, size = y.tensor.shape
        swapped = movement.transpose(y, perm=(0, 2, 1, 3))
        y = movement.reshape(swapped, shape=(batch, queries, heads * size))
    return [y, k, v, _shown(call, q, k, mask, attrs) if call.wants(3) else None]


def _settings(call: OnnxCall, offset: Dim) -> dict[str, Any]:
    windows = (call.attr(f"{side}_window_size", -1) for side in ("left", "right"))
    left, right = (None if size < 0 else size for size in windows)
    precision: DType | None = None
    if call.attr("softmax_precision"):
        precision = call.dtype("softmax_precision")
    return {
        "scale": call.attr("scale"),
        "causal": call.flag("is_causal"),
        "offset": offset,
        "left": left,
        "right": right,
        "softcap": call.attr("softcap", 0.0),
        "precision": precision,
    }


def _shown(call: OnnxCall, q: Value, k: Value, mask: Value | None, attrs: dict[str, Any]) -> Value:
    """Give what attention computes on its way, for files that want to see it."""
    mode = call.attr("qk_matmul_output_mode", 0)
    if mode not in range(4):
        call.refuse(f"qk_matmul_output_mode is 0, 1, 2 or 3, found {mode}.")
    return transformer.attention_stages(q, k, mask, **attrs)[mode]


def _write_attention(e: Emitter, node: Node, q: Ref, k: Ref, v: Ref, mask: Ref | None) -> Ref:
    """Average v by the softmax of scaled products of q and k."""
    attrs = attrs_of(node)
    require_filled(e, node, (0, 1, 2))
    if (attrs["left"], attrs["right"], attrs["offset"]) != (None, None, 0):
        raise FormatError("ONNX's Attention has no window, and starts both sides at one place.")
    precision = attrs["precision"]
    if precision not in (None, q.dtype):
        e.caution("Engines do not take a softmax in another dtype.")
    if mask is not None:
        mask = _shaped(e, node, mask)
    return e(
        "Attention",
        q,
        k,
        v,
        mask,
        is_causal=int(attrs["causal"]),
        scale=attrs["scale"],
        softcap=attrs["softcap"],
        softmax_precision=precision and element_of(precision),
    )


def _shaped(e: Emitter, node: Node, mask: Ref) -> Ref:
    """Repeat a mask over queries and keys, which engines do not do themselves."""
    found = operand(node, 3).tensor.shape
    if len(found) < 2:
        raise FormatError("ONNX's Attention wants a mask of two axes or more.")
    wanted = operand(node, 0).tensor.shape[2], operand(node, 1).tensor.shape[2]
    if found[-2:] == wanted or not e.target.is_cautious:
        return mask
    return e("Expand", mask, e.shape((*([1] * (len(found) - 2)), *wanted)))


def _read_rotary(call: OnnxCall) -> Converted:
    x, cos, sin, places = call[0], call[1], call[2], call.get(3)
    if places is not None:
        cos, sin = (indexing.gather(table, places, axis=0) for table in (cos, sin))
    heads = call.attr("num_heads", 0)
    # One angle for all heads, whose axis comes before the positions in four axes, else after.
    cos, sin = (
        movement.expand_dims(table, axes=(1 if x.tensor.rank == 4 else 2,)) for table in (cos, sin)
    )
    whole = x
    if x.tensor.rank == 3:
        if not heads:
            call.refuse("num_heads is needed where x has three axes, and is absent or 0.")
        batch, positions, width = x.tensor.shape
        whole = movement.reshape(x, shape=(batch, positions, heads, floordiv(width, heads)))
    wide = call.attr("rotary_embedding_dim", 0) or whole.tensor.shape[-1]
    if is_equal(2 * cos.tensor.shape[-1], wide) is False:
        call.refuse(f"{wide} elements are turned by half as many angles, found {cos.type}.")
    y = transformer.rotary(whole, cos, sin, interleaved=call.flag("interleaved"))
    return movement.reshape(y, shape=x.tensor.shape) if x.tensor.rank == 3 else y


READERS: Mapping[str, Read] = {
    "Attention": _read_attention,
    "RotaryEmbedding": _read_rotary,
}


WRITERS: Mapping[str, Write] = {
    "attention": _write_attention,
}
