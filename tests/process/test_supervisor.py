"""A supervisor ends all that is below it when its parent is gone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from fusewire.system.processes import descendants
from tests.comparers import has_ended, is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="supervisors need Linux")

# Below the supervisor: a process that computes, and one in a session of its own, not tied to it.
SCRIPT = """
import subprocess, sys
from fusewire.process.supervisor import supervise

supervise(int(sys.argv[1]))
subprocess.Popen(["sleep", "60"], start_new_session=True)
print("ready", flush=True)
if sys.argv[2] == "ends":
    sys.exit(7)
while True:
    pass
"""


class Supervised:
    """A supervisor, those below it, and the pipe on which it waits."""

    def __init__(self, way: str = "") -> None:
        life, self.end = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(life), way],
            stdout=subprocess.PIPE,
            pass_fds=[life],
        )
        os.close(life)
        assert self.process.stdout is not None
        with self.process.stdout as said:
            assert said.readline() == b"ready\n"
            self.below = descendants(self.process.pid)


@pytest.fixture
def supervised() -> Iterator[Supervised]:
    made = Supervised()
    yield made
    for pid in filter(is_running, made.below):
        os.kill(pid, signal.SIGKILL)
    made.process.kill()
    made.process.wait()


@pytest.mark.parametrize("way", ["parent", "SIGTERM"])
def test_all_below_a_supervisor_end_with_its_parent(supervised: Supervised, way: str) -> None:
    assert len(supervised.below) == 2
    if way == "SIGTERM":
        supervised.process.terminate()
    else:
        os.close(supervised.end)
    assert all(has_ended(pid) for pid in supervised.below)
    assert supervised.process.wait(10) == 0


def test_supervised_process_ends_with_its_supervisor(supervised: Supervised) -> None:
    supervised.process.kill()
    assert has_ended(supervised.below[0])


def test_parent_that_ended_before_its_supervisor_started_is_noticed() -> None:
    life, end = os.pipe()
    os.close(end)
    start = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(life), ""], pass_fds=[life], timeout=30, check=False
    )
    os.close(life)
    assert process.returncode == 0
    assert time.monotonic() - start < 10


def test_supervisor_says_how_its_process_ended() -> None:
    made = Supervised("ends")
    assert made.process.wait(30) == 7
    os.close(made.end)
    assert all(has_ended(pid) for pid in made.below)
