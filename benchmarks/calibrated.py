"""What does int8 with fixed scales cost at a metric of the task, and what does it gain?

    python benchmarks/calibrated.py data NAME ...       makes and keeps the inputs
    python benchmarks/calibrated.py choose NAME ...     Fusewire measures and chooses, alone
    python benchmarks/calibrated.py score NAME ...      scores what has no score yet
    python benchmarks/calibrated.py time NAME ...       times all in turns, alone
    python benchmarks/calibrated.py page                writes results/calibrated.md of what is kept

Each is done for every model if none is named, and goes on where it was cut: ``--minutes`` ends it
between two steps, ``--again TITLE`` does one again. Inputs are made by calibrated_data.py, those
for calibration apart from those for testing. Scores are against the model in float32, run bare by
ONNX Runtime: 1 is the same answer. Contestants are the engines in float32, run bare; OpenVINO as it
is by default; ONNX Runtime's ``quantize_static`` (QDQ, per channel) and ``quantize_dynamic``;
OpenVINO's nncf; Olive's ``auto-opt --precision int8``, in an environment of its own
(``--olive FOLDER``); Fusewire, exact, and with ``accuracy=(metric, least)`` and ``calibrate``; and
its int8 candidates by themselves, whether or not they were chosen. Needs scikit-learn, Pillow and
nncf beside the extras.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks" / "zoo"), str(ROOT)]

import numpy as np  # noqa: E402 - the path comes first

import fusewire as fw  # noqa: E402
from benchmarks import contestants  # noqa: E402
from benchmarks.calibrated_data import TASKS, Sample  # noqa: E402
from benchmarks.calibrated_page import page  # noqa: E402
from benchmarks.engines import HOME, machine, slug  # noqa: E402
from benchmarks.match import Gone, Match, Player  # noqa: E402
from fusewire.choosing.measure import interval  # noqa: E402
from fusewire.compiler import Session  # noqa: E402
from fusewire.contract.backend import CALIBRATED  # noqa: E402
from fusewire.numerics.metrics import relative  # noqa: E402
from fusewire.planning.candidates import Candidate  # noqa: E402
from fusewire.session.model_source import ModelSource  # noqa: E402

zoo = import_module("zoo")
KEPT = HOME / "calibrated"
PAGE = ROOT / "benchmarks" / "results" / "calibrated.md"
TESTS = 600
# The samples that tools measure ranges on: as many as Fusewire does.
MEASURED = 128
THREADS = 2
# Rounds of a timing, and those that find who is far behind.
LEAST_ROUNDS, MOST_ROUNDS = 9, 60
PACKAGES = ("fusewire", "numpy", "onnxruntime", "openvino", "nncf", "scikit-learn", "pillow")

Run = Callable[[Sample], list[Any]]


@dataclass(frozen=True)
class Contestant:
    """Who is scored and timed: the engine that runs it, and the file that is made for it first."""

    title: str
    engine: str
    file: str = ""
    backend: str = ""

    @property
    def is_chosen(self) -> bool:
        return self.title == "fusewire, calibrated"


CONTESTANTS = (
    Contestant("onnxruntime, float32, bare", "onnxruntime"),
    Contestant("openvino, float32, bare", "openvino"),
    Contestant("openvino, default, bare", "openvino-own"),
    Contestant("onnxruntime, quantize_static, bare", "onnxruntime", "static.onnx"),
    Contestant("onnxruntime, quantize_dynamic, bare", "onnxruntime", "dynamic.onnx"),
    Contestant("openvino, nncf, bare", "openvino-own", "nncf.xml"),
    Contestant("onnxruntime, olive auto-opt, bare", "onnxruntime", "olive.onnx"),
    Contestant("fusewire, exact", "fusewire"),
    Contestant("fusewire, calibrated", "fusewire"),
    Contestant("fusewire, int8 by onnxruntime", "fusewire", "ranges.json", "onnxruntime"),
    Contestant("fusewire, int8 by openvino", "fusewire", "ranges.json", "openvino"),
)
# What Fusewire chooses, and the name under which that is kept.
CHOICES = {"fusewire, exact": "exact", "fusewire, calibrated": "chosen"}


@dataclass(frozen=True)
class Work:
    """One model: its folder, and the settings of this run."""

    name: str
    args: argparse.Namespace

    @property
    def folder(self) -> Path:
        return KEPT / self.name

    @property
    def path(self) -> Path:
        found = zoo.path(self.name)
        assert isinstance(found, Path)
        return found

    def kept(self, part: str, title: str = "") -> Path:
        return self.folder / f"{part}.{slug(title)}.json" if title else self.folder / f"{part}.json"

    def samples(self, part: str) -> list[Sample]:
        """Read inputs: those of "calibrating" or of "testing"."""
        with np.load(self.folder / f"{part}.npz") as held:
            arrays = {name: held[name] for name in held.files}
        count = len(next(iter(arrays.values())))
        return [{name: array[i] for name, array in arrays.items()} for i in range(count)]

    def measured(self) -> list[Sample]:
        """Give the samples that tools measure ranges on."""
        found = self.samples("calibrating")
        return found[: 2 * MEASURED : 2]

    def task(self, who: Contestant) -> contestants.Task:
        """Say what a process of a contestant runs."""
        model = self.path if not who.file or who.backend else self.folder / who.file
        first, outputs = self.folder / "first.npz", self.folder / "work" / f"{slug(who.title)}.npz"
        outputs.parent.mkdir(exist_ok=True)
        task, given = TASKS[self.name], dict[str, Any]()
        if who.is_chosen:
            metric = f"{task.metric.__module__}:{task.metric.__name__}"
            samples = str(self.folder / "calibrating.npz")
            given = {"samples": samples, "metric": metric, "least": task.least}
        if who.backend:
            given = {"backend": who.backend, "ranges": str(self.folder / who.file)}
        return contestants.Task(
            who.engine,
            self.name,
            str(model),
            str(first),
            str(outputs),
            THREADS,
            budget=self.args.budget if who.is_chosen else min(self.args.budget, 20.0),
            **given,
        )

    def player(self, who: Contestant) -> Player:
        """Start a process of a contestant; programs of Fusewire share a cache that is kept."""
        return Player(asdict(self.task(who)), self.settings)

    @property
    def settings(self) -> dict[str, str]:
        cache = self.folder / "cache"
        cache.mkdir(exist_ok=True, mode=0o700)
        return {
            "FUSEWIRE_CACHE": str(cache),
            "OPENBLAS_NUM_THREADS": str(THREADS),
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        }


# Inputs.


def make_data(work: Work) -> None:
    """Make the inputs, and count how often the model in float32 is right about them."""
    if work.kept("data").exists() and "data" not in work.args.again:
        return
    zoo.fetch([work.name])
    task = TASKS[work.name]
    work.folder.mkdir(parents=True, exist_ok=True)
    pairs = task.samples(task.calibrating + TESTS)
    inputs = [sample for sample, _ in pairs]
    for part, rows in (
        ("calibrating", inputs[: task.calibrating]),
        ("testing", inputs[task.calibrating :]),
    ):
        stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        np.savez(work.folder / f"{part}.npz", **stacked)  # type: ignore[arg-type] # names are the model's
    np.savez(work.folder / "first.npz", **inputs[0])
    right = None
    if task.is_right is not None:
        run, tests = bare_onnx(work.path), pairs[task.calibrating :][:200]
        marks = [task.is_right(run(sample), label, work.path) for sample, label in tests]
        right = float(np.mean(marks))
    found = {"calibrating": task.calibrating, "tests": TESTS, "right": right}
    work.kept("data").write_text(json.dumps(found))
    print(work.name, found, flush=True)


# Files that the tools make.


def bare_onnx(path: Path) -> Run:
    """Run a file by ONNX Runtime as a user would."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    return lambda sample: list(session.run(None, sample))


