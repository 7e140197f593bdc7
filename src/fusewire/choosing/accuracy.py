"""Judge candidates that compute in less than the model's own dtypes, by what the user accepts.

They are right if their error stays within the bound on the given inputs and on others, with a
margin for inputs that nobody has seen. The others are samples of the user's, or generated if there
are none. One that does not is not accurate enough for this user: that is no fault of the engine,
and nothing about it is quarantined.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast, final

import numpy as np

from fusewire.choosing.judge import (
    InputSet,
    InputSets,
    Judge,
    Judgement,
    Kind,
    Run,
    answers,
    same_bits,
    varied_sets,
)
from fusewire.errors import OptionsError
from fusewire.ir.graph import Graph, HostValue
from fusewire.ir.types import TensorType
from fusewire.numerics.confidence import fewest, lower_limit
from fusewire.numerics.deviation import (
    Deviation,
    by_output,
    deviations,
    limit_for_others,
    worst,
)
from fusewire.options import Accuracy

# How much longer than the slowest one so far the next exact run may take.
_SLACK = 1.2
# The sets on which exact answers always come from the reference, a yardstick's own among them.
_BY_REFERENCE = ("given", "normal", "sample")
# So many sets are enough for a verdict when the time is used up.
_ENOUGH = 8
_NO_TIME = "no time was left"
# A yardstick's own error may be at most this share of the bound.
_LEAST_SHARE = 0.01
# The most samples that are judged: so many for a bound, and up to so many for a score.
_FOR_BOUND, _FOR_SCORE = 64, 1024
# For a score, this many times as many samples as it takes if all are perfect: with 298 of 299 that
# agree, 0.99 is not shown.
_TIMES = 4
# After so many samples each, it is seen whether the rest could still show the score asked for.
_CHECKED = 16


@final
class AccuracyJudge:
    """Judges the candidates of one graph by a bound, or by a function of the user.

    The exact answers are those of the reference in float64, as for any other verdict. They are
    computed when they are first needed, until the deadline of ``judge``. A ``yardstick``, an exact
    candidate that was judged right, answers in its place for most inputs: it may be a thousand
    times as fast, and its own error is added to those that it measures. With ``samples`` of the
    user's inputs, nothing is generated: they show what inputs are like, and noise does not.
    """

    def __init__(
        self,
        judge: Judge,
        accuracy: Accuracy,
        seed: int = 0,
        samples: Sequence[Sequence[HostValue]] = (),
    ) -> None:
        self._judge = judge
        self._accuracy = accuracy
        self._has_samples, self._sample_count = bool(samples), len(samples)
        given = judge.sets[0]
        self._sets: InputSets | list[InputSet] = (
            [given, *_sample_sets(samples)]
            if samples
            else varied_sets(judge.graph, given.values, seed)
        )
        self._exact: dict[str, list[HostValue] | str] = {}
        self._cost = 0.0
        self._yardstick: Run | None = None
        # The largest error of the yardstick where the reference answered, too.
        self._own_error = 0.0

    def measure_by(self, yardstick: Run) -> bool:
        """Take the answers of an exact candidate for those of the reference; False if it may not.

        It must have been judged right, and be far nearer to the reference than the bound is. A
        function must accept it, and is asked only about samples.
        """
        is_bound = isinstance(self._accuracy, int | float)
        if self._yardstick is not None or not (is_bound or self._has_samples):
            return False
        sets = [inputs for inputs in self._sets if inputs.kind in _BY_REFERENCE]
        exact = {inputs.kind: self._exact_outputs(inputs) for inputs in sets}
        measured: list[Deviation] = []
        for inputs in sets:
            right = exact[inputs.kind]
            if isinstance(right, str):
                return False
            answer, graph = yardstick(inputs.values), self._judge.graph
            found = deviations(graph, right, answer, inputs.kind)
            if _problem(graph, self._accuracy, right, answer, found):
                return False
            measured += found
        error = max((one.relative for one in measured), default=math.inf)
        if isinstance(self._accuracy, int | float) and not error <= _LEAST_SHARE * self._accuracy:
            return False
        self._yardstick, self._own_error = yardstick, error
        return True

    def judge(self, run: Run) -> Judgement:
        """Judge the answers of a callable until one will not do; what engines raise passes through.

        Too few sets of inputs say nothing about others: "not judged".
        """
        measured: list[Deviation] = []
        judged: list[str] = []
        left_out: list[str] = []
        scores: list[float] = []
        repeats = True
        for inputs in self._sets:
            is_enough = self._has_samples and len(judged) >= _ENOUGH
            exact = _NO_TIME if is_enough and self._is_late else self._exact_outputs(inputs)
            if isinstance(exact, str):
                left_out.append(f"{inputs.kind}: {exact}")
                continue
            first, *others = self._answers(run, inputs)
            differing = [answer for answer in others if not same_bits(first, answer)]
            repeats &= not differing
            judged.append(inputs.kind)
            for answer in (first, *differing):
                found = self._deviations(exact, answer, inputs.kind)
                measured += found
                if self._is_averaged(inputs):
                    scores.append(_score(self._judge.graph, self._accuracy, exact, answer))
                    left = self._sample_count - len(scores)
                    if _is_hopeless(self._accuracy, scores, left):
                        status, reason = _on_average(self._accuracy, scores, left)
                        return self._judgement(status, reason, measured, judged, left_out)
                elif problem := _problem(self._judge.graph, self._accuracy, exact, answer, found):
                    status, kind = "inaccurate", inputs.kind
                    return self._judgement(status, problem, measured, judged, left_out, kind)
        if scores:
            status, reason = _on_average(self._accuracy, scores)
        elif self._has_samples and isinstance(self._accuracy, tuple):
            # Inputs of one call say nothing about an average.
            status, reason = "not judged", " ".join(left_out)
        else:
            status, reason = self._with_margin(measured, left_out)
        return self._judgement(status, reason, measured, judged, left_out, repeats=repeats)

    @property
    def _is_late(self) -> bool:
        return time.monotonic() >= min(self._judge.deadline, self._judge.end)

    def _is_averaged(self, inputs: InputSet) -> bool:
        """Tell whether a set is a sample whose score counts as one of many."""
        return isinstance(self._accuracy, tuple) and inputs.kind.startswith("sample")

    def error(self, run: Run, seconds: float) -> float:
        """Measure the error that other inputs stay within, in about so many seconds.

        With too few sets of inputs to tell, it is the largest error; infinite if there is none.
        """
        end, measured = time.monotonic() + seconds, list[Deviation]()
        for inputs in self._sets:
            if measured and time.monotonic() > end:
                break
            exact = self._exact_outputs(inputs)
            if not isinstance(exact, str):
                measured += self._deviations(exact, run(inputs.values), inputs.kind)
        limit, largest = limit_of(measured)[0], worst(measured)
        return limit if limit < math.inf or largest is None else largest.relative

    def _answers(self, run: Run, inputs: InputSet) -> Iterator[list[HostValue]]:
        """Run once; on the given inputs again, if that is quick, with others in between."""
        if inputs.kind != "given":
            yield run(inputs.values)
            return
        yield from answers(run, inputs.values, self._judge.other())

    def _deviations(
        self, exact: Sequence[HostValue], answer: Sequence[HostValue], kind: Kind
    ) -> list[Deviation]:
        """Measure an answer; what a yardstick measures may be off by its own error."""
        found = deviations(self._judge.graph, exact, answer, kind)
        if self._yardstick is None or kind in _BY_REFERENCE:
            return found
        return [replace(one, relative=one.relative + self._own_error) for one in found]

    def _exact_outputs(self, inputs: InputSet) -> list[HostValue] | str:
        """Return the exact outputs for a set, or the reason why the set is left out."""
        if inputs.kind in self._exact:
            return self._exact[inputs.kind]
        if self._yardstick is not None and inputs.kind not in _BY_REFERENCE:
            self._exact[inputs.kind] = self._yardstick(inputs.values)
            return self._exact[inputs.kind]
        start = time.monotonic()
        if start + _SLACK * self._cost >= min(self._judge.deadline, self._judge.end):
            # Not cached: the deadline may be moved.
            return _NO_TIME
        exact = self._exact[inputs.kind] = self._judge.exact(inputs)
        self._cost = max(self._cost, time.monotonic() - start)
        return exact

    def _with_margin(
        self, measured: Sequence[Deviation], left_out: Sequence[str]
    ) -> tuple[str, str]:
        """Say whether other inputs stay within the bound, too; too few say nothing about others."""
        if not measured:
            return "not judged", " ".join(left_out)
        if not isinstance(self._accuracy, int | float):
            return "right", ""
        limit, output = limit_of(measured)
        if limit <= self._accuracy:
            return "right", ""
        if limit == math.inf:
            few = "Too few inputs were judged to tell how the error varies."
            return "not judged", " ".join([few, *left_out])
        return "inaccurate", (
            f"For other inputs the error of {output} may reach {limit:.1e}, as far as those "
            f"measured tell; the bound is {self._accuracy:g}."
        )

    def _judgement(
        self,
        status: str,
        reason: str,
        measured: Sequence[Deviation],
        judged: Sequence[str],
        left_out: Sequence[str],
        kind: str = "",
        repeats: bool = True,
    ) -> Judgement:
        return Judgement(
            status,  # type: ignore[arg-type]  # one of its statuses
            reason=reason,
            sets=tuple(judged),
            kind=kind,
            left_out=tuple(left_out),
            repeats=repeats,
            errors=tuple(_worst_of_each(measured)),
            limit=limit_of(measured)[0],
        )


def accuracy_problem(
    graph: Graph, accuracy: Accuracy, exact: Sequence[HostValue], answer: Sequence[HostValue]
) -> str:
    """Say why an answer to some inputs will not do; empty if it will."""
    return _problem(graph, accuracy, exact, answer, deviations(graph, exact, answer))


def _problem(
    graph: Graph,
    accuracy: Accuracy,
    exact: Sequence[HostValue],
    answer: Sequence[HostValue],
    found: Sequence[Deviation],
) -> str:
    if isinstance(accuracy, int | float):
        largest = worst(found)
        if largest is None or largest.relative <= accuracy:
            return ""
        return f"{shown_error(largest)}; the bound is {accuracy:g}."
    function, *least = accuracy if isinstance(accuracy, tuple) else (accuracy,)
    assert callable(function), "options are checked"
    return _refused(function, function(as_declared(graph, exact), list(answer)), *least)


def _refused(function: Callable[..., object], result: object, *least: float) -> str:
    """Say why the user's function does not accept an answer; empty if it does."""
    name = getattr(function, "__name__", repr(function))
    if least:
        score = float(result)  # type: ignore[arg-type]  # what is no number raises TypeError
        return "" if score >= least[0] else f"{name} is {score:g}, and {least[0]:g} is asked for."
    if not isinstance(result, bool | np.bool_):
        raise OptionsError(
            f"accuracy={name}: it returned {result!r}. Return True or False, or give the least "
            f"score that will do: accuracy=({name}, 0.99)."
        )
    return "" if result else f"{name} does not accept it."


