"""Programs in other processes: pickled, deep-copied, and used after a fork."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def tripled(x: Any) -> Any:
    return x * 3


@fw.compile(backend="reference")
def quadrupled(x: Any) -> Any:
    return x * 4


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(lambda x: np.tanh(x) * 2, fw.Spec(("n", 3), "float32")), path)
    return path


def again(program: Any) -> Any:
    return pickle.loads(pickle.dumps(program))


@pytest.mark.parametrize("copied", [again, copy.deepcopy, copy.copy])
def test_program_of_a_file_is_copied(model: Path, copied: Any) -> None:
    program = fw.compile(model, backend="onnxruntime", threads=1)
    expected = program(X)
    other = copied(program)
    assert other is not program
    np.testing.assert_array_equal(other(X), expected)
    assert other.origin.options.threads == 1


def test_pickle_holds_the_path_and_no_engine(model: Path) -> None:
    program = fw.compile(model, backend="onnxruntime", progress=lambda what, share: None)
    program(X)
    data = pickle.dumps(program)
    assert str(model).encode() in data
    assert len(data) < 2000


def test_program_of_an_importable_function_is_copied() -> None:
    program = fw.compile(tripled, X, backend="reference")
    np.testing.assert_array_equal(again(program)(X), X * 3)
    sized = fw.compile(tripled, fw.Spec(("n", 3), "float32"), backend="reference")
    np.testing.assert_array_equal(copy.deepcopy(sized)(X), X * 3)
    assert again(quadrupled) is quadrupled


@pytest.mark.parametrize("source", [lambda x: x + 1, fw.trace(lambda x: x + 1, X)])
def test_other_programs_say_what_to_do_instead(source: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot be pickled or copied.*Compile the model in each"):
        pickle.dumps(fw.compile(source, backend="reference"))


FORKED = """
import os, sys, signal
import numpy as np
import fusewire as fw
x = np.arange(6, dtype=np.float32).reshape(2, 3)
backend, isolate = sys.argv[1:]
program = fw.compile(lambda x: np.tanh(x @ np.ones((3, 3), np.float32)), backend=backend,
                     fallback="error", isolate=isolate)
expected = program(x)
read, write = os.pipe()
child = os.fork()
if not child:
    signal.alarm(50)
    try:
        said = "right" if np.allclose(program(x), expected) else "wrong"
        said += " " + fw.compile(lambda x: x + 1, backend="reference")(x).dtype.name
    except fw.FusewireError as error:
        said = str(error)
    os.write(write, said.encode())
    os._exit(0)
os.close(write)
_, status = os.waitpid(child, 0)
print(status, os.read(read, 1000).decode())
assert np.allclose(program(x), expected)
"""


def forked(backend: str, isolate: str, cache: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, backend, isolate],
        env={**os.environ, "FUSEWIRE_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "xla"])
def test_program_answers_after_a_fork(backend: str, tmp_path: Path) -> None:
    assert forked(backend, "first", tmp_path) == "0 right float32"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_program_whose_engines_must_stay_here_raises_after_a_fork(tmp_path: Path) -> None:
    said = forked("xla", "never", tmp_path)
    assert said.startswith("0 ")
    assert "compiled before this process was forked" in said


# A search and a meeting run in threads, and are not over when the process is forked.
IMPORTING = """
import importlib, os, signal, sys, time
from types import SimpleNamespace
from fusewire.background.first import _LateSearch

def make():
    importlib.import_module("slow")
    return SimpleNamespace(begin=lambda *given: None)

_LateSearch(make).begin(None, ())
while "slow" not in sys.modules:
    time.sleep(0.001)
if not (child := os.fork()):
    signal.alarm(8)
    import slow
    os._exit(slow.CODE)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
MEETING = """
import os, signal, threading
from fusewire.registry import REGISTRY

met = threading.Event()

def look(name):
    met.set()
    threading.Event().wait()

given, REGISTRY._look = REGISTRY._look, look
REGISTRY.meet_ahead("reference")
met.wait()
if not (child := os.fork()):
    signal.alarm(8)
    REGISTRY._look = given
    os._exit(len(REGISTRY.meet("reference").devices))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("script", [IMPORTING, MEETING])
def test_forked_process_waits_for_no_thread_of_its_parent(script: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(0.5)\nCODE = 1\n")
    command = [sys.executable, "-W", "ignore", "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("1", "")
