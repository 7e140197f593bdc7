"""Engines that give wrong answers on purpose: one table of faults, one element to stale buffers.

A sized fault moves elements by an amount that the caller chooses, so that it can be scaled to the
tolerance of a judge. Chaos has all of them by name, at the size ``NOTICED``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import ml_dtypes
import numpy as np

from fusewire.ir.graph import Array, Graph, HostValue, Node, Value
from fusewire.ops.interpret import Interpreter

Rng = np.random.Generator
# The default size of faults, as a share of a tensor's rms.
NOTICED = 0.02


@dataclass(frozen=True)
class Wrong:
    """One fault: ``spoil(x, amount, rng)``, in the calls that ``when`` selects.

    ``when(call, x, inputs)``; ``kinds`` are the NumPy dtype kinds that it applies to. If
    ``is_sized``, it moves elements by ``amount``; other faults have a fixed size.
    """

    doc: str
    spoil: Callable[[Array, Array, Rng], Array]
    when: Callable[[int, Array, Sequence[HostValue]], bool] = lambda call, x, inputs: True
    is_sized: bool = True
    kinds: str = "fciub"
    least: int = 1
    is_random: bool = False
    is_stale: bool = False


def moved(x: Array, amount: Array, mask: Array) -> Array:
    """Move elements by an amount: integers by at least one, booleans to their opposite."""
    if x.dtype.kind == "b":
        return x ^ mask
    if x.dtype.kind in "iu":
        step = np.maximum(1, np.minimum(amount, 2.0**30)).astype(np.int64)
        return np.where(mask, (x.astype(np.int64) + step).astype(x.dtype), x)
    work = np.complex128 if x.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        return np.where(mask, (x.astype(work) + amount).astype(x.dtype), x)


def _at(mask: Callable[[Array, Rng], Array]) -> Callable[[Array, Array, Rng], Array]:
    """Move the elements that a mask selects."""
    return lambda x, amount, rng: moved(x, amount * rng.choice([-1.0, 1.0]), mask(x, rng))


def _everywhere(x: Array, rng: Rng) -> Array:
    return np.ones(x.shape, np.bool_)


def _element(x: Array, rng: Rng) -> Array:
    return np.asarray(np.arange(x.size).reshape(x.shape) == rng.integers(x.size))


def _along(x: Array, axis: int, first: int, count: int) -> Array:
    place = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return np.broadcast_to((place >= first) & (place < first + count), x.shape)


def _channel(x: Array, rng: Rng) -> Array:
    axis = min(1, x.ndim - 1)
    return _along(x, axis, int(rng.integers(x.shape[axis])), 1) if x.ndim else _everywhere(x, rng)


def _slice(x: Array, rng: Rng) -> Array:
    if not x.ndim:
        return _everywhere(x, rng)
    axis = int(rng.integers(x.ndim))
    count = -(-x.shape[axis] // 4)
    return _along(x, axis, int(rng.integers(x.shape[axis] - count + 1)), count)


def _tail(x: Array, rng: Rng) -> Array:
    return np.arange(x.size).reshape(x.shape) >= x.size - max(1, x.size // 8)


def _strided(x: Array, rng: Rng) -> Array:
    return np.asarray(np.arange(x.size).reshape(x.shape) % 2 == 1)


def _largest(x: Array, rng: Rng) -> Array:
    size = np.nan_to_num(np.abs(x.astype(np.float64)))
    return np.asarray(size >= 0.9 * size.max())


def _coarse(x: Array, amount: Array, rng: Rng) -> Array:
    """Round to multiples of twice the amount, as with fewer digits."""
    step = np.where(amount > 0, 2 * amount, 1.0)
    with np.errstate(all="ignore"):
        return np.where(amount > 0, np.rint(x.astype(np.float64) / step) * step, x).astype(x.dtype)


def _scaled(x: Array, amount: Array, rng: Rng) -> Array:
    size = np.nan_to_num(np.abs(x.astype(np.float64)))
    share = float(np.max(amount)) / float(size.max() or 1.0)
    return moved(x, x.astype(np.float64) * share, _everywhere(x, rng))


def _flat(change: Callable[[Array, Rng], Any]) -> Callable[[Array, Array, Rng], Array]:
    """Change a flat copy in place."""

    def spoil(x: Array, amount: Array, rng: Rng) -> Array:
        flat = x.copy().reshape(-1)
        change(flat, rng)
        return flat.reshape(x.shape)

    return spoil


def _put(value: float) -> Callable[[Array, Array, Rng], Array]:
    return _flat(lambda flat, rng: np.put(flat, int(rng.integers(flat.size)), value))


def _drop(flat: Array, rng: Rng) -> None:
    """Replace the last block by the one before it."""
    count = max(1, flat.size // 8)
    flat[-count:] = flat[-2 * count : -count]


def _saturated(x: Array, amount: Array, rng: Rng) -> Array:
    top = np.nan_to_num(np.abs(x.astype(np.float64))).max() / 2
    bottom = 0 if x.dtype.kind == "u" else -top
    with np.errstate(all="ignore"):
        return np.clip(x.astype(np.float64), bottom, top).astype(x.dtype)


def _has_special(call: int, x: Array, inputs: Sequence[HostValue]) -> bool:
    floats = [i for i in inputs if isinstance(i, np.ndarray) and i.dtype.kind == "f"]
    return any(bool(np.any(np.abs(i) < 1e-30)) for i in floats)


def _is_odd(call: int, x: Array, inputs: Sequence[HostValue]) -> bool:
    return any(n % 2 and n > 1 for n in x.shape)


_BIAS, _ONE = _at(_everywhere), _at(_element)
KINDS: Mapping[str, Wrong] = {
    "element": Wrong("one element", _ONE),
    "channel": Wrong("one channel", _at(_channel)),
    "slice": Wrong("a quarter along one axis", _at(_slice)),
    "tail": Wrong("the last eighth", _at(_tail)),
    "stride": Wrong("every second element", _at(_strided)),
    "bias": Wrong("all elements, to one side", _BIAS),
    "negative": Wrong("negative values", _at(lambda x, rng: x < 0), kinds="fi"),
    "largest": Wrong("the largest values", _at(_largest), kinds="fi"),
    "scaled": Wrong("all, by one factor", _scaled, kinds="f"),
    "coarse": Wrong("digits lost", _coarse, kinds="f"),
    "odd": Wrong("only sizes that are odd", _BIAS, _is_odd),
    "second": Wrong("every call but the first", _ONE, lambda call, x, inputs: call > 0),
    "special": Wrong("only where an input has a zero", _BIAS, _has_special),
    "flicker": Wrong("every call otherwise", _at(_strided), is_random=True, kinds="f"),
    "nan": Wrong("one element is NaN", _put(np.nan), is_sized=False, kinds="fc"),
    "inf": Wrong("one element is Inf", _put(np.inf), is_sized=False, kinds="fc"),
    "sign": Wrong(
        "a channel has the other sign",
        lambda x, amount, rng: np.where(_channel(x, rng), -x, x).astype(x.dtype),
        is_sized=False,
        kinds="fci",
    ),
    "zeroed": Wrong(
        "the last eighth is 0",
        _flat(lambda flat, rng: np.put(flat, _last(flat), 0)),
        is_sized=False,
    ),
    "dropped": Wrong("the last block holds the one before", _flat(_drop), is_sized=False, least=2),
    "shifted": Wrong(
        "off by one in the last axis",
        lambda x, amount, rng: np.roll(x, 1, -1 if x.ndim else None),
        is_sized=False,
        least=2,
    ),
    "transposed": Wrong(
        "rows for columns", lambda x, amount, rng: x.T.reshape(x.shape), is_sized=False, least=4
    ),
    "bfloat16": Wrong(
        "8 digits",
        lambda x, amount, rng: x.astype(ml_dtypes.bfloat16).astype(x.dtype),
        is_sized=False,
        kinds="f",
    ),
    "saturated": Wrong("clipped at half the largest", _saturated, is_sized=False, kinds="fiu"),
    "truncated": Wrong(
        "integers one too small, here and there",
        lambda x, amount, rng: np.where(rng.random(x.shape) < 0.1, x - x.dtype.type(1), x),
        is_sized=False,
        kinds="iu",
    ),
    "stale": Wrong("the answer to the call before", _BIAS, is_sized=False, is_stale=True),
}
# Beside these: two operands of one node, one for the other.
SWAPPED = "swapped"


def _last(flat: Array) -> Array:
    return np.arange(flat.size - max(1, flat.size // 8), flat.size)


@final
class Spoiler:
    """Applies one fault to answers, the same in every call unless the fault says otherwise.

    ``amounts`` has for each value the differences that a sized fault makes, as arrays that fit it.
    """

    def __init__(self, kind: str, amounts: Sequence[Array | None] = (), seed: int = 0) -> None:
        self._wrong = KINDS[kind]
        self._amounts = amounts
        self._seed = seed
        self._calls = 0
        self._before: list[HostValue] | None = None

    def __call__(
        self, values: Sequence[HostValue], inputs: Sequence[HostValue] = ()
    ) -> list[HostValue]:
        """Return what a wrong engine returns in place of values."""
        call, before = self._calls, self._before
        self._calls += 1
        self._before = list(values)
        if self._wrong.is_stale:
            return list(values if before is None else before)
        wide = [*self._amounts, *([None] * (len(values) - len(self._amounts)))]
        pairs = zip(values, wide, strict=True)
        return [self._spoilt(x, amount, call, inputs) for x, amount in pairs]

    def _spoilt(
        self, x: HostValue, amount: Array | None, call: int, inputs: Sequence[HostValue]
    ) -> HostValue:
        if not self.applies(x) or not self._wrong.when(call, x, inputs):
            return x
        if amount is None or amount.shape != x.shape:
            size = np.nan_to_num(np.abs(x.astype(np.float64))) if x.dtype.kind != "c" else np.abs(x)
            amount = np.full(x.shape, NOTICED * float(np.sqrt(np.mean(size**2)) or 1.0))
        rng = np.random.default_rng([self._seed, call if self._wrong.is_random else 0])
        return self._wrong.spoil(x, amount, rng)

    def applies(self, x: HostValue) -> bool:
        """Return whether the fault applies to a value."""
        wrong = self._wrong
        if not isinstance(x, np.ndarray) or x.dtype.kind in "OV" or x.size < wrong.least:
            return False
        return x.dtype.kind in wrong.kinds


@final
class WrongEngine:
    """Runs a graph as the reference does, except for one node, or for all outputs."""

    def __init__(self, graph: Graph, spoiler: Spoiler, place: Node | None = None) -> None:
        self._interpreter = Interpreter(graph, observe=self._observe if place else None)
        self._spoiler = spoiler
        self._place = place
        self._inputs: Sequence[HostValue] = ()

    def __call__(self, inputs: Sequence[HostValue]) -> list[HostValue]:
        """Answer."""
        self._inputs = inputs
        found = [x.copy() if isinstance(x, np.ndarray) else x for x in self._interpreter(inputs)]
        return found if self._place else self._spoiler(found, inputs)

    def _observe(self, node: Node, outputs: list[HostValue]) -> list[HostValue]:
        return self._spoiler(outputs, self._inputs) if node is self._place else outputs


def swapped(graph: Graph, seed: int = 0) -> Graph | None:
    """Swap the first two operands of some node whose types allow it; None if there is none."""
    rng = np.random.default_rng(seed)
    fit = [n for n in graph.nodes if len(n.inputs) > 1 and _swaps(n.inputs[0], n.inputs[1])]
    if not fit:
        return None
    chosen = fit[int(rng.integers(len(fit)))]
    copies: dict[Value, Value] = {}
    for node in graph.nodes:
        first, second, *rest = [v and copies.get(v, v) for v in node.inputs] + [None, None]
        inputs = [second, first, *rest] if node is chosen else [first, second, *rest]
        copy = node.copy(inputs[: len(node.inputs)])
        copies |= zip(node.outputs, copy.outputs, strict=True)
    outputs = [copies.get(v, v) for v in graph.outputs]
    return Graph(graph.inputs, outputs, name=graph.name, output_names=graph.output_names)


def _swaps(one: Value | None, other: Value | None) -> bool:
    return one is not None and other is not None and one is not other and one.type == other.type
