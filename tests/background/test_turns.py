"""One comparison of a user runs at a time, and nobody waits for one that hangs."""

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import fusewire as fw
from fusewire.background.turns import one_on_this_machine
from fusewire.errors import NoQuietError
from tests.background.test_search import PATIENCE, X, undecided, waves

HOLDER = """
import sys
from fusewire.background.turns import one_on_this_machine

with one_on_this_machine(float(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_comparer(seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """Hold the lock in another process, which says that it takes so long at most."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process


def test_lock_is_in_a_folder_that_is_closed_to_others(tmp_path: Path) -> None:
    with one_on_this_machine(1.0):
        about = (tmp_path / f"fusewire-{os.geteuid()}").stat()
    assert about.st_uid == os.geteuid()
    assert stat.S_IMODE(about.st_mode) == 0o700


@pytest.mark.parametrize("what", ["a link", "open to others"])
def test_folder_that_others_could_use_gets_no_lock(tmp_path: Path, what: str) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / f"fusewire-{os.geteuid()}"
    elsewhere.mkdir(0o700)
    if what == "a link":
        folder.symlink_to(elsewhere)
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with one_on_this_machine(1.0):
        assert not list(folder.iterdir())


def test_comparer_waits_for_another_one() -> None:
    with another_comparer(60.0) as process:
        assert process.stdin is not None
        start = time.monotonic()
        timer = threading.Timer(0.3, process.stdin.close)
        timer.start()
        with one_on_this_machine(0.0):
            assert time.monotonic() - start >= 0.3
        timer.join()


def test_comparer_does_not_wait_for_one_that_takes_too_long() -> None:
    with another_comparer(0.2) as process:
        said = rf"\({process.pid}\) has compared engines for more"
        with pytest.raises(NoQuietError, match=said), one_on_this_machine(60.0):
            raise AssertionError("it is not our turn")
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.usefixtures("brisk")
def test_program_says_that_another_comparison_did_not_end() -> None:
    with another_comparer(0.2) as process:
        program = fw.compile(undecided(5.0), budget_seconds=30.0)
        program(X)
        assert program.wait(PATIENCE)
        note = program.why().notes[0]
        assert note.startswith("The comparison stopped, and reference stays: Another process")
        np.testing.assert_allclose(program(X), waves(X) * 5, rtol=1e-5)
        assert process.stdin is not None
        process.stdin.close()
