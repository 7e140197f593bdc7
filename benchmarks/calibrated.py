"""What does int8 with fixed scales cost at a metric of the task, on real inputs?

    python benchmarks/calibrated.py NAME ... [--tests 500] [--budget 60]
    python benchmarks/calibrated.py --page              writes results/calibrated.md of what was run

Real inputs are made here, those for calibration apart from those for testing: handwritten digits of
scikit-learn for mnist, sentences of installed documentation for minilm-l3, files of this machine
for magika, and rendered text for page-orientation and ppocr-rec. Scores are against the model in
float32, run bare by ONNX Runtime: 1 is the same answer. Contestants are ONNX Runtime's
``quantize_static`` (QDQ, per channel) and OpenVINO's nncf, on the same calibration samples and
run bare; OpenVINO as it is by default; Fusewire with ``accuracy=(metric, least)`` and
``calibrate``; and its int8 candidates by themselves, whether or not they were chosen. No times are
taken. Needs scikit-learn, Pillow and nncf beside the extras.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks" / "zoo"), str(ROOT)]

import numpy as np  # noqa: E402 - the path comes first

import fusewire as fw  # noqa: E402
from benchmarks.engines import HOME, machine  # noqa: E402
from fusewire.compiler import Session  # noqa: E402
from fusewire.contract.backend import CALIBRATED  # noqa: E402
from fusewire.model_source import ModelSource  # noqa: E402
from fusewire.numerics.metrics import cosine, relative, top1  # noqa: E402
from fusewire.planning.candidates import Candidate  # noqa: E402

zoo = import_module("zoo")
KEPT = HOME / "calibrated"
PAGE = ROOT / "benchmarks" / "results" / "calibrated.md"
CALIBRATING = 256
DOCUMENTS = Path("/usr/share")
FONTS = sorted(Path("/usr/share/fonts").rglob("*.ttf"))

Sample = dict[str, Any]
Run = Callable[[Sample], list[Any]]


# Inputs.


def digits(count: int) -> list[Sample]:
    """Handwritten digits, made as large as the model's, in its range."""
    images = import_module("sklearn.datasets").load_digits().images.astype(np.float32) * (255 / 16)
    order = np.random.default_rng(0).permutation(len(images))[:count]
    at = (np.arange(20) + 0.5) * 8 / 20 - 0.5
    low = np.clip(np.floor(at).astype(int), 0, 7)
    high, share = np.clip(low + 1, 0, 7), (at - np.floor(at))[:, None]

    def larger(image: Any) -> Any:
        rows = image[low] * (1 - share) + image[high] * share
        columns = rows[:, low] * (1 - share.T) + rows[:, high] * share.T
        return np.pad(columns, 4).astype(np.float32)[None, None]

    return [{"Input3": larger(images[i])} for i in order]


def sentences(count: int) -> Iterator[str]:
    """Sentences of what Debian installs, each once, the same on every run."""
    seen: set[str] = set()
    for path in sorted([*DOCUMENTS.rglob("*.txt"), *DOCUMENTS.rglob("copyright")]):
        text = path.read_text("utf-8", "ignore") if path.is_file() else ""
        for found in re.findall(r"[A-Z][a-z][^.\n]{30,150}\.", text):
            if found not in seen:
                seen.add(found)
                yield found
            if len(seen) == count:
                return


def shuffled(items: Sequence[Any], count: int) -> list[Any]:
    order = np.random.default_rng(0).permutation(len(items))[:count]
    return [items[i] for i in order]


def token_rows(count: int) -> list[Sample]:
    """Sentences as numbers of words: a hash of each, since the wheel has no vocabulary."""
    rows = []
    for text in shuffled(list(sentences(4 * count)), count):
        words = re.findall(r"\w+|[^\w\s]", text.lower())[:30]
        numbers = [101, *(1000 + zlib.crc32(word.encode()) % 28000 for word in words), 102]
        padded = np.zeros((1, 32), np.int64)
        padded[0, : len(numbers)] = numbers
        rows.append({"input_ids": padded, "attention_mask": (padded > 0).astype(np.int64)})
    return rows


