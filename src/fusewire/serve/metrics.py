"""Counts of requests and batches, and their Prometheus form.

Requests count with plain ints, and the client library of Prometheus sees them only when somebody
scrapes: its own counters would cost a request more than all else that is done to it here.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from fusewire.serve.batcher import Pending

# Upper ends, in seconds and in rows.
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Buckets:
    """How many values lie below each of several ends."""

    def __init__(self, ends: tuple[float, ...]) -> None:
        self.ends = ends
        self.counts = [0] * (len(ends) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.ends, value)] += 1
        self.total += value

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """Yield each end as text, and how many values lie at or below it."""
        count = 0
        for end, here in zip((*map(str, self.ends), "+Inf"), self.counts, strict=True):
            count += here
            yield end, count


class ModelCounts:
    """What happened to the requests of one model."""

    def __init__(self) -> None:
        self.refused = self.cancelled = self.late = self.failed = self.repeated = 0
        self.rows = Buckets(ROWS)
        self.seconds = Buckets(SECONDS)
        # By protocol and status.
        self.answers: dict[tuple[str, str], int] = {}
        self._recent: tuple[float, int] = (time.monotonic(), 0)
        self._answered = 0
        self._rate = 0.0

    def note_batch(self, batch: list[Pending]) -> None:
        """Count a batch that was answered."""
        now = time.monotonic()
        self.rows.add(sum(pending.rows for pending in batch))
        for pending in batch:
            self.seconds.add(now - pending.since)
        self._answered += len(batch)
        since, count = self._recent
        if now - since > 1.0:
            self._rate = (self._answered - count) / (now - since)
            self._recent = now, self._answered

    def note_answer(self, protocol: str, status: str) -> None:
        """Count an answer by its status."""
        key = protocol, status
        self.answers[key] = self.answers.get(key, 0) + 1

    def rate(self) -> float:
        """Requests per second that were answered of late."""
        return self._rate


_OUTCOMES = {
    "refused": "Requests refused because too many waited",
    "cancelled": "Requests whose client left before they ran",
    "late": "Requests whose deadline passed before they ran",
    "failed": "Requests that an engine failed",
    "repeated": "Requests that ran again after an engine failed their batch",
}


def exposition(
    counts: Mapping[str, ModelCounts], waiting: Mapping[str, int], held: int, deaths: int
) -> bytes:
    """Write all counts as Prometheus reads them."""
    from prometheus_client import CollectorRegistry, generate_latest

    class _Counts:
        def collect(self) -> Iterable[Metric]:
            return _metrics(counts, waiting, held, deaths)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Counts())
    return bytes(generate_latest(registry))


def _metrics(
    counts: Mapping[str, ModelCounts], waiting: Mapping[str, int], held: int, deaths: int
) -> Iterable[Metric]:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    answers = CounterMetricFamily(
        "fusewire_requests", "Answers by status", labels=["model", "protocol", "status"]
    )
    seconds = HistogramMetricFamily(
        "fusewire_request_seconds", "Time from arrival to answer", labels=["model"]
    )
    rows = HistogramMetricFamily("fusewire_batch_rows", "Rows of batches", labels=["model"])
    queued = GaugeMetricFamily("fusewire_queue_requests", "Requests that wait", labels=["model"])
    bodies = GaugeMetricFamily(
        "fusewire_held_bytes", "Bytes of requests that are read, wait or run", value=held
    )
    died = CounterMetricFamily(
        "fusewire_replica_deaths", "Processes of engines that died", value=deaths
    )
    outcomes = {
        name: CounterMetricFamily(f"fusewire_{name}_requests", text, labels=["model"])
        for name, text in _OUTCOMES.items()
    }
    for model, own in counts.items():
        for (protocol, status), number in own.answers.items():
            answers.add_metric([model, protocol, status], number)
        seconds.add_metric([model], list(own.seconds.cumulative()), own.seconds.total)
        rows.add_metric([model], list(own.rows.cumulative()), own.rows.total)
        queued.add_metric([model], waiting.get(model, 0))
        for name, metric in outcomes.items():
            metric.add_metric([model], getattr(own, name))
    return [answers, seconds, rows, queued, bodies, died, *outcomes.values()]
