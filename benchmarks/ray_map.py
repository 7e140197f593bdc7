"""How fast is a batch job on Ray, and does it survive the death of those who write?

    python benchmarks/ray_map.py [--rows 1000000] [--rounds 3] [--kills 6] [--workers 2] [--json]
                                 [--write results/ray_map.md]

Maps rows of images through ``mnist``, the model that comes with Fusewire, which takes one row in a
call. Three sides take turns in the same pipeline of Ray Data, with the same code around them for
reading and writing: Fusewire on ONNX Runtime, ONNX Runtime bare, and the bare one once more, which
shows the noise (A/A). All have one thread per actor. A second pipeline is the plain one that people
write: ``read_parquet``, ``map_batches`` with a class, ``write_parquet``.

Then a job runs while actors are killed as they write, and the output is checked: every row once,
with the answer that the undisturbed job has. Exit 1 if it is not so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fusewire.example import MODEL
from fusewire.options import Options
from fusewire.ray.cluster import connected
from fusewire.ray.columns import to_column
from fusewire.ray.jobs import cut_blocks, parquet_files, verify
from fusewire.ray.mapping import BlockMapper, MapSettings, in_actors, map_parquet
from fusewire.ray.predictor import Predictor
from fusewire.ray.shared_model import SharedModel

INPUT, OUTPUT = "Input3", "Plus214_Output_0"
GROUP, FILE_ROWS = 5_000, 100_000
ENGINE = Options(backend="onnxruntime", threads=1, start="measured")
SIDES = ("fusewire", "bare", "bare again")


def write_images(folder: Path, rows: int, seed: int = 0) -> None:
    """Write images of 256 levels, most of them dark, in files of row groups."""
    rng = np.random.default_rng(seed)
    bank = rng.integers(0, 256, (2048, 1, 28, 28)) * (rng.random((2048, 1, 28, 28)) < 0.2)
    images = (bank / 255).astype(np.float32)
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        ids = np.arange(start, min(start + FILE_ROWS, rows))
        picked = images[rng.integers(0, len(images), len(ids))]
        table = pa.table({"id": ids, INPUT: to_column(INPUT, picked)})
        pq.write_table(table, folder / f"{number:03d}.parquet", row_group_size=GROUP)


class BarePredictor:
    """ONNX Runtime as people call it, in the place of a Predictor."""

    def __init__(self, model: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        self.columns = {INPUT: INPUT}
        self.batch_size = 1

    def kept(self, columns: Sequence[str]) -> list[str]:
        """List the columns that are copied."""
        return [name for name in columns if name != INPUT]

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Run row by row, which is all that this model takes."""
        x = np.asarray(batch[INPUT])
        y = np.empty((len(x), 10), np.float32)
        run = self.session.run
        for row in range(len(x)):
            y[row] = run(None, {INPUT: x[row : row + 1]})[0]
        return {**{name: batch[name] for name in batch if name != INPUT}, OUTPUT: y}


def make_bare(settings: MapSettings) -> Any:
    """Make the bare side of a job."""
    return BarePredictor(settings.model.source)


def timed_blocks(ray: Any, side: str, source: Path, folder: Path, workers: int) -> dict[str, float]:
    """Map all blocks with one side; rows per second with the start of actors, and without."""
    blocks = {block.index: block for block in cut_blocks(parquet_files(source), GROUP)}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    settings = MapSettings(
        SharedModel.of(MODEL), ENGINE, batch_size=1, output=str(folder), digest=side
    )
    make = MapSettings.predictor if side == "fusewire" else make_bare
    start = time.perf_counter()
    arguments = (settings, blocks, make)
    said = list(in_actors(ray, BlockMapper, arguments, list(blocks), workers, 1))
    seconds = time.perf_counter() - start
    done = [json.loads(row) for row in said]
    rows = sum(block.rows for block in blocks.values())
    assert sum(row["done"]["rows"] for row in done) == rows
    return {"whole": rows / seconds, "steady": _steady(done, workers)}


def _steady(done: Sequence[Mapping[str, Any]], workers: int) -> float:
    """Return the rows per second of all actors together, each without its first block."""
    by_actor: dict[int, list[Mapping[str, Any]]] = {}
    for row in sorted(done, key=lambda row: row["began"]):
        by_actor.setdefault(row["pid"], []).append(row)
    later = [row for rows in by_actor.values() for row in (rows[1:] or rows)]
    busy = sum(row["ended"] - row["began"] for row in later)
    rows: int = sum(row["done"]["rows"] for row in later)
    return float(workers * rows / busy)


