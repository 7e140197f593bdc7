"""The page of calibrated.py: what it kept, as tables."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibrated_data import TASKS
from benchmarks.engines import slug
from fusewire.choosing.measure import interval
from fusewire.numerics.confidence import lower_limit

# How the limit is tried on the tests: so many draws of so many of them.
DRAWS, DRAWN = 400, 300
FULL = ("onnxruntime, float32, bare", "openvino, float32, bare")
OURS, EXACT = "fusewire, calibrated", "fusewire, exact"
_SHOWN = re.compile(r"is (\S+) on average of (\d+) samples, and of others at least (\S+) ")


class Kept:
    """What is kept of one model."""

    def __init__(self, folder: Path, titles: Sequence[str]) -> None:
        self.name = folder.name
        self.data, self.times = _read(folder / "data.json"), _read(folder / "times.json")
        self.chosen, self.olive = _read(folder / "chosen.json"), _read(folder / "olive.json")
        rows = {title: _read(folder / f"score.{slug(title)}.json") for title in titles}
        self.rows = {title: row for title, row in rows.items() if row}

    @property
    def best(self) -> float | None:
        """The seconds of the best engine in float32, run bare."""
        known = [self.times["seconds"][x] for x in FULL if x in self.times.get("seconds", {})]
        return min(known, default=None)

    def ratio(self, title: str, than: str) -> tuple[float, float, float] | None:
        """How many times as fast one is as another, with the interval."""
        samples = self.times.get("samples", {})
        if title not in samples or than not in samples:
            return None
        ratios = [b / a for a, b in zip(samples[title], samples[than], strict=True)]
        return statistics.median(ratios), *interval(ratios)

    @property
    def fastest(self) -> str:
        """The best engine in float32, run bare."""
        return min(FULL, key=lambda title: self.times["seconds"][title])


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def page(kept: Path, titles: Sequence[str]) -> str:
    """Write the page."""
    models = [Kept(kept / name, titles) for name in TASKS if (kept / name).exists()]
    lines = [_OPENING, *_about(models), "", *_summary(models)]
    for model in models:
        lines += ["", *_section(model)]
    return "\n".join([*lines, "", *_limits(models), "", _NOTES])


def _about(models: Sequence[Kept]) -> Iterator[str]:
    times = next((model.times for model in models if model.times), None)
    if times is not None:
        olive = {x.olive["version"] for x in models if x.olive}
        known = [f"{name} {number}" for name, number in times["versions"].items()]
        known += [f"olive-ai {number}" for number in sorted(olive)]
        yield f"{times['machine']}. Versions: {', '.join(known)}."
    for name, what in _missing(models):
        yield ""
        yield f"**{name} has no {what} yet**: `python benchmarks/calibrated.py` goes on with it."


def _missing(models: Sequence[Kept]) -> Iterator[tuple[str, str]]:
    for model in models:
        parts = {"choice": model.chosen, "times": model.times}
        parts |= {"score of what was chosen": model.rows.get(OURS, {})}
        parts |= {"score of int8 by itself": model.rows.get("fusewire, int8 by openvino", {})}
        if what := [part for part, found in parts.items() if not found]:
            yield model.name, ", ".join(what)


def _summary(models: Sequence[Kept]) -> Iterator[str]:
    yield "## What it comes to"
    yield ""
    yield (
        "| model | asked for | chosen | score on tests | faster than the best float32 engine, bare "
        "| than ours, exact |"
    )
    yield "|---|---|---|---:|---:|---:|"
    for model in models:
        task, row = TASKS[model.name], model.rows.get(OURS, {})
        asked = f"{task.metric.__name__} {task.least:g}"
        chosen = next((x["name"] for x in model.chosen.get("tried", ()) if x["is_chosen"]), "-")
        score = f"{np.mean(row['scores']):.4f}" if "scores" in row else "-"
        bare = model.ratio(OURS, model.fastest) if model.times else None
        own = model.ratio(OURS, EXACT)
        yield f"| {model.name} | {asked} | {chosen} | {score} | {_times(bare)} | {_times(own)} |"


def _times(ratio: tuple[float, float, float] | None) -> str:
    return "-" if ratio is None else f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})"


def _section(model: Kept) -> Iterator[str]:
    task, best = TASKS[model.name], model.best
    right, data = model.data.get("right"), model.data
    yield f"## {model.name}"
    yield ""
    known = "" if right is None else f" The model in float32 is right about {right:.1%} of 200."
    yield (
        f"{data['tests']:,} tests, {data['calibrating']:,} samples for calibration: {task.inputs}."
        f"{known} Metric: {task.metric.__name__}."
    )
    yield ""
    yield "| contestant | mean score | least | error, median | error, largest | ms | times |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for title, row in model.rows.items():
        yield _row(model, title, row, best)
    if "tried" in model.chosen:
        yield ""
        yield from _verdicts(model)
    elif "refused" in model.chosen:
        yield ""
        yield f"Fusewire chose nothing: {model.chosen['refused']}"


def _row(model: Kept, title: str, row: Mapping[str, Any], best: float | None) -> str:
    if "failed" in row:
        return f"| {title} | failed: {' '.join(row['failed'].split())[:200]} | | | | | |"
    scores, errors = row["scores"], row["errors"]
    shown = [f"{np.mean(scores):.4f}", f"{min(scores):.3f}"]
    shown += [f"{np.median(errors):.1e}", f"{max(errors):.1e}"]
    seconds = model.times.get("seconds", {}).get(title)
    if seconds is None or best is None:
        shown += ["", ""]
    else:
        shown += [f"{seconds * 1e3:.3f}", f"{best / seconds:.2f}"]
    return f"| {title} | {' | '.join(shown)} |"


def _verdicts(model: Kept) -> Iterator[str]:
    task, tried = TASKS[model.name], model.chosen["tried"]
    chosen = next((row["name"] for row in tried if row["is_chosen"]), "nothing")
    asked = f"`accuracy=({task.metric.__name__}, {task.least:g})`"
    yield f"{asked} chose {chosen} in {model.chosen['ready']:.0f} s."
    yield ""
    for row in tried:
        if row["is_reduced"]:
            seconds = "" if row["seconds"] is None else f" ({row['seconds'] * 1e3:.3f} ms)"
            yield f"- {row['name']}: {row['status']}{seconds}. {row['reason']}"


def _limits(models: Sequence[Kept]) -> Iterator[str]:
    """Yield what limits were said, and how often a limit from the tests is too high."""
    yield "## Does the limit hold?"
    yield ""
    yield (
        "What was said of candidates when they were judged, and the mean on the tests, which took "
        "no part in that:"
    )
    yield ""
    yield "| model | candidate | judged on | mean | others at least | mean of the tests | holds |"
    yield "|---|---|---:|---:|---:|---:|---|"
    for model in models:
        for row in model.chosen.get("tried", ()):
            found = _SHOWN.search(row["reason"])
            title = f"fusewire, int8 by {row['backend']}"
            scores = model.rows.get(title, {}).get("scores")
            if found is None or scores is None or "calibrated" not in row["name"]:
                continue
            mean, count, limit = found.groups()
            tests = float(np.mean(scores))
            holds = "yes" if tests >= float(limit) else "**no**"
            yield (
                f"| {model.name} | {row['name']} | {count} | {mean} | {limit} | {tests:.4f} "
                f"| {holds} |"
            )
    yield ""
    yield from _drawn(models)


def _drawn(models: Sequence[Kept]) -> Iterator[str]:
    yield (
        f"Of {DRAWS} draws of {DRAWN} of the tests each, with replacement, so many have a limit "
        "that is above the mean of all tests; 5% may:"
    )
    yield ""
    yield "| model | contestant | mean of the tests | limit, median | too high |"
    yield "|---|---|---:|---:|---:|"
    rng = np.random.default_rng(0)
    for model in models:
        for title, row in model.rows.items():
            scores = np.asarray(row.get("scores", ()))
            if not scores.size or scores.min() == scores.max() or "float32" in title:
                continue
            drawn = [lower_limit(rng.choice(scores, DRAWN).tolist()) for _ in range(DRAWS)]
            high = np.mean([limit > scores.mean() for limit in drawn])
            yield (
                f"| {model.name} | {title} | {scores.mean():.4f} | {np.median(drawn):.4f} "
                f"| {high:.1%} |"
            )


_OPENING = """# Int8 with fixed scales, at a metric of the task

