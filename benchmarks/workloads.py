"""The 29 workloads of engines.py, each written once over what the kit of an engine calls its ops.

With Fusewire's kit a workload is traced and saved as the ONNX file that engines run bare, each op
as the one node that an exporter would write. With jax's kit it is what somebody would write by hand
in jax.numpy; with NumPy's, only where plain NumPy says all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import fusewire as fw
from benchmarks.kits import FusewireKit

Array = np.ndarray[Any, Any]
POSITIONS = 128


@dataclass
class Draw:
    """Draws weights and inputs, the same each time."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        return self.rng.standard_normal(shape, np.float32) * np.float32(scale)

    def weight(self, *shape: int) -> Array:
        """Give inputs by outputs, so that what comes out is as large as what went in."""
        return self.normal(*shape, scale=shape[-2] ** -0.5)

    def filters(self, *shape: int) -> Array:
        return self.normal(*shape, scale=float(np.prod(shape[1:])) ** -0.5)

    def near_one(self, size: int) -> Array:
        return 1 + self.normal(size, scale=0.1)

    def linear(self, given: int, made: int) -> list[Array]:
        return [self.weight(given, made), self.normal(made, scale=0.02)]

    def norm(self, size: int) -> list[Array]:
        return [self.near_one(size), self.normal(size, scale=0.1)]

    def batch(self, size: int) -> list[Array]:
        """Scale, bias, mean and variance of channels."""
        return [*self.norm(size), self.normal(size, scale=0.1), abs(self.near_one(size))]


# A kit, weights and inputs, to outputs.
Function = Callable[..., Any]


@dataclass(frozen=True)
class Workload:
    """A function, and what makes the weights it knows and the inputs it is called with."""

    function: Function
    weights: Callable[[Draw], Any]
    inputs: Callable[[Draw], Sequence[Array]]

    def made(self) -> tuple[Any, Sequence[Array]]:
        draw = Draw()
        return self.weights(draw), self.inputs(draw)

    def save(self, path: Path) -> list[Array]:
        """Write the ONNX file, and give inputs for it."""
        weights, inputs = self.made()
        specs = [fw.Spec(x.shape, str(x.dtype)) for x in inputs]
        graph = fw.trace(lambda *xs: self.function(FusewireKit, weights, *xs), *specs)
        fw.save_onnx(graph, path, opset=21)
        return list(inputs)


def eight(k: Any, w: Any, x: Any) -> Any:
    np = k.np
    return np.maximum(np.sqrt(np.abs(np.tanh(x * 1.5 + 0.5) * x - 0.25)), 0.1)


def dense(k: Any, w: Any, x: Any) -> Any:
    return k.gelu(x @ w[0] + w[1])


def mlp(k: Any, w: Any, x: Any) -> Any:
    for layer, bias in w[:-1]:
        x = k.relu(x @ layer + bias)
    return x @ w[-1][0] + w[-1][1]