def file_bytes(count: int) -> list[Sample]:
    """The first and the last bytes of files, of as many endings as there are."""
    by_ending: dict[str, list[Path]] = {}
    for path in sorted(Path("/usr").rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size > 64:
            by_ending.setdefault(path.suffix, []).append(path)
    ordered = [shuffled(paths, 12) for paths in by_ending.values()]
    paths = shuffled([path for group in ordered for path in group], count)
    return [{"bytes": _ends(path.read_bytes())} for path in paths]


def _ends(data: bytes) -> Any:
    """Give 1,024 bytes of either end, filled with 256, as the model's package does."""
    row = np.full((1, 2048), 256, np.int32)
    first, last = data[:4096].lstrip()[:1024], data[-4096:].rstrip()[-1024:]
    row[0, : len(first)] = np.frombuffer(first, np.uint8)
    row[0, 2048 - len(last) :] = np.frombuffer(last, np.uint8)
    return row


def _picture(size: tuple[int, int], lines: Sequence[str], number: int, points: int) -> Any:
    image_of, draw_on, fonts = (
        import_module(f"PIL.{x}") for x in ("Image", "ImageDraw", "ImageFont")
    )
    rng = np.random.default_rng(number)
    image = image_of.new("RGB", size, tuple(int(x) for x in rng.integers(200, 256, 3)))
    font = fonts.truetype(str(FONTS[number % len(FONTS)]), points)
    ink = tuple(int(x) for x in rng.integers(0, 90, 3))
    for place, line in enumerate(lines):
        draw_on.Draw(image).text((6, 4 + place * (points + 6)), line, ink, font)
    return np.asarray(image)


def pages(count: int) -> list[Sample]:
    """Pages of text, turned by a quarter none to three times, as the model's package scales."""
    texts, found = list(sentences(8 * count)), []
    mean, spread = np.array([0.485, 0.456, 0.406], "f4"), np.array([0.229, 0.224, 0.225], "f4")
    for number in range(count):
        lines = texts[8 * number % len(texts) :][:10]
        image = np.rot90(_picture((224, 224), lines, number, 14), number % 4)
        scaled = (image.astype(np.float32) / 255 - mean) / spread
        found.append({"x": np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])})
    return shuffled(found, count)


def text_lines(count: int) -> list[Sample]:
    """Lines of text, as the model's package scales them."""
    found = []
    for number, text in enumerate(shuffled(list(sentences(2 * count)), count)):
        image = _picture((320, 48), [text[:24]], number, 24)
        scaled = (image.astype(np.float32) / 255 - 0.5) / 0.5
        found.append({"x": np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])})
    return found


# Scores.


def same_text(right: Sequence[Any], outputs: Sequence[Any]) -> float:
    """Tell whether the text that CTC reads is the same."""
    return float(_text(right[0]) == _text(outputs[0]))


def _text(scores: Any) -> list[int]:
    best = np.asarray(scores).argmax(-1).reshape(-1).tolist()
    return [x for x, before in zip(best, [None, *best], strict=False) if x and x != before]


@dataclass(frozen=True)
class Task:
    """A model, its inputs, and what is asked of it."""

    samples: Callable[[int], list[Sample]]
    metric: Callable[[Sequence[Any], Sequence[Any]], float]
    least: float
    inputs: str


TASKS: Mapping[str, Task] = {
    "mnist": Task(digits, top1, 0.99, "digits of scikit-learn, made larger"),
    "minilm-l3": Task(token_rows, cosine, 0.98, "sentences of installed documentation"),
    "magika": Task(file_bytes, top1, 0.97, "files of this machine"),
    "page-orientation": Task(pages, top1, 0.98, "rendered pages, turned"),
    "ppocr-rec": Task(text_lines, same_text, 0.9, "rendered lines of text"),
}


# Contestants.


def bare_onnx(path: Path) -> Run:
    """Run a file by ONNX Runtime as a user would."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    return lambda sample: list(session.run(None, sample))


def static_onnx(path: Path, samples: Sequence[Sample], folder: Path, ops: Sequence[str]) -> Run:
    """Quantize a file by ONNX Runtime's own tool, as its guide says for AVX2 and AVX-512."""
    import onnx
    import onnx.version_converter
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
        def __init__(self) -> None:
            self._left = iter(samples)

        def get_next(self) -> Sample | None:
            return next(self._left, None)

    newer, prepared, quantized = (folder / f"{x}.onnx" for x in ("newer", "prepared", "done"))
    model = onnx.load(str(path))
    # Older models have no scales per channel.
    is_old = next(x.version for x in model.opset_import if not x.domain) < 13
    onnx.save(onnx.version_converter.convert_version(model, 13) if is_old else model, str(newer))

    def quantize(skips: bool) -> None:
        quant_pre_process(
            str(newer), str(prepared), skip_optimization=skips, skip_symbolic_shape=True
        )
        given = {"quant_format": QuantFormat.QDQ, "per_channel": True, "reduce_range": True}
        given |= {"op_types_to_quantize": list(ops)} if ops else {}
        quantize_static(str(prepared), str(quantized), Reader(), **given)

    try:
        quantize(skips=False)
    except ValueError:
        # Of mnist, where a bias was fused, it compares an array with a number (1.31.1).
        quantize(skips=True)
    return bare_onnx(quantized)


