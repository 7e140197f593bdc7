"""NumPy's functions, methods, operators and ufuncs under trace, against NumPy itself.

Each case is a function of arrays; it is traced, run by the interpreter, and compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frontends.test_functions import assert_same, run

RNG = np.random.default_rng(1)
X, Y = RNG.standard_normal((2, 3, 4))
F = X.astype(np.float32)
V, W = RNG.standard_normal((2, 5))
CUBE = RNG.standard_normal((2, 3, 4))
SQUARE = RNG.standard_normal((3, 3)) + 3 * np.eye(3)
SPD = SQUARE @ SQUARE.T
MASK = RNG.random((3, 4)) < 0.5
INTS = RNG.integers(-5, 5, (3, 4))
BYTES = RNG.integers(0, 200, 6).astype(np.uint8)
COMPLEX = X + 1j * Y
GAPS = np.where(np.arange(12).reshape(3, 4) % 5 == 0, np.nan, X)
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def check(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    def traced(*arrays: Any) -> Any:
        return function(*arrays)

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = function(*(np.array(x) if isinstance(x, np.ndarray) else x for x in args))
        assert_same(run(traced, args), wanted)


UNARY: list[tuple[str, list[Any]]] = [
    ("abs sin cos tan exp exp2 expm1 log1p sinh cosh tanh arctan arcsinh square cbrt negative "
     "positive sign rint floor ceil trunc isnan isinf isfinite signbit deg2rad rad2deg fabs "
     "reciprocal logical_not conj spacing modf", [X, F]),
    ("log log2 log10 sqrt arccosh", [np.abs(X) + 1]),
    ("arcsin arccos arctanh", [X / 4]),
    ("abs sin exp square negative positive sign floor ceil trunc isnan isinf isfinite invert sqrt "
     "logical_not conj bitwise_count reciprocal", [np.abs(INTS) + 1, BYTES + np.uint8(1)]),
    ("abs sin square floor isnan isfinite invert sqrt logical_not conj", [MASK]),
    ("abs exp log sqrt square negative conj sin cos isnan isfinite reciprocal angle real imag "
     "isreal iscomplex", [COMPLEX]),
]  # fmt: skip
BINARY: list[tuple[str, list[tuple[Any, Any]]]] = [
    ("add subtract multiply divide floor_divide remainder fmod maximum minimum fmax fmin arctan2 "
     "hypot copysign logaddexp logaddexp2 nextafter heaviside equal less less_equal greater "
     "greater_equal not_equal logical_and logical_or logical_xor divmod float_power",
     [(np.abs(X), Y), (X, F), (np.abs(INTS) + 1, np.abs(INTS) + 2), (F, 2.5), (3, F),
      (GAPS, Y)]),
    ("bitwise_and bitwise_or bitwise_xor left_shift right_shift power add",
     [(np.abs(INTS), np.abs(INTS[::-1])), (BYTES, 3)]),
    ("bitwise_and bitwise_or bitwise_xor add multiply maximum minimum equal not_equal less greater",
     [(MASK, MASK[::-1])]),
    ("add multiply divide subtract equal power", [(COMPLEX, COMPLEX.T[:4, :1].T), (COMPLEX, 2)]),
]  # fmt: skip


@pytest.mark.parametrize("name", sorted({n for names, _ in UNARY for n in names.split()}))
def test_unary_function(name: str) -> None:
    for names, arrays in UNARY:
        for array in arrays if name in names.split() else ():
            check(getattr(np, name), (array,))


@pytest.mark.parametrize("name", sorted({n for names, _ in BINARY for n in names.split()}))
def test_binary_function(name: str) -> None:
    for names, pairs in BINARY:
        for pair in pairs if name in names.split() else ():
            check(getattr(np, name), pair)


def pal(a: Any, k: Any) -> Any:
    out = a.copy()
    np.put_along_axis(out, k, 9.0, axis=1)
    return out


def qr(a: Any) -> Any:
    q, r = np.linalg.qr(a)
    return (q @ r, abs(r))


def svd(a: Any) -> Any:
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    return (u * s @ vh, s)


def dyn(a: Any, k: Any) -> Any:
    a = a.copy()
    row = a[k]
    row[0] = 7
    a[:, k] *= 2
    a[k, k] = 0
    return a


def inpl(a: Any, b: Any) -> Any:
    a = a.copy()
    a += b
    a -= 1
    a *= 2
    a /= 3
    a **= 2
    a //= 1
    a %= 5
    return a


def outs(a: Any, b: Any) -> Any:
    o = np.empty_like(a)
    np.add(a, b, out=o)
    r = np.multiply(a, b, out=np.zeros((3, 4)), where=a > 0)
    np.exp(a, o)
    s = np.sum(a, axis=0, out=np.empty(4))
    c = np.clip(a, 0, 1, np.empty_like(a))
    return (o, r, s, c)


def ats(a: Any, k: Any) -> Any:
    a = a.copy()
    np.add.at(a, k, 1.0)
    np.subtract.at(a, (k, 0), 2.0)
    np.maximum.at(a, k, 0.5)
    return a


def copyto(a: Any) -> Any:
    o = np.zeros((3, 4))
    np.copyto(o, a)
    np.copyto(o, 5.0, where=a > 0)
    p = a.copy()
    np.putmask(p, p < 0, 0.0)
    q = a.copy()
    np.place(q, q > 0, [1.0, 2.0])
    r = a.copy()
    np.put(r, [0, 5], [9.0, 8.0])
    s = np.ones((3, 3))
    np.fill_diagonal(s, a[0, :3])
    return (o, p, q, r, s)


def setimag(a: Any) -> Any:
    a = a.copy()
    a.imag = 0
    a.real[0] = 1
    return a


CASES: list[Case] = [
    (lambda a: np.zeros_like(a) + np.ones_like(a) + np.full_like(a, 3), (X,)),
    (
        lambda a: (
            np.ravel(a),
            a.ravel(),
            a.flatten(),
            a.reshape(4, 3),
            a.reshape((2, -1)),
            np.reshape(a, (4, 3), order="F"),
        ),
        (X,),
    ),
    (
        lambda a: (
            np.moveaxis(a, 0, -1),
            np.swapaxes(a, 0, 2),
            a.transpose(2, 0, 1),
            a.T,
            np.rollaxis(a, 2),
            np.matrix_transpose(a),
            np.permute_dims(a, (1, 2, 0)),
        ),
        (CUBE,),
    ),
    (
        lambda a: (
            np.squeeze(a[None]),
            np.expand_dims(a, (0, 2)),
            np.atleast_1d(a[0, 0]),
            np.atleast_2d(a[0]),
            np.atleast_3d(a),
        ),
        (X,),
    ),
    (
        lambda a, b: (
            np.concatenate([a, b]),
            np.concatenate([a, b], axis=1),
            np.concatenate([a, b], axis=None),
            np.stack([a, b], -1),
            np.vstack([a, b]),
            np.hstack([a, b]),
            np.dstack([a, b]),
            np.column_stack([a[0], b[0]]),
            np.append(a, b),
            np.concat([a, b]),
        ),
        (
            X,
            Y,
        ),
    ),
    (
        lambda a: (
            *np.split(a, 2, axis=1),
            *np.array_split(a, 2),
            *np.hsplit(a, 2),
            *np.vsplit(a, 3),
            *np.unstack(a),
        ),
        (X,),
    ),
    (lambda a: (*np.split(a, [1, 3], axis=1), *np.array_split(a, [2])), (X,)),
    (
        lambda a: (
            np.tile(a, 2),
            np.tile(a, (2, 1, 3)),
            np.repeat(a, 2),
            np.repeat(a, 3, axis=1),
            np.repeat(a, [1, 0, 2], axis=0),
        ),
        (X,),
    ),
    (
        lambda a: (
            np.flip(a),
            np.flip(a, 1),
            np.fliplr(a),
            np.flipud(a),
            np.roll(a, 1),
            np.roll(a, -2, axis=1),
            np.roll(a, (1, 2), axis=(0, 1)),
            np.rot90(a),
            np.rot90(a, 2),
            np.rot90(a, -1),
        ),
        (X,),
    ),
    (
        lambda a: (
            np.pad(a, 1),
            np.pad(a, ((1, 2), (0, 1)), mode="reflect"),
            np.pad(a, (1, 2), constant_values=5),
            np.pad(a, 2, "edge"),
            np.pad(a, 1, "wrap"),
            np.pad(a, 2, "symmetric"),
            np.pad(a, ((1, 0), (0, 2)), constant_values=((1, 2), (3, 4))),
        ),
        (X,),
    ),
    (
        lambda a: (
            np.where(a > 0, a, 0),
            np.where(a > 0, 1, a),
            np.clip(a, -1, 1),
            np.clip(a, None, 0.5),
            a.clip(0),
            np.clip(a, np.zeros(4), 1),
        ),
        (X,),
    ),
    (
        lambda a, k: (
            np.take(a, k),
            np.take(a, k, axis=1),
            a.take([0, 2], axis=0),
            np.take(a, k, mode="wrap"),
            np.take_along_axis(a, np.argsort(a, axis=1), axis=1),
        ),
        (
            X,
            np.array([[0, 1], [2, 3]]),
        ),
    ),
    (
        pal,
        (
            X,
            np.array([[0], [1], [3]]),
        ),
    ),
    (
        lambda k, a, b: np.choose(k, [a, b, 3.0]),
        (
            np.array([[0, 1, 2, 0]] * 3),
            X,
            Y,
        ),
    ),
    (lambda a: np.select([a > 1, a > 0], [a, a * 2], default=-1), (X,)),
    (
        lambda a, m: (
            np.compress(m, a, axis=0),
            a.compress([True, False, True], axis=0),
            np.extract(a > 0, a),
        ),
        (
            X,
            np.array([True, False, True]),
        ),
    ),
    (
        lambda a: (
            *np.nonzero(a > 0),
            np.argwhere(a > 0),
            np.flatnonzero(a > 0),
            np.count_nonzero(a > 0),
            np.count_nonzero(a > 0, axis=1),
        ),
        (X,),
    ),
    (
        lambda a: (
            np.unique(a),
            *np.unique(a, return_index=True, return_inverse=True, return_counts=True),
            *np.unique_counts(a),
            *np.unique_all(a),
        ),
        (INTS,),
    ),
    (
        lambda a: (
            np.sort(a),
            np.sort(a, 0),
            np.sort(a, None),
            np.argsort(a),
            np.partition(a, 2)[..., 2],
            np.argmax(a),
            a.argmin(1),
            np.argmax(a, 0, keepdims=True),
            np.lexsort((a[0], a[1])),
        ),
        (X,),
    ),
    (
        lambda a, q: (
            np.searchsorted(np.sort(a), q),
            np.searchsorted(np.sort(a), q, side="right"),
            np.digitize(q, [-1.0, 0.0, 1.0]),
        ),
        (
            V,
            W,
        ),
    ),
    (
        lambda a: (
            a.sum(),
            a.sum(0),
            np.sum(a, axis=(0, 2)),
            np.sum(a, 1, keepdims=True),
            np.prod(a, 0),
            a.mean(),
            a.mean(1),
            a.std(),
            a.std(0, ddof=1),
            a.var(-1),
            np.max(a),
            a.min(0),
            np.ptp(a, axis=0),
            np.median(a),
            np.median(a, axis=1),
            np.average(a),
            a.all(),
            a.any(1),
        ),
        (CUBE,),
    ),
    (
        lambda a: (
            a.sum(),
            a.sum(0),
            np.prod(a),
            a.mean(),
            a.std(),
            a.cumsum(),
            a.cumprod(1),
            np.median(a),
            np.average(a, axis=0),
        ),
        (INTS,),
    ),
    (lambda a: (a.sum(), a.mean(), a.max(), a.cumsum(), np.cumsum(a, axis=0), np.std(a)), (MASK,)),
    (lambda a: (a.sum(), a.mean(), a.max(), a.prod()), (BYTES,)),
    (lambda a: (a.sum(), a.mean(), a.std(), a.cumsum(0), a.var(1), np.median(a, 0)), (F,)),
    (lambda a: (a.sum(), a.mean(), a.std(), a.prod(0), np.var(a, 0)), (COMPLEX,)),
    (
        lambda a: (
            np.sum(a, where=a > 0),
            np.max(a, initial=3.0),
            np.max(a, where=a > 0, initial=0.0),
            np.mean(a, where=a < 1),
            np.sum(a, initial=2.0),
            np.sum(a, dtype="f4"),
            np.std(a, where=a < 2),
        ),
        (X,),
    ),
    (
        lambda a: (
            np.percentile(a, 30),
            np.percentile(a, [10, 90], axis=1),
            np.quantile(a, 0.5, axis=0, keepdims=True),
            np.quantile(a, 0.3, method="lower"),
            np.quantile(a, 0.3, method="higher"),
            np.quantile(a, 0.3, method="nearest"),
            np.quantile(a, 0.3, method="midpoint"),
        ),
        (X,),
    ),
    (lambda a: (np.percentile(a, 30), np.median(a)), (F,)),
    (
        lambda a, q: (
            np.average(a, axis=1, weights=q),
            *np.average(a, axis=1, weights=q, returned=True),
        ),
        (
            X,
            np.array([1.0, 2, 3, 4]),
        ),
    ),
    (
        lambda a: (
            np.cumsum(a),
            np.cumsum(a, 1),
            np.cumprod(a, 0),
            np.diff(a),
            np.diff(a, axis=0),
            np.diff(a, 2),
            np.ediff1d(a),
            np.cumulative_sum(a, axis=1),
            np.cumulative_sum(a, axis=1, include_initial=True),
            np.maximum.accumulate(a, axis=1),
            np.minimum.accumulate(a),
        ),
        (X,),
    ),
    (
        lambda a: (
            *np.gradient(a),
            np.gradient(a, axis=0),
            np.trapezoid(a),
            np.trapezoid(a, dx=0.5, axis=0),
        ),
        (X,),
    ),
    (
        lambda a, b: (
            np.convolve(a, b),
            np.convolve(a, b, "same"),
            np.convolve(a, b, "valid"),
            np.correlate(a, b),
            np.correlate(a, b, "full"),
            np.correlate(a, b, "same"),
            np.convolve(a, [1, 2.0]),
            np.convolve(a[:3], b),
            np.correlate(a[:2], b, "full"),
        ),
        (
            V,
            W,
        ),
    ),
    (
        lambda a, b: (
            np.dot(a, b.T),
            a.dot(b.T),
            np.inner(a, b),
            np.outer(a, b),
            np.vdot(a, b),
            np.tensordot(a, b, axes=([0], [0])),
            np.tensordot(a, b),
            np.einsum("ij,ij->i", a, b),
            np.einsum("ij,kj", a, b),
            np.einsum("ij->j", a),
            np.kron(a, b),
            np.matmul(a, b.T),
            np.vecdot(a, b),
            np.linalg.vecdot(a, b),
        ),
        (
            X,
            Y,
        ),
    ),
    (
        lambda a, b: (np.dot(a, b.T), a @ b.T, np.dot(a, 2), np.dot(a[0], b[0])),
        (
            INTS,
            INTS[::-1].copy(),
        ),
    ),
    (
        lambda a, b: (np.dot(a, b.T), a @ b.T),
        (
            MASK,
            MASK[::-1].copy(),
        ),
    ),
    (
        lambda a: (
            np.einsum("ii", a),
            np.einsum("ii->i", a),
            np.einsum("ij,jk,kl->il", a, a, a, optimize=True),
            np.einsum("...j->...", a),
            np.trace(a),
            np.diag(a),
            np.diagonal(a),
            np.diagonal(a, 1),
            np.tril(a),
            np.triu(a, 1),
            a.trace(),
        ),
        (SQUARE,),
    ),
    (lambda a: (np.diag(a), np.diag(a, 1), np.diag(a, -2), np.diagflat(a)), (V,)),
    (
        lambda a, b: (np.cross(a, b), np.linalg.cross(a, b)),
        (
            RNG.standard_normal((4, 3)),
            RNG.standard_normal((4, 3)),
        ),
    ),
    (
        lambda a: (
            np.linalg.norm(a),
            np.linalg.norm(a, axis=1),
            np.linalg.norm(a, ord=1, axis=0),
            np.linalg.norm(a, "fro"),
            np.linalg.norm(a, np.inf, axis=1, keepdims=True),
            np.linalg.norm(a[0], 3),
            np.linalg.norm(a, 2),
            np.linalg.norm(a, "nuc"),
            np.linalg.vector_norm(a),
            np.linalg.matrix_norm(a),
        ),
        (X,),
    ),
    (
        lambda a: (
            np.linalg.inv(a),
            np.linalg.det(a),
            np.linalg.matrix_power(a, 3),
            np.linalg.matrix_power(a, -1),
            np.linalg.pinv(a),
            *np.linalg.slogdet(a),
            np.linalg.matrix_rank(a),
            np.linalg.multi_dot([a, a, a]),
        ),
        (SQUARE,),
    ),
    (lambda a: np.linalg.pinv(a), (X,)),
    (
        lambda a, b: (
            np.linalg.solve(a, b[:, 0]),
            np.linalg.solve(a, b),
            np.linalg.tensorsolve(a, b[:, 0]),
        ),
        (
            SQUARE,
            X,
        ),
    ),
    (
        lambda a: (
            np.linalg.cholesky(a),
            np.linalg.cholesky(a, upper=True),
            np.linalg.eigvalsh(a),
            np.linalg.eigh(a).eigenvalues,
            np.linalg.svd(a, compute_uv=False),
            np.linalg.svdvals(a),
        ),
        (SPD,),
    ),
    (qr, (SQUARE,)),
    (svd, (X,)),
    (
        lambda a: (
            np.fft.fft(a),
            np.fft.ifft(a),
            np.fft.rfft(a),
            np.fft.fft(a, n=6),
            np.fft.fft(a, axis=0),
            np.fft.fft2(a),
            np.fft.fftn(a),
            np.fft.ifft2(a),
            np.fft.rfft2(a),
            np.fft.rfftn(a),
            np.fft.fftshift(a),
            np.fft.ifftshift(a),
            np.fft.fft(a, norm="ortho"),
            np.fft.ifft(a, norm="forward"),
            np.fft.fftfreq(4) * a,
        ),
        (X,),
    ),
    (
        lambda a: (
            np.fft.irfft(a),
            np.fft.irfft(a, n=5),
            np.fft.irfft2(a),
            np.fft.irfft(a, norm="ortho"),
            np.fft.hfft(a),
        ),
        (COMPLEX,),
    ),
    (lambda a: (np.fft.fft(a), np.fft.rfft(a)), (F,)),
    (
        lambda a, b: (
            np.interp(a, np.linspace(-2, 2, 6), np.arange(6.0)),
            np.interp(a, np.sort(b), b, left=-9.0, right=9.0),
        ),
        (
            V,
            W,
        ),
    ),
    (
        lambda a: (
            *np.histogram(a, bins=5, range=(-2, 2)),
            *np.histogram(a, bins=[-3, -1, 0, 1, 3]),
            *np.histogram(a),
            *np.histogram(a, 4, density=True),
        ),
        (RNG.standard_normal(40),),
    ),
    (
        lambda a: (
            np.isclose(a, a + 1e-09),
            np.isclose(a, 0),
            np.allclose(a, a),
            np.array_equal(a, a),
            np.allclose(a, a + 1),
        ),
        (X,),
    ),
    (
        lambda a: (
            np.nan_to_num(a),
            np.nanmean(a),
            np.nansum(a, 0),
            np.nanmax(a, 1),
            np.nanmin(a),
            np.nanstd(a),
            np.nanvar(a, 0),
            np.nanprod(a),
            np.nanargmax(a, axis=1),
            np.nancumsum(a),
        ),
        (GAPS,),
    ),
    (lambda a: (*np.broadcast_arrays(a, np.ones((2, 3, 1))), np.broadcast_to(a, (2, 3, 4))), (X,)),
    (
        lambda a, b: (
            *np.meshgrid(a, b),
            *np.meshgrid(a, b, indexing="ij"),
            *np.meshgrid(a, b, sparse=True),
        ),
        (
            V,
            W,
        ),
    ),
    (
        lambda a: (
            np.apply_along_axis(lambda r: r * r.sum(), 1, a),
            np.apply_over_axes(np.sum, a, [0]),
        ),
        (X,),
    ),
    (
        lambda a: (
            np.round(a, 2),
            np.around(a),
            a.round(1),
            np.fix(a),
            np.sinc(a),
            np.unwrap(a * 9),
            np.real_if_close(a),
            np.i0(a),
        ),
        (X,),
    ),
    (
        lambda a: (
            np.polyval([1.0, 2, 3], a),
            np.polyval(a, 2.0),
            np.vander(a, 3),
            np.polyadd(a, a),
        ),
        (V,),
    ),
    (
        lambda a, b: (np.cov(a), np.corrcoef(a), np.cov(a, b)),
        (
            X,
            Y,
        ),
    ),
    (
        lambda a: (
            a[1],
            a[-1, 2],
            a[1:],
            a[::-1],
            a[:, ::2],
            a[..., 0],
            a[None],
            a[:, None, 1:3],
            a[[0, 2]],
            a[[0, 2], [1, 3]],
            a[:, [1, 3]],
            a[[0, 1], :2],
            a[a > 0],
            a[:, np.array([True, False, True, False])],
            a[np.array([[0], [2]]), [1, 2]],
            a[0, [1, 2]],
        ),
        (X,),
    ),
    (
        lambda a: (
            a[0, :, [1, 2]],
            a[:, 0, [1, 2]],
            a[[0, 1], :, [1, 2]],
            a[:, [0, 2], 1:3],
            a[..., [3, 0]],
            a[np.array([[0, 1]]), [1], 2],
        ),
        (CUBE,),
    ),
    (
        lambda a, k: (a[k], a[k, 0], a[:, k], a[k][None], a[k, k]),
        (
            RNG.standard_normal((4, 4)),
            np.array([2, 0, -1]),
        ),
    ),
    (
        lambda a, k: (a[k], a[k, 1], a[0, k], a[k, 1:], a[1:, k]),
        (
            X,
            np.array(1),
        ),
    ),
    (
        dyn,
        (
            RNG.standard_normal((4, 4)),
            np.array(2),
        ),
    ),
    (
        inpl,
        (
            X,
            Y,
        ),
    ),
    (
        lambda a: (
            a + 1,
            1 - a,
            a / 2,
            2 / a,
            a // 2,
            a % 3,
            a**2,
            2**a,
            -a,
            abs(a),
            a < 2,
            a == 1,
            a != 1,
            a >= 2,
            divmod(a, 2),
            a @ a.T,
            +a,
        ),
        (INTS + 7,),
    ),
    (lambda a: (a & 3, a | 1, a ^ a, ~a, a << 1, a >> 1), (INTS,)),
    (
        outs,
        (
            X,
            Y,
        ),
    ),
    (
        lambda a, b: (
            np.add.reduce(a),
            np.multiply.reduce(a, axis=1),
            np.maximum.reduce(a, axis=None),
            np.add.accumulate(a, axis=1),
            np.multiply.outer(a, b),
            np.subtract.outer(a[0], b[0]),
            np.subtract.reduce(a),
            np.logical_or.reduce(a > 0, axis=0),
            np.bitwise_xor.reduce((a > 0).astype(int)),
            np.logaddexp.reduce(a),
        ),
        (
            X,
            Y,
        ),
    ),
    (
        ats,
        (
            X,
            np.array([0, 0, 2]),
        ),
    ),
    (copyto, (X,)),
    (lambda a: (np.isin(a, [1, 2, 3]), np.isin(a, a[0])), (INTS,)),
    (
        lambda a: (
            np.array([a[0], a[1]]),
            np.array([a[0, 0], 1.0, a[1, 1]]),
            np.asarray(a),
            np.array(a, dtype="f4"),
            np.array([[a[0, 0], 2], [3, a[1, 1]]]),
        ),
        (X,),
    ),
    (
        lambda a: (
            a.astype(int),
            a.astype("f4"),
            a.astype(bool),
            a.copy(),
            np.copy(a),
            a.real,
            a.imag,
            a.conj(),
            np.real(a),
        ),
        (X,),
    ),
    (lambda a: (a.real, a.imag, a.conj(), abs(a), np.angle(a)), (COMPLEX,)),
    (setimag, (COMPLEX,)),
    (lambda a: np.lib.stride_tricks.sliding_window_view(a, 3), (V,)),
    (lambda a: (np.linspace(a[0], a[1], 5), np.linspace(0, 1, 5) * a), (V,)),
    (
        lambda a: (
            np.delete(a, 1),
            np.delete(a, [0, 2]),
            np.insert(a, 1, 9.0),
            np.resize(a, (3, 4)),
            np.trim_zeros(np.ones(3)) + a[:3],
        ),
        (V,),
    ),
    (
        lambda a: (
            np.block([[a, a], [a, a]]),
            np.hstack((a, np.ones((3, 1)))),
            np.c_[a, a],
            np.r_[a, a],
        ),
        (X,),
    ),
    (lambda a: np.piecewise(a, [a < 0, a >= 0], [lambda q: -q, lambda q: q * 2]), (V,)),
    (
        lambda a: (
            np.tril_indices(3),
            a[np.triu_indices(3)],
            a[np.ix_([0, 1], [1, 2])],
            np.ix_([0, 1], [1, 2]),
        ),
        (SQUARE,),
    ),
    (
        lambda a: (a, np.ndim(a), np.shape(a), np.size(a), a.size, a.ndim, a.nbytes, a.itemsize),
        (X,),
    ),
    (
        lambda a: (
            np.result_type(a, 1.0) == np.float32,
            np.issubdtype(a.dtype, np.floating),
            np.finfo(a.dtype).eps * a,
            np.iscomplexobj(a),
            np.can_cast(a.dtype, "f8"),
            np.isscalar(a[0, 0]),
            isinstance(a, np.ndarray),
        ),
        (F,),
    ),
    (lambda a: sum(a) + max(len(a), 2) + (3 if a.shape[0] > 2 else 4), (X,)),
    (lambda a: [r * 2 for r in a], (X,)),
    (lambda a: np.trapezoid(a, x=np.arange(5.0)), (V,)),
    (lambda a: a.view("u4"), (F,)),
    (
        lambda a: (
            np.unravel_index(np.argmax(a), a.shape),
            np.ravel_multi_index((np.array([0, 1]), np.array([1, 2])), (3, 4)),
        ),
        (X,),
    ),
    (lambda a: (np.float32(2) * a, a * np.float64(2), np.int8(3) + a, True + a, a * 1j), (F,)),
    (lambda a: (a > 300, a < -1, a == 256, a < 256, a + 1), (BYTES,)),
    (lambda a: (np.power(a, 2), np.power(a, 0.5), a ** (-1), a**3, a**1), (abs(X),)),
    (lambda a: (np.gcd.reduce(np.array([4, 6])) * a,), (X,)),
    (lambda a: (np.bincount(a), np.bincount(a, minlength=300)[:5]), (BYTES,)),
    (lambda a: np.histogram2d(a, a, bins=[3, 3], range=[[-1, 1], [-1, 1]])[0], (V,)),
    (
        lambda a: (
            np.mod(a, 3),
            np.fmod(a, 3),
            np.ldexp(a, 2),
            np.trunc(a),
            np.bitwise_count(np.arange(3)),
        ),
        (X,),
    ),
    (lambda a: np.vectorize(lambda q: q + 1)(np.arange(3)) + a[:3], (V,)),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{c.__name__}-{i}" for i, (c, _) in enumerate(CASES)])
def test_function(case: Case) -> None:
    check(*case)