def _sample_sets(samples: Sequence[Sequence[HostValue]]) -> Iterator[InputSet]:
    """Name samples as draws of one kind."""
    for number, sample in enumerate(samples, 1):
        kind = "sample" if number == 1 else f"sample-{number}"
        yield InputSet(cast(Kind, kind), tuple(sample))


def _score(
    graph: Graph, accuracy: Accuracy, exact: Sequence[HostValue], answer: Sequence[HostValue]
) -> float:
    """Return the score that the user's function gives an answer."""
    assert isinstance(accuracy, tuple), "only such a function returns a score"
    return float(accuracy[0](as_declared(graph, exact), list(answer)))


def most_judged(accuracy: Accuracy) -> int:
    """Return how many samples are judged at most; for a score, as many as may show it."""
    if not isinstance(accuracy, tuple):
        return _FOR_BOUND
    needed = fewest(accuracy[1])
    most = _FOR_SCORE if needed is None else _TIMES * needed
    return min(max(most, _FOR_BOUND), _FOR_SCORE)


def _on_average(accuracy: Accuracy, scores: Sequence[float], left: int = 0) -> tuple[str, str]:
    """Say whether samples show that others reach the least score on average.

    ``left`` samples were not judged, because they could not change the verdict.
    """
    assert isinstance(accuracy, tuple), "only such a function returns a score"
    function, least = accuracy
    name, mean = getattr(function, "__name__", repr(function)), sum(scores) / len(scores)
    limit, needed = lower_limit(scores), fewest(least)
    reason = f"{name} is {mean:.4g} on average of {len(scores)} samples"
    if limit >= least:
        return "right", f"{reason}, and of others at least {limit:.4g} (95% confidence)."
    if mean < least:
        return "inaccurate", f"{reason}, and {least:g} is asked for."
    is_bounded, count = min(scores) >= 0.0 and max(scores) <= 1.0, len(scores) + left
    if not is_bounded or (needed is not None and count >= needed):
        return "inaccurate", (
            f"{reason}, but of others it may be {limit:.4g} (95% confidence), and {least:g} is "
            "asked for."
        )
    if needed is None:
        return "not judged", (
            f"{reason}. No number of samples shows that it is {least:g} for others: ask for less, "
            "or give a function that returns True or False."
        )
    return "not judged", (
        f"{reason}, which cannot show that it is {least:g} for others: that takes {needed} at "
        "least. Give more samples, twice as many in all, or a larger budget_seconds."
    )


