"""Children are kept, replaced, shared between threads, and never outlive what they are for."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusewire.contract.backend import Config, Unavailable
from fusewire.errors import IsolationError
from fusewire.process import pool as pool_module
from fusewire.process.child import Child
from fusewire.process.frames import Blobs, Frame
from fusewire.process.isolate import first_contact, probe, rerun, timed
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import ChildPool, Seat, alone
from tests.process.regions import (
    DEVICE,
    INPUT,
    PATIENT,
    WEIGHTS,
    chaos,
    contact,
    made,
    outlived,
    refused,
    region,
    running,
    stays,
    workers,
)

GOOD = chaos("none_at_run")


def pid_of(pool: ChildPool, reference: str = GOOD) -> int:
    with pool.seated(reference) as (seat, _):
        assert seat.child is not None
        return seat.child.pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_child_is_used_again() -> None:
    with ChildPool() as pool:
        first = pid_of(pool)
        made(contact(pool, "none_at_run"))
        refused(contact(pool, "raise_at_run"))
        made(contact(pool, "none_at_run"))
        assert pid_of(pool) == first


def test_a_child_is_replaced_after_so_many_jobs() -> None:
    with ChildPool(jobs_per_child=2) as pool:
        first = pid_of(pool)
        made(contact(pool, "none_at_run"))
        assert pid_of(pool) == first
        made(contact(pool, "none_at_run"))
        assert pid_of(pool) != first
        made(contact(pool, "none_at_run"))


def test_a_child_that_died_in_its_sleep_is_replaced() -> None:
    with ChildPool() as pool:
        first = pid_of(pool)
        kill(first)
        made(contact(pool, "none_at_run"))
        assert pid_of(pool) != first


def test_a_child_that_speaks_unasked_is_replaced() -> None:
    reference = chaos("mutter_at_rerun")
    with ChildPool() as pool:
        found = made(contact(pool, "mutter_at_rerun"))
        first = pid_of(pool, reference)
        assert isinstance(rerun(found, [INPUT], PATIENT, pool=pool), list)
        seat = pool._seats[reference]
        assert not stays(lambda: seat.child is not None and seat.child.is_usable)
        made(contact(pool, "mutter_at_rerun"))
        assert pid_of(pool, reference) != first


def test_what_only_a_used_child_dies_of_is_not_held_against_a_region() -> None:
    with ChildPool() as pool:
        made(contact(pool, "segv_at_recompile"))
        again = made(contact(pool, "segv_at_recompile"))
        assert again.metrics["start_seconds"] > 0


def test_what_was_made_is_loaded_again_in_a_new_child() -> None:
    with ChildPool() as pool:
        found = made(contact(pool, "none_at_run"))
        kill(pid_of(pool))
        ran = rerun(found, [INPUT], PATIENT, pool=pool)
        assert isinstance(ran, list)
        np.testing.assert_array_equal(ran[0], found.outputs[0])


def test_old_executables_are_dropped_and_come_back() -> None:
    with ChildPool() as pool:
        found = [made(contact(pool, "none_at_run")) for _ in range(10)]
        with pool.seated(GOOD) as (seat, _):
            assert len(seat.executables) == 8
        for each in (found[0], found[9], found[1]):
            assert isinstance(rerun(each, [INPUT], PATIENT, pool=pool), list)


def test_constants_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    ask = Child.ask

    def counting(self: Child, header: Any, blobs: Blobs, *rest: Any) -> Frame:
        sent.append(sum(blob.nbytes for blob in blobs))
        return ask(self, header, blobs, *rest)

    monkeypatch.setattr(Child, "ask", counting)
    with ChildPool() as pool:
        made(contact(pool, "none_at_run"))
        made(contact(pool, "none_at_run"))
        assert sent[0] - sent[1] == WEIGHTS.nbytes
        # A child that holds too much forgets what the job at hand does not need.
        monkeypatch.setattr(pool_module, "_KEPT_BYTES", WEIGHTS.nbytes)
        other = region(WEIGHTS + 1)
        made(first_contact(GOOD, other, DEVICE, Config(), [INPUT], PATIENT, pool=pool))
        made(contact(pool, "none_at_run"))
        assert sent[2] == sent[3] == sent[0]


def test_threads_share_a_pool() -> None:
    found: list[object] = []
    with ChildPool() as pool:

        def work(name: str) -> None:
            for _ in range(3):
                found.append(contact(pool, name))

        names = ("none_at_run", "none_at_run", "raise_at_run", "segv_at_run")
        threads = [threading.Thread(target=work, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    codes = sorted(getattr(x, "code", "made") for x in found)
    assert codes == ["crashed"] * 3 + ["made"] * 6 + ["raised"] * 3


def test_a_child_outlives_the_thread_that_started_it() -> None:
    with ChildPool() as pool:
        pids: list[int] = []
        thread = threading.Thread(target=lambda: pids.append(pid_of(pool)))
        thread.start()
        thread.join()
        time.sleep(0.1)
        made(contact(pool, "none_at_run"))
        assert pid_of(pool) == pids[0]


def test_closing_ends_a_job_at_work() -> None:
    pool = ChildPool()
    pid = pid_of(pool, chaos("hang_at_compile"))
    raised: list[str] = []

    def work() -> None:
        try:
            contact(pool, "hang_at_compile")
        except IsolationError as error:
            raised.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)
    pool.close()
    thread.join(20)
    assert raised == ["The pool was closed while chaos was working on main (2 nodes)."]
    assert not Path(f"/proc/{pid}").exists()


def test_a_closed_pool_says_so() -> None:
    pool = ChildPool()
    pool.close()
    pool.close()
    with pytest.raises(IsolationError, match="is closed"):
        contact(pool, "none_at_run")


def test_child_that_does_not_start_is_not_the_engines_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ChildPool(start_seconds=20) as pool:
        for executable, told in (("/bin/false", "exited with code 1"), ("/nowhere", "No such")):
            monkeypatch.setattr(sys, "executable", executable)
            found = refused(contact(pool, "none_at_run"))
            assert (found.code, told in found.reason) == ("not-started", True)
            assert 'isolate="never"' in found.suggestion
            (absent,) = probe(GOOD, pool=pool)
            assert isinstance(absent, Unavailable)
            assert absent.code == "not-started"
        monkeypatch.undo()
        made(contact(pool, "none_at_run"))


class Killer:
    """Kills the children of a pool from outside, so many times, once they work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, number: int) -> None:
        self.killed: list[int] = []
        self.alone: list[bool] = []
        ask = Child.ask

        def struck(child: Child, *arguments: Any) -> Any:
            self.alone.append(not any(seat.child not in (None, child) for seat in seats()))
            if len(self.killed) < times:
                self.killed.append(child.pid)
                os.kill(child.pid, number)
            return ask(child, *arguments)

        def seats() -> list[Seat]:
            return [seat for pool in list(pool_module._POOLS) for seat in pool._seats.values()]

        monkeypatch.setattr(Child, "ask", struck)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_child_that_is_killed_once_is_tried_again_alone(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with ChildPool() as pool:
        made(contact(pool, "none_at_load"))
        killer = Killer(monkeypatch, 1, number)
        first = made(contact(pool, "none_at_run"))
        assert killer.alone == [False, True]
        # Also one that is asked for another run, or for times.
        for job in (rerun, lambda one, given, pool: timed(one, given, 2, pool=pool)):
            killer.killed.clear()
            assert isinstance(job(first, [INPUT], pool=pool), list)
            assert len(killer.killed) == 1


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (signal.SIGKILL, "killed", "died of SIGKILL, which another process or the system sent"),
        (signal.SIGTERM, "killed", "died of SIGTERM, which another process"),
        (signal.SIGSEGV, "crashed", "died of SIGSEGV."),
    ],
)
def test_only_what_an_engine_does_again_alone_is_a_crash(
    monkeypatch: pytest.MonkeyPatch, number: int, code: str, told: str
) -> None:
    with ChildPool() as pool:
        killer = Killer(monkeypatch, 2, number)
        found = refused(contact(pool, "none_at_run"))
        assert (found.code, told in found.reason) == (code, True), found
        assert len(killer.killed) == 2
        made(contact(pool, "none_at_run"))


