"""Normalization by channel: x has a batch axis, a channel axis, and any number of others."""

from __future__ import annotations

from fusewire.dtypes import FLOATS
from fusewire.ir.dims import Dim, floordiv, size
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Family
from fusewire.ops.elementwise import (
    add,
    divide,
    multiply,
    power,
    rsqrt,
    square,
    subtract,
)
from fusewire.ops.inference import (
    require,
    same_dtype,
)
from fusewire.ops.movement import reshape
from fusewire.ops.normalization import affine, fitted, standardized
from fusewire.ops.pooling import sum_pool
from fusewire.ops.reduction import narrowed, widened
from fusewire.ops.sample import Sample, bad, draw, sample
from fusewire.ops.statistics import reduce_mean

FAMILY = Family("channels")
NEEDS_CHANNELS = {"scalar": "x has at least a batch and a channel axis"}


def _channels_type(x: TensorType, *vectors: TensorType | None) -> TensorType:
    """Find the type of x after combining it with vectors over channels."""
    require(x.rank >= 2, f"x needs a batch and a channel axis, found {x}.")
    same_dtype(x, *vectors)
    present = [v for v in vectors if v is not None]
    for vector in present:
        require(vector.rank == 1, f"a vector over channels is needed, found {vector}.")
    return fitted(x, *((*v.shape, *([1] * (x.rank - 2))) for v in present))


def per_channel(vector: Value, rank: int) -> Value:
    """Shape a vector over channels so that it broadcasts with N, C, and spatial axes."""
    return reshape(vector, shape=(vector.tensor.shape[0], *([1] * (rank - 2))))


def _by_channel(x: Value, scale: Value | None, bias: Value | None) -> Value:
    rank = x.tensor.rank
    vectors = [None if v is None else per_channel(v, rank) for v in (scale, bias)]
    return affine(x, *vectors)


def _batch_norm_type(
    x: TensorType,
    scale: TensorType,
    bias: TensorType,
    mean: TensorType,
    variance: TensorType,
    *,
    epsilon: float = 1e-5,
) -> TensorType:
    return _channels_type(x, scale, bias, mean, variance)


def _batch_norm(
    x: Value, scale: Value, bias: Value, mean: Value, variance: Value, epsilon: float
) -> Value:
    factor = multiply(scale, rsqrt(add(variance, epsilon)))
    return _by_channel(subtract(x, per_channel(mean, x.tensor.rank)), factor, bias)


def _batch_norm_training_type(
    x: TensorType, scale: TensorType, bias: TensorType, *, epsilon: float = 1e-5
) -> tuple[TensorType, ...]:
    y = _channels_type(x, scale, bias)
    vector = x.with_shape((x.shape[1],))
    return y, vector, vector


def _batch_norm_training(
    x: Value, scale: Value, bias: Value, epsilon: float
) -> tuple[Value, Value, Value]:
    axes = tuple(axis for axis in range(x.tensor.rank) if axis != 1)
    wide = widened(x)
    mean = reduce_mean(wide, axes=axes)
    centred = subtract(wide, per_channel(mean, x.tensor.rank))
    variance = reduce_mean(square(centred), axes=axes)
    factor = per_channel(rsqrt(add(variance, epsilon)), x.tensor.rank)
    y = _by_channel(narrowed(multiply(centred, factor), x), scale, bias)
    return y, narrowed(mean, x), narrowed(variance, x)


def _batch_samples(*shape: int, spread: tuple[float, float] = (0.5, 2.0)) -> Sample:
    vector, (low, high) = draw(shape[1]), spread
    return sample(draw(*shape), vector, vector, vector, draw(shape[1], low=low, high=high))


batch_norm = FAMILY.declare(
    "batch_norm",
    _batch_norm_type,
    expand=_batch_norm,
    dtypes=FLOATS,
    doc="Normalize each channel by a given mean and variance, then scale and shift.",
    lacks=NEEDS_CHANNELS,
    samples=lambda: [_batch_samples(2, 3, 4, 2), _batch_samples(3, 4), _batch_samples(0, 2, 3)],
    refuses=lambda: [
        bad(
            "x needs a batch and a channel axis, found float32[]", "[]", "[3]", "[3]", "[3]", "[3]"
        ),
        bad(
            "operands must have one dtype, found float32 and bool",
            "[3, 4]",
            "bool[4]",
            "[4]",
            "[4]",
            "[4]",
        ),
        bad(
            "a vector over channels is needed, found float32[]", "[3, 4]", "[]", "[4]", "[4]", "[4]"
        ),
    ],
)
batch_norm_training = FAMILY.declare(
    "batch_norm_training",
    _batch_norm_training_type,
    expand=_batch_norm_training,
    dtypes=FLOATS,
    doc="Normalize each channel by its own mean and variance, and return these too.",
    lacks=NEEDS_CHANNELS,
    samples=lambda: [
        sample(draw(2, 3, 4, 2), draw(3), draw(3)),
        sample(draw(6, 4), draw(4), draw(4), epsilon=0.1),
        sample(draw(2, 0, 3), draw(0), draw(0)),
    ],
)


