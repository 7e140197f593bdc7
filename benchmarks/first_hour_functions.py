"""Thirty NumPy functions as scientists write them, with arguments: what a new user brings.

Each is traced, or refused with a sentence that says what to write instead; after settling, none may
be slower than the function itself. The first fifteen came from a trial by new users, the others
were written before anything was measured. ``mc_pi`` (unseeded random numbers) and ``newton`` (a
loop on data) are expected to be refused.
"""

from collections.abc import Callable
from typing import Any

import numpy as np


def kmeans_step(x: Any, c: Any) -> Any:
    d = ((x[:, None, :] - c[None]) ** 2).sum(-1)
    a = d.argmin(1)
    onehot = (a[:, None] == np.arange(c.shape[0])).astype(x.dtype)
    return (onehot.T @ x) / np.maximum(onehot.sum(0)[:, None], 1), a


def kmeans_loop(x: Any, c: Any) -> Any:
    a = ((x[:, None, :] - c[None]) ** 2).sum(-1).argmin(1)
    new = np.zeros_like(c)
    for k in range(c.shape[0]):
        new[k] = x[a == k].mean(axis=0)
    return new


def kalman(zs: Any, F: Any, H: Any, Q: Any, R: Any) -> Any:
    n = F.shape[0]
    x, P, out = np.zeros(n), np.eye(n), []
    for z in zs:
        x = F @ x
        P = F @ P @ F.T + Q
        K = P @ H.T @ np.linalg.inv(H @ P @ H.T + R)
        x = x + K @ (z - H @ x)
        P = (np.eye(n) - K @ H) @ P
        out.append(x)
    return np.stack(out)


def conv2d(img: Any, k: Any) -> Any:
    windows = np.lib.stride_tricks.sliding_window_view(img, k.shape)
    return np.einsum("ijkl,kl->ij", windows, k)


def conv2d_loop(img: Any, k: Any) -> Any:
    out = np.zeros((img.shape[0] - 2, img.shape[1] - 2), img.dtype)
    for i in range(3):
        for j in range(3):
            out += k[i, j] * img[i : i + out.shape[0], j : j + out.shape[1]]
    return out


def nbody(p: Any, v: Any, m: Any) -> Any:
    d = p[None] - p[:, None]
    r2 = (d**2).sum(-1) + 1e-3
    a = (d * (m[None, :, None] / r2[..., None] ** 1.5)).sum(1)
    v = v + 0.01 * a
    return p + 0.01 * v, v


def pca_eigh(x: Any) -> Any:
    xc = x - x.mean(0)
    w, v = np.linalg.eigh(xc.T @ xc / (len(x) - 1))
    order = np.argsort(w)[::-1]
    return w[order], xc @ v[:, order][:, :2]


def pca_svd(x: Any) -> Any:
    xc = x - x.mean(0)
    _, s, _ = np.linalg.svd(xc, full_matrices=False)
    return s**2 / (len(x) - 1)


def black_scholes(S: Any, K: Any, T: Any, r: Any, sigma: Any) -> Any:
    d1 = (np.log(S / K) + (r + 0.5 * sigma**2) * T) / (sigma * np.sqrt(T))
    d2 = d1 - sigma * np.sqrt(T)

    def cdf(z: Any) -> Any:
        return 0.5 * (1 + np.tanh(0.7978845608 * (z + 0.044715 * z**3)))

    return S * cdf(d1) - K * np.exp(-r * T) * cdf(d2)


def reductions(x: Any) -> Any:
    return {
        "mean": x.mean(),
        "std": x.std(),
        "p95": np.percentile(x, 95),
        "median": np.median(x, axis=0),
        "histogram": np.histogram(x, bins=10, range=(-3, 3))[0],
        "last": np.cumsum(x, axis=1)[:, -1],
    }


def fft_filter(x: Any) -> Any:
    X = np.fft.rfft(x)
    X[np.fft.rfftfreq(len(x)) > 0.1] = 0
    return np.fft.irfft(X, n=len(x))


def newton(a: Any) -> Any:
    x = np.ones_like(a)
    while np.abs(x * x - a).max() > 1e-9:
        x = (x + a / x) / 2
    return x


def mandelbrot(c: Any) -> Any:
    z, n = np.zeros_like(c), np.zeros(c.shape, int)
    for _ in range(30):
        inside = np.abs(z) < 2
        z = np.where(inside, z * z + c, z)
        n = n + inside
    return n


def mc_pi(n: Any) -> Any:
    p = np.random.rand(1000, 2)
    return 4 * (np.hypot(p[:, 0], p[:, 1]) < 1).mean()


def heat(u: Any) -> Any:
    for _ in range(50):
        u[1:-1, 1:-1] += 0.1 * (
            u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        )
    return u


def softmax_rows(x: Any) -> Any:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def attention(q: Any, k: Any, v: Any) -> Any:
    weights = softmax_rows(q @ k.T / np.sqrt(q.shape[-1]))
    return weights @ v


def ridge(x: Any, y: Any) -> Any:
    return np.linalg.solve(x.T @ x + 0.1 * np.eye(x.shape[1]), x.T @ y)


