"""Jobs in this process: every row once, whatever happens to the one who writes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import fusewire as fw
from fusewire.choosing.batch_size import measured_batch_size
from fusewire.cli import main
from fusewire.errors import JobError
from fusewire.options import Options
from fusewire.ray import mapping
from fusewire.ray.jobs import commit, verify
from fusewire.ray.mapping import Mapped, map_parquet
from tests.ray.tables import expected, read_outputs, save_model, write_rows

REFERENCE = Options(backend="reference")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path)


def run(model: Path, folder: Path, **settings: Any) -> Mapped:
    given = {"block_rows": 100, "options": REFERENCE, **settings}
    return map_parquet(model, folder / "rows.parquet", folder / "out", **given)


def test_every_row_is_mapped_once(model: Path, tmp_path: Path) -> None:
    x = write_rows(tmp_path / "rows.parquet", 330)
    mapped = run(model, tmp_path)
    assert (mapped.rows, mapped.blocks, mapped.new_rows) == (330, 4, 330)
    ids, y = read_outputs(tmp_path / "out")
    np.testing.assert_array_equal(ids, np.arange(330))
    np.testing.assert_allclose(y, expected(x), rtol=1e-6)
    manifest = verify(tmp_path / "out")
    assert manifest["rows"] == 330
    assert [block["rows"] for block in manifest["blocks"]] == [100, 100, 100, 30]


def test_finished_job_is_not_done_again(model: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 200)
    run(model, tmp_path)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert run(model, tmp_path).new_blocks == 0
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}


def test_files_of_a_folder_are_mapped_in_order(model: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").mkdir()
    parts = [
        write_rows(tmp_path / "rows.parquet" / f"{name}.parquet", 120, seed=seed)
        for seed, name in enumerate("ab")
    ]
    assert run(model, tmp_path).blocks == 4
    _, y = read_outputs(tmp_path / "out")
    np.testing.assert_allclose(y, expected(np.concatenate(parts)), rtol=1e-6)


def test_interrupted_job_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "rows.parquet", 400)
    done: list[Path] = []

    def failing(temporary: Path, path: Path) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(path)
        commit(temporary, path)

    monkeypatch.setattr(mapping, "commit", failing)
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path, batch_size=16)
    with pytest.raises(JobError, match="no manifest"):
        verify(tmp_path / "out")
    monkeypatch.setattr(mapping, "commit", commit)
    mapped = run(model, tmp_path)
    assert (mapped.rows, mapped.new_rows, mapped.batch_size) == (400, 200, 16)
    ids, _ = read_outputs(tmp_path / "out")
    np.testing.assert_array_equal(ids, np.arange(400))


def test_file_of_another_block_is_refused(model: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 200)
    run(model, tmp_path)
    out = tmp_path / "out"
    (out / "_manifest.json").unlink()
    (out / "block-000001.parquet").write_bytes((out / "block-000000.parquet").read_bytes())
    with pytest.raises(JobError, match=r"block-000001.parquet was written by another job"):
        run(model, tmp_path)


_SLOW_WRITER = """
import os, sys, time
from fusewire.ray import mapping
commit = mapping.commit
def slow(temporary, path):
    if path.name == "block-000001.parquet":
        with temporary.open("r+b") as file:
            file.truncate(temporary.stat().st_size // 2)
        open("half-written", "w").close()
        time.sleep(60)
    commit(temporary, path)
mapping.commit = slow
from fusewire.options import Options
reference = Options(backend="reference")
mapping.map_parquet("model.onnx", "rows.parquet", "out", block_rows=100, options=reference)
"""


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_writer_that_is_killed_loses_no_row_and_doubles_none(model: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 300)
    writer = subprocess.Popen([sys.executable, "-c", _SLOW_WRITER], cwd=tmp_path)
    try:
        wait_for((tmp_path / "half-written").exists)
    finally:
        writer.kill()
        writer.wait()
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert any(name.startswith(".writing-") for name in left)
    assert "block-000001.parquet" not in left
    assert run(model, tmp_path).new_rows == 200
    ids, _ = read_outputs(tmp_path / "out")
    np.testing.assert_array_equal(ids, np.arange(300))
    assert not list((tmp_path / "out").glob(".writing-*"))
    verify(tmp_path / "out")


def test_rows_that_a_model_mixes_are_run_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "mixing.onnx"
    fw.save_onnx(lambda x: x - x.mean(axis=0), path, fw.Spec(("rows", 4), "float32"))
    write_rows(tmp_path / "rows.parquet", 100)
    assert run(path, tmp_path).batch_size == 1
    table = pq.read_table(tmp_path / "out")
    assert not np.any(table.column("output").combine_chunks().to_numpy_ndarray())


def test_second_writer_of_a_block_leaves_the_first(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "rows.parquet", 100)
    digests: list[bytes] = []

    def twice(temporary: Path, path: Path) -> None:
        commit(temporary, path)
        digests.append(path.read_bytes())
        late = temporary.with_name(f"{temporary.name}-late")
        late.write_bytes(b"other bytes of a writer that was thought dead")
        commit(late, path)

    monkeypatch.setattr(mapping, "commit", twice)
    run(model, tmp_path)
    assert (tmp_path / "out" / "block-000000.parquet").read_bytes() == digests[0]
    verify(tmp_path / "out")


def test_folder_of_another_job_is_refused(model: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 100)
    run(model, tmp_path)
    with pytest.raises(JobError, match="another job: keep"):
        run(model, tmp_path, keep=["id"])
    time.sleep(0.01)
    write_rows(tmp_path / "rows.parquet", 100, seed=1)
    with pytest.raises(JobError, match="another job: files"):
        run(model, tmp_path)


def test_folder_with_other_files_is_refused(model: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 100)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(JobError, match="Give an empty folder"):
        run(model, tmp_path)


def test_changed_output_is_found(model: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 100)
    run(model, tmp_path)
    path = tmp_path / "out" / "block-000000.parquet"
    changed = bytearray(path.read_bytes())
    changed[40] ^= 1
    path.write_bytes(changed)
    with pytest.raises(JobError, match="was changed"):
        verify(tmp_path / "out")


def test_input_that_is_not_parquet_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"id,x\n" * 100)
    with pytest.raises(JobError, match="cannot be read as Parquet"):
        run(model, tmp_path)
    (tmp_path / "rows.parquet").write_bytes(b"")
    with pytest.raises(JobError, match="cannot be read as Parquet"):
        run(model, tmp_path)


def test_damaged_page_is_an_error_and_no_output(model: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 100)
    path = tmp_path / "rows.parquet"
    held = bytearray(path.read_bytes())
    held[4:400] = os.urandom(396)
    path.write_bytes(held)
    with pytest.raises(JobError):
        run(model, tmp_path)
    assert not list((tmp_path / "out").glob("block-*"))


def test_command_maps_and_says_how_fast(model: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 100)
    words = ["map", str(model), str(tmp_path / "rows.parquet"), str(tmp_path / "out"), "--json"]
    words += ["--backend", "reference", "--output", "output0=score", "--keep", "id"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == 100
    names = pq.read_table(tmp_path / "out").column_names
    assert names == ["id", "score", "output1"]
    wrong = [*words[:3], str(tmp_path / "other"), "--input", "x=nothing"]
    done = CliRunner().invoke(main, wrong)
    assert done.exit_code == 1
    assert "from the column 'nothing'" in done.output


def test_batch_size_is_the_smallest_that_is_fast() -> None:
    # A call costs 2 ms, and 0.1 ms a row up to 16 rows, beyond which it is no faster per row.
    def call(size: int) -> None:
        end = time.perf_counter() + (0.002 + 0.0001 * size) * max(size / 16, 1)
        while time.perf_counter() < end:
            pass

    size, rates = measured_batch_size(call, 1000)
    assert size in (8, 16)
    assert len(rates) < 8
    assert measured_batch_size(call, 4)[0] == 4
