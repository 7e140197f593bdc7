"""Judge candidates by the oracle: on the inputs given, on random ones and on special ones.

One judge serves all candidates of a graph: what an answer must be is worked out once for each set
of inputs. Must never ask another engine what is right.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from fusewire.dtypes import DType
from fusewire.errors import FusewireError, StoreError
from fusewire.ir.graph import Array, Graph
from fusewire.ir.types import TensorType, Type
from fusewire.numerics.judge import Alone, Verdict, summary
from fusewire.numerics.oracle import Oracle
from fusewire.ops.interpret import Interpreter
from fusewire.ops.sample import HostValue
from fusewire.rewrite.roles import Role, roles

Run = Callable[[Sequence[HostValue]], list[HostValue]]
Status = Literal["right", "wrong", "cannot say", "not judged"]
# A run that takes longer is not made twice on the same inputs.
REPEATED_SECONDS = 2.0
# Further random inputs are judged where an oracle takes no longer.
FURTHER_SECONDS = 0.25
# How a reference says that a graph does not take some inputs.
_UNFIT = (FusewireError, ValueError, LookupError, ArithmeticError)


@dataclass(frozen=True)
class Judgement:
    """What is known of a candidate's answers. Plain data.

    ``error`` is the worst ratio of error to tolerance, ``sets`` are those it was judged on,
    ``kind`` the one it was wrong on, ``left_out`` tells why not the others. ``repeats``: the same
    inputs gave the same bits. The status is that on the given inputs, unless others show it wrong.
    """

    status: Status
    error: float = 0.0
    unjudged: float = 0.0
    reason: str = ""
    sets: tuple[str, ...] = ()
    kind: str = ""
    left_out: tuple[str, ...] = ()
    repeats: bool = True

    def to_data(self) -> dict[str, Any]:
        """Give it as what JSON has; an error without measure is null."""
        return {**asdict(self), "error": self.error if math.isfinite(self.error) else None}

    @staticmethod
    def from_data(held: Any) -> Judgement:
        """Read it back; StoreError when it is not one."""
        if not isinstance(held, Mapping) or set(held) != set(Judgement.__dataclass_fields__):
            raise StoreError("A verdict has other fields than those known.")
        error = math.inf if held["error"] is None else held["error"]
        lists = [held["sets"], held["left_out"]]
        if not all(isinstance(part, list | tuple) for part in lists):
            raise StoreError("A verdict has no lists of sets.")
        texts = [held["reason"], held["kind"], *lists[0], *lists[1]]
        is_good = (
            held["status"] in get_args(Status)
            and all(isinstance(text, str) for text in texts)
            and all(isinstance(x, int | float) for x in (error, held["unjudged"]))
            and isinstance(held["repeats"], bool)
        )
        if not is_good:
            raise StoreError("A verdict holds what is not of its kind.")
        sets, left_out = map(tuple, lists)
        return Judgement(**{**held, "error": error, "sets": sets, "left_out": left_out})


class Judge:
    """Judges the candidates of one graph; safe to ask from several threads.

    ``deadline`` is a time of ``time.monotonic()``: the given inputs are judged if it is not past,
    further sets where they will be done before it. Oracles are made when they are first needed.
    ``only`` names the sets to judge on, if not all; ``alone``: the graph is one node, or a few,
    and is judged as strictly as these allow.

    >>> import numpy as np
    >>> from fusewire import ops
    >>> from fusewire.ops.interpret import graph_of
    >>> graph, inputs = graph_of(ops.exp, [np.ones(3, np.float32)], {})
    >>> Judge(graph, inputs).judge(lambda given: [np.exp(given[0])]).status
    'right'
    >>> Judge(graph, inputs).judge(lambda given: [1 + given[0]]).kind
    'given'
    """

    def __init__(
        self,
        graph: Graph,
        given: Sequence[HostValue],
        *,
        seed: int = 0,
        runs: int = 8,
        deadline: float | None = None,
        only: Sequence[Kind] = (),
        alone: bool = False,
    ) -> None:
        self.graph = graph
        self.sets = input_sets(graph, given, seed)
        self.deadline = math.inf if deadline is None else deadline
        self._runs = runs
        self._seed = seed
        self._only = only
        self._alone = alone
        self._oracles: dict[Kind, Oracle | Alone | str] = {}
        self._unfits: dict[Kind, str] = {}
        self._lock = threading.Lock()
        # Seconds that the dearest oracle took; nothing is known before the first.
        self.cost = 0.0

    def prepare(self) -> None:
        """Make the oracle of the given inputs, as judging would: while engines compile, say."""
        self.oracle(self.sets[0])

    def oracle(self, inputs: InputSet) -> Oracle | Alone | str:
        """Give what knows the answers for a set, or why it is left out."""
        with self._lock:
            found = self._oracles.get(inputs.kind)
            if found is not None:
                return found
            start = time.monotonic()
            is_first = inputs is self.sets[0]
            if start + (0.0 if is_first else 1.2 * self.cost) >= self.deadline:
                # Not remembered: a judge may be given more time.
                return "no time was left"
            found = self._oracles[inputs.kind] = self._made(inputs)
            self.cost = max(self.cost, time.monotonic() - start)
            return found

    def _made(self, inputs: InputSet) -> Oracle | Alone | str:
        if said := self._unfit(inputs):
            return said
        if self._alone:
            return Alone(self.graph, inputs.values)
        try:
            oracle = Oracle(self.graph, inputs.values, runs=self._runs, seed=self._seed)
            oracle.values(self.graph.outputs)
        except _UNFIT as error:
            return f"the reference does not take it: {error}"
        return oracle

    def _unfit(self, inputs: InputSet) -> str:
        """Say why a set is none for this graph; one run in float64 shows it."""
        said = "" if inputs.kind == "given" else self._unfits.get(inputs.kind)
        if said is None:
            said = ""
            try:
                wide = Interpreter(self.graph, wide=True)(inputs.values)
                if inputs.kind in SPECIAL and not all(map(_is_finite, wide)):
                    said = "the exact answer is not finite"
            except _UNFIT as error:
                said = f"the graph does not take it: {error}"
            self._unfits[inputs.kind] = said
        return said

    def judge(self, run: Run) -> Judgement:
        """Judge what a callable answers, which may raise what engines do; stops when it is wrong.

        Runs are repeated where they are quick, with other inputs in between: that shows answers
        that are left over, overwritten, or wrong only later.
        """
        judged: list[tuple[Kind, Verdict]] = []
        left_out: list[str] = []
        repeats = True
        for inputs in self.sets:
            if self._only and inputs.kind not in self._only:
                continue
            if inputs.kind in FURTHER and self.cost > FURTHER_SECONDS:
                continue
            oracle = self.oracle(inputs)
            if isinstance(oracle, str):
                left_out.append(f"{inputs.kind}: {oracle}")
                continue
            other = self.other() if inputs.kind == "given" else None
            found = list(answers(run, inputs.values, other))
            repeats &= all(_same(found[0], x) for x in found[1:])
            verdicts = [oracle.judge(found[0])]
            verdicts += [oracle.judge(x) for x in found[1:] if not _same(found[0], x)]
            verdict = summary(verdicts)
            if verdict.status == "cannot say" and judged:
                left_out.append(f"{inputs.kind}: {verdict.reason}")
            else:
                judged.append((inputs.kind, verdict))
            if verdict.status == "wrong":
                break
        return _summary(judged, tuple(left_out), repeats)

    def other(self) -> tuple[HostValue, ...] | None:
        """Give inputs to be run in between, if there are any that the graph takes."""
        drawn = [x for x in self.sets if x.kind == "random"]
        return drawn[0].values if drawn and not self._unfit(drawn[0]) else None


def answers(
    run: Run, inputs: Sequence[HostValue], other: Sequence[HostValue] | None
) -> Iterator[list[HostValue]]:
    """Run once, and again where that is quick; an answer is looked at again after the next."""
    start = time.monotonic()
    first = run(inputs)
    if time.monotonic() - start > REPEATED_SECONDS:
        yield first
        return
    yield copy.deepcopy(first)
    if other is not None:
        run(other)
        yield copy.deepcopy(first)
    yield run(inputs)


def _summary(
    judged: Sequence[tuple[Kind, Verdict]], left_out: tuple[str, ...], repeats: bool
) -> Judgement:
    if not judged:
        return Judgement("not judged", reason="; ".join(left_out), left_out=left_out)
    kind, last = judged[-1]
    is_wrong = last.status == "wrong"
    deciding = last if is_wrong else judged[0][1]
    return Judgement(
        deciding.status,
        max(verdict.error for _, verdict in judged),
        deciding.unjudged,
        deciding.reason,
        tuple(kind for kind, _ in judged),
        kind if is_wrong else "",
        left_out,
        repeats,
    )


def _is_finite(value: HostValue) -> bool:
    if isinstance(value, list):
        return all(map(_is_finite, value))
    is_number = value is not None and value.dtype.kind in "fc"
    return bool(np.isfinite(value).all()) if is_number else True


def _same(one: HostValue, other: HostValue) -> bool:
    """Tell whether two values have the same bits."""
    if isinstance(one, list):
        pairs = isinstance(other, list) and len(one) == len(other)
        return pairs and all(_same(x, y) for x, y in zip(one, other, strict=True))
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tolist() == other.tolist() if one.dtype == object else _bits(one) == _bits(other)


def _bits(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


Kind = Literal["given", "random", "edges", "zeros", "ones", "random-2", "random-3"]
# Where engines take short cuts.
SPECIAL: tuple[Kind, ...] = ("edges", "zeros", "ones")
# Drawn anew, for graphs whose answers are cheap to know: what one draw hides another shows.
FURTHER: tuple[Kind, ...] = ("random-2", "random-3")
# Integers as few as these may be the size of something, which no other number is.
_SIZES = 8


@dataclass(frozen=True, eq=False)
class InputSet:
    """Inputs to judge on, and where they come from."""

    kind: Kind
    values: tuple[HostValue, ...]


def input_sets(graph: Graph, given: Sequence[HostValue], seed: int = 0) -> list[InputSet]:
    """Make sets of inputs of the same sizes, those given first.

    Whether the graph takes the others only a run shows.
    """
    role_of = roles(graph)
    rng = np.random.default_rng([seed, 5])
    pairs = [(v.type, role_of[v], x) for v, x in zip(graph.inputs, given, strict=True)]
    sets = [InputSet("given", tuple(given))]
    for kind in ("random", *SPECIAL, *FURTHER):

        def change(of: DType, array: Array, role: Role, kind: Kind = kind) -> Array:
            is_special = kind in SPECIAL
            return _special(of, array, kind, rng) if is_special else _drawn(of, array, role, rng)

        made = [_mapped(t, x, partial(change, role=role)) for t, role, x in pairs]
        if any(x is not y for x, y in zip(made, given, strict=True)):
            sets.append(InputSet(kind, tuple(made)))
    return sets


def _mapped(type_: Type, value: HostValue, change: Callable[[DType, Array], Array]) -> HostValue:
    """Change the tensors in a value; the same object where nothing changes."""
    if isinstance(type_, TensorType):
        array = np.asarray(value)
        # Arithmetic on arrays without axes gives scalars.
        made = np.asarray(change(type_.dtype, array)) if array.size else array
        return value if made is array else made
    if isinstance(value, list):
        parts = [_mapped(type_.element, item, change) for item in value]
        is_same = all(x is y for x, y in zip(parts, value, strict=True))
        return value if is_same else parts
    return value if value is None else _mapped(type_.element, value, change)


def _drawn(of: DType, array: Array, role: Role, rng: np.random.Generator) -> Array:
    """Draw an array in the range of another; what is an index keeps its values, elsewhere."""
    shape = array.shape
    if of.kind == "string" or (of.is_integer and role == "index"):
        return array if array.size <= _SIZES else np.roll(array, 1 + array.size // 3)
    if of.kind == "bool":
        return np.asarray(rng.random(shape) < array.mean())
    if of.is_complex:
        parts = [_uniform(part.astype(np.float64), rng) for part in (array.real, array.imag)]
        return (parts[0] + 1j * parts[1]).astype(of.numpy)
    if of.is_integer:
        low, high = int(array.min()), int(array.max())
        return array if low == high else _integers(of, low, high, shape, rng)
    return _uniform(array.astype(np.float64), rng).astype(of.numpy)


def _integers(
    of: DType, low: int, high: int, shape: tuple[int, ...], rng: np.random.Generator
) -> Array:
    wide = np.uint64 if of.kind == "uint" else np.int64
    return rng.integers(low, high, shape, wide, endpoint=True).astype(of.numpy)


def _uniform(array: Array, rng: np.random.Generator) -> Array:
    finite = array[np.isfinite(array)]
    if not finite.size:
        return array
    low, high = float(finite.min()), float(finite.max())
    if low == high == 0.0 and array.size > 1:
        # A state before the first step: later it is something.
        low, high = -1.0, 1.0
    return np.asarray(low + (high - low) * rng.random(array.shape))


def _special(of: DType, array: Array, kind: Kind, rng: np.random.Generator) -> Array:
    """Make an array of floats special; others stay."""
    if not of.is_float or of.is_narrow:
        return array
    if kind != "edges":
        return np.full(array.shape, float(kind == "ones"), of.numpy)
    finite = np.abs(array.astype(np.float64))
    largest = float(finite[np.isfinite(finite)].max(initial=0.0))
    tiny = 4.0 * float(np.finfo(np.float16 if of.bits == 16 else of.numpy).smallest_normal)
    large = min(4.0 * largest, of.range[1] / 16)
    made = array.astype(of.numpy, copy=True).reshape(-1)
    places = rng.permutation(made.size)[: max(1, min(made.size // 8, 16))]
    edges = np.resize(np.array([-0.0, large, tiny, -large, -tiny, largest]), len(places))
    made[places] = edges.astype(of.numpy)
    return made.reshape(array.shape)