def has_vnni() -> bool:
    """Tell whether the processor adds products of bytes in 32 bits."""
    return "vnni" in Path("/proc/cpuinfo").read_text()


def _newer(path: Path, folder: Path) -> Path:
    """Convert a model of an old opset: those have no scales per channel."""
    import onnx
    import onnx.version_converter

    model = onnx.load(str(path))
    if next(x.version for x in model.opset_import if not x.domain) >= 13:
        return path
    onnx.save(onnx.version_converter.convert_version(model, 13), str(folder / "newer.onnx"))
    return folder / "newer.onnx"


def make_static(work: Work, file: Path) -> None:
    """Quantize a file by ONNX Runtime's own tool, as its guide says for this processor."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    samples = work.measured()

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
        def __init__(self) -> None:
            self._left = iter(samples)

        def get_next(self) -> Sample | None:
            return next(self._left, None)

    given = {"quant_format": QuantFormat.QDQ, "per_channel": True, "reduce_range": not has_vnni()}
    if work.name == "minilm-l3":
        # By default it also rounds the scores that an attention mask has made huge.
        given["op_types_to_quantize"] = ["MatMul", "Gemm"]
    with tempfile.TemporaryDirectory() as name:
        path, prepared = _newer(work.path, Path(name)), Path(name) / "prepared.onnx"

        def quantize(skips: bool) -> None:
            quant_pre_process(
                str(path), str(prepared), skip_optimization=skips, skip_symbolic_shape=True
            )
            quantize_static(str(prepared), str(file), Reader(), **given)

        try:
            quantize(skips=False)
        except ValueError:
            # Of mnist, where a bias was fused, it compares an array with a number (1.31.1).
            quantize(skips=True)


def make_dynamic(work: Work, file: Path) -> None:
    """Have ONNX Runtime's tool round the weights; what they are multiplied with, at each run."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as name:
        path = _newer(work.path, Path(name))
        quantize_dynamic(str(path), str(file), per_channel=True, weight_type=QuantType.QInt8)