def bare_openvino(path: Path, samples: Sequence[Sample] = (), kind: str = "") -> Run:
    """Run a file by OpenVINO with its defaults; with samples, quantized by nncf."""
    import openvino

    core = openvino.Core()
    model = core.read_model(str(path))
    if samples:
        nncf = import_module("nncf")
        given = {
            "subset_size": len(samples),
            **({"model_type": nncf.ModelType(kind)} if kind else {}),
        }
        model = nncf.quantize(model, nncf.Dataset(list(samples)), **given)
    compiled = core.compile_model(model, "CPU")

    def run(sample: Sample) -> list[Any]:
        found = compiled(sample)
        return [np.array(found[output]) for output in compiled.outputs]

    return run


def programmed(path: Path, **options: Any) -> tuple[Run, Any]:
    """Compile a file by Fusewire; returns what runs samples, and the program."""
    program = fw.compile(path, cache=False, **options)

    def run(sample: Sample) -> list[Any]:
        found = program(**sample)
        return list(found) if isinstance(found, tuple) else [found]

    return run, program


def by_fusewire(path: Path, **options: Any) -> Run:
    """Run a file by Fusewire with these options."""
    return programmed(path, **options)[0]


# Runs.


def scored(run: Run, tests: Sequence[Sample], exact: Sequence[list[Any]], metric: Any) -> Any:
    """Score a contestant on all tests: the mean, the least, and the relative error."""
    scores, errors = [], []
    for sample, right in zip(tests, exact, strict=True):
        outputs = [np.asarray(x) for x in run(sample)]
        scores.append(float(metric(right, outputs)))
        errors.append(relative(right, outputs))
    return {
        "mean": float(np.mean(scores)),
        "least": float(np.min(scores)),
        "error": float(np.median(errors)),
        "largest": float(np.max(errors)),
    }


def measured_ranges(path: Path, samples: Sequence[Sample]) -> tuple[str, ...]:
    """Measure the ranges of layers as a comparison does, with all the time that takes."""
    options = fw.Options(
        backend="onnxruntime", accuracy=0.5, calibrate=samples, budget_seconds=600.0
    )
    session = Session(options)
    graph = session.rewrite(ModelSource(path).read().graph)
    first = [samples[0][value.name or ""] for value in graph.inputs]
    question = session.decider.question(graph, first)
    candidate, calibrating = next(question.candidates()), question.calibrating
    assert isinstance(candidate, Candidate)
    assert calibrating is not None
    (found,) = calibrating.options(candidate)
    lines = found[CALIBRATED]
    assert isinstance(lines, tuple)
    return tuple(map(str, lines))


def contestants(
    name: str, path: Path, samples: Sequence[Sample], folder: Path
) -> Iterator[tuple[str, Callable[[], Run]]]:
    """Yield what is scored; each is made when it is its turn."""
    # By default the tools also round the scores that an attention mask has made huge.
    is_text = name == "minilm-l3"
    ops, kind = (("MatMul", "Gemm"), "transformer") if is_text else ((), "")
    yield "onnxruntime, quantize_static, bare", partial(static_onnx, path, samples, folder, ops)
    yield "openvino, nncf, bare", partial(bare_openvino, path, samples, kind)
    yield "openvino, default, bare", partial(bare_openvino, path)
    lines = measured_ranges(path, samples)
    for engine in ("onnxruntime", "openvino"):
        given = {"backend": engine, "level": 0, "backend_config": {CALIBRATED: lines}}
        yield f"fusewire, int8 by {engine}", partial(by_fusewire, path, **given)


def chosen(name: str, path: Path, samples: Sequence[Sample], budget: float) -> tuple[Run, Any]:
    """Have Fusewire choose, and say what it chose and why."""
    task = TASKS[name]
    given = {"accuracy": (task.metric, task.least), "calibrate": samples}
    run, program = programmed(path, budget_seconds=budget, start="measured", **given)
    run(samples[0])
    why = program.why()
    row = next(row for row in why.tried if row.is_chosen)
    tried = {one.name: f"{one.status} {one.reason}" for one in why.tried if one.is_reduced}
    return run, {"chosen": row.name, "is_reduced": row.is_reduced, "reduced": tried}


