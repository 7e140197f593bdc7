"""What engines call the ops that workloads.py is written in: Fusewire, jax, and plain NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import fusewire as fw


class NumpyKit:
    """What plain NumPy has; asking for more is an AttributeError."""

    np: Any = np
    take = staticmethod(partial(np.take, axis=0))
    relu = staticmethod(partial(np.maximum, np.float32(0)))


class FusewireKit:
    """Ops of the graph, whole."""

    np: Any = np
    take = staticmethod(partial(np.take, axis=0))
    relu, gelu = fw.ops.relu, fw.ops.gelu
    softmax, layer_norm, batch_norm = fw.ops.softmax, fw.ops.layer_norm, fw.ops.batch_norm

    @staticmethod
    def conv(x: Any, w: Any, stride: int, pad: int, groups: int) -> Any:
        pads = ((pad, pad),) * 2
        return fw.ops.conv(x, w, strides=(stride,) * 2, padding=pads, groups=groups)

    @staticmethod
    def max_pool(x: Any) -> Any:
        return fw.ops.max_pool(x, window=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))

    @staticmethod
    def lstm(x: Any, w: Any, r: Any, bias: Any) -> Any:
        return fw.ops.lstm(x, w, r, bias)[0]

    @staticmethod
    def gru(x: Any, w: Any, r: Any, bias: Any) -> Any:
        return fw.ops.gru(x, w, r, bias, linear_before_reset=True)[0]


class JaxKit:
    """What somebody who knows jax would write."""

    def __init__(self) -> None:
        import jax

        self._jax, self.np = jax, jax.numpy
        self.relu, self.softmax = jax.nn.relu, jax.nn.softmax
        self.gelu = partial(jax.nn.gelu, approximate=False)
        # Without it, places outside of the table are looked for and filled.
        self.take = partial(jax.numpy.take, axis=0, mode="clip")

    def layer_norm(self, x: Any, scale: Any, bias: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        variance = self.np.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * self._jax.lax.rsqrt(variance + 1e-5) * scale + bias

    def batch_norm(self, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
        factor = scale * self._jax.lax.rsqrt(variance + 1e-5)
        return x * factor[:, None, None] + (bias - mean * factor)[:, None, None]

    def conv(self, x: Any, w: Any, stride: int, pad: int, groups: int) -> Any:
        return self._jax.lax.conv_general_dilated(
            x, w, (stride,) * 2, ((pad, pad),) * 2, feature_group_count=groups
        )

    def max_pool(self, x: Any) -> Any:
        pads, lax = ((0, 0), (0, 0), (1, 1), (1, 1)), self._jax.lax
        return lax.reduce_window(x, -np.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), pads)

    def lstm(self, x: Any, w: Any, r: Any, bias: Any) -> Any:
        own, recur = self.np.split(bias[0], 2)
        given, turned = x @ w[0].T + own + recur, r[0].T
        sigmoid, tanh = self._jax.nn.sigmoid, self.np.tanh

        def step(state: Any, row: Any) -> Any:
            h, c = state
            i, o, f, g = self.np.split(row + h @ turned, 4, axis=-1)
            c = sigmoid(f) * c + sigmoid(i) * tanh(g)
            h = sigmoid(o) * tanh(c)
            return (h, c), h

        start = self.np.zeros((x.shape[1], r.shape[2]), x.dtype)
        return self._jax.lax.scan(step, (start, start), given)[1][:, None]

    def gru(self, x: Any, w: Any, r: Any, bias: Any) -> Any:
        own, recur = self.np.split(bias[0], 2)
        given, turned = x @ w[0].T + own, r[0].T
        sigmoid = self._jax.nn.sigmoid

        def step(h: Any, row: Any) -> Any:
            z, reset, new = self.np.split(row, 3, axis=-1)
            zh, rh, nh = self.np.split(h @ turned + recur, 3, axis=-1)
            z = sigmoid(z + zh)
            h = (1 - z) * self.np.tanh(new + sigmoid(reset + rh) * nh) + z * h
            return h, h

        start = self.np.zeros((x.shape[1], r.shape[2]), x.dtype)
        return self._jax.lax.scan(step, start, given)[1][:, None]
