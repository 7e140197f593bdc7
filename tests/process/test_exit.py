"""A process ends quietly, whatever its threads do."""

import subprocess
import sys
import textwrap

import pytest

CALLS = """
import threading, time
import numpy as np
import fusewire as fw

weights, x = np.ones((256, 256), np.float32), np.ones((1, 256), np.float32)
program = fw.compile(lambda x: x @ weights, x, backend="onnxruntime", level=0)
program(x)

def call():
    while True:
        program(x)

for _ in range(4):
    threading.Thread(target=call, daemon=True).start()
time.sleep(0.3)
"""

HELD = """
import atexit, threading, time

lock = threading.Lock()
# The package is imported later, so that what it does at exit comes first.
atexit.register(lambda: print(lock.acquire(timeout=10)))

import numpy as np
import fusewire as fw

x = np.ones(4, np.float32)
program = fw.compile(lambda x: x + x, x, backend="onnxruntime", level=0)
program(x)

def call():
    while True:
        with lock:
            program(x)

threading.Thread(target=call, daemon=True).start()
time.sleep(0.3)
"""

NESTED = """
import atexit, threading, time
from fusewire.process.guard import guarded

begun, ending = threading.Event(), threading.Event()

def inner():
    begun.set()
    ending.wait()
    # By then no call may begin any more.
    time.sleep(0.1)
    guarded("xla", "run", "main", print, "inside")

def outer():
    try:
        guarded("xla", "run", "main", inner)
    except Exception as error:
        print(type(error).__name__)

threading.Thread(target=outer, daemon=True).start()
begun.wait()
atexit.register(ending.set)
"""

AT_EXIT = """
import atexit
import numpy as np
import fusewire as fw

x = np.ones(4, np.float32)
program = fw.compile(lambda x: x + x, x, backend="onnxruntime", level=0)
program(x)
atexit.register(lambda: print(program(x).sum()))
"""

FOLDER = """
import os, sys
from pathlib import Path
from fusewire.store import files

# Modules that are referred to lose their names at exit, those that were imported last first.
sys.kept = [os, files]
os.kept = files.Folder(Path(sys.argv[1]))
"""


def ended(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_threads_that_call_an_engine_at_exit_do_not_abort_the_process() -> None:
    found = ended(CALLS)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_thread_that_may_not_call_at_exit_keeps_no_lock() -> None:
    found = ended(HELD)
    assert (found.returncode, found.stdout, found.stderr) == (0, "True\n", "")


def test_call_that_is_refused_inside_of_another_at_exit_is_no_failure_of_an_engine() -> None:
    found = ended(NESTED)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_program_still_answers_the_main_thread_at_exit() -> None:
    found = ended(AT_EXIT)
    assert (found.returncode, found.stdout, found.stderr) == (0, "8.0\n", "")


def test_folder_of_the_cache_prints_nothing_at_exit(tmp_path: object) -> None:
    found = ended(FOLDER, f"{tmp_path}/cache")
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
