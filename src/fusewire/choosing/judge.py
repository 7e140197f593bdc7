"""Judge candidates by the oracle: on the given inputs, on random ones and on special ones.

One judge serves all candidates of a graph: the right answer is computed once for each set of
inputs. It must never ask another engine what is right.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, final, get_args

import numpy as np

from fusewire.choosing.poison import Poison
from fusewire.dtypes import DType
from fusewire.errors import BudgetError, EngineRaised, FusewireError, StoreError
from fusewire.facts.roles import Role, roles
from fusewire.ir.graph import Array, Graph, HostValue
from fusewire.ir.types import TensorType, Type
from fusewire.numerics.deviation import Deviation
from fusewire.numerics.judge import Alone, Verdict, summary
from fusewire.numerics.oracle import Oracle
from fusewire.ops.interpret import Interpreter
from fusewire.ops.limits import RunLimits, limited, meter

Run = Callable[[Sequence[HostValue]], list[HostValue]]
# "inaccurate" is said only of what computes in less than the model's own dtypes.
Status = Literal["right", "doubtful", "wrong", "cannot say", "not judged", "inaccurate"]
# A run that takes longer is not repeated on the same inputs.
REPEATED_SECONDS = 2.0
# Further random inputs are judged if the oracle takes no longer than this.
FURTHER_SECONDS = 0.25
# The share of the time until the deadline that the reference may take for poison.
_POISON = 0.05
# Why a set is left out that the budget does not reach.
_LATE = "no time was left"
# Seconds in which an oracle that is to wait reaches the end of a node, and between two looks.
_PATIENCE, _TICK = 1.0, 0.01
# What the reference raises if a graph does not take some inputs.
_UNFIT = (FusewireError, ValueError, LookupError, ArithmeticError)


@dataclass(frozen=True)
class Judgement:
    """The verdict on a candidate's answers, as plain data.

    ``error`` is the worst ratio of error to tolerance, ``sets`` are the input sets it was judged
    on, ``kind`` is the one it was wrong or doubtful on, and ``left_out`` says why other sets were
    not judged. ``repeats``: the same inputs gave the same bits. The status is that on the given
    inputs, unless the candidate is wrong or doubtful on others. A candidate that computes in less
    than the model's own dtypes has its ``errors``, the largest on each set, and the ``limit`` that
    those on other inputs stay within.
    """

    status: Status
    error: float = 0.0
    unjudged: float = 0.0
    reason: str = ""
    sets: tuple[str, ...] = ()
    kind: str = ""
    left_out: tuple[str, ...] = ()
    repeats: bool = True
    errors: tuple[Deviation, ...] = ()
    limit: float = 0.0

    def to_data(self) -> dict[str, Any]:
        """Convert to plain data for JSON; an infinite error becomes null."""
        return {**asdict(self), "error": self.error if math.isfinite(self.error) else None}

    @staticmethod
    def from_data(data: Any) -> Judgement:
        """Read plain data; StoreError if it is not a verdict."""
        if not isinstance(data, Mapping) or set(data) != set(Judgement.__dataclass_fields__):
            raise StoreError("A recorded verdict has unknown or missing fields.")
        error = math.inf if data["error"] is None else data["error"]
        lists = [data["sets"], data["left_out"], data["errors"]]
        if not all(isinstance(part, list | tuple) for part in lists):
            raise StoreError("A recorded verdict has no lists of input sets.")
        texts = [data["reason"], data["kind"], *lists[0], *lists[1]]
        is_good = (
            data["status"] in get_args(Status)
            and all(isinstance(text, str) for text in texts)
            and all(isinstance(x, int | float) for x in (error, data["unjudged"], data["limit"]))
            and isinstance(data["repeats"], bool)
        )
        if not is_good:
            raise StoreError("A recorded verdict has a field of the wrong type.")
        errors = tuple(map(_read_deviation, data["errors"]))
        sets, left_out = tuple(data["sets"]), tuple(data["left_out"])
        given = {"error": error, "sets": sets, "left_out": left_out, "errors": errors}
        return Judgement(**{**data, **given})


def _read_deviation(row: Any) -> Deviation:
    """Read an error from a record; StoreError if it is not one."""
    if not isinstance(row, Mapping) or set(row) != set(Deviation.__dataclass_fields__):
        raise StoreError("A recorded error has unknown or missing fields.")
    texts, numbers = (row["inputs"], row["output"]), (row["relative"], row["element"])
    is_good = all(isinstance(x, str) for x in texts)
    if not is_good or not all(isinstance(x, int | float) for x in numbers):
        raise StoreError("A recorded error has a field of the wrong type.")
    return Deviation(**row)


class Judge:
    """Judges the candidates of one graph; safe to ask from several threads.

    ``deadline`` is a time of ``time.monotonic()``: the given inputs are judged if it is not past,
    and further sets if their oracles are made, or will be before it. At ``end``, an oracle that is
    not ready is given up, what waits for it is not judged, and no run of a further set begins.
    Oracles are made when they are first needed, or ahead of time by ``prepare``, in a thread of its
    own: that of the given inputs, and others that together take at most the share ``ahead`` of the
    time.
    ``only`` names the sets to judge on, if not all. ``alone``: the graph is one node, or a few, and
    is judged as strictly as their own tolerances allow. ``limits`` are those of each oracle.

    >>> import numpy as np
    >>> from fusewire import ops
    >>> from fusewire.ops.interpret import graph_of
    >>> graph, inputs = graph_of(ops.exp, [np.ones(3, np.float32)], {})
    >>> Judge(graph, inputs).judge(lambda values: [np.exp(values[0])]).status
    'right'
    >>> Judge(graph, inputs).judge(lambda values: [1 + values[0]]).kind
    'given'
    """

    # Inputs with NaN, or the reason why there are none, once somebody asked.
    _poison: Poison | str | None = None

    def __init__(
        self,
        graph: Graph,
        given: Sequence[HostValue],
        *,
        seed: int = 0,
        runs: int = 8,
        deadline: float | None = None,
        end: float | None = None,
        only: Sequence[Kind] = (),
        alone: bool = False,
        ahead: float = 0.0,
        limits: RunLimits = RunLimits(),
    ) -> None:
        self.graph = graph
        self.limits = limits
        # Why the reference cannot run the given inputs within the limits, once that is known.
        self.beyond = ""
        self.sets = input_sets(graph, given, seed)
        self.deadline = math.inf if deadline is None else deadline
        self.end = math.inf if end is None else end
        self._begin = time.monotonic()
        self._runs = runs
        self._seed = seed
        self._only = only
        self._alone = alone
        self._ahead = ahead
        self._oracles: dict[Kind, Oracle | Alone | str] = {}
        self._unfits: dict[Kind, str] = {}
        # One thread makes an oracle, and one finds out whether a set suits the graph.
        self._lock, self._fitting_lock = threading.Lock(), threading.Lock()
        self._is_stopped = threading.Event()
        # Set once there is an oracle of the given inputs, or none will be.
        self._has_given = threading.Event()
        # Whether oracles may be made now, whether one waits for that, and for how long they did.
        self._may_go_on, self._is_waiting = threading.Event(), threading.Event()
        self._may_go_on.set()
        self._waited = 0.0
        # Seconds that the slowest oracle took; 0 before the first.
        self.cost = 0.0

    def prepare(self) -> None:
        """Make oracles ahead of time, while engines compile: first that of the given inputs.

        Others follow as far as they fit into the share ``ahead`` of the time: they take a core.
        """
        left = self._ahead * (min(self.deadline, self.end) - time.monotonic())
        try:
            self.oracle(self.sets[0])
        finally:
            self._has_given.set()
        for inputs in self._asked() if self._ahead else ():
            if self.cost > left or self._is_stopped.is_set():
                break
            start, waited = time.monotonic(), self._waited
            self.oracle(inputs)
            left -= time.monotonic() - start - (self._waited - waited)

    def wait_for_given(self, seconds: float | None) -> None:
        """Wait until there is an oracle of the given inputs, or none will be."""
        self._has_given.wait(seconds)

    def _asked(self) -> Iterator[InputSet]:
        """Yield the sets to judge on; further draws only where an oracle is cheap."""
        for inputs in self.sets:
            is_cheap = inputs.kind not in FURTHER or self.cost <= FURTHER_SECONDS
            if is_cheap and (not self._only or inputs.kind in self._only):
                yield inputs

    def stop(self) -> None:
        """End the work of an oracle that another thread makes: nobody will ask it."""
        self._is_stopped.set()
        self._may_go_on.set()

    @contextlib.contextmanager
    def paused(self, latest: float = -math.inf) -> Iterator[None]:
        """Have an oracle that another thread makes wait: it takes a core from what is timed.

        It stops between two nodes; a node that takes long is not waited for. Its end comes as much
        later, but not after ``latest``.
        """
        start = time.monotonic()
        self._may_go_on.clear()
        try:
            while self._lock.locked() and time.monotonic() < start + _PATIENCE:
                if self._is_waiting.wait(_TICK):
                    break
            yield
        finally:
            if self._is_waiting.is_set():
                waited = time.monotonic() - start
                self.end = max(self.end, min(self.end + waited, latest))
            self._is_waiting.clear()
            self._may_go_on.set()

    def _wait(self) -> None:
        start = time.monotonic()
        self._is_waiting.set()
        self._may_go_on.wait()
        self._is_waiting.clear()
        waited = time.monotonic() - start
        self._waited += waited
        if (run := meter()) is not None:
            run.deadline += waited

    def _check(self) -> None:
        if not (self._may_go_on.is_set() or self._is_stopped.is_set()):
            self._wait()
        if self._is_stopped.is_set():
            raise BudgetError("the comparison has ended.")
        if self._is_late:
            raise BudgetError(_LATE)

    @property
    def _is_late(self) -> bool:
        return time.monotonic() > self.end

    def oracle(self, inputs: InputSet) -> Oracle | Alone | str:
        """Return the oracle of a set, or the reason why the set is left out."""
        # Without the lock, which a thread may hold for long that makes another.
        if (known := self._oracles.get(inputs.kind)) is not None:
            return known
        left = self.end - time.monotonic()
        # Another thread may be making an oracle, and look at the clock only between nodes.
        if not self._lock.acquire(timeout=-1 if left == math.inf else max(left, 0.0)):
            return _LATE
        try:
            return self._known_or_made(inputs)
        finally:
            self._lock.release()

    def _known_or_made(self, inputs: InputSet) -> Oracle | Alone | str:
        oracle = self._oracles.get(inputs.kind)
        if oracle is not None:
            return oracle
        start = time.monotonic()
        is_first = inputs is self.sets[0]
        if start + (0.0 if is_first else 1.2 * self.cost) >= min(self.deadline, self.end):
            # Not cached: the deadline may be moved.
            return _LATE
        waited = self._waited
        with limited(self.limits, self._check):
            oracle = self._make_oracle(inputs)
        if oracle is not _LATE:
            self._oracles[inputs.kind] = oracle
        self.cost = max(self.cost, time.monotonic() - start - (self._waited - waited))
        return oracle

    def _make_oracle(self, inputs: InputSet) -> Oracle | Alone | str:
        if reason := self._unfit(inputs):
            return reason
        try:
            if self._alone:
                return Alone(self.graph, inputs.values)
            oracle = Oracle(self.graph, inputs.values, runs=self._runs, seed=self._seed)
            oracle.values(self.graph.outputs)
        except _UNFIT as error:
            if self._is_late:
                return _LATE
            if isinstance(error, BudgetError) and inputs.kind == "given":
                self.beyond = str(error)
            return f"the reference does not take it: {error}"
        return oracle

    def _unfit(self, inputs: InputSet) -> str:
        """Say why a set does not suit this graph; one run in float64 shows it."""
        if inputs.kind == "given":
            return ""
        with self._fitting_lock:
            reason = self._unfits.get(inputs.kind)
            if reason is not None:
                return reason
            reason = ""
            try:
                with limited(self.limits, self._check):
                    wide = Interpreter(self.graph, wide=True)(inputs.values)
                if inputs.kind in SPECIAL and not all(map(_is_finite, wide)):
                    reason = "the exact answer is not finite"
            except _UNFIT as error:
                reason = f"the graph does not take it: {error}"
                if self._is_stopped.is_set() or self._is_late:
                    # That says nothing about the set.
                    return _LATE
            self._unfits[inputs.kind] = reason
        return reason

    def exact(self, inputs: InputSet) -> list[HostValue] | str:
        """Run the graph in float64 on a set, or return the reason why the set is left out."""
        try:
            with limited(self.limits, self._check):
                return Interpreter(self.graph, wide=True)(inputs.values)
        except _UNFIT as error:
            return _LATE if self._is_late else f"the reference does not take it: {error}"

    def judge(self, run: Run, *, keeps_nan: bool = False) -> Judgement:
        """Judge the answers of a callable until one is wrong; what engines raise passes through.

        Quick runs are repeated, with other inputs in between: that shows answers that are stale,
        overwritten, or wrong only later. With ``keeps_nan``, it may not lose a NaN either.
        """
        judged: list[tuple[Kind, Verdict]] = []
        left_out: list[str] = []
        repeats, longest = True, 0.0
        for inputs in self._asked():
            oracle = self.oracle(inputs)
            if inputs is not self.sets[0] and time.monotonic() + longest >= self.end:
                oracle = _LATE
            if isinstance(oracle, str):
                left_out.append(f"{inputs.kind}: {oracle}")
                continue
            other = self.other() if inputs.kind == "given" else None
            start = time.monotonic()
            first, *later = answers(run, inputs.values, other)
            longest = max(longest, time.monotonic() - start)
            differing = [answer for answer in later if not same_bits(first, answer)]
            repeats &= not differing
            try:
                verdict = self._verdict(oracle, [first, *differing])
            except BudgetError:
                if not self._is_late:
                    raise
                left_out.append(f"{inputs.kind}: {_LATE}")
                break
            if verdict.status == "cannot say" and judged:
                left_out.append(f"{inputs.kind}: {verdict.reason}")
            else:
                judged.append((inputs.kind, verdict))
            if verdict.status == "wrong":
                break
        judgement = _summary(judged, tuple(left_out), repeats)
        is_asked = keeps_nan and judgement.status == "right"
        return self._judged_on_poison(judgement, run, longest) if is_asked else judgement

    def _judged_on_poison(self, judgement: Judgement, run: Run, longest: float) -> Judgement:
        """Judge whether a NaN or an infinity of an input is lost, if there is time for it."""
        poison = self._poison = self._poison or self._make_poison()
        if not isinstance(poison, str) and time.monotonic() + longest >= self.end:
            poison = _LATE
        lost = ""
        if not isinstance(poison, str):
            try:
                answer = run(poison.inputs)
                with limited(self.limits, self._check):
                    lost = poison.lost(answer)
            except (EngineRaised, *_UNFIT) as error:
                poison = str(error)
        if isinstance(poison, str):
            left_out = (*judgement.left_out, f"{POISON}: {poison}")
            return replace(judgement, left_out=left_out)
        judgement = replace(judgement, sets=(*judgement.sets, POISON))
        return replace(judgement, status="wrong", reason=lost, kind=POISON) if lost else judgement

    def _make_poison(self) -> Poison | str:
        """Poison the inputs, or say why that is left out."""
        poison = Poison(self.graph, self.other() or self.sets[0].values)
        if not poison.is_any:
            return "no input has floats"
        # The oracle ran the reference so many times.
        seconds, now = self.cost / (self._runs + 1), time.monotonic()
        end = min(self.deadline, self.end)
        if now + seconds >= end or seconds > _POISON * (end - self._begin):
            return "the reference takes too long"
        try:
            with limited(self.limits, self._check):
                assert poison.wanted is not None
        except _UNFIT as error:
            return f"the reference does not take it: {error}"
        return poison

    def _verdict(self, oracle: Oracle | Alone, found: Sequence[list[HostValue]]) -> Verdict:
        if isinstance(oracle, Alone):
            return summary(list(map(oracle.judge, found)))
        with limited(self.limits, self._check):
            return summary(list(map(oracle.verdict, found)))

    def judge_given(self, answer: list[HostValue]) -> Verdict | str:
        """Judge one answer to the given inputs; a string says why it cannot be judged."""
        oracle = self.oracle(self.sets[0])
        if isinstance(oracle, str):
            return oracle
        try:
            return self._verdict(oracle, [answer])
        except BudgetError as error:
            return str(error)

    def other(self) -> tuple[HostValue, ...] | None:
        """Return inputs to run in between, if there are any that the graph takes."""
        drawn = next((x for x in self.sets if x.kind == "random"), None)
        return None if drawn is None or self._unfit(drawn) else drawn.values


def answers(
    run: Run, inputs: Sequence[HostValue], other: Sequence[HostValue] | None
) -> Iterator[list[HostValue]]:
    """Run once, and again if that is quick; yield the first answer again after the next run."""
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
    ranks = {"wrong": 0, "doubtful": 1}
    kind, deciding = min(judged, key=lambda pair: ranks.get(pair[1].status, 2))
    return Judgement(
        deciding.status,
        max(verdict.error for _, verdict in judged),
        deciding.unjudged,
        deciding.reason,
        tuple(kind for kind, _ in judged),
        kind if deciding.status in ranks else "",
        left_out,
        repeats,
    )


def _is_finite(value: HostValue) -> bool:
    if isinstance(value, list):
        return all(map(_is_finite, value))
    is_number = value is not None and value.dtype.kind in "fc"
    return bool(np.isfinite(value).all()) if is_number else True


def same_bits(one: HostValue, other: HostValue) -> bool:
    """Tell whether two values have the same bits."""
    if isinstance(one, list):
        pairs = isinstance(other, list) and len(one) == len(other)
        return pairs and all(same_bits(x, y) for x, y in zip(one, other, strict=True))
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tolist() == other.tolist() if one.dtype == object else _bits(one) == _bits(other)


def _bits(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


Kind = Literal[
    "given",
    "random",
    "edges",
    "zeros",
    "ones",
    "random-2",
    "random-3",
    "normal",
    "normal-2",
    "small",
    "small-2",
    "large",
    "large-2",
    "peaked",
    "peaked-2",
    "poison",
]
# A NaN and infinities in each input of floats: only where they come out is judged.
POISON: Literal["poison"] = "poison"
# Values for which engines take short cuts.
SPECIAL: tuple[Kind, ...] = ("edges", "zeros", "ones")
# Further draws, for graphs whose oracle is cheap: one draw shows what another hides.
FURTHER: tuple[Kind, ...] = ("random-2", "random-3")
# Inputs on which the error of less precision may differ: other draws, distributions and scales. Two
# draws of a kind show how it varies within the kind.
VARIED: tuple[Kind, ...] = (
    "normal",
    "normal-2",
    "random",
    "random-2",
    "large",
    "small",
    "peaked",
    "large-2",
    "small-2",
    "peaked-2",
)
# The scale of each distribution that has the mean and the spread of what is given.
_SCALES = {"normal": 1.0, "peaked": 1.0, "small": 0.25, "large": 4.0}
# A tensor of so few integers may hold sizes, which must keep their values.
_SIZES = 8


@dataclass(frozen=True, eq=False)
class InputSet:
    """Inputs to judge on, and their origin."""

    kind: Kind
    values: tuple[HostValue, ...]


# Draws a set of inputs; None if it is what was given.
Draw = Callable[[], "InputSet | None"]


@final
class InputSets:
    """Sets of inputs, each drawn when it is first asked for: ten of 40 MB take seconds."""

    def __init__(self, given: Sequence[HostValue], draws: Sequence[Draw]) -> None:
        self._made = [InputSet("given", tuple(given))]
        self._left = list(reversed(draws))
        self._lock = threading.Lock()

    def __getitem__(self, place: int) -> InputSet:
        with self._lock:
            while self._left and place >= len(self._made):
                # One that could not be drawn is left for the next who asks.
                if (found := self._left[-1]()) is not None:
                    self._made.append(found)
                self._left.pop()
        return self._made[place]

    def __iter__(self) -> Iterator[InputSet]:
        for place in itertools.count():
            try:
                found = self[place]
            except IndexError:
                return
            yield found


def input_sets(graph: Graph, given: Sequence[HostValue], seed: int = 0) -> InputSets:
    """Make sets of inputs of the same sizes, the given ones first.

    Only a run shows whether the graph takes the others.
    """
    rng = np.random.default_rng([seed, 5])

    def change(kind: Kind, dtype: DType, array: Array, role: Role) -> Array:
        if kind in SPECIAL:
            return _special(dtype, array, kind, rng)
        return _drawn(dtype, array, role, rng)

    kinds: tuple[Kind, ...] = ("random", *SPECIAL, *FURTHER)
    draws = [partial(_changed, graph, given, kind, partial(change, kind)) for kind in kinds]
    return InputSets(given, draws)


def varied_sets(graph: Graph, given: Sequence[HostValue], seed: int = 0) -> InputSets:
    """Make sets of inputs of the same sizes on which errors may differ, the given ones first."""
    draws = []
    for number, kind in enumerate(VARIED):
        change = partial(_varied, kind=kind, rng=np.random.default_rng([seed, 11, number]))
        draws.append(partial(_changed, graph, given, kind, change))
    return InputSets(given, draws)


def _changed(
    graph: Graph, given: Sequence[HostValue], kind: Kind, change: Callable[..., Array]
) -> InputSet | None:
    """Change the tensors of what is given; None if all of it stays."""
    role_of = roles(graph)
    values = [
        _mapped(value.type, x, partial(change, role=role_of[value]))
        for value, x in zip(graph.inputs, given, strict=True)
    ]
    is_same = all(x is y for x, y in zip(values, given, strict=True))
    return None if is_same else InputSet(kind, tuple(values))


def _varied(dtype: DType, array: Array, role: Role, kind: Kind, rng: np.random.Generator) -> Array:
    """Draw an array like another: normal at some scale, or in its range; indices from its own."""
    if dtype.is_integer and role == "index" and array.size > _SIZES:
        return np.asarray(rng.choice(array.reshape(-1), array.shape))
    if (of := kind.partition("-")[0]) in _SCALES and dtype.is_float:
        return _around(array, of, rng).astype(dtype.numpy)
    return _drawn(dtype, array, role, rng)


def _around(array: Array, kind: str, rng: np.random.Generator) -> Array:
    """Draw with the mean and the spread of an array, at the scale of a kind."""
    finite = array.astype(np.float64)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return array
    mean, spread = float(finite.mean()), float(finite.std())
    # One number, or all alike: its size is all that is known.
    spread = spread or abs(mean) or 1.0
    shape = array.shape
    # Tails as heavy as those of many activations: they take digits from everything else.
    drawn = rng.laplace(0.0, 0.5**0.5, shape) if kind == "peaked" else rng.standard_normal(shape)
    return np.asarray(_SCALES[kind] * (mean + spread * drawn))


def _mapped(type_: Type, value: HostValue, change: Callable[[DType, Array], Array]) -> HostValue:
    """Change the tensors in a value; returns the same object if nothing changes."""
    if isinstance(type_, TensorType):
        array = np.asarray(value)
        # NumPy's arithmetic turns arrays without axes into scalars.
        changed = np.asarray(change(type_.dtype, array)) if array.size else array
        return value if changed is array else changed
    if isinstance(value, list):
        parts = [_mapped(type_.element, item, change) for item in value]
        is_same = all(x is y for x, y in zip(parts, value, strict=True))
        return value if is_same else parts
    return value if value is None else _mapped(type_.element, value, change)


def _drawn(dtype: DType, array: Array, role: Role, rng: np.random.Generator) -> Array:
    """Draw an array in the range of another; indices keep their values and change places."""
    shape = array.shape
    if dtype.kind == "string" or (dtype.is_integer and role == "index"):
        return array if array.size <= _SIZES else np.roll(array, 1 + array.size // 3)
    if dtype.kind == "bool":
        return np.asarray(rng.random(shape) < array.mean())
    if dtype.is_complex:
        parts = [_uniform(part.astype(np.float64), rng) for part in (array.real, array.imag)]
        return (parts[0] + 1j * parts[1]).astype(dtype.numpy)
    if dtype.is_integer:
        low, high = int(array.min()), int(array.max())
        return array if low == high else _integers(dtype, low, high, shape, rng)
    return _uniform(array.astype(np.float64), rng).astype(dtype.numpy)


def _integers(
    dtype: DType, low: int, high: int, shape: tuple[int, ...], rng: np.random.Generator
) -> Array:
    wide = np.uint64 if dtype.kind == "uint" else np.int64
    return rng.integers(low, high, shape, wide, endpoint=True).astype(dtype.numpy)


def _uniform(array: Array, rng: np.random.Generator) -> Array:
    finite = array[np.isfinite(array)]
    if not finite.size:
        return array
    low, high = float(finite.min()), float(finite.max())
    if low == high == 0.0 and array.size > 1:
        # A state before the first step is zero; later it is not.
        low, high = -1.0, 1.0
    return np.asarray(low + (high - low) * rng.random(array.shape))


def _special(dtype: DType, array: Array, kind: Kind, rng: np.random.Generator) -> Array:
    """Put special values into an array of floats; other arrays stay as they are."""
    if not dtype.is_float or dtype.is_narrow:
        return array
    if kind != "edges":
        return np.full(array.shape, float(kind == "ones"), dtype.numpy)
    finite = np.abs(array.astype(np.float64))
    largest = float(finite[np.isfinite(finite)].max(initial=0.0))
    tiny = 4.0 * float(np.finfo(np.float16 if dtype.bits == 16 else dtype.numpy).smallest_normal)
    large = min(4.0 * largest, dtype.range[1] / 16)
    changed = array.astype(dtype.numpy, copy=True).reshape(-1)
    places = rng.permutation(changed.size)[: max(1, min(changed.size // 8, 16))]
    edges = np.resize(np.array([-0.0, large, tiny, -large, -tiny, largest]), len(places))
    changed[places] = edges.astype(dtype.numpy)
    return changed.reshape(array.shape)