def timed_batches(
    ray: Any, side: str, source: Path, folder: Path, workers: int
) -> dict[str, float]:
    """Run the plain pipeline of Ray Data with one side; rows per second."""
    shutil.rmtree(folder, ignore_errors=True)
    given: dict[str, Any] = {"fn_constructor_args": (str(MODEL),)}
    if side == "fusewire":
        given["fn_constructor_kwargs"] = {"options": ENGINE}
    start = time.perf_counter()
    ray.data.read_parquet(str(source)).map_batches(
        Predictor if side == "fusewire" else BarePredictor,
        batch_size=1000,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
        **given,
    ).write_parquet(str(folder))
    seconds = time.perf_counter() - start
    rows = sum(pq.read_metadata(path).num_rows for path in parquet_files(source))
    return {"whole": rows / seconds}


class WriterKiller(threading.Thread):
    """Kills actors while they write a block, so many times, some seconds apart."""

    def __init__(self, folder: Path, kills: int, pause: float) -> None:
        super().__init__(daemon=True)
        self.folder, self.kills, self.pause = folder, kills, pause
        self.killed: list[str] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.is_set() and len(self.killed) < self.kills:
            # One that was killed leaves its file behind.
            files = (x.name for x in self.folder.glob(".writing-block-*"))
            found = next((name for name in files if name not in self.killed), None)
            if found is None:
                self.is_over.wait(0.002)
                continue
            try:
                os.kill(int(found.split("-")[-2]), signal.SIGKILL)
            except ProcessLookupError:
                # It ended between the look and the kill.
                continue
            self.killed.append(found)
            self.is_over.wait(self.pause)


def outputs_of(folder: Path) -> tuple[Any, Any]:
    """Read the ids and the answers of an output, in the order of ids."""
    table = pq.read_table(folder)
    ids = table.column("id").to_numpy()
    flat = table.column(OUTPUT).combine_chunks()
    answers = flat.to_numpy_ndarray()
    order = np.argsort(ids, kind="stable")
    return ids[order], answers[order]


def killed_job(source: Path, right: Path, folder: Path, kills: int, workers: int) -> dict[str, Any]:
    """Map while actors are killed, and compare the output with that of an undisturbed job."""
    killer = WriterKiller(folder, kills, pause=2.0)
    killer.start()
    mapped = map_parquet(
        MODEL, source, folder, block_rows=GROUP, ray="auto", workers=workers, options=ENGINE
    )
    killer.is_over.set()
    killer.join()
    ids, answers = outputs_of(folder)
    wanted_ids, wanted = outputs_of(right)
    manifest = verify(folder)
    return {
        "kills": len(killer.killed),
        "rows": len(ids),
        "manifest_rows": manifest["rows"],
        "lost": len(np.setdiff1d(wanted_ids, ids)),
        "doubled": int(len(ids) - len(np.unique(ids))),
        "is_equal": bool(len(ids) == len(wanted) and np.array_equal(answers, wanted)),
        "rows_per_second": mapped.rows / mapped.seconds,
    }


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """Start Ray here, on the loopback and with folders of its own."""
    import ray

    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Actors import this file by name.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    with tempfile.TemporaryDirectory(prefix="fw-ray-", ignore_cleanup_errors=True) as folder:
        ray.init(
            # Tasks that read and write need some too, beside the actors.
            num_cpus=workers + 2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            _temp_dir=folder,
        )
        try:
            with connected("auto") as connection:
                yield connection
        finally:
            ray.shutdown()


