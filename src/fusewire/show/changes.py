"""What would change a plan: the next best candidate without an engine, from the recorded race."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusewire.show.why import Tried

# The status of a candidate that was timed, and was not quick enough to be compared with the oracle.
_UNJUDGED = "not judged"


@dataclass(frozen=True)
class PlanChange:
    """What would be chosen without an engine, and how much longer that takes.

    ``change`` is 0.38 for 38% longer. It lies between ``low`` and ``high`` if the times of both lie
    in their 95% intervals. ``candidate`` is "" if nothing would be left; ``over_limit`` then names
    the quickest that only holds more than ``memory_limit``. A race judges the quickest candidates,
    and would judge the next one before it is chosen: ``is_judged`` says whether it was.
    """

    without: str
    candidate: str
    seconds: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    is_judged: bool = True
    over_limit: str = ""

    @property
    def is_within_noise(self) -> bool:
        """Whether the two cannot be told apart."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high

    def sentence(self) -> str:
        """Say it in a line: "without openvino: +38% (onnxruntime)"."""
        if self.over_limit:
            return (
                f"without {self.without}: nothing is left that keeps to memory_limit "
                f"({self.over_limit} needs more)"
            )
        if self.change is None:
            return f"without {self.without}: nothing is left that may be right"
        noise = ", within the noise" if self.is_within_noise else ""
        judged = "" if self.is_judged else ", not judged yet"
        return f"without {self.without}: {self.change:+.0%} ({self.candidate}{noise}{judged})"


def engines_of(candidate: Tried) -> tuple[str, ...]:
    """Name the engines of a candidate, the fallback too if it runs nodes on data."""
    engines = candidate.engines or (candidate.backend,)
    is_split = candidate.elsewhere > 0 and "reference" not in engines
    return (*engines, "reference") if is_split else engines


def changes(tried: Sequence[Tried]) -> Iterator[PlanChange]:
    """Yield what would be chosen without each engine of the chosen candidate."""
    chosen = next((candidate for candidate in tried if candidate.is_chosen), None)
    if chosen is None or not chosen.seconds:
        return
    usable = [x for x in tried if x.seconds and x.status in ("right", _UNJUDGED, chosen.status)]
    for engine in engines_of(chosen):
        left = [x for x in usable if engine not in engines_of(x)]
        best = _quickest([x for x in left if not x.is_barred])
        if best is not None:
            yield _compared(engine, chosen, best)
        else:
            over = _quickest(left)
            yield PlanChange(engine, "", over_limit="" if over is None else over.name)


def _quickest(candidates: Sequence[Tried]) -> Tried | None:
    return min(candidates, key=lambda x: x.seconds or 0.0, default=None)


def _compared(engine: str, chosen: Tried, other: Tried) -> PlanChange:
    assert chosen.seconds
    assert other.seconds
    low = high = None
    if other.low and other.high and chosen.low and chosen.high:
        low, high = other.low / chosen.high - 1, other.high / chosen.low - 1
    change, is_judged = other.seconds / chosen.seconds - 1, other.status != _UNJUDGED
    return PlanChange(engine, other.name, other.seconds, change, low, high, is_judged)