def _is_hopeless(accuracy: Accuracy, scores: Sequence[float], left: int) -> bool:
    """Tell, now and then, whether perfect scores of the samples left could show too little."""
    assert isinstance(accuracy, tuple), "only such a function returns a score"
    if len(scores) % _CHECKED or min(scores) < 0.0 or max(scores) > 1.0:
        return False
    return lower_limit([*scores, *[1.0] * left]) < accuracy[1]


def _worst_of_each(measured: Sequence[Deviation]) -> Iterator[Deviation]:
    """Yield the largest error of each set of inputs."""
    found: dict[str, Deviation] = {}
    for one in measured:
        largest = found.setdefault(one.inputs, one)
        if one.relative > largest.relative:
            found[one.inputs] = one
    yield from found.values()


def limit_of(measured: Sequence[Deviation]) -> tuple[float, str]:
    """Return the error that other inputs stay within, and of which output it is."""
    limits = {name: limit_for_others(errors) for name, errors in by_output(measured).items()}
    output = max(limits, key=lambda name: limits[name], default="")
    return limits.get(output, 0.0), output


def shown_error(error: Deviation) -> str:
    """Say how large an error is, of which output and on which inputs."""
    return (
        f"The relative error of {error.output} is {error.relative:.1e} on {error.inputs} inputs, "
        f"that of its largest element {error.element:.1e}"
    )


def as_declared(graph: Graph, exact: Sequence[HostValue]) -> list[HostValue]:
    """Round exact outputs to the dtypes that the graph declares."""
    return [
        x.astype(value.type.dtype.numpy)
        if isinstance(value.type, TensorType) and isinstance(x, np.ndarray)
        else x
        for value, x in zip(graph.outputs, exact, strict=True)
    ]
