"""Find the plan to keep behind a program that answers already, and have the program swap to it.

The comparer measures in a process of its own, and records what it decides. This process recalls
the decision, builds its plan, and times it against the one that serves: only what is faster here
takes its place. Engines that compile for long are compared in a second search, which is late: the
program has served for a while with what the first one settled on.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import queue
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, final

from fusewire.background.first_plan import FirstPlan
from fusewire.background.job import ComparisonJob, FileSource
from fusewire.background.process import ComparerProcess
from fusewire.choosing.decide import Decision, read_tried
from fusewire.choosing.duel import beats, meet, with_times
from fusewire.choosing.explain import Explanation
from fusewire.choosing.measure import Comparison
from fusewire.contract.backend import Held
from fusewire.errors import (
    IS_IN_BACKGROUND,
    FusewireError,
    IsolationError,
    MiscompileWarning,
    NoneRightError,
    warn_outside,
)
from fusewire.events import EVENTS
from fusewire.ir.graph import Graph, HostValue
from fusewire.options import Options
from fusewire.plan.function import FunctionRunner
from fusewire.plan.plan import FUNCTION
from fusewire.plan.runner import Runner
from fusewire.process.forks import in_forked_child
from fusewire.process.frames import Frame
from fusewire.program.entry import Entry
from fusewire.program.serving import NotedDetails, OpenDecision, ServingRunner
from fusewire.registry import Registry
from fusewire.show.ranks import is_below
from fusewire.show.why import Tried
from fusewire.store.disk import Store

LOG = logging.getLogger("fusewire")
LOG.addHandler(logging.NullHandler())
# Calls may leave no moment between them for this many times the budget.
_PATIENCE = 2.0


@dataclass(frozen=True, eq=False)
class Proposal:
    """The winner among the engines, and its entry; ``rivals`` may be as fast."""

    entry: Entry
    decision: Decision
    rivals: tuple[Proposal, ...] = ()

    @property
    def name(self) -> str:
        """The name of the winner."""
        return self.decision.candidate.name


class Choices(Protocol):
    """Makes entries of what a comparison decided about one graph."""

    @property
    def options(self) -> Options: ...

    @property
    def registry(self) -> Registry:
        """The backends that the comparer chooses from."""

    @property
    def store(self) -> Store:
        """Where the comparer records its decision."""

    @property
    def model(self) -> FileSource | Graph:
        """What the comparer reads."""

    def proposal(self, inputs: Sequence[HostValue]) -> Proposal | None:
        """Recall the decision for such inputs; None if there is none."""

    def last_resort(self, inputs: Sequence[HostValue], error: NoneRightError) -> Entry:
        """Make the entry that serves if no engine is right."""

    def keep(self, inputs: Sequence[HostValue], decision: Decision) -> None:
        """Record what was settled."""

    def longer(self) -> Choices | None:
        """Return the same with time for engines that were left out; None if none was."""


@final
class BackgroundSearch:
    """Compares the engines for one entry, and settles on a plan."""

    def __init__(
        self, title: str, choices: Choices, first: FirstPlan, is_late: bool = False
    ) -> None:
        self._title = title
        self._choices = choices
        self._first = first
        self.is_late = is_late
        # What it settled on, as a later search needs it; None if nothing is right.
        self._kept: FirstPlan | None = None
        # Collecting garbage in here may end a program, which cancels its search.
        self._lock = threading.RLock()
        self._is_cancelled = False
        # Says that answers so far came from a plan that is not right.
        self._fault = ""
        self._comparer: ComparerProcess | None = None
        # The entry that was built and has not been settled on yet.
        self._proposed: Entry | None = None

    def begin(self, serving: ServingRunner, inputs: Sequence[HostValue]) -> None:
        """Have it run in a thread, after those before it."""
        search_queue().put(self, serving, inputs)

    def cancel(self) -> None:
        """Stop: the first plan stays."""
        with self._lock:
            self._is_cancelled = True
            if self._comparer is not None:
                self._comparer.interrupt()

    def give_way(self) -> None:
        """Stop, and stay with what serves: another program waits for its first search."""
        with self._lock:
            if self._comparer is not None:
                self._comparer.interrupt()

    def forget(self) -> None:
        """Let go of the comparer in a forked process."""
        self._lock, self._is_cancelled = threading.RLock(), True
        if self._comparer is not None:
            self._comparer.forget()

    def run(self, serving: ServingRunner, inputs: Sequence[HostValue]) -> None:
        """Compare, and settle."""
        entry = self._stay("The search for a better plan failed: see the log.")
        token = IS_IN_BACKGROUND.set(True)
        try:
            with EVENTS.span("search", self._title):
                entry = self._settled(serving, inputs)
        except NoneRightError as error:
            entry = replace(self._first.entry, runner=_Refused(error))
        except (FusewireError, OSError, MemoryError, Warning) as error:
            # With warnings as errors, those about the plan to keep end up here.
            entry = self._stay(f"It stays on {self._first.name}: {error}")
        finally:
            IS_IN_BACKGROUND.reset(token)
            if self._is_cancelled:
                self._drop_proposed()
            else:
                self._proposed = None
                serving.settle(self._followed(entry, inputs))
                LOG.info("%s has settled on %s.", self._title, entry.backend)
                # After the swap: with warnings as errors, this raises.
                if self._fault:
                    warn_outside(self._fault, MiscompileWarning)

    def _followed(self, entry: Entry, inputs: Sequence[HostValue]) -> Entry:
        """Have a late search follow, if engines were left out that compile for long."""
        kept = self._kept
        is_over = self.is_late or kept is None or entry.serving is not None
        longer = None if is_over else self._choices.longer()
        if kept is None or longer is None:
            return entry
        from fusewire.background.slow import SlowSearch

        # Its own entry is what serves now, with what was found about it.
        search = BackgroundSearch(self._title, longer, replace(kept, entry=entry), is_late=True)
        return replace(entry, serving=SlowSearch(search, entry, inputs))

    def _check_open(self) -> None:
        if self._is_cancelled:
            raise IsolationError("The program was closed.")

    @contextlib.contextmanager
    def _turn(self, serving: ServingRunner, name: str) -> Iterator[None]:
        """Surround a turn of the duel: none for a program that was closed meanwhile.

        The user's function need not be safe in several threads: it takes its turns between calls.
        """
        self._check_open()
        if not (self._first.is_function and name == self._first.name):
            yield
            return
        with serving.between_calls(_PATIENCE * self._choices.options.budget_seconds):
            yield

    def _drop_proposed(self) -> None:
        """Close what was built for a program that was closed meanwhile."""
        if self._proposed is not None:
            self._proposed.runner.close()
            self._proposed = None

    def _settled(self, serving: ServingRunner, inputs: Sequence[HostValue]) -> Entry:
        self._check_open()
        choices, name = self._choices, self._first.name
        LOG.info(
            "Comparing engines for %s in the background, for about %.0f s; %s answers meanwhile. "
            'Compile with start="measured" to wait for it, or with level=0 to skip it.',
            self._title,
            choices.options.budget_seconds,
            name,
        )
        proposal = choices.proposal(inputs)
        if proposal is None or proposal.decision.is_open:
            reply = self._reply(serving, inputs).header
            if "none_right" in reply:
                rows = map(read_tried, reply["tried"])
                return choices.last_resort(inputs, NoneRightError(reply["none_right"], rows))
            if problem := reply.get("stopped") or reply.get("failed"):
                LOG.info("The comparison for %s stopped: %s", self._title, problem)
                return self._stay(f"The comparison stopped, and {name} stays: {problem}")
            proposal = choices.proposal(inputs)
        if proposal is None:
            return self._stay(f"The decision could not be recalled, and {name} stays.")
        return self._winner(serving, proposal, inputs)

    def _reply(self, serving: ServingRunner, inputs: Sequence[HostValue]) -> Frame:
        choices = self._choices
        job = ComparisonJob(
            choices.options, choices.store, choices.model, inputs, choices.registry
        ).written()
        with self._lock:
            self._check_open()
            self._comparer = ComparerProcess(
                serving.page_descriptor, choices.options.budget_seconds
            )
        try:
            return self._comparer.ask(job, choices.options.report)
        finally:
            with self._lock:
                self._comparer.end()
                self._comparer = None

    def _winner(
        self, serving: ServingRunner, proposal: Proposal, inputs: Sequence[HostValue]
    ) -> Entry:
        """Return the entry to keep: the proposed one, if it is faster in this process too."""
        first, decision = self._first, proposal.decision
        status, reason = self._verdict(decision.tried)
        self._kept = replace(first, is_judged=status == "right")
        if proposal.name == first.name:
            self._choices.keep(inputs, decision)
            # It has run: its own details know what came of that.
            return _left_open(self._stay(*decision.notes, tried=decision.tried), decision)
        if status == "wrong":
            self._fault = (
                f"{self._title} was answered by {first.name} so far, which turned out to be "
                f"{status}: {reason} From now on, {proposal.name} answers."
            )
        self._proposed = proposal.entry
        self._check_open()
        # The first call loads the engine, and may fail.
        proposal.entry.runner.call(inputs)
        if status != "right":
            self._choices.keep(inputs, decision)
            self._kept = _plan_of(proposal)
            return _left_open(proposal.entry, decision)
        return self._settled_by_duels(serving, proposal, inputs)

    def _settled_by_duels(
        self, serving: ServingRunner, proposal: Proposal, inputs: Sequence[HostValue]
    ) -> Entry:
        """Have what serves meet the winner, and while it is not beaten, the next ones."""
        first, decision = self._first, proposal.decision
        rivals = {x.name: x for x in (proposal, *proposal.rivals) if x.name != first.name}
        builds = {x.name: partial(_opponent, first.entry.runner, x) for x in rivals.values()}
        turn = partial(self._turn, serving)
        comparison, best = meet(first.name, first.entry.runner, builds, inputs, turn)
        if best == first.name and _gives_way(first, decision.tried, comparison):
            best = proposal.name
        rows = decision.tried
        if first.is_function:
            rows = (Tried(first.name, FUNCTION, "cpu", FUNCTION, "not judged"), *rows)
        tried = with_times(rows, comparison, best)
        winner = rivals.get(best)
        candidate = first.candidate if winner is None else winner.decision.candidate
        if not (first.is_function and winner is None):
            decision = replace(decision, candidate=candidate)
        is_function = first.is_function and winner is None
        decision = replace(decision, tried=tried, is_function=is_function)
        self._choices.keep(inputs, decision)
        for rival in rivals.values():
            if rival is not winner:
                rival.entry.runner.close()
        self._proposed = None if winner is None else winner.entry
        if winner is not None:
            self._kept = _plan_of(winner)
            details = NotedDetails(winner.entry.details, (), tried)
            return _left_open(replace(winner.entry, details=details), decision)
        note = f"{first.name} stays: {proposal.name} won the race, and is not faster here."
        return _left_open(self._stay(note, *decision.notes, tried=tried), decision)

    def _verdict(self, tried: Sequence[Tried]) -> tuple[str, str]:
        """Return the status of what serves, and the reason: what was found right before stays so.

        Unless it was judged again, and is not.
        """
        first = self._first
        row = next((row for row in tried if row.name == first.name), None)
        status, reason = ("not judged", "") if row is None else (row.status, row.reason)
        is_known = first.is_judged and status == "not judged"
        return ("right" if first.is_trusted or is_known else status), reason

    def _stay(self, *notes: str, tried: tuple[Tried, ...] = ()) -> Entry:
        """Return the entry that serves, to be kept, with notes that say why."""
        entry, details = self._first.entry, self._first.entry.details
        if isinstance(details, Explanation):
            return replace(entry, details=replace(details, notes=notes, tried=tried))
        return replace(entry, details=NotedDetails(details, notes, tried))


def _plan_of(proposal: Proposal) -> FirstPlan:
    decision, name = proposal.decision, proposal.name
    is_judged = any(row.name == name and row.status == "right" for row in decision.tried)
    return FirstPlan(proposal.entry, decision.candidate, name, is_judged=is_judged)


def _opponent(serves: Runner, proposal: Proposal) -> Runner:
    """Return what is proposed as it is timed: against a function, with all that a call takes."""
    proposed = proposal.entry.runner
    return serves.opponent(proposed) if isinstance(serves, FunctionRunner) else proposed


def _gives_way(first: FirstPlan, tried: Sequence[Tried], comparison: Comparison | None) -> bool:
    """Tell whether a plan that ties here gives way to the winner, which was faster in the race."""
    row = next((row for row in tried if row.name == first.name), None)
    best = next((row for row in tried if row.is_chosen), None)
    if row is None or best is None or comparison is None or first.is_function:
        return False
    was_faster = is_below((best.low, best.high), (row.low, row.high))
    return was_faster and not beats(comparison, first.name, best.name)


def _left_open(entry: Entry, decision: Decision) -> Entry:
    """Say that what serves is not settled, if its own table shows it beaten."""
    return replace(entry, serving=OpenDecision()) if decision.is_open else entry


@final
class _Refused:
    """Raises why no engine may answer, as the first call does if it waits for the comparison."""

    def __init__(self, error: NoneRightError) -> None:
        self._error = error

    def call(self, inputs: Sequence[Held]) -> list[Any]:
        """Raise the error."""
        raise NoneRightError(str(self._error), self._error.tried)

    def close(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True, order=True)
class _Waiting:
    """A search in the queue: late ones come last, and give way."""

    is_late: bool
    place: int
    search: BackgroundSearch = field(compare=False)
    serving: ServingRunner = field(compare=False)
    inputs: Sequence[HostValue] = field(compare=False)


class SearchQueue:
    """Runs one search at a time, in a thread that is there while there is something to do."""

    def __init__(self) -> None:
        self._waiting: queue.PriorityQueue[_Waiting] = queue.PriorityQueue()
        self._order = itertools.count()
        self._running: BackgroundSearch | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._active: weakref.WeakKeyDictionary[ServingRunner, BackgroundSearch] = (
            weakref.WeakKeyDictionary()
        )
        in_forked_child(self._forget)

    def put(
        self, search: BackgroundSearch, serving: ServingRunner, inputs: Sequence[HostValue]
    ) -> None:
        """Add a search."""
        with self._lock:
            self._active[serving] = search
            self._waiting.put(_Waiting(search.is_late, next(self._order), search, serving, inputs))
            running = self._running
            if running is not None and running.is_late and not search.is_late:
                running.give_way()
            if self._thread is None or not self._thread.is_alive():
                self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="fusewire-search", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while True:
                waiting = self._waiting.get()
                self._running = waiting.search
                waiting.search.run(waiting.serving, waiting.inputs)
                # The next one may come late: nothing of this one should be kept until then.
                self._running = None
                del waiting
        finally:
            self._running = None
            # One has raised, as warnings may: those behind it do not wait for another to come.
            with self._lock:
                self._start()

    def _forget(self) -> None:
        """Start empty in a forked process, which has no threads."""
        active = list(self._active.items())
        self._waiting, self._lock, self._thread = queue.PriorityQueue(), threading.Lock(), None
        self._running = None
        self._active = weakref.WeakKeyDictionary()
        for serving, search in active:
            search.forget()
            serving.abandon()


@functools.cache
def search_queue() -> SearchQueue:
    """Return the queue of this process."""
    return SearchQueue()


@functools.cache
def private_store() -> Store:
    """Return a store for what is not to be recorded; it ends with the process."""
    folder = tempfile.mkdtemp(prefix="fusewire-")
    store = Store(Path(folder), secret=os.urandom(32))
    weakref.finalize(store, _remove, folder, os.getpid())
    return store


def _remove(folder: str, owner: int) -> None:
    # A forked process must not remove what its parent uses.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
