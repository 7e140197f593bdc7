"""NumPy functions as people write them. Nothing here knows that they will be traced."""
# mypy: ignore-errors
# (People write them without types.)

import math
from collections import namedtuple
from functools import partial

import numpy as np
import numpy.linalg as la
from numpy import exp, zeros
from numpy.fft import irfft, rfft

WEIGHTS = np.linspace(-1.0, 1.0, 12).reshape(4, 3).astype(np.float32)
TABLE = np.arange(20, dtype=np.float32).reshape(10, 2)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def layer_norm(x, gamma, beta, eps=1e-5):
    mean = np.mean(x, axis=-1, keepdims=True)
    var = np.var(x, axis=-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(var + eps) + beta


def rms_norm(x, weight, eps=1e-6):
    return x * weight / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def attention(q, k, v):
    scores = q @ k.T / np.sqrt(k.shape[-1])
    return softmax(scores) @ v


def multi_head_attention(x, wq, wk, wv, wo, heads):
    n, d = x.shape
    q, k, v = (np.reshape(x @ w, (n, heads, d // heads)).transpose(1, 0, 2) for w in (wq, wk, wv))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d // heads)
    scores = np.where(np.tril(np.ones((n, n), dtype=bool)), scores, -1e9)
    out = softmax(scores) @ v
    return out.transpose(1, 0, 2).reshape(n, d) @ wo


def k_means_step(points, centers):
    distances = ((points[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2)
    labels = distances.argmin(axis=1)
    new = np.zeros_like(centers)
    for k in range(len(centers)):
        mask = labels == k
        new[k] = (points * mask[:, None]).sum(axis=0) / np.maximum(mask.sum(), 1)
    return new, labels


def convolution_by_einsum(image, kernel):
    windows = np.lib.stride_tricks.sliding_window_view(image, kernel.shape[2:], axis=(1, 2))
    return np.einsum("chwij,ocij->ohw", windows, kernel)


def normal_cdf(x):
    # Abramowitz and Stegun 26.2.17.
    t = 1.0 / (1.0 + 0.2316419 * np.abs(x))
    poly = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    tail = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * poly
    return np.where(x >= 0, 1 - tail, tail)


def black_scholes(spot, strike, rate, volatility, time):
    d1 = (np.log(spot / strike) + (rate + volatility**2 / 2) * time) / (volatility * np.sqrt(time))
    d2 = d1 - volatility * np.sqrt(time)
    call = spot * normal_cdf(d1) - strike * np.exp(-rate * time) * normal_cdf(d2)
    put = call - spot + strike * np.exp(-rate * time)
    return {"call": call, "put": put}


def fft_filter(signal, cutoff):
    spectrum = rfft(signal)
    frequencies = np.fft.rfftfreq(signal.shape[-1])
    spectrum[..., frequencies > cutoff] = 0
    return irfft(spectrum, n=signal.shape[-1])


def sigmoid(x):
    return 1 / (1 + exp(-x))


def lstm_cell(x, state, params):
    h, c = state
    gates = x @ params["w"] + h @ params["u"] + params["b"]
    i, f, g, o = np.split(gates, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return h, c


def gru(xs, h, w, u, b):
    outputs = []
    size = h.shape[-1]
    for x in xs:
        gates = sigmoid(x @ w[:, : 2 * size] + h @ u[:, : 2 * size] + b[: 2 * size])
        r, z = gates[:size], gates[size:]
        candidate = np.tanh(x @ w[:, 2 * size :] + (r * h) @ u[:, 2 * size :] + b[2 * size :])
        h = (1 - z) * candidate + z * h
        outputs.append(h)
    return np.stack(outputs)


def resize_bilinear(image, height, width):
    rows = np.clip((np.arange(height) + 0.5) * image.shape[0] / height - 0.5, 0, image.shape[0] - 1)
    cols = np.clip((np.arange(width) + 0.5) * image.shape[1] / width - 0.5, 0, image.shape[1] - 1)
    r0, c0 = np.floor(rows).astype(int), np.floor(cols).astype(int)
    r1, c1 = np.minimum(r0 + 1, image.shape[0] - 1), np.minimum(c0 + 1, image.shape[1] - 1)
    dr, dc = (rows - r0)[:, None], (cols - c0)[None, :]
    top = image[r0[:, None], c0] * (1 - dc) + image[r0[:, None], c1] * dc
    bottom = image[r1[:, None], c0] * (1 - dc) + image[r1[:, None], c1] * dc
    return top * (1 - dr) + bottom * dr


def explained_variance(x, k):
    x = x - x.mean(axis=0)
    cov = x.T @ x / (len(x) - 1)
    values, vectors = np.linalg.eigh(cov)
    order = np.argsort(values)[::-1][:k]
    projected = x @ vectors[:, order]
    return values[order] / values.sum(), np.abs(projected)


def power_iteration(a, steps=30):
    v = np.ones(a.shape[0]) / np.sqrt(a.shape[0])
    for _ in range(steps):
        v = a @ v
        v /= np.linalg.norm(v)
    return v @ a @ v, v


def gram_schmidt(a):
    q = np.zeros(a.shape)
    for j in range(a.shape[1]):
        v = a[:, j].copy()
        for i in range(j):
            v -= (q[:, i] @ a[:, j]) * q[:, i]
        q[:, j] = v / la.norm(v)
    return q


def jacobi(a, b, iterations=10):
    x = np.zeros_like(b)
    d = np.diag(a)
    r = a - np.diagflat(d)
    for _ in range(iterations):
        x = (b - r @ x) / d
    return x


def game_of_life(board):
    neighbours = sum(
        np.roll(np.roll(board, i, 0), j, 1)
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
        if (i, j) != (0, 0)
    )
    return ((neighbours == 3) | ((board == 1) & (neighbours == 2))).astype(board.dtype)


def moving_average(x, n=3):
    total = np.cumsum(x, dtype=float)
    total[n:] = total[n:] - total[:-n]
    return total[n - 1 :] / n


def histogram_by_search(x, edges):
    counts = np.zeros(len(edges) - 1, dtype=np.int64)
    which = np.searchsorted(edges, x, side="right") - 1
    np.add.at(counts, which, 1)
    return counts


def class_counts(labels, weights):
    return np.bincount(labels, minlength=5), np.bincount(labels, weights=weights)


def box_blur(image):
    out = image.astype(np.float64)
    padded = np.pad(image, 1, mode="edge").astype(np.float64)
    h, w = image.shape
    out[:] = 0
    for i in range(3):
        for j in range(3):
            out += padded[i : i + h, j : j + w]
    out /= 9
    return out


def overlaps(boxes):
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    inter = np.prod(np.clip(high - low, 0, None), axis=-1)
    return inter / (area[:, None] + area[None, :] - inter)


def suppress(boxes, scores, threshold=0.5):
    order = np.argsort(-scores)
    iou = overlaps(boxes[order])
    keep = np.ones(len(scores), dtype=bool)
    for i in range(len(scores)):
        later = np.arange(len(scores)) > i
        keep &= ~(later & keep[i] & (iou[i] > threshold))
    result = np.zeros_like(keep)
    result[order] = keep
    return result


def positional_encoding(x):
    n, d = x.shape
    position = np.arange(n)[:, np.newaxis]
    rate = np.exp(np.arange(0, d, 2) * -(np.log(10000.0) / d))
    pe = np.zeros((n, d), dtype=np.float32)
    pe[:, 0::2] = np.sin(position * rate)
    pe[:, 1::2] = np.cos(position * rate)
    return x + pe


def cross_entropy(logits, labels):
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -log_probs[np.arange(len(labels)), labels].mean()


def batch_norm_out(x, mean, var, gamma, beta, out):
    np.subtract(x, mean, out=out)
    np.divide(out, np.sqrt(var + 1e-5), out=out)
    np.multiply(out, gamma, out=out)
    out += beta
    return out


def sobel(image):
    kx = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    h, w = image.shape
    gx, gy = zeros((h - 2, w - 2)), zeros((h - 2, w - 2))
    for i in range(3):
        for j in range(3):
            part = image[i : h - 2 + i, j : w - 2 + j]
            gx += kx[i, j] * part
            gy += kx.T[i, j] * part
    return np.hypot(gx, gy), np.arctan2(gy, gx)


def mandelbrot(c, steps=12):
    z = np.zeros_like(c)
    escaped = np.full(c.shape, steps)
    for n in range(steps):
        inside = np.abs(z) <= 2
        z[inside] = z[inside] ** 2 + c[inside]
        newly = (np.abs(z) > 2) & (escaped == steps)
        escaped[newly] = n
    return escaped


Estimate = namedtuple("Estimate", ["mean", "cov"])


def kalman_update(estimate, measurement, h, r):
    innovation = measurement - h @ estimate.mean
    s = h @ estimate.cov @ h.T + r
    gain = estimate.cov @ h.T @ np.linalg.inv(s)
    mean = estimate.mean + gain @ innovation
    cov = (np.eye(len(mean)) - gain @ h) @ estimate.cov
    return Estimate(mean, cov)


def ridge(x, y, alpha=0.1):
    return np.linalg.solve(x.T @ x + alpha * np.eye(x.shape[1]), x.T @ y)


def logistic_step(w, x, y, rate=0.1):
    p = sigmoid(x @ w)
    grad = x.T @ (p - y) / len(y)
    w -= rate * grad
    loss = -np.mean(y * np.log(p) + (1 - y) * np.log1p(-p))
    return w, loss


def cosine_similarity(a, b):
    a = a / np.linalg.norm(a, axis=1, keepdims=True)
    b = b / np.linalg.norm(b, axis=1, keepdims=True)
    return a @ b.T


def pairwise_distances(a, b):
    squares = np.sum(a**2, 1)[:, None] + np.sum(b**2, 1)[None, :] - 2 * np.dot(a, b.T)
    return np.sqrt(np.maximum(squares, 0))


def top_k_accuracy(scores, labels, k=3):
    best = np.argsort(scores, axis=1)[:, -k:]
    return np.mean(np.any(best == labels[:, None], axis=1))


def one_hot(labels, classes):
    return np.eye(classes, dtype=np.float32)[labels]


def rotary(x, theta=10000.0):
    n, d = x.shape
    inverse = theta ** (-np.arange(0, d, 2) / d)
    angle = np.outer(np.arange(n), inverse)
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    out = np.empty_like(x)
    out[:, ::2] = x[:, ::2] * cos - x[:, 1::2] * sin
    out[:, 1::2] = x[:, ::2] * sin + x[:, 1::2] * cos
    return out


def mel(frequency):
    return 2595 * np.log10(1 + frequency / 700)


def mel_filter(power, rate=8000, count=6):
    size = 2 * (power.shape[-1] - 1)
    edges = np.linspace(mel(0), mel(rate / 2), count + 2)
    bins = np.floor((size + 1) * 700 * (10 ** (edges / 2595) - 1) / rate).astype(int)
    bank = np.zeros((count, size // 2 + 1))
    for m in range(1, count + 1):
        low, mid, high = bins[m - 1 : m + 2]
        for k in range(low, mid):
            bank[m - 1, k] = (k - low) / (mid - low)
        for k in range(mid, high):
            bank[m - 1, k] = (high - k) / (high - mid)
    return np.log(power @ bank.T + 1e-8)


def spectrogram(signal, size=16, hop=8):
    window = np.hanning(size)
    frames = []
    for start in range(0, len(signal) - size + 1, hop):
        frames.append(np.abs(np.fft.rfft(signal[start : start + size] * window)) ** 2)
    return np.array(frames).T


def fibonacci_matrix(a, n):
    return np.linalg.matrix_power(a, n)


def lotka_volterra(state, alpha, beta, delta, gamma, dt=0.05, steps=20):
    path = np.empty((steps + 1, 2))
    path[0] = state
    for t in range(steps):
        prey, predator = path[t]
        path[t + 1, 0] = prey + dt * (alpha * prey - beta * prey * predator)
        path[t + 1, 1] = predator + dt * (delta * prey * predator - gamma * predator)
    return path


def time_warp(a, b):
    n, m = len(a), len(b)
    cost = np.full((n + 1, m + 1), np.inf)
    cost[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            step = np.minimum(np.minimum(cost[i - 1, j], cost[i, j - 1]), cost[i - 1, j - 1])
            cost[i, j] = abs(a[i - 1] - b[j - 1]) + step
    return cost[n, m]


def edit_distance(a, b):
    previous = np.arange(len(b) + 1)
    for i in range(len(a)):
        current = np.empty(len(b) + 1, dtype=int)
        current[0] = i + 1
        for j in range(len(b)):
            replaced = previous[j] + (a[i] != b[j])
            current[j + 1] = np.min([replaced, previous[j + 1] + 1, current[j] + 1])
        previous = current
    return previous[-1]


def haar(x):
    out = np.array(x, dtype=float)
    n = len(out)
    while n > 1:
        half = n // 2
        sums = (out[0:n:2] + out[1:n:2]) / np.sqrt(2)
        differences = (out[0:n:2] - out[1:n:2]) / np.sqrt(2)
        out[:half], out[half:n] = sums, differences
        n = half
    return out


def max_drawdown(prices):
    peak = np.maximum.accumulate(prices)
    return ((peak - prices) / peak).max()


def exponential_average(x, alpha=0.3):
    out = np.zeros(len(x))
    out[0] = x[0]
    for t in range(1, len(x)):
        out[t] = alpha * x[t] + (1 - alpha) * out[t - 1]
    return out


def horner(coefficients, x):
    total = 0.0
    for c in coefficients:
        total = total * x + c
    return total


def newton_sqrt(a, steps=6):
    x = np.where(a > 1, a / 2, np.ones_like(a))
    for _ in range(steps):
        x = 0.5 * (x + a / x)
    return x


def quantize(x, bits=8):
    scale = (x.max() - x.min()) / (2**bits - 1)
    zero = np.round(-x.min() / scale)
    q = np.clip(np.round(x / scale) + zero, 0, 2**bits - 1).astype(np.uint8)
    return q, (q.astype(np.float32) - zero) * scale


def bilinear_form(a, x, y):
    return np.einsum("bi,ijk,bj->bk", x, a, y)


def embed(tokens):
    return TABLE[tokens] @ WEIGHTS[:2] + WEIGHTS[3]


def standardize(table):
    """Columns that vary are scaled; missing numbers become 0."""
    center = np.nanmean(table, axis=0)
    spread = np.nanstd(table, axis=0)
    scaled = np.divide(table - center, spread, out=np.zeros_like(table), where=spread > 0)
    return np.nan_to_num(scaled)


def robust_scale(x):
    q1, q2, q3 = np.percentile(x, [25, 50, 75], axis=0)
    return (x - q2) / (q3 - q1), np.median(x)


def relu_mlp(x, layers):
    for w, b in layers[:-1]:
        x = np.maximum(x @ w + b, 0)
    w, b = layers[-1]
    return x @ w + b


def mean_pool(tokens, mask):
    weights = mask.astype(tokens.dtype)[..., None]
    return (tokens * weights).sum(1) / np.clip(weights.sum(1), 1e-9, None)


def local_import(x):
    import numpy  # noqa: ICN001  # people do

    buffer = numpy.ones((2, x.size))
    buffer[0] = x.ravel()
    return numpy.linalg.norm(buffer, axis=0)


scaled_softmax = partial(softmax, axis=0)


class Perceptron:
    """A small model that keeps its weights."""

    def __init__(self):
        self.weights = [np.full((3, 4), 0.5), np.full((4, 2), -0.25)]
        self.table = np.arange(6.0).reshape(3, 2)

    def hidden(self, x):
        out = np.zeros((len(x), 4))
        out[:] = x @ self.weights[0]
        return out

    def __call__(self, x, which):
        return self.hidden(x) @ self.weights[1] + self.table[which]


def namespace_softmax(x):
    xp = x.__array_namespace__()
    shifted = x - xp.max(x, axis=-1, keepdims=True)
    return xp.exp(shifted) / xp.sum(xp.exp(shifted), axis=-1, keepdims=True)


def namespace_statistics(x):
    xp = x.__array_namespace__()
    flat = xp.reshape(x, (-1,))
    centered = flat - xp.mean(flat)
    rows = xp.concat([xp.expand_dims(centered, axis=0), xp.ones((1, flat.shape[0]), dtype=x.dtype)])
    ranked = xp.take(flat, xp.argsort(flat), axis=0)
    return xp.matmul(rows, xp.permute_dims(rows, (1, 0))), ranked, xp.astype(flat > 0, xp.int32)


def namespace_rotation(points, angle):
    xp = points.__array_namespace__()
    cos, sin = xp.cos(angle), xp.sin(angle)
    matrix = xp.stack([xp.stack([cos, -sin]), xp.stack([sin, cos])])
    turned = points @ matrix.T
    return xp.where(
        xp.linalg.vector_norm(turned, axis=-1, keepdims=True) > 1, turned, xp.zeros_like(turned)
    )
