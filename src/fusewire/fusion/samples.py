"""A sample of each pattern: what a fusion backend is shown to see which it runs as one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from fusewire.dtypes import float32
from fusewire.ir.builder import constant
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.activation import relu
from fusewire.ops.channels import batch_norm
from fusewire.ops.contraction import linear
from fusewire.ops.convolution import conv
from fusewire.ops.elementwise import add, multiply, sqrt, subtract
from fusewire.ops.normalization import layer_norm, rms_norm, softmax
from fusewire.ops.pooling import max_pool
from fusewire.ops.statistics import reduce_mean
from fusewire.ops.transformer import attention

Shapes = Sequence[tuple[int, ...]]


def _weights(*shape: int) -> Value:
    """Make weights as a model holds them: constants, positive, all different."""
    count = int(np.prod(shape))
    return constant(((1 + np.arange(count, dtype=np.float32)) / count).reshape(shape))


def _convolution(x: Value) -> Value:
    return conv(x, _weights(16, 16, 3, 3), _weights(16))


def _batch_norm(x: Value) -> Value:
    return batch_norm(_convolution(x), *(_weights(16) for _ in range(4)))


def _mean_square(x: Value) -> Value:
    return sqrt(reduce_mean(multiply(x, x), axes=(1,)))


def _chain(x: Value, y: Value) -> Value:
    return subtract(relu(add(multiply(x, y), y)), x)


_IMAGE = ((1, 16, 12, 12),)
# By the name of the pattern: what it computes, and the shapes of its inputs.
SAMPLES: Mapping[str, tuple[Callable[..., Value], Shapes]] = {
    "attention": (lambda q, k, v: attention(q, k, v), ((1, 2, 8, 16),) * 3),
    "softmax": (lambda x: softmax(x), ((8, 32),)),
    "layer norm": (lambda x: layer_norm(x, _weights(32), _weights(32)), ((8, 32),)),
    "rms norm": (lambda x: rms_norm(x, _weights(32)), ((8, 32),)),
    "convolution + batch norm": (lambda x: relu(_batch_norm(x)), _IMAGE),
    "convolution + activation": (lambda x: relu(_convolution(x)), _IMAGE),
    "linear + activation": (
        lambda x: relu(linear(x, _weights(24, 32), _weights(24))),
        ((8, 32),),
    ),
    "reduction + elementwise": (_mean_square, ((8, 32),)),
    "elementwise": (_chain, ((8, 32),) * 2),
    "mixed": (lambda x: relu(max_pool(x, window=(2, 2))), _IMAGE),
}


@cache
def sample(pattern: str) -> Graph:
    """Return the sample of a pattern, with weights as constants."""
    build, shapes = SAMPLES[pattern]
    inputs = [Value(TensorType(float32, shape), f"x{i}") for i, shape in enumerate(shapes)]
    return Graph(inputs, [build(*inputs)], name=pattern)
