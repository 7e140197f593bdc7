"""A model file that was compiled before is loaded by another process, not read again."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import FallbackWarning, FormatError, RefusedError
from fusewire.records.quarantine import Fact, quarantine
from fusewire.store.ahead import Ahead
from fusewire.store.disk import Store

ENGINES = ("onnxruntime", "openvino", "xla")
CHILD = """
import sys
import numpy as np
import fusewire as fw

path, backend, out = sys.argv[1:4]
program = fw.compile(path, backend=backend, fallback="error", level=0)
rows = [program(np.arange(n * 6, dtype=np.float32).reshape(n, 6) / 7) for n in (2, 3)]
np.savez(out, *rows)
caches = [c.cache for c in program.why().contacts] if sys.argv[4] else []
late = ["onnx", "fusewire.planning.planner", *sys.argv[5:]]
print([name for name in late if name in sys.modules], caches)
"""
# What a start that an engine needs no sizes for does not need: each takes milliseconds.
LATE = ("fusewire.ops.declare", "fusewire.process.child", "fusewire.show.why")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(6, 400)).astype(np.float32)
    path = tmp_path_factory.mktemp("models") / "small.onnx"
    graph = fw.trace(lambda x: np.tanh(x @ weights), fw.Spec(("n", 6), "float32"))
    fw.save_onnx(graph, path)
    return path


def run(model: Path, backend: str, cache: Path, asked: str = "") -> tuple[str, list[np.ndarray]]:
    late = () if asked or backend == "xla" else LATE
    out = cache.parent / f"out{len(list(cache.parent.iterdir()))}.npz"
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(model), backend, str(out), asked, *late],
        env={
            "FUSEWIRE_CACHE": str(cache),
            "FUSEWIRE_CONFIG": os.environ["FUSEWIRE_CONFIG"],
            "PATH": "/usr/bin:/bin",
            "HOME": str(cache.parent),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with np.load(out) as found:
        return done.stdout.strip(), [found[name] for name in found.files]


@pytest.mark.parametrize("backend", ENGINES)
def test_second_process_reads_and_compiles_nothing(
    model: Path, backend: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    _, cold = run(model, backend, cache)
    said, warm = run(model, backend, cache)
    assert said == "[] []"
    for left, right in zip(cold, warm, strict=True):
        np.testing.assert_array_equal(left, right)
    # Asked why, it reads the file after all, and tells where the artifacts are from.
    said, _ = run(model, backend, cache, "why")
    assert "'hit'" in said
    assert "miss" not in said


def test_file_that_changed_is_another_file(model: Path, tmp_path: Path) -> None:
    cache, other = tmp_path / "cache", tmp_path / "small.onnx"
    other.write_bytes(model.read_bytes())
    run(other, "onnxruntime", cache)
    graph = fw.trace(lambda x: x * np.float32(3), fw.Spec(("n", 6), "float32"))
    fw.save_onnx(graph, other)
    _, found = run(other, "onnxruntime", cache)
    np.testing.assert_array_equal(found[0], 3 * (np.arange(12, dtype=np.float32).reshape(2, 6) / 7))


@pytest.mark.parametrize("kind", ["plan", "artifact"])
def test_entries_that_are_damaged_are_made_again(model: Path, kind: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    _, cold = run(model, "onnxruntime", cache)
    store = Store(cache)
    (entry, *_) = store.entries(kind)
    held = bytearray((cache / entry.name).read_bytes())
    held[-40] ^= 1
    (cache / entry.name).write_bytes(held)
    _, healed = run(model, "onnxruntime", cache)
    said, warm = run(model, "onnxruntime", cache)
    np.testing.assert_array_equal(cold[0], healed[0])
    np.testing.assert_array_equal(cold[0], warm[0])
    assert said == "[] []"


X = np.arange(12, dtype=np.float32).reshape(2, 6) / 7


def test_file_that_changes_after_it_was_recalled_is_not_taken_for_the_old_one(
    model: Path, store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(model.read_bytes())
    fw.compile(path, backend="onnxruntime")(X)
    for entry in list(store.entries("artifact")):
        store.drop(entry.key)
    recalled = fw.compile(path, backend="onnxruntime")
    fw.save_onnx(fw.trace(lambda x: x * np.float32(3), fw.Spec(("n", 6), "float32")), path)
    with pytest.raises(FormatError, match="has changed since it was compiled"):
        recalled(X)
    assert not list(store.entries("artifact"))


@pytest.mark.parametrize("backend", ["onnxruntime", "xla"])
def test_engine_that_was_found_wrong_since_is_not_recalled(
    model: Path, backend: str, store: Store
) -> None:
    expected = fw.compile(model, backend=backend)(X)
    for entry in list(store.entries("artifact")):
        quarantine(store, entry.key, Fact("wrong", "it was found out."))
    with pytest.warns(FallbackWarning, match="in quarantine since .*it was found out"):
        found = fw.compile(model, backend=backend)(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(RefusedError, match="in quarantine"):
        fw.compile(model, backend=backend, fallback="error")(X)


def test_large_artifact_is_read_ahead_and_checked_all_the_same(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, begun = tmp_path / "large.onnx", list[Ahead[object]]()
    weights = np.random.default_rng(0).normal(size=(6, 150_000)).astype(np.float32)
    fw.save_onnx(fw.trace(lambda x: np.tanh(x @ weights), fw.Spec(("n", 6), "float32")), path)
    expected = fw.compile(path, backend="onnxruntime")(X)
    result = Ahead.result

    def seen(self: Ahead[object]) -> object:
        begun.append(self)
        return result(self)

    monkeypatch.setattr(Ahead, "result", seen)
    np.testing.assert_array_equal(fw.compile(path, backend="onnxruntime")(X), expected)
    assert len(begun) == 1
    entry = max(store.entries("artifact"), key=lambda entry: entry.size)
    held = bytearray((store.path / entry.name).read_bytes())
    held[len(held) // 2] ^= 1
    (store.path / entry.name).write_bytes(held)
    np.testing.assert_array_equal(fw.compile(path, backend="onnxruntime")(X), expected)
    assert len(begun) == 2
    assert store.get(entry.key) is not None
