"""Each family of ATen ops, with the arguments that differ from ours, against eager mode."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import fusewire as fw
from tests.frontends.torch.modules import Lambda, check, converted, draw, flat

Functions = dict[str, Callable[..., Any]]

ELEMENTWISE: Functions = {
    "add with alpha": lambda x, y: torch.add(x, y, alpha=3),
    "subtract from a number": lambda x, y: torch.rsub(x, 2.0, alpha=0.5),
    "divide and floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "divide and truncate": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: (x % y, x % -0.75, torch.fmod(x, y)),
    "power": lambda x, y: (x**2, x.abs() ** 0.5, x.abs() ** y, 2.0**x),
    "clamp": lambda x, y: (x.clamp(-0.5, 0.5), x.clamp(min=0.1), torch.clamp(x, max=y)),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: (torch.addcmul(x, x, y, value=2), torch.addcdiv(x, x, y, value=0.5)),
    "sign": lambda x, y: (torch.sign(x), torch.sgn(y), torch.copysign(x, y)),
    "round": lambda x, y: (x.round(), (x * 100).round(decimals=-1), x.floor(), x.ceil()),
    "fmax": lambda x, y: (torch.fmax(x, y), torch.fmin(x, y), torch.maximum(x, y)),
    "angles": lambda x, y: (torch.atan2(x, y), torch.deg2rad(x), torch.hypot(x, y)),
    "nan": lambda x, y: torch.nan_to_num(x / torch.zeros_like(x), 1.0, 2.0, 3.0),
    "compare": lambda x, y: (
        x > y,
        x == 0,
        x.ne(y),
        (x > 0) | (y > 0),
        ~(x > 0),
        (x > 0) ^ (y > 0),
    ),
    "where": lambda x, y: (torch.where(x > 0, x, 0.0), x.masked_fill(y > 0, -1.0)),
}
REDUCTION: Functions = {
    "sum": lambda x, y: (
        x.sum(),
        x.sum(-1),
        x.sum((0, -1), keepdim=True),
        x.sum(0, dtype=torch.float64),
    ),
    "mean": lambda x, y: (x.mean(), x.mean((-2, -1))),
    "extremes": lambda x, y: (x.max(), x.amax((0, 1)), x.min(-1).values, x.max(0, keepdim=True)),
    "arguments": lambda x, y: (x.argmax(), x.argmin(-1), x.argmax(1, keepdim=True)),
    "variance": lambda x, y: (x.var(), x.std(-1), x.var(0, correction=0), torch.var_mean(x, 1)),
    "norm": lambda x, y: (x.norm(), torch.linalg.vector_norm(x, 3, -1), x.norm(1, dim=0)),
    "truth": lambda x, y: ((x > 0).any(), (x > 0).all(-1), (x > 3).any(0)),
    "cumulative": lambda x, y: (x.cumsum(-1), x.cumprod(0), x.cummax(1), x.logcumsumexp(-1)),
    "logsumexp": lambda x, y: (x.logsumexp(-1), x.logsumexp((0, 1), keepdim=True)),
    "product": lambda x, y: (x.prod(), x.prod(-1)),
}
MOVEMENT: Functions = {
    "view": lambda x, y: (x.view(6, -1), x.flatten(1), x.unsqueeze(-1), x[None].squeeze()),
    "axes": lambda x, y: (x.permute(2, 0, 1), x.transpose(-1, 0), x.movedim(0, -1)),
    "slices": lambda x, y: (x[:, 1:], x[..., ::2], x[-1], x[:, -2:-1], x.narrow(1, 0, 2)),
    "split": lambda x, y: (x.split(2, -1), x.chunk(3, 1), torch.tensor_split(x, 2, -1)),
    "unbind": lambda x, y: (x.unbind(-1)[1], torch.stack([x, y], -2), torch.cat([x, y], -1)),
    "repeat": lambda x, y: (x.repeat(2, 1, 3), x.expand(2, *x.shape), x.repeat_interleave(2, 1)),
    "pad": lambda x, y: (functional.pad(x, (1, -1, 2, 0)), functional.pad(x, (1, 2), "reflect")),
    "flip": lambda x, y: (x.flip(0, -1), x.roll(2, -1), x.roll(3), torch.rot90(x)),
    "triangles": lambda x, y: (x.tril(-1), x.triu(1), x.diagonal(1, 0, 2), torch.diag_embed(x[0])),
    "unfold": lambda x, y: (x.unfold(-1, 2, 2), functional.pixel_shuffle(x.reshape(4, 3, 2), 2)),
    "in place": lambda x, y: (lambda z: (z.add_(y), z[:, 0].mul_(2), z)[2])(x.clone()),
    "assignment": lambda x, y: (lambda z: (z.__setitem__((slice(None), 1), 5.0), z)[1])(x.clone()),
}
INDEXING: Functions = {
    "index": lambda x, i: (x[i], x[:, i], x[i, :, i], x[i[:, None], i], x[..., i]),
    "select": lambda x, i: (x.index_select(-1, i), torch.take(x, i), x.select(1, -1)),
    "gather": lambda x, i: x.gather(1, i.reshape(1, 3, 1).expand(2, 3, 2)),
    "scatter": lambda x, i: (
        x.scatter(1, i.reshape(1, 3, 1), 7.0),
        x.scatter_add(0, i[:2].reshape(2, 1, 1), x),
        x.scatter_reduce(1, i.reshape(1, 3, 1), x, "amax"),
    ),
    "index put": lambda x, i: (
        x.index_put((i,), x[0, 0]),
        x.index_put((i, i), x.new_ones(()), accumulate=True),
        x.index_add(1, i, x, alpha=2),
        x.index_fill(0, i, -1.0),
    ),
    "sort": lambda x, i: (x.sort(-1), x.argsort(1, descending=True), x.topk(2, -1, largest=False)),
    "one hot": lambda x, i: (functional.one_hot(i, 4), torch.searchsorted(x[0, 0].sort()[0], x)),
    "masked scatter": lambda x, i: (
        x.masked_scatter(x > 0, x.flip(0)),
        x[0].masked_scatter(x > 0, x.flip(0)),
    ),
    "embedding": lambda x, i: functional.embedding(i, x[0]),
}
LAYERS: Functions = {
    "conv": lambda x, w: functional.conv2d(x, w, stride=2, padding=1, dilation=(1, 2)),
    "conv of one image": lambda x, w: functional.conv2d(x[0], w, padding="same"),
    "grouped conv": lambda x, w: functional.conv2d(x, w[:, :1], groups=2),
    "transposed conv": lambda x, w: functional.conv_transpose2d(
        x, w[:2], stride=2, output_padding=1
    ),
    "pooling": lambda x, w: (
        functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        functional.avg_pool2d(x, 2, 1, count_include_pad=False, padding=1),
        functional.adaptive_avg_pool2d(x, (3, 2)),
        functional.adaptive_max_pool2d(x, 2),
    ),
    "places of the largest": lambda x, w: functional.max_pool2d(x, 2, return_indices=True),
    "resize": lambda x, w: (
        functional.interpolate(x, scale_factor=2.0),
        functional.interpolate(x, (4, 9), mode="bilinear"),
        functional.interpolate(x, (4, 9), mode="bilinear", align_corners=True),
        functional.interpolate(x, scale_factor=1.5, mode="bicubic"),
    ),
    "patches": lambda x, w: functional.unfold(x, 2, stride=2, padding=1),
    "norms": lambda x, w: (
        functional.layer_norm(x, x.shape[2:]),
        functional.group_norm(x, 2),
        functional.instance_norm(x),
        functional.rms_norm(x, x.shape[3:]),
        functional.batch_norm(x, w[0, :, 0, 0], w[1, :, 0, 0].abs()),
    ),
    "softmax": lambda x, w: (x.softmax(1), x.log_softmax(-1), torch.softmax(x, 0)),
    "activations": lambda x, w: (
        functional.gelu(x, approximate="tanh"),
        functional.silu(x),
        functional.elu(x, 0.5),
        functional.softplus(x, 2.0),
        functional.hardswish(x),
        functional.hardsigmoid(x),
        functional.leaky_relu(x, 0.2),
        functional.prelu(x, w[0, :, 0, 0]),
        functional.glu(x, 1),
        functional.softshrink(x),
        functional.hardtanh(x, -0.3, 0.4),
    ),
    "attention": lambda x, w: (
        functional.scaled_dot_product_attention(x, x, x, x[:, :, :, :1] > 0),
        functional.scaled_dot_product_attention(x[0], x[0], x[0], scale=0.3),
    ),
    "sampling": lambda x, w: functional.grid_sample(
        x, x.new_zeros(2, 3, 3, 2) + 0.3, align_corners=True
    ),
}
FAMILIES: dict[str, tuple[Functions, tuple[Any, ...]]] = {
    "elementwise": (ELEMENTWISE, (draw(2, 3, 4), draw(3, 1, seed=1))),
    "reduction": (REDUCTION, (draw(2, 3, 4), draw(2, 3, 4, seed=1))),
    "movement": (MOVEMENT, (draw(2, 3, 4), draw(2, 3, 4, seed=1))),
    "indexing": (INDEXING, (draw(2, 3, 2), np.array([1, 0, 1]))),
    "layers": (LAYERS, (draw(2, 2, 6, 7), draw(4, 2, 3, 3, seed=1))),
}
CASES = [(family, name) for family, (functions, _) in FAMILIES.items() for name in functions]


@pytest.mark.parametrize(("family", "name"), CASES, ids=map(": ".join, CASES))
def test_op_computes_what_eager_mode_does(family: str, name: str) -> None:
    functions, arrays = FAMILIES[family]
    wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in arrays]

    def both(*tensors: Any) -> Any:
        # One export for both dtypes: it takes most of the time.
        half = len(tensors) // 2
        return functions[name](*tensors[:half]), functions[name](*tensors[half:])

    check(Lambda(both), *arrays, *wide, rtol=2e-5, atol=2e-6)


INF, NAN = float("inf"), float("nan")
ODD = np.array([[-INF, 2.0, NAN, INF, -0.2, -0.0], [3.0, -1.0, 0.3, 0.5, 5.0, -2.0]], np.float32)
ODD_FUNCTIONS: Functions = {
    "median": lambda x: (x.median(), x.median(0), x.median(-1, keepdim=True)),
    "shrink": lambda x: (functional.hardshrink(x), functional.softshrink(x, 1.0)),
    "hypot": lambda x: torch.hypot(x[:, :, None], x[:, None]),
    "lerp": lambda x: [torch.lerp(x, x.flip(1), share) for share in (0.0, 0.3, 0.5, 0.9, 1.0)],
    "lerp by a tensor": lambda x: torch.lerp(x, x.flip(1), x.flip(0).clamp(-1, 2)),
    "power": lambda x: [x**y for y in (0.5, -0.5, 2, -1, 1.5)],
    "power in 16 bits": lambda x: [x.half() ** y for y in (0.5, -0.5, 2)],
}


@pytest.mark.parametrize("name", ODD_FUNCTIONS)
def test_infinity_and_nan_are_as_in_eager_mode(name: str) -> None:
    check(Lambda(ODD_FUNCTIONS[name]), ODD)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_image_is_sampled_beyond_its_border(mode: str, padding: str, align: bool) -> None:
    module = Lambda(lambda x, grid: functional.grid_sample(x, grid, mode, padding, align))
    check(module, draw(2, 3, 7, 6), 1.3 * draw(2, 5, 6, 2, seed=1), rtol=1e-4, atol=1e-5)


def _promotions(x: Any, i: Any, b: Any, u: Any) -> Any:
    """Numbers do not promote within a kind; integers divide to floats; booleans add like 'or'."""
    return [
        *(x * 2, x + 2.5, i + 2, i * 2.5, b + 1, b * 2.5, b + b, b * b, u + 300, u - 1),
        *(i / i.abs().clamp(min=1), i // 2, i % 3, -i // 3, i / 2, u // 2, i**2, i & 1, i << 1),
        *(x + i, i + u, u + b, i > 0.5, b > u, u == 300, x.double() + x, i.sum(), u.sum()),
        *(b.sum(), b.to(torch.float32).mean(), i.float().mean(), b.cumsum(0), i.cumsum(0)),
        *(u.prod(), i.max(), b.any(), torch.where(b, x, i), torch.where(b, i, 1.5), ~u, i.abs()),
        *(torch.sqrt(i.abs()), torch.exp(u % 3), torch.sigmoid(i), i.clamp(0.5), x.int(), x.bool()),
        *(torch.full((2,), 3), torch.full((2,), 3.0), torch.arange(3), torch.arange(0, 1, 0.25)),
        *(torch.cat([x, i]), torch.stack([b, u]), torch.ones(2).to(i), x.to(torch.int8)),
    ]


def test_dtypes_are_promoted_as_in_pytorch() -> None:
    x = np.array([1.5, -2.5, 3.0], np.float32)
    i = np.array([-7, 2, 5], np.int64)
    b = np.array([True, False, True])
    u = np.array([3, 200, 7], np.uint8)
    check(Lambda(_promotions), x, i, b, u)


def test_scalars_have_no_axes_and_one() -> None:
    def run(x: Any) -> Any:
        return (
            *(x.sum(0), x.softmax(0), x.cumsum(0), x.argmax(0), x.sort(0), x.max(-1)),
            *(x.view(1), x.unsqueeze(0), x.topk(1), x.flip(0), x.gather(0, x.argmax())),
        )

    check(Lambda(run), np.array(1.5, np.float32))


def test_empty_tensors() -> None:
    def run(x: Any) -> Any:
        return x.sum(0), x.sum(), torch.cat([x, torch.zeros(0)]), x @ x.mT, x.any(), x.mean(1)

    check(Lambda(run), np.zeros((0, 3), np.float32))


def test_bfloat16_stays_bfloat16() -> None:
    def run(x: Any) -> Any:
        y = x.to(torch.bfloat16)
        return (y + 1.5).float(), y.sum().float(), torch.softmax(y, -1).float()

    check(Lambda(run), draw(3, 4), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
def test_engine_agrees(family: str) -> None:
    functions, arrays = FAMILIES[family]
    names = [name for name in functions if name not in ("nan", "places of the largest")][:6]
    module = Lambda(lambda *xs: [functions[name](*xs) for name in names])
    graph = converted(module, *arrays).graph
    program = fw.compile(graph, backend="onnxruntime", fallback="allow", level=0)
    with torch.no_grad():
        expected = flat(module(*map(torch.from_numpy, arrays)))
    for left, right in zip(program(*arrays), expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