def _group_norm_type(
    x: TensorType,
    scale: TensorType | None = None,
    bias: TensorType | None = None,
    *,
    groups: Dim,
    epsilon: float = 1e-5,
) -> TensorType:
    found = _channels_type(x, scale, bias)
    channels = found.shape[1]
    if isinstance(channels, int) and isinstance(groups, int):
        fits = groups > 0 and channels % groups == 0
        require(fits, f"{channels} channels do not split into {groups} groups.")
    return found


def _group_norm(
    x: Value, scale: Value | None, bias: Value | None, groups: Dim, epsilon: float
) -> Value:
    batch, channels, *spatial = x.tensor.shape
    grouped = reshape(x, shape=(batch, groups, floordiv(channels, groups) * size(spatial)))
    standard = reshape(standardized(grouped, (2,), epsilon), shape=x.tensor.shape)
    return _by_channel(standard, scale, bias)


def _instance_norm_type(
    x: TensorType,
    scale: TensorType | None = None,
    bias: TensorType | None = None,
    *,
    epsilon: float = 1e-5,
) -> TensorType:
    return _channels_type(x, scale, bias)


def _instance_norm(x: Value, scale: Value | None, bias: Value | None, epsilon: float) -> Value:
    axes = tuple(range(2, x.tensor.rank))
    return _by_channel(standardized(x, axes, epsilon), scale, bias)


group_norm = FAMILY.declare(
    "group_norm",
    _group_norm_type,
    expand=_group_norm,
    dtypes=FLOATS,
    doc="Normalize groups of channels to mean 0 and variance 1, then scale and shift each channel.",
    lacks=NEEDS_CHANNELS,
    samples=lambda: [
        sample(draw(2, 4, 3, 2), draw(4), draw(4), groups=2),
        sample(draw(2, 6, 3), groups=3, epsilon=0.1),
        sample(draw(0, 4, 2), draw(4), groups=4),
    ],
    refuses=lambda: [
        bad("4 channels do not split into 5 groups", "[0, 4, 2]", "[4]", groups=5),
        bad("4 channels do not split into 0 groups", "[0, 4, 2]", "[4]", groups=0),
    ],
)
instance_norm = FAMILY.declare(
    "instance_norm",
    _instance_norm_type,
    expand=_instance_norm,
    dtypes=FLOATS,
    doc="Normalize each channel of each instance to mean 0 and variance 1, then scale and shift.",
    lacks=NEEDS_CHANNELS,
    samples=lambda: [
        sample(draw(2, 3, 4, 2), draw(3), draw(3)),
        sample(draw(2, 3, 4), epsilon=0.1),
        sample(draw(0, 3, 4), draw(3)),
    ],
)


def _local_response_norm_type(
    x: TensorType, *, window: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> TensorType:
    require(window > 0, f"the window must hold a channel, found {window}.")
    return _channels_type(x)


def _local_response_norm(x: Value, window: int, alpha: float, beta: float, bias: float) -> Value:
    batch, channels, *spatial = x.tensor.shape
    wide = widened(x)
    squares = reshape(square(wide), shape=(batch, 1, channels, size(spatial)))
    around = (((window - 1) // 2, window // 2), (0, 0))
    total = reshape(sum_pool(squares, window=(window, 1), padding=around), shape=x.tensor.shape)
    return narrowed(divide(wide, power(add(multiply(total, alpha / window), bias), beta)), x)


local_response_norm = FAMILY.declare(
    "local_response_norm",
    _local_response_norm_type,
    expand=_local_response_norm,
    dtypes=FLOATS,
    doc="Divide by a power of the mean square over neighbouring channels.",
    lacks=NEEDS_CHANNELS,
    samples=lambda: [
        sample(draw(2, 5, 3, 2), window=3),
        sample(draw(1, 6, 4), window=4, alpha=0.5, beta=0.5, bias=2.0),
        sample(draw(0, 3, 2), window=1),
    ],
    refuses=lambda: [bad("the window must hold a channel, found 0", "[0, 3, 2]", window=0)],
)