def compared(rates: Mapping[str, Sequence[Mapping[str, float]]], name: str) -> dict[str, Any]:
    """Return medians of rows per second, and ratios to the bare side, round by round."""
    by_side = {side: [row[name] for row in rates[side]] for side in SIDES}
    pairs = list(zip(*by_side.values(), strict=True))
    ratios = [ours / statistics.mean(bare) for ours, *bare in pairs]
    noise = [again / bare for _, bare, again in pairs]
    return {
        "rows_per_second": {side: statistics.median(x) for side, x in by_side.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "aa": noise,
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Take all measurements."""
    with tempfile.TemporaryDirectory(prefix="fusewire-map-") as home:
        folder, source = Path(home), Path(home) / "images"
        source.mkdir()
        write_images(source, arguments.rows)
        some = folder / "some"
        some.mkdir()
        few = max(arguments.rows // 5, GROUP)
        write_images(some, few, seed=1)
        os.environ.setdefault("FUSEWIRE_CACHE", str(folder / "cache"))
        blocks: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        batches: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        with cluster(arguments.workers) as ray:
            orders = itertools.cycle(itertools.permutations(SIDES))
            timed_blocks(ray, "fusewire", some, folder / "warm", arguments.workers)
            for _, order in zip(range(arguments.rounds), orders, strict=False):
                for side in order:
                    place = folder / side.replace(" ", "-")
                    given = ray, side, source, place, arguments.workers
                    blocks[side].append(timed_blocks(*given))
                    print(f"{side}: {blocks[side][-1]}", file=sys.stderr, flush=True)
            for _, order in zip(range(arguments.rounds), orders, strict=False):
                for side in order:
                    given = ray, side, some, folder / "batches", arguments.workers
                    batches[side].append(timed_batches(*given))
            given_kills = arguments.kills, arguments.workers
            killed = killed_job(source, folder / "fusewire", folder / "killed", *given_kills)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "rows": arguments.rows,
        "few_rows": few,
        "workers": arguments.workers,
        "whole": compared(blocks, "whole"),
        "steady": compared(blocks, "steady"),
        "batches": compared(batches, "whole"),
        "killed": killed,
        "versions": {x: version(x) for x in ("fusewire", "ray", "pyarrow", "onnxruntime")},
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[2]:.1f}",
    }


def page(report: Mapping[str, Any]) -> str:
    """Write the page of results."""
    killed = report["killed"]
    versions = ", ".join(f"{name} {text}" for name, text in report["versions"].items())
    names = {
        "whole": f"`fusewire map` pipeline, {report['rows']:,} rows, with the start of the actors",
        "steady": "the same, without the first block of each actor",
        "batches": f"`read_parquet`, `map_batches`, `write_parquet`, {report['few_rows']:,} rows",
    }
    rows = []
    for key, name in names.items():
        part = report[key]
        rates = part["rows_per_second"]
        noise = f"{min(part['aa']):.3f} to {max(part['aa']):.3f}"
        spread = f"{min(part['ratios']):.3f} to {max(part['ratios']):.3f}"
        rows.append(
            f"| {name} | {rates['fusewire']:,.0f} | {rates['bare']:,.0f} | {part['ratio']:.3f} "
            f"({spread}) | {noise} |"
        )
    return "\n".join(
        [
            "# Batch jobs on Ray",
            "",
            f"`python benchmarks/ray_map.py --rows {report['rows']}`, {report['date']}, "
            f"{versions}, {report['machine']}.",
            f"The model is `mnist`, one row in a call; {report['workers']} actors with one thread "
            "each. Sides take turns; the ratio is the median over rounds, with its range.",
            "",
            "| Pipeline | Fusewire, rows/s | ONNX Runtime bare, rows/s | ratio | bare over bare |",
            "|---|---:|---:|---:|---:|",
            *rows,
            "",
            f"With {killed['kills']} actors killed while they wrote a block: "
            f"{killed['rows']:,} rows in the output ({killed['manifest_rows']:,} in the manifest), "
            f"{killed['lost']} lost, "
            f"{killed['doubled']} doubled, answers "
            f"{'equal' if killed['is_equal'] else 'NOT equal'} to those of the undisturbed job, "
            f"{killed['rows_per_second']:,.0f} rows/s.",
            "",
        ]
    )


def is_sound(report: Mapping[str, Any]) -> bool:
    """Tell whether the job whose actors were killed has every row once, with the right answer."""
    killed = report["killed"]
    is_whole = killed["rows"] == killed["manifest_rows"] == report["rows"]
    return bool(is_whole and not killed["lost"] and not killed["doubled"] and killed["is_equal"])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help="the page of results to write")
    arguments = parser.parse_args(words)
    report = run(arguments)
    print(json.dumps(report, indent=1) if arguments.json else page(report))
    if arguments.write is not None:
        arguments.write.write_text(page(report), encoding="utf-8")
    return 0 if is_sound(report) else 1


if __name__ == "__main__":
    # Under its own name, so that actors find what they are sent.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks import ray_map

    sys.exit(ray_map.main())
