"""Jobs: one place at a time, what raises, what cannot start, forks and the end of a process."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from fusewire.process.jobs import Job, Jobs

SECONDS = 30.0


class Steps:
    """Jobs that end when they are told to, and what they did in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun = threading.Semaphore(0)
        self.may_end: dict[str, threading.Event] = {}

    def job(self, name: str, error: BaseException | None = None) -> Job:
        self.may_end[name] = threading.Event()

        def run() -> None:
            self.done.append(f"{name} begins")
            self.begun.release()
            self.may_end[name].wait(SECONDS)
            self.done.append(f"{name} ends")
            if error is not None:
                raise error

        return Job(name, "compile", run)


@pytest.fixture
def steps() -> Iterator[Steps]:
    steps = Steps()
    yield steps
    for event in steps.may_end.values():
        event.set()


def test_a_queue_has_one_place_and_goes_on_after_one_that_raises(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(threading, "excepthook", lambda said: raised.put(str(said.exc_value)))
    jobs = Jobs()
    first, second = steps.job("first", ValueError("the first")), steps.job("second")
    jobs.put(first)
    jobs.put(second)
    assert steps.begun.acquire(timeout=SECONDS)
    assert not second.wait(0.05)
    assert steps.done == ["first begins"]
    steps.may_end["first"].set()
    steps.may_end["second"].set()
    assert first.wait(SECONDS)
    assert second.wait(SECONDS)
    assert steps.done == ["first begins", "first ends", "second begins", "second ends"]
    assert raised.get(timeout=SECONDS) == "the first"


def test_what_a_call_waits_for_has_a_place_at_once(steps: Steps) -> None:
    jobs, ran = Jobs(), threading.Event()
    jobs.put(steps.job("first"))
    assert steps.begun.acquire(timeout=SECONDS)
    jobs.put(Job("loading", "now", ran.set))
    assert ran.wait(SECONDS)


def test_without_a_thread_putting_raises_and_what_waited_is_let_go(steps: Steps) -> None:
    may_start = [True]

    def start(thread: threading.Thread) -> None:
        if not may_start[0]:
            raise RuntimeError("can't start new thread")
        thread.start()

    jobs = Jobs(start)
    first, second, third = (steps.job(name) for name in ("first", "second", "third"))
    jobs.put(first)
    jobs.put(second)
    assert steps.begun.acquire(timeout=SECONDS)
    may_start[0] = False
    steps.may_end["first"].set()
    # It had to wait, and there is no thread for it now.
    assert second.wait(SECONDS)
    with pytest.raises(RuntimeError, match="can't start"):
        jobs.put(third)
    may_start[0] = True
    jobs.put(third)
    assert steps.begun.acquire(timeout=SECONDS)
    assert steps.done == ["first begins", "first ends", "third begins"]


def test_an_interrupt_while_a_job_begins_costs_its_queue_no_place(steps: Steps) -> None:
    interrupts = [KeyboardInterrupt()]

    def start(thread: threading.Thread) -> None:
        if interrupts:
            raise interrupts.pop()
        thread.start()

    jobs, second = Jobs(start), steps.job("second")
    with pytest.raises(KeyboardInterrupt):
        jobs.put(steps.job("first"))
    jobs.put(second)
    assert steps.begun.acquire(timeout=SECONDS)
    assert steps.done == ["second begins"]


def test_what_a_job_held_is_let_go_while_others_may_put(steps: Steps) -> None:
    """Closing what it held may take long, or put a job itself."""
    jobs, put = Jobs(), threading.Event()

    class Held:
        def __del__(self) -> None:
            jobs.put(Job("closing", "now", put.set))

    def run(held: Held) -> None:
        assert held is not None

    job = Job("first", "compile", partial(run, Held()))
    jobs.put(job)
    assert job.wait(SECONDS)
    assert put.wait(SECONDS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_process_has_places_again_and_waits_for_nothing(steps: Steps) -> None:
    jobs = Jobs()
    first, second = steps.job("first"), steps.job("second")
    jobs.put(first)
    jobs.put(second)
    assert steps.begun.acquire(timeout=SECONDS)
    child = os.fork()
    if child == 0:
        ran = threading.Event()
        jobs.put(Job("own", "compile", ran.set))
        is_well = first.wait(SECONDS) and second.wait(SECONDS) and ran.wait(SECONDS)
        os._exit(0 if is_well else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    # Nothing has ended here.
    assert not first.wait(0.01)


END = """
import time
from fusewire.process.jobs import JOBS, Job

def say(word, seconds):
    time.sleep(seconds)
    print(word, flush=True)

JOBS.put(Job("first", "compile", lambda: say("began and must end", 0.5), must_end=True))
JOBS.put(Job("second", "compile", lambda: say("began after the end", 0.0), must_end=True))
JOBS.put(Job("third", "now", lambda: say("need not end", 20.0)))
"""


def test_a_process_that_ends_waits_for_what_must_end_and_begins_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", END], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "began and must end\n", "")
