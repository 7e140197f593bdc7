"""Decide how the first call of a graph is answered: at once, after measuring, or from a record."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self, final

from fusewire.background.first_plan import FirstPlan
from fusewire.background.job import FileSource, can_be_sent
from fusewire.background.process import CAN_COMPARE
from fusewire.contract.frontend import Reading
from fusewire.contract.model_file import ModelFile
from fusewire.errors import NoneRightError, NotRecalledError, note
from fusewire.ir.graph import Graph, HostValue
from fusewire.options import Options
from fusewire.process.forks import without_forks
from fusewire.program.entry import Entry, LearnedSizes
from fusewire.program.serving import NotedDetails, ServingRunner
from fusewire.records.entries import Records
from fusewire.store.disk import Store
from fusewire.store.key import Key

# Comparing is imported after the first answer.
if TYPE_CHECKING:
    from fusewire.background.search import BackgroundSearch, Proposal
    from fusewire.choosing.decide import Decision
    from fusewire.registry import Registry


class Deciding(Protocol):
    """What decides how a rewritten graph is served."""

    @property
    def options(self) -> Options: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def records(self) -> Records: ...

    def with_store(self, store: Store) -> Self:
        """Return the same with records in another store."""

    def with_long_budget(self) -> Self | None:
        """Return the same with time for engines that are left out; None if none is."""

    def host_inputs(
        self, reading: Reading, graph: Graph, arguments: tuple[Any, ...]
    ) -> list[HostValue]:
        """Return the arguments as the graph takes them."""

    def chosen_entry(
        self,
        reading: Reading,
        graph: Graph,
        key: Key | None,
        inputs: Sequence[HostValue],
        start: float | None = None,
    ) -> Entry:
        """Measure, and make the entry of the winner."""

    def recalled_entry(
        self, reading: Reading, graph: Graph, key: Key | None, inputs: Sequence[HostValue]
    ) -> Entry | None:
        """Make the entry of what was decided for such inputs; None if nothing was."""

    def proposal(
        self,
        reading: Reading,
        graph: Graph,
        inputs: Sequence[HostValue],
        file: ModelFile | None,
    ) -> Proposal | None:
        """Recall how the engines raced on such inputs, and make the entry of the winner."""

    def fallback_entry(
        self,
        reading: Reading,
        graph: Graph,
        inputs: Sequence[HostValue],
        error: NoneRightError,
    ) -> Entry:
        """Make the entry that serves if no engine is right."""

    def first_plan(self, reading: Reading, graph: Graph, inputs: Sequence[HostValue]) -> FirstPlan:
        """Make the entry that is quickest to start."""

    def keep_decision(
        self,
        reading: Reading,
        graph: Graph,
        key: Key | None,
        inputs: Sequence[HostValue],
        decision: Decision,
    ) -> None:
        """Record what was settled, and save its plan under the key."""

    def holds_too_much(self, graph: Graph, inputs: Sequence[HostValue]) -> bool:
        """Tell whether running a graph op by op would hold more than the user allows."""


@dataclass(frozen=True, eq=False)
class FirstCall:
    """What the first call of a graph needs; ``file`` is set if the comparer can read it itself."""

    decider: Deciding
    reading: Reading
    graph: Graph
    key: Key | None
    file: FileSource | None

    def entry(self, arguments: tuple[Any, ...], start: float | None = None) -> Entry:
        """Make the entry for these arguments; ``start`` is when the budget began, if not now."""
        decider, options = self.decider, self.decider.options
        inputs = decider.host_inputs(self.reading, self.graph, arguments)
        is_recalled = options.level == "recall"
        is_measured = options.measures_first or not self._can_compare
        if not is_recalled and (is_measured or decider.holds_too_much(self.graph, inputs)):
            return decider.chosen_entry(self.reading, self.graph, self.key, inputs, start)
        entry = decider.recalled_entry(self.reading, self.graph, self.key, inputs)
        return (
            self._only_recalled(entry, arguments) if is_recalled else entry or self._served(inputs)
        )

    @property
    def _can_compare(self) -> bool:
        """Whether another process can compare engines with these options."""
        return CAN_COMPARE and can_be_sent(self.decider.options, self.decider.registry)

    def _only_recalled(self, entry: Entry | None, arguments: tuple[Any, ...]) -> Entry:
        """Keep a recalled entry to sizes near these; NotRecalledError if there is none."""
        if entry is None:
            raise not_recalled(self.graph.name)
        if not entry.is_open:
            return entry
        return replace(entry, learned=LearnedSizes.recalled(entry.sizes(arguments), self.entry))

    def _served(self, inputs: Sequence[HostValue]) -> Entry:
        """Serve with what is quickest to start, and search behind it."""
        first = self.decider.first_plan(self.reading, self.graph, inputs)
        search = _LateSearch(lambda: self._search(first))
        runner = ServingRunner(first.entry.runner, search, inputs)
        note = (
            f"This is the plan that answers first, {first.name}: engines are compared in the "
            "background. program.wait() waits until the plan to keep is settled."
        )
        details = NotedDetails(first.entry.details, (note,))
        return replace(first.entry, runner=runner, details=details, serving=runner)

    def _search(self, first: FirstPlan) -> BackgroundSearch:
        from fusewire.background.search import BackgroundSearch

        return BackgroundSearch(self.graph.name, _RecordedChoices(self), first)


@final
class _LateSearch:
    """A search that is made after the first answer, in a thread: its imports take a while."""

    def __init__(self, make: Callable[[], BackgroundSearch]) -> None:
        self._make = make
        # Collecting garbage in here may end a program, which cancels its search.
        self._lock = threading.RLock()
        self._is_cancelled = False
        self._made: BackgroundSearch | None = None

    def begin(self, serving: ServingRunner, inputs: Sequence[HostValue]) -> None:
        """Make the search and have it begin, behind the caller."""
        thread = threading.Thread(target=self._begin, args=(serving, inputs), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # There are too many threads, or the process ends: the call has its answer.
            note(f"Engines are not compared: {error}.")
            serving.cancel()

    def _begin(self, serving: ServingRunner, inputs: Sequence[HostValue]) -> None:
        is_begun = False
        try:
            # To begin takes locks, too.
            with without_forks():
                made = self._make()
                with self._lock:
                    if not self._is_cancelled:
                        self._made = made
                        made.begin(serving, inputs)
            is_begun = True
        finally:
            if not is_begun:
                # Whoever waits for it would wait for ever.
                serving.cancel()

    def cancel(self) -> None:
        """Stop: the first plan stays."""
        with self._lock:
            self._is_cancelled = True
            made = self._made
        if made is not None:
            made.cancel()


def not_recalled(name: str) -> NotRecalledError:
    """Say that nothing is remembered."""
    return NotRecalledError(
        f"No plan is recorded for {name} with these inputs, options and packages on this machine. "
        'Compile it once with start="measured", or import the cache of a machine like this one.'
    )


@dataclass(frozen=True, eq=False)
class _RecordedChoices:
    """Makes entries of what the comparer recorded about the graph of a first call."""

    call: FirstCall

    @property
    def options(self) -> Options:
        return self.call.decider.options

    @property
    def registry(self) -> Registry:
        return self.call.decider.registry

    @cached_property
    def store(self) -> Store:
        """The user's store; if that is off, one that ends with this process."""
        from fusewire.background.search import private_store

        shared = self.call.decider.records.store
        return private_store() if shared is None or shared.is_off else shared

    @property
    def model(self) -> FileSource | Graph:
        return self.call.file or self.call.graph

    def proposal(self, inputs: Sequence[HostValue]) -> Proposal | None:
        """Recall the decision for such inputs; None if there is none."""
        call = self.call
        # Only the comparer that reads the file knows of candidates that do.
        file = None if call.file is None else call.reading.file
        return self._decider.proposal(call.reading, call.graph, inputs, file)

    @cached_property
    def _decider(self) -> Deciding:
        return self.call.decider.with_store(self.store)

    def last_resort(self, inputs: Sequence[HostValue], error: NoneRightError) -> Entry:
        """Make the entry that serves if no engine is right."""
        call = self.call
        return call.decider.fallback_entry(call.reading, call.graph, inputs, error)

    def longer(self) -> _RecordedChoices | None:
        """Return the same with time for engines that were left out; None if none was."""
        decider = self._decider.with_long_budget()
        return None if decider is None else _RecordedChoices(replace(self.call, decider=decider))

    def keep(self, inputs: Sequence[HostValue], decision: Decision) -> None:
        """Record what was settled, and save its plan if plans of this source are saved."""
        call = self.call
        self._decider.keep_decision(call.reading, call.graph, call.key, inputs, decision)
