"""Contestants of engines.py, each in its process, timed in turns; what rounds come to."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from fusewire.choosing.measure import interval
from fusewire.system.processes import scheduled

# A batch is so many seconds of calls, or one call.
BATCH, MOST_CALLS = 0.01, 2000
# Rounds that find the best bare engine; those in which all who are close to it take part.
HEATS, LEAST, MOST = 3, 9, 400
CLOSE = 1.5
# An interval of this width is clear.
CLEAR = 0.05
# Threads that spin after a call end within this.
SETTLES, TICK = 0.4, 0.004
# A batch whose threads waited this share of the time for a core is taken again.
STOLEN, RETAKES = 0.1, 2
# Up to this many seconds, a program may take so many times as long, or be so much longer.
SMALL, TIMES, LONGER = 1e-4, 1.25, 4e-6
BAR = 1.05
START_SECONDS = 600.0
# How far apart answers of different shapes are.
OTHER = 1e9


class Gone(RuntimeError):
    """A contestant ended while it was timed."""


class Player:
    """A process that runs one contestant."""

    def __init__(
        self,
        task: Mapping[str, Any],
        settings: Mapping[str, str],
        patience: float = START_SECONDS,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contestants", json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **settings},
        )
        self.pid = self._process.pid
        self.ready: dict[str, Any] = self._read(patience)

    def calls(self) -> int:
        return round(min(max(BATCH / float(self.ready["once"]), 1), MOST_CALLS))

    def seconds(self) -> float:
        """Run a batch."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self.calls()}\n")
        self._process.stdin.flush()
        said = self._read(START_SECONDS)
        if "refused" in said:
            raise Gone(said["refused"])
        return float(said["seconds"])

    def _read(self, seconds: float) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        found, _, _ = select.select([stdout], [], [], seconds)
        line = stdout.readline() if found else ""
        if not line:
            self._process.kill()
            code = self._process.wait()
            return {"refused": f"it ended with {code}" if found else "it hung"}
        return dict(json.loads(line))

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Match:
    """Rounds of players: samples by name. Those beside are timed, and no measure for ours."""

    def __init__(self, players: Mapping[str, Player], beside: Sequence[str] = ()) -> None:
        self.players = dict(players)
        self.beside = tuple(beside)
        self.samples: dict[str, list[float]] = {}
        self.twice = ""
        self.disturbed = 0
        self.rounds = 0

    def median(self, who: str) -> float:
        return statistics.median(self.samples[who])

    def heats(self, names: Sequence[str]) -> None:
        """Run a few rounds."""
        for turn in range(HEATS):
            self._round(names, turn)

    def final(self, best: str, again: Player, seconds: float) -> None:
        """Time the best bare engine, those close to it, it again, and ours, until that is clear."""
        self.twice, self.players["again"] = best, again
        limit = CLOSE * self.median(best)
        names = [w for w in self.players if w not in self.samples or self.median(w) <= limit]
        for who in names:
            self.samples.pop(who, None)
        end = time.monotonic() + seconds
        while self.rounds < MOST and (self.rounds < LEAST or time.monotonic() < end):
            self._round(names, self.rounds)
            self.rounds += 1
            if self.rounds >= LEAST and self.is_clear():
                break

    def best(self) -> str:
        """Name the bare engine that is best of those who were in all rounds."""
        close = [
            who
            for who in self.samples
            if who not in ("fusewire", "again", *self.beside)
            and len(self.samples[who]) == self.rounds
        ]
        return min(close, key=self.median)

    def is_clear(self) -> bool:
        """Tell whether the ratios that decide are known well enough."""
        pairs = (("fusewire", self.best()), ("again", self.twice))
        return all(_width(self.ratios(who, than)) <= CLEAR for who, than in pairs)

    def ratios(self, who: str, than: str) -> list[float]:
        pairs = zip(self.samples[who], self.samples[than], strict=True)
        return [a / b for a, b in pairs]

    def found(self) -> dict[str, Any]:
        """Tell what is known of each player."""
        times = {
            who: {"seconds": self.median(who), "interval": interval(self.samples[who])}
            for who in self.samples
        }
        return {
            "bare": {w: times[w] for w in times if w not in ("fusewire", "again")},
            "ours": times["fusewire"],
            "again": times["again"],
            "twice": self.twice,
            "rounds": self.rounds,
            "disturbed": self.disturbed,
        }

    def _round(self, names: Sequence[str], turn: int) -> None:
        turn %= len(names)
        for who in (*names[turn:], *names[:turn]):
            self.samples.setdefault(who, []).append(self._sample(self.players[who]))

    def _sample(self, player: Player) -> float:
        for attempt in range(RETAKES + 1):
            self._settle()
            before, start = scheduled(player.pid).waited, time.perf_counter()
            found = player.seconds()
            wall = time.perf_counter() - start
            if scheduled(player.pid).waited - before <= STOLEN * wall or attempt == RETAKES:
                return found
            self.disturbed += 1
        raise AssertionError("the last attempt is taken as it is")

    def _settle(self) -> None:
        """Wait until nobody works any more."""
        pids = [player.pid for player in self.players.values()]
        end = time.monotonic() + SETTLES
        before = [scheduled(pid).ran for pid in pids]
        while time.monotonic() < end:
            time.sleep(TICK)
            now = [scheduled(pid).ran for pid in pids]
            if all(b - a < TICK / 8 for a, b in zip(before, now, strict=True)):
                return
            before = now


def _width(ratios: Sequence[float]) -> float:
    low, high = interval(ratios)
    return high - low


def verdict(match: Match) -> dict[str, Any]:
    """Compare ours with the best bare engine of the rounds; "unclear" is to be run again."""
    best = match.best()
    ratios = match.ratios("fusewire", best)
    ratio, (low, high) = statistics.median(ratios), interval(ratios)
    same = match.ratios("again", match.twice)
    seconds = match.median(best)
    bar = max(TIMES, 1 + LONGER / seconds) if seconds < SMALL else BAR
    noise = interval(same)
    if high <= bar:
        came = "pass"
    elif max(high - low, noise[1] - noise[0]) > CLEAR:
        came = "unclear"
    else:
        came = "pass" if ratio <= max(bar, noise[1]) else "fail"
    return {
        "best": best,
        "ratio": ratio,
        "interval": (low, high),
        "aa": statistics.median(same),
        "aa_interval": noise,
        "bar": bar,
        "verdict": came,
    }


def apart(folder: Path, names: Sequence[str]) -> dict[str, float]:
    """Tell how far the answers of each are from those of ONNX Runtime, over the largest number."""
    answers = {}
    for who in names:
        with np.load(folder / f"{who}.npz") as held:
            answers[who] = [held[key] for key in held.files]
    wanted = answers["onnxruntime"]
    return {who: _far(found, wanted) for who, found in answers.items()}


def _far(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    if [x.shape for x in found] != [x.shape for x in wanted]:
        return OTHER
    worst = 0.0
    for x, y in zip(found, wanted, strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        if not x.size:
            continue
        if not np.array_equal(np.isfinite(x), np.isfinite(y)):
            return OTHER
        far, most = np.abs(np.nan_to_num(x - y)).max(), np.abs(np.nan_to_num(y)).max()
        worst = max(worst, float(far / most) if most else float(far))
    return worst
