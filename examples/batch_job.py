"""Process a folder of files in batches: a nightly job that scores rows of numbers.

    python examples/batch_job.py

The job starts twice, each time as a process of its own. The first start compares the engines. The
second finds the choice in the cache, which is how a job that runs every night starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import fusewire as fw

FEATURES, HIDDEN = 64, 256
SIZES = (10_000, 10_000, 4_321)  # The last file is not full.


def write_inputs(folder: Path) -> None:
    """Write the files of a day, and a model for them."""
    rng = np.random.default_rng(0)
    for number, rows in enumerate(SIZES):
        values = rng.standard_normal((rows, FEATURES)).astype(np.float32)
        np.save(folder / f"rows-{number}.npy", values)
    w1 = (rng.standard_normal((FEATURES, HIDDEN)) / 8).astype(np.float32)
    w2 = (rng.standard_normal((HIDDEN, 1)) / 16).astype(np.float32)

    def score(x):  # type: ignore[no-untyped-def]  # traced, not called
        return 1 / (1 + np.exp(-(np.maximum(x @ w1, 0) @ w2)))

    # A dim with a name is open: one graph, and one program, for files of every length.
    fw.save_onnx(fw.trace(score, fw.Spec(("rows", FEATURES), "float32")), folder / "score.onnx")


def job(folder: Path) -> None:
    """Score every file, and write the scores beside it."""
    start = time.perf_counter()
    with fw.compile(str(folder / "score.onnx"), start="measured", budget_seconds=3) as program:
        for path in sorted(folder.glob("rows-*.npy")):
            result = program.run(x=np.load(path))
            (scores,) = result.by_name.values()
            np.save(path.with_name(path.name.replace("rows", "scores")), scores)
            print(f"  {path.name}: {len(scores)} scores in {result.seconds * 1e3:.1f} ms")
            if path.name == "rows-0.npy":
                print(f"  first answer after {time.perf_counter() - start:.2f} s")


def main() -> None:
    """Run the job twice, with a cache and a key of its own."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        places = {"FUSEWIRE_CACHE": f"{name}/cache", "FUSEWIRE_CONFIG": f"{name}/config"}
        for night in ("first", "second"):
            print(f"{night} night", flush=True)
            command = [sys.executable, __file__, name]
            subprocess.run(command, check=True, env={**os.environ, **places})
        written = sorted(folder.glob("scores-*.npy"))
        assert [np.load(path).shape for path in written] == [(rows, 1) for rows in SIZES]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        job(Path(sys.argv[1]))
    else:
        main()