def test_other_threads_wait_while_a_child_is_tried_alone() -> None:
    order: list[str] = []
    with ChildPool() as pool:

        def work() -> None:
            with pool.seated(GOOD):
                order.append("job")

        thread = threading.Thread(target=work)
        with alone() as is_alone:
            assert is_alone
            thread.start()
            # Jobs of this thread do not wait for it.
            with pool.seated(GOOD), pool.seated(chaos("none_at_load")):
                thread.join(0.2)
                order.append("alone")
        thread.join(30)
    assert order == ["alone", "job"]


def test_child_dies_before_its_parent_and_not_before_everybody() -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    with ChildPool() as pool:
        pid = pid_of(pool)
        found = int(Path(f"/proc/{pid}/oom_score_adj").read_text())
    assert found == min(max(own, 0) + 300, 1000)


def test_an_interrupted_job_leaves_no_child(request: pytest.FixtureRequest) -> None:
    # Workers of a test run in parallel ignore this signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with ChildPool() as pool:
        pid = pid_of(pool, chaos("hang_at_run"))
        timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            contact(pool, "hang_at_run")
        timer.join()
        deadline = time.monotonic() + 5
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{pid}").exists()


def test_a_fork_does_not_touch_the_children_of_its_parent() -> None:
    with ChildPool() as pool:
        pid = pid_of(pool)
        forked = os.fork()
        if not forked:
            code = 1
            try:
                is_other = pid_of(pool) != pid
                pool.close()
                code = 0 if is_other else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(forked, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        made(contact(pool, "none_at_run"))
        assert pid_of(pool) == pid


def is_alive(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


SCRIPT = """
import os, sys, threading, time
from fusewire.process.pool import ChildPool
from tests.process.regions import contact
pool = ChildPool(closing="open")
contact(pool, "none_at_run")
forked = os.fork() if sys.argv[1] == "fork" else os.getpid()
if not forked:
    time.sleep(60)
    os._exit(0)
print(forked, flush=True)
def work():
    contact(pool, "grandchild_at_run")
if sys.argv[1] == "thread":
    threading.Thread(target=work).start()
else:
    work()
"""


@pytest.mark.parametrize("where", ["main", "thread", "fork"])
def test_children_and_theirs_die_with_the_parent(where: str) -> None:
    path = os.pathsep.join(filter(None, sys.path))
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, where],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        forked = int(parent.stdout.readline())
        mark = f"chaos-of-{parent.pid}"
        assert not stays(lambda: not running(mark), 30)
        children = workers(parent.pid) - {forked}
        assert len(children) == 2
        parent.kill()
    try:
        assert not outlived(mark)
        # Nobody may have reaped them yet, but what is dead has no command line.
        assert not stays(lambda: any(is_alive(pid) for pid in children))
    finally:
        if where == "fork":
            os.kill(forked, signal.SIGKILL)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_is_left_behind() -> None:
    gc.collect()
    before = descriptors(), threading.active_count(), workers(os.getpid())
    with ChildPool(closing="open") as pool:
        for name in ("segv_at_run", "garbage_at_run", "exit_at_import", "raise_at_run"):
            refused(contact(pool, name))
        refused(contact(pool, "grandchild_at_run", ChildLimits(1.0)))
        made(contact(pool, "none_at_run"))
    assert (descriptors(), threading.active_count(), workers(os.getpid())) == before
    assert not outlived(f"chaos-of-{os.getpid()}")
