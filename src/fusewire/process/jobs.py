"""Do work behind calls: in queues, each with so many places.

A job gets a thread when it gets a place. One that raises ends alone, and its queue goes on. When
the process ends, nothing more begins, and Python waits for the jobs that must end.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Literal, TypeAlias, final

from fusewire.process.forks import in_forked_child

# "compile" is for engines that compile what calls do without meanwhile: the calls need the cores.
# "now" is for what the next call waits for.
Queue: TypeAlias = Literal["compile", "now"]
_PLACES: Mapping[Queue, float] = {"compile": 1, "now": float("inf")}


class SafeCondition(threading.Condition):
    """A condition that an interrupt cannot leave locked.

    ``Condition.__enter__`` takes its lock in Python (3.11), and Ctrl-C may come between that and
    the ``with``: whoever sets the result would wait for ever. These two are the lock's own.
    """

    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))


def _nothing() -> None: ...


@final
class Job:
    """Something to do; ``must_end``: a process that ends waits for it once it has begun."""

    def __init__(
        self, name: str, queue: Queue, run: Callable[[], object], *, must_end: bool = False
    ) -> None:
        self.name, self.queue, self.run, self.must_end = name, queue, run, must_end
        self._condition = SafeCondition()
        self._has_ended = False

    def end(self) -> None:
        """Let whoever waits go on, and let go of what it had to do, which may hold this job."""
        # That may close engines: nobody may have a lock that others need.
        self.run = _nothing
        with self._condition:
            self._has_ended = True
            self._condition.notify_all()

    def forget(self) -> Callable[[], object]:
        """Be over in a forked process; returns what it had to do, which is not to be freed there.

        A thread that is not here may have held the lock.
        """
        run, self.run = self.run, _nothing
        self._condition, self._has_ended = SafeCondition(), True
        return run

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end; True at once in a process that was forked while it waited or ran."""
        with self._condition:
            return self._condition.wait_for(lambda: self._has_ended, seconds)


@final
class Jobs:
    """The jobs of a process. ``start`` starts a thread: tests give their own."""

    def __init__(self, start: Callable[[threading.Thread], None] = threading.Thread.start) -> None:
        self._start = start
        self._void: list[Callable[[], object]] = []
        self._reset()
        in_forked_child(self._forget)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Queue, deque[Job]] = {queue: deque() for queue in _PLACES}
        self._running: list[Job] = []

    def put(self, job: Job) -> None:
        """Have a job done when there is a place; RuntimeError if no thread can be started.

        When the process ends, there are threads for what a call waits for alone.
        """
        if job.queue != "now" and not threading.main_thread().is_alive():
            raise RuntimeError("the process ends")
        with self._lock:
            if self._has_place(job.queue):
                self._begin(job)
            else:
                self._waiting[job.queue].append(job)

    def _has_place(self, queue: Queue) -> bool:
        return Counter(job.queue for job in self._running)[queue] < _PLACES[queue]

    def _begin(self, job: Job) -> None:
        thread = threading.Thread(
            target=self._work, args=(job,), name=f"fusewire-{job.name}", daemon=not job.must_end
        )
        self._running.append(job)
        try:
            self._start(thread)
        except BaseException:
            # Ctrl-C may come when it has started.
            if thread.ident is None:
                self._running.remove(job)
            raise

    def _work(self, job: Job) -> None:
        try:
            job.run()
        finally:
            self._end(job)

    def _end(self, job: Job) -> None:
        """Give its place to the next one of its queue."""
        job.end()
        left: list[Job] = []
        with self._lock:
            # In a forked process, the thread that forked may be one of a job that is void there.
            if job not in self._running:
                return
            self._running.remove(job)
            waiting = self._waiting[job.queue]
            while waiting and threading.main_thread().is_alive():
                following = waiting.popleft()
                try:
                    self._begin(following)
                    break
                except RuntimeError:
                    left.append(following)
        # Whoever waits for them does without.
        for following in left:
            following.end()

    def _forget(self) -> None:
        """Start empty in a forked process, which has no threads; nothing of the parent's ends."""
        void = [*self._running, *(job for jobs in self._waiting.values() for job in jobs)]
        self._reset()
        # What they hold may be engines of the parent.
        self._void += [job.forget() for job in void]


JOBS = Jobs()