def logistic_step(w: Any, x: Any, y: Any) -> Any:
    p = 1 / (1 + np.exp(-(x @ w)))
    return w - 0.1 * x.T @ (p - y) / len(y)


def game_of_life(board: Any) -> Any:
    for _ in range(10):
        around = sum(
            np.roll(np.roll(board, i, 0), j, 1)
            for i in (-1, 0, 1)
            for j in (-1, 0, 1)
            if (i, j) != (0, 0)
        )
        board = ((around == 3) | ((board == 1) & (around == 2))).astype(board.dtype)
    return board


def pairwise_distances(x: Any) -> Any:
    square = (x**2).sum(1)
    return np.sqrt(np.maximum(square[:, None] + square[None] - 2 * x @ x.T, 0))


def moving_average(x: Any) -> Any:
    total = np.cumsum(x)
    return (total[50:] - total[:-50]) / 50


def lorenz(state: Any) -> Any:
    for _ in range(100):
        x, y, z = state
        state = state + 0.01 * np.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])
    return state


def haversine(a: Any, b: Any) -> Any:
    d = b - a
    h = np.sin(d[:, 0] / 2) ** 2 + np.cos(a[:, 0]) * np.cos(b[:, 0]) * np.sin(d[:, 1] / 2) ** 2
    return 6371 * 2 * np.arcsin(np.sqrt(h))


def gray_blur(image: Any) -> Any:
    gray = image @ np.array([0.299, 0.587, 0.114])
    padded = np.pad(gray, 1, mode="edge")
    return (padded[:-2] + 2 * padded[1:-1] + padded[2:])[:, 1:-1] / 4


def top_scores(x: Any) -> Any:
    order = np.argsort(-x, axis=1)[:, :5]
    return np.take_along_axis(x, order, axis=1), order


def power_spectrum(x: Any) -> Any:
    windowed = x.reshape(-1, 256) * np.hanning(256)
    return (np.abs(np.fft.rfft(windowed)) ** 2).mean(0)


def small_update(x: Any, y: Any) -> Any:
    return 0.9 * x + 0.1 * y


def group_means(x: Any, group: Any) -> Any:
    one = (group[:, None] == np.arange(8)).astype(x.dtype)
    return one.T @ x / one.sum(0)[:, None]


def arguments(seed: int = 0) -> dict[Callable[..., Any], tuple[Any, ...]]:
    """Arguments for each function; float64, as NumPy makes them."""
    rng = np.random.default_rng(seed)
    return {**_first(rng), **_more(rng)}


def _first(rng: np.random.Generator) -> dict[Callable[..., Any], tuple[Any, ...]]:
    normal, uniform = rng.standard_normal, rng.random
    moves = np.eye(4) + 0.1 * np.eye(4, k=2)
    prices = [uniform(200_000) * 100 + 50, uniform(200_000) * 100 + 50, uniform(200_000) + 0.1]
    return {
        kmeans_step: (normal((2000, 8)), normal((10, 8))),
        kmeans_loop: (normal((2000, 8)), normal((10, 8))),
        kalman: (normal((50, 2)), moves, np.eye(2, 4), 0.01 * np.eye(4), 0.1 * np.eye(2)),
        conv2d: (normal((256, 256)), normal((3, 3))),
        conv2d_loop: (normal((256, 256)), normal((3, 3))),
        nbody: (normal((256, 3)), normal((256, 3)), uniform(256)),
        pca_eigh: (normal((500, 20)),),
        pca_svd: (normal((500, 20)),),
        black_scholes: (*prices, 0.03, 0.2),
        reductions: (normal((1000, 50)),),
        fft_filter: (normal(4096),),
        newton: (uniform(1000) + 1,),
        mandelbrot: ((uniform((100, 100)) * 3 - 2) + 1j * (uniform((100, 100)) * 2 - 1),),
        mc_pi: (np.array(3),),
        heat: (uniform((128, 128)),),
    }


def _more(rng: np.random.Generator) -> dict[Callable[..., Any], tuple[Any, ...]]:
    normal, uniform = rng.standard_normal, rng.random
    return {
        softmax_rows: (normal((256, 1000)),),
        layer_norm: (normal((128, 768)), normal(768), normal(768)),
        attention: (normal((128, 64)), normal((128, 64)), normal((128, 64))),
        ridge: (normal((1000, 30)), normal(1000)),
        logistic_step: (normal(50), normal((2000, 50)), (uniform(2000) < 0.5).astype(float)),
        game_of_life: ((uniform((128, 128)) < 0.3).astype(np.int64),),
        pairwise_distances: (normal((500, 16)),),
        moving_average: (normal(100_000),),
        lorenz: (normal(3),),
        haversine: (uniform((50_000, 2)), uniform((50_000, 2))),
        gray_blur: (uniform((240, 320, 3)),),
        top_scores: (normal((500, 200)),),
        power_spectrum: (normal(256 * 64),),
        small_update: (normal(1000), normal(1000)),
        group_means: (normal((5000, 16)), rng.integers(0, 8, 5000)),
    }