`benchmarks/calibrated.py`: scores on real inputs that took no part in calibration, against the
model in float32 (ONNX Runtime, bare). 1 is the same answer. All contestants were timed in turns on
one input, each in a process of its own; *times* says how many times as fast one is as the best
engine in float32, run bare. This processor has AVX-512 with VNNI, so that int8 can gain, and
neither bf16 nor AMX: OpenVINO's default precision is float32 here, and there is no bf16 to compare
with.
"""
_NOTES = """## How to read it

The error is the norm of the difference over the norm of the float32 output. The tools measured
ranges on 128 samples, as Fusewire did; the others are for judging. `quantize_static` is QDQ, per
channel; for minilm-l3 only products are rounded, since its defaults also round the scores that an
attention mask has made huge. nncf has its defaults, and is told of minilm-l3 that it is a
transformer. What a tool raised is in its row.

Olive installs here, and imports only once `requests` is installed, which it does not declare. Its
`auto-opt --precision int8` takes no samples for an ONNX file: it rounds weights, and what they are
multiplied with at every run. Its newer `optimize --precision int8` rounds with fixed scales, but
calibrates any model on the text of wikitext-2 from the Hugging Face hub: it raises without the
`datasets` package, and has no inputs for pictures or bytes.

Each candidate must show the score asked for with 95% confidence on samples that no range was
measured on ([0065](../../docs/decisions/0065-scores-have-a-margin.md)). It is chosen only if it is
faster than the best exact one by more than the noise: of mnist, calls take 0.1 ms, and int8 gains
nothing.

Words of minilm-l3 are numbered by a hash, since the wheel of the model has no vocabulary: the
sentences have the lengths and repetitions of real ones, and no meaning.
"""