def attend(k: Any, w: Any, x: Any, heads: int) -> Any:
    batch, positions, size = x.shape

    def split(x: Any) -> Any:
        return x.reshape(batch, positions, heads, size // heads).transpose(0, 2, 1, 3)

    q, key, v = (split(x @ weight + bias) for weight, bias in w[:3])
    scores = k.softmax(q @ key.transpose(0, 1, 3, 2) * (size // heads) ** -0.5)
    mixed = (scores @ v).transpose(0, 2, 1, 3).reshape(batch, positions, size)
    return mixed @ w[3][0] + w[3][1]


def encode(k: Any, w: Any, x: Any, heads: int) -> Any:
    for attention, first, wide, narrow, second in w:
        x = k.layer_norm(x + attend(k, attention, x, heads), *first)
        x = k.layer_norm(x + (dense(k, wide, x) @ narrow[0] + narrow[1]), *second)
    return x


def conv_unit(k: Any, w: Any, x: Any, stride: int = 1, groups: int = 1) -> Any:
    filters, norm = w
    return k.batch_norm(k.conv(x, filters, stride, filters.shape[-1] // 2, groups), *norm)


def conv_relu(k: Any, w: Any, x: Any) -> Any:
    return k.relu(conv_unit(k, w, x))


def mobile(k: Any, w: Any, x: Any) -> Any:
    """Widen, filter each channel by itself, narrow, and add."""
    wide = k.relu(conv_unit(k, w[0], x))
    apart = k.relu(conv_unit(k, w[1], wide, groups=w[1][0].shape[0]))
    return x + conv_unit(k, w[2], apart)


def resnet(k: Any, w: Any, x: Any) -> Any:
    stem, blocks, head = w
    x = k.max_pool(k.relu(conv_unit(k, stem, x, 2)))
    for first, second, *short in blocks:
        stride = 2 if short else 1
        side = conv_unit(k, short[0], x, stride) if short else x
        x = k.relu(conv_unit(k, second, k.relu(conv_unit(k, first, x, stride))) + side)
    return k.np.mean(x, axis=(2, 3)) @ head[0] + head[1]


def attention_weights(draw: Draw, size: int) -> list[Any]:
    return [draw.linear(size, size) for _ in range(4)]


def encoder_weights(draw: Draw, size: int) -> list[Any]:
    return [
        [
            attention_weights(draw, size),
            draw.norm(size),
            draw.linear(size, 4 * size),
            draw.linear(4 * size, size),
            draw.norm(size),
        ]
        for _ in range(6)
    ]


def unit_weights(draw: Draw, *filters: int) -> list[Any]:
    return [draw.filters(*filters), draw.batch(filters[0])]


def mobile_weights(draw: Draw) -> list[Any]:
    return [unit_weights(draw, *s) for s in ((192, 32, 1, 1), (192, 1, 3, 3), (32, 192, 1, 1))]


def resnet_weights(draw: Draw) -> list[Any]:
    blocks, given = [], 64
    for made, first in (
        (64, True),
        (64, False),
        (128, True),
        (128, False),
        (256, True),
        (256, False),
        (512, True),
        (512, False),
    ):
        block = [unit_weights(draw, made, given, 3, 3), unit_weights(draw, made, made, 3, 3)]
        short = [unit_weights(draw, made, given, 1, 1)] if first and made != given else []
        blocks.append([*block, *short])
        given = made
    return [unit_weights(draw, 64, 3, 7, 7), blocks, draw.linear(512, 1000)]


def layer_weights(draw: Draw, gates: int, size: int = 256) -> list[Array]:
    shapes = (1, gates * size, size), (1, gates * size, size), (1, 2 * gates * size)
    return [draw.normal(*shape, scale=size**-0.5) for shape in shapes]


def _normal(*shapes: tuple[int, ...]) -> Callable[[Draw], list[Array]]:
    return lambda draw: [draw.normal(*shape) for shape in shapes]


def _none(draw: Draw) -> list[Array]:
    return []


def _batched(
    name: str, function: Function, weights: Any, *shape: int, batches: Sequence[int] = (1, 8)
) -> dict[str, Workload]:
    return {
        f"{name}, batch {b}": Workload(function, weights, _normal((b, *shape))) for b in batches
    }


def _recurrent(name: str, gates: int, batch: int) -> Workload:
    return Workload(
        lambda k, w, x: getattr(k, name)(x, *w),
        partial(layer_weights, gates=gates),
        _normal((64, batch, 256)),
    )


def _layers(draw: Draw) -> list[Any]:
    return [draw.linear(given, made) for given, made in pairwise((16, 32, 4))]


WORKLOADS: dict[str, Workload] = {
    **{f"8 elementwise, 1e{n}": Workload(eight, _none, _normal((10**n,))) for n in (3, 5, 7)},
    **{
        f"matmul {n} + gelu": Workload(
            dense, partial(Draw.linear, given=n, made=n), _normal((n, n))
        )
        for n in (64, 256, 1024, 2048)
    },
    "layer norm + residual 8x128x768": Workload(
        lambda k, w, x, y: k.layer_norm(x + y, *w),
        lambda d: d.norm(768),
        _normal((8, 128, 768), (8, 128, 768)),
    ),
    "softmax 8x12x128x128": Workload(
        lambda k, w, x: k.softmax(x), _none, _normal((8, 12, 128, 128))
    ),
    **_batched(
        "attention 768",
        partial(attend, heads=12),
        partial(attention_weights, size=768),
        POSITIONS,
        768,
    ),
    **_batched(
        "encoder x6 384",
        partial(encode, heads=6),
        partial(encoder_weights, size=384),
        POSITIONS,
        384,
    ),
    **_batched(
        "encoder x6 768",
        partial(encode, heads=12),
        partial(encoder_weights, size=768),
        POSITIONS,
        768,
    ),
    **_batched(
        "conv 3x3 + bn + relu", conv_relu, lambda d: unit_weights(d, 64, 64, 3, 3), 64, 56, 56
    ),
    **_batched("MobileNet block", mobile, mobile_weights, 32, 56, 56),
    **_batched("ResNet-18", resnet, resnet_weights, 3, 224, 224),
    "LSTM, batch 1": _recurrent("lstm", 4, 1),
    "LSTM, batch 16": _recurrent("lstm", 4, 16),
    "GRU, batch 1": _recurrent("gru", 3, 1),
    "sum of 1e7": Workload(lambda k, w, x: k.np.sum(x), _none, _normal((10**7,))),
    "column sum 4096": Workload(lambda k, w, x: k.np.sum(x, axis=0), _none, _normal((4096, 4096))),
    "argmax 1000x10000": Workload(
        lambda k, w, x: k.np.argmax(x, axis=1), _none, _normal((1000, 10000))
    ),
    "embedding + sum": Workload(
        lambda k, w, x: k.np.sum(k.take(w[0], x), axis=1),
        lambda d: [d.normal(30_000, 512)],
        lambda d: [d.rng.integers(0, 30_000, (32, 64))],
    ),
    "tiny MLP": Workload(mlp, _layers, _normal((1, 16))),
}