def make_nncf(work: Work, file: Path) -> None:
    """Quantize a file by nncf, with its defaults; a transformer is named as one."""
    import openvino

    nncf, samples = import_module("nncf"), work.measured()
    kind = {"model_type": nncf.ModelType.TRANSFORMER} if work.name == "minilm-l3" else {}
    model = openvino.Core().read_model(str(work.path))
    quantized = nncf.quantize(model, nncf.Dataset(samples), subset_size=len(samples), **kind)
    openvino.save_model(quantized, str(file), compress_to_fp16=False)


def make_olive(work: Work, file: Path) -> None:
    """Run Olive's automatic optimiser, which takes no samples for a model in ONNX."""
    with tempfile.TemporaryDirectory() as name:
        model, out = Path(name) / "model.onnx", Path(name) / "out"
        shutil.copy(work.path, model)
        options = ["--device", "cpu", "--provider", "CPUExecutionProvider", "--precision", "int8"]
        command = [f"{work.args.olive}/bin/olive", "auto-opt", "-m", str(model), "-o", str(out)]
        said = subprocess.run(
            [*command, *options, "--disable_telemetry"],
            cwd=name,
            env={**os.environ, "OLIVE_DISABLE_TELEMETRY": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        found = sorted(out.rglob("*.onnx"))
        if said.returncode or len(found) != 1:
            raise RuntimeError(f"olive ended with {said.returncode}: {said.stderr[-300:]}")
        shutil.copy(found[0], file)
    asks = "from importlib.metadata import version; print(version('olive-ai'))"
    said = subprocess.run(
        [f"{work.args.olive}/bin/python", "-c", asks], capture_output=True, text=True, check=True
    )
    work.kept("olive").write_text(json.dumps({"version": said.stdout.strip()}))


def make_ranges(work: Work, file: Path) -> None:
    """Measure the ranges of layers as a comparison does, with all the time that takes."""
    samples = work.samples("calibrating")
    options = fw.Options(
        backend="onnxruntime", accuracy=0.5, calibrate=samples, budget_seconds=600.0
    )
    session = Session(options)
    graph = session.rewrite(ModelSource(work.path).read().graph)
    first = [samples[0][value.name or ""] for value in graph.inputs]
    question = session.decider.question(graph, first)
    candidate, calibrating = next(question.candidates()), question.calibrating
    assert isinstance(candidate, Candidate)
    assert calibrating is not None
    (found,) = calibrating.options(candidate)
    lines = found[CALIBRATED]
    assert isinstance(lines, tuple)
    file.write_text(json.dumps(list(lines)))


MAKERS: Mapping[str, Callable[[Work, Path], None]] = {
    "static.onnx": make_static,
    "dynamic.onnx": make_dynamic,
    "nncf.xml": make_nncf,
    "olive.onnx": make_olive,
    "ranges.json": make_ranges,
}


# Scores.


def chosen_options(work: Work, who: Contestant) -> dict[str, Any]:
    """Give what was chosen, by its options: a choice that is made again may be another one."""
    if who.title not in CHOICES:
        return {}
    tried = json.loads(work.kept(CHOICES[who.title]).read_text())["tried"]
    row = next(row for row in tried if row["is_chosen"])
    config = {k: tuple(v) if isinstance(v, list) else v for k, v in row["options"].items()}
    chosen = {"backend": row["backend"], "level": 0, "backend_config": config}
    # The form of other nodes, or the file itself, is not said by options.
    return {**chosen, "threads": THREADS} if row["form"] == "native" else {}


def run_of(work: Work, who: Contestant) -> Run:
    """Load a contestant to run one sample after another."""
    task = work.task(who)
    if who.engine == "onnxruntime":
        return bare_onnx(Path(task.model))
    if who.engine.startswith("openvino"):
        import openvino

        settings = {} if who.engine == "openvino-own" else {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = openvino.Core().compile_model(task.model, "CPU", settings)
        return lambda sample: [np.array(x) for x in compiled(sample).values()]
    os.environ.update(work.settings)
    options = chosen_options(work, who) or contestants.fusewire_options(task)
    program = fw.compile(task.model, **options)

    def run(sample: Sample) -> list[Any]:
        found = program(**sample)
        return list(found) if isinstance(found, tuple) else [found]

    return run


def exact_outputs(work: Work) -> Any:
    """Give the outputs that the metric reads, in float32: one file for all contestants."""
    path = work.folder / "exact.npy"
    if not path.exists():
        run, read = bare_onnx(work.path), TASKS[work.name].read
        rows = [run(sample)[read] for sample in work.samples("testing")]
        part = path.with_suffix(".part.npy")
        np.save(part, np.stack(rows))
        part.rename(path)
    return np.load(path, mmap_mode="r")


def score(work: Work, who: Contestant) -> dict[str, Any]:
    """Score a contestant on all tests: the metric, and the error of the output that it reads."""
    task, exact = TASKS[work.name], exact_outputs(work)
    if who.file and not (work.folder / who.file).exists():
        MAKERS[who.file](work, work.folder / who.file)
    run = run_of(work, who)
    scores, errors = [], []
    for sample, right in zip(work.samples("testing"), exact, strict=True):
        output = np.asarray(run(sample)[task.read])
        scores.append(float(task.metric([right], [output])))
        errors.append(relative([right], [output]))
    return {"scores": scores, "errors": errors}


def score_all(work: Work) -> None:
    """Score what has no score yet, each kept as soon as it is known."""
    for who in CONTESTANTS:
        kept = work.kept("score", who.title)
        if (kept.exists() and who.title not in work.args.again) or work.args.end < time.monotonic():
            continue
        if who.file == "olive.onnx" and not work.args.olive:
            print(work.name, "--olive names no environment that has olive-ai", flush=True)
            continue
        if who.title in work.args.again and who.file:
            (work.folder / who.file).unlink(missing_ok=True)
        # What Fusewire chooses is chosen alone, not beside other work.
        if who.title in CHOICES and not work.kept(CHOICES[who.title]).exists():
            continue
        try:
            row = score(work, who)
        except Exception as error:  # noqa: BLE001 - tools of others; the page says it
            row = {"failed": f"{type(error).__name__}: {error}"[:400]}
        kept.write_text(json.dumps(row))
        shown = row.get("failed") or f"{np.mean(row['scores']):.4f} {np.median(row['errors']):.1e}"
        print(work.name, who.title, shown, flush=True)


# Choices and times.


def choose(work: Work) -> None:
    """Have Fusewire choose, exactly and with samples, in processes of their own."""
    for title, part in CHOICES.items():
        kept = work.kept(part)
        if (kept.exists() and part not in work.args.again) or work.args.end < time.monotonic():
            continue
        who = next(x for x in CONTESTANTS if x.title == title)
        with work.player(who) as player:
            ready = player.ready
        kept.write_text(json.dumps(ready))
        if "refused" in ready:
            print(work.name, title, ready["refused"], flush=True)
            continue
        print(work.name, title, f"{ready['ready']:.0f} s", flush=True)
        for row in ready["tried"]:
            seconds = "" if row["seconds"] is None else f"{row['seconds'] * 1e3:.2f} ms"
            print("  ", row["name"], row["status"], seconds, row["reason"], flush=True)
        work.kept("score", title).unlink(missing_ok=True)
        work.kept("times").unlink(missing_ok=True)


def time_all(work: Work) -> None:
    """Time in turns all that run; those far behind the best leave after a few rounds."""
    kept = work.kept("times")
    if kept.exists() and "times" not in work.args.again:
        return
    able = [who for who in CONTESTANTS if _runs(work, who)]
    players = {who.title: work.player(who) for who in able}
    try:
        ready = {title: player.ready for title, player in players.items()}
        names = [title for title in players if "refused" not in ready[title]]
        match = Match({title: players[title] for title in names})
        match.heats(names)
        best = min(match.median(title) for title in names)
        close = [x for x in names if match.median(x) <= 3 * best or x.startswith("fusewire, ")]
        early = {title: match.median(title) for title in names}
        match.samples.clear()
        end = time.monotonic() + work.args.seconds
        while match.rounds < LEAST_ROUNDS or (
            match.rounds < MOST_ROUNDS and time.monotonic() < end
        ):
            match._round(close, match.rounds)
            match.rounds += 1
    except Gone as error:
        print(work.name, f"one ended while it was timed: {error}", flush=True)
        return
    finally:
        for player in players.values():
            player.close()
    found = {
        "seconds": early | {title: match.median(title) for title in close},
        "samples": match.samples,
        "refused": {x: ready[x]["refused"] for x in ready if "refused" in ready[x]},
        "rounds": match.rounds,
        "disturbed": match.disturbed,
        "machine": machine(),
        "versions": {x: version(x) for x in PACKAGES},
    }
    kept.write_text(json.dumps(found))
    _print_times(work.name, found)


def _runs(work: Work, who: Contestant) -> bool:
    """Tell whether a contestant was scored, so that its file is there and runs; or was chosen."""
    part = CHOICES.get(who.title)
    kept = work.kept("score", who.title) if part is None else work.kept(part)
    return kept.exists() and not {"failed", "refused"} & json.loads(kept.read_text()).keys()


def _print_times(name: str, found: Mapping[str, Any]) -> None:
    for title, seconds in found["seconds"].items():
        samples = found["samples"].get(title)
        low, high = interval(samples) if samples else (seconds, seconds)
        print(name, title, f"{seconds * 1e3:.3f} ms ({low * 1e3:.3f} - {high * 1e3:.3f})")


STEPS: Mapping[str, Callable[[Work], None]] = {
    "data": make_data,
    "choose": choose,
    "score": score_all,
    "time": time_all,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=[*STEPS, "page"])
    parser.add_argument("names", nargs="*", help="models; all of them if none is named")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for a choice")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds for the rounds")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin nothing after these")
    parser.add_argument("--olive", default="", help="an environment with olive-ai")
    parser.add_argument("--again", nargs="*", default=(), help="titles or parts to do again")
    args = parser.parse_args(arguments)
    args.end = time.monotonic() + 60 * args.minutes
    if args.step == "page":
        PAGE.write_text(page(KEPT, [who.title for who in CONTESTANTS]))
        return
    for name in args.names or TASKS:
        if time.monotonic() < args.end:
            STEPS[args.step](Work(name, args))


if __name__ == "__main__":
    main()
