"""The same jobs in actors of a Ray cluster."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusewire.errors import JobError
from fusewire.options import Options
from fusewire.ray import Predictor, map_parquet
from fusewire.ray.jobs import verify
from tests.ray.tables import expected, read_outputs, save_model, write_rows

REFERENCE = Options(backend="reference")
pytestmark = pytest.mark.filterwarnings("ignore")


class WriterKiller(threading.Thread):
    """Kills the workers that write files into a folder, so many times."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(daemon=True)
        self.folder, self.count = folder, count
        self.killed: set[int] = set()

    def run(self) -> None:
        end = time.monotonic() + 60
        while len(self.killed) < self.count and time.monotonic() < end:
            for path in self.folder.glob(".writing-block-*"):
                pid = int(path.name.split("-")[-2])
                if pid != os.getpid() and pid not in self.killed:
                    self.killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)


def test_killed_actors_lose_no_row_and_double_none(cluster: Any, tmp_path: Path) -> None:
    model = save_model(tmp_path)
    x = write_rows(tmp_path / "rows.parquet", 20_000, group=1000)
    killer = WriterKiller(tmp_path / "out", 2)
    killer.start()
    mapped = map_parquet(
        model,
        tmp_path / "rows.parquet",
        tmp_path / "out",
        block_rows=2000,
        batch_size=10,
        options=REFERENCE,
        ray="auto",
        workers=1,
    )
    killer.count = 0
    killer.join()
    assert len(killer.killed) >= 1
    assert mapped.rows == 20_000
    ids, y = read_outputs(tmp_path / "out")
    np.testing.assert_array_equal(ids, np.arange(20_000))
    np.testing.assert_allclose(y, expected(x), rtol=1e-5)
    assert verify(tmp_path / "out")["rows"] == 20_000


def test_refusal_of_a_worker_has_its_type(cluster: Any, tmp_path: Path) -> None:
    model = save_model(tmp_path)
    write_rows(tmp_path / "rows.parquet", 100)
    with pytest.raises(JobError, match="from the column 'nothing'"):
        map_parquet(
            model,
            tmp_path / "rows.parquet",
            tmp_path / "out",
            inputs={"x": "nothing"},
            options=REFERENCE,
            ray="auto",
        )


def test_predictor_is_a_class_for_map_batches(cluster: Any, tmp_path: Path) -> None:
    model = save_model(tmp_path)
    x = write_rows(tmp_path / "rows.parquet", 100)
    rows = (
        cluster.data.read_parquet(str(tmp_path / "rows.parquet"))
        .map_batches(
            Predictor,
            fn_constructor_args=(str(model),),
            fn_constructor_kwargs={"backend": "reference"},
            batch_size=32,
            compute=cluster.data.ActorPoolStrategy(size=1),
        )
        .take_all()
    )
    rows.sort(key=lambda row: row["id"])
    assert [row["id"] for row in rows] == list(range(100))
    np.testing.assert_allclose([row["output1"] for row in rows], expected(x), rtol=1e-6)