def run_task(name: str, tests: int, budget: float) -> dict[str, Any]:
    """Score all contestants of a model."""
    zoo.fetch([name])
    path, task = zoo.path(name), TASKS[name]
    inputs = task.samples(CALIBRATING + tests)
    samples, apart = inputs[:CALIBRATING], inputs[CALIBRATING:]
    bare = bare_onnx(path)
    exact = [[np.asarray(x) for x in bare(sample)] for sample in apart]
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for title, make in contestants(name, path, samples, Path(folder)):
            try:
                rows[title] = scored(make(), apart, exact, task.metric)
            except Exception as error:  # noqa: BLE001 - tools of others; the page says it
                rows[title] = {"failed": f"{type(error).__name__}: {error}"[:200]}
            print(name, title, rows[title], flush=True)
    run, about = chosen(name, path, samples, budget)
    rows["fusewire, chosen"] = {**scored(run, apart, exact, task.metric), **about}
    print(name, rows["fusewire, chosen"], flush=True)
    return {"tests": len(apart), "samples": len(samples), "rows": rows, "machine": machine()}


# The page.


def page() -> str:
    """Write the page of what is kept."""
    kept = {name: KEPT / f"{name}.json" for name in TASKS}
    runs = {name: json.loads(path.read_text()) for name, path in kept.items() if path.exists()}
    missing = [name for name in TASKS if name not in runs]
    versions = ", ".join(f"{x} {version(x)}" for x in ("onnxruntime", "openvino", "nncf"))
    python = f"{platform.machine()}, Python {platform.python_version()}"
    lines = [
        _OPENING,
        f"Versions: {versions}; {python}.",
        f"No result: {', '.join(missing) or '-'}.",
    ]
    for name, run in runs.items():
        lines += ["", *_section(name, run)]
    return "\n".join([*lines, "", _NOTES])


def _section(name: str, run: Mapping[str, Any]) -> Iterator[str]:
    task = TASKS[name]
    metric = task.metric.__name__
    yield f"## {name}"
    yield ""
    yield f"{run['tests']:,} tests, {run['samples']} samples for calibration: {task.inputs}."
    yield f"Metric: {metric}."
    yield ""
    yield "| contestant | mean score | least | error, median | error, largest |"
    yield "|---|---:|---:|---:|---:|"
    for title, row in run["rows"].items():
        if "failed" in row:
            yield f"| {title} | failed: {row['failed'].splitlines()[0]} | | | |"
            continue
        scores = f"{row['mean']:.4f} | {row['least']:.3f}"
        yield f"| {title} | {scores} | {row['error']:.1e} | {row['largest']:.1e} |"
    own = run["rows"].get("fusewire, chosen", {})
    if "chosen" in own:
        yield ""
        asked, name = f"`accuracy=({metric}, {task.least})`", own["chosen"]
        none = " No candidate in less precision was tried in this run."
        yield f"{asked} chose {name}.{'' if own['reduced'] else none}"
        yield ""
        for title, verdict in own["reduced"].items():
            yield f"- {title}: {verdict}"


_OPENING = """# Int8 with fixed scales, at a metric of the task

`benchmarks/calibrated.py`: scores on real inputs that took no part in calibration, against the
model in float32 (ONNX Runtime, bare). 1 is the same answer. Of the 256 samples for calibration
the tools use all, and Fusewire half: it judges on the others. **No times were taken**: the
machine was busy, and its processor has no instructions for int8 (AVX-512 without VNNI), so that
nothing here says what int8 gains, and which candidate was chosen may differ elsewhere. It has no
bf16 either: OpenVINO's default is float32 here.
"""
_NOTES = """## How to read it

The error is the norm of the difference over the norm of the float32 output. `quantize_static` has
`per_channel` and `reduce_range`, as its guide says for this processor, and rounds more ops than
layers; nncf has its defaults. What a tool raised is in its row. The score that Fusewire judges by
is a mean over at most 64 samples, without a margin: an agreement of 0.988 may pass for 0.99.

minilm-l3 was run once and is not listed: the error was taken of an output that no engine changes,
and the tools had their defaults, which are not meant for transformers. Settings for those are in
the script now and have not been run. Magika, page-orientation and ppocr-rec were never run. Words
of minilm-l3 are numbered by a hash, since the wheel of the model has no vocabulary: the sentences
have the lengths and repetitions of real ones, and no meaning.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="models to run")
    parser.add_argument("--tests", type=int, default=500)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--page", action="store_true", help="write results/calibrated.md")
    args = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        found = run_task(name, args.tests, args.budget)
        (KEPT / f"{name}.json").write_text(json.dumps(found, indent=1))
    if args.page:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
