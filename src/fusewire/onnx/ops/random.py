"""Random numbers, by our counter-based ops: the same on every engine, and on every run.

A ``seed`` gives the key. Without one the key is fixed, and another for each node of a model.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from fusewire.dtypes import bool_, float32, int32
from fusewire.ir.builder import constant
from fusewire.ir.graph import Value
from fusewire.onnx.ops.reading import cast, scalar
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import creation, draws, elementwise, logic, random

_DEFAULT_SEED = 0x66757365


def _key(call: OnnxCall) -> Value:
    seed = call.attr("seed")
    if seed is None:
        words = (_DEFAULT_SEED, zlib.crc32(call.importer.fresh("key").encode()))
    else:
        words = (int(np.float32(seed).view(np.uint32)), 0)
    return constant(np.array(words, np.uint32))


def _uniform(call: OnnxCall) -> Converted:
    return random.random_uniform(
        _key(call),
        shape=tuple(call.needed("shape")),
        dtype=call.dtype("dtype", float32),
        low=call.attr("low", 0.0),
        high=call.attr("high", 1.0),
    )


def _normal(call: OnnxCall) -> Converted:
    return random.random_normal(
        _key(call),
        shape=tuple(call.needed("shape")),
        dtype=call.dtype("dtype", float32),
        mean=call.attr("mean", 0.0),
        scale=call.attr("scale", 1.0),
    )


def _uniform_like(call: OnnxCall) -> Converted:
    return draws.random_uniform_like(
        call[0],
        _key(call),
        dtype=call.dtype("dtype", call[0].tensor.dtype),
        low=call.attr("low", 0.0),
        high=call.attr("high", 1.0),
    )


def _normal_like(call: OnnxCall) -> Converted:
    return draws.random_normal_like(
        call[0],
        _key(call),
        dtype=call.dtype("dtype", call[0].tensor.dtype),
        mean=call.attr("mean", 0.0),
        scale=call.attr("scale", 1.0),
    )


def _bernoulli(call: OnnxCall) -> Converted:
    found = draws.bernoulli(call[0], _key(call))
    return cast(found, call.dtype("dtype", call[0].tensor.dtype))


def _multinomial(call: OnnxCall) -> Converted:
    found = draws.multinomial(call[0], _key(call), samples=call.attr("sample_size", 1))
    return cast(found, call.dtype("dtype", int32))


def _dropout(call: OnnxCall) -> Converted:
    x, training = call[0], scalar(call.get(2)) if call.opset >= 12 else None
    known = call.ints(training)
    if training is None or (known is not None and not known[0]):
        ones = creation.full(constant(np.ones((), np.bool_)), shape=x.tensor.shape)
        # Before opset 10 the mask had the dtype of x.
        return [x, cast(ones, bool_ if call.opset >= 10 else x.tensor.dtype)]
    ratio = scalar(call.get(1))
    rate = constant(np.float32(0.5)) if ratio is None else cast(ratio, float32)
    kept = logic.greater_equal(draws.random_uniform_like(x, _key(call)), rate)
    mask = logic.logical_or(kept, logic.logical_not(training))
    share = elementwise.subtract(1.0, rate)
    scaled = elementwise.divide(x, cast(share, x.tensor.dtype))
    dropped = logic.where(kept, scaled, 0.0)
    return [logic.where(training, dropped, x), mask]


READERS: Mapping[str, Read] = {
    "RandomUniform": _uniform,
    "RandomNormal": _normal,
    "RandomUniformLike": _uniform_like,
    "RandomNormalLike": _normal_like,
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "Dropout": _dropout,
}
