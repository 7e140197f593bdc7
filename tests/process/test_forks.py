"""Threads that fork at the same time do not wait for each other for ever."""

import subprocess
import sys

import pytest

# One thread forks while it keeps others from it, as a module is read; the other has begun to fork.
FORKS = """
import os
import threading
import time
from fusewire.process.forks import without_forks
import concurrent.futures.thread

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)

def read():
    with without_forks():
        has_begun.set()
        time.sleep(0.3)
        fork()

has_begun = threading.Event()
thread = threading.Thread(target=read)
thread.start()
has_begun.wait()
fork()
thread.join()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="nothing forks here")
def test_two_threads_fork_at_the_same_time() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
