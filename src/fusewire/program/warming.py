"""Answer calls of a new size at once, while an engine compiles for that size behind them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np

from fusewire.errors import FusewireError
from fusewire.plan.runner import Runner
from fusewire.process.jobs import JOBS, Job
from fusewire.program.entry import Entry, Run

LOG = logging.getLogger("fusewire")


@final
class WarmingRun:
    """Runs the interim runner of an entry until its engine is ready for the sizes of the call."""

    def __init__(self, entry: Entry, interim: Runner, done: Callable[[Run], None]) -> None:
        self._entry = entry
        self._answer = replace(entry, runner=interim).run
        self._done = done
        self._is_started = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, arguments: tuple[Any, ...]) -> list[Any]:
        """Answer, and have the engine compile at the first call."""
        if not self._is_started.is_set():
            self._start(arguments)
        return self._answer(arguments)

    def _start(self, arguments: tuple[Any, ...]) -> None:
        with self._lock:
            if self._is_started.is_set():
                return
            self._is_started.set()
        # The caller may change the arrays after the call.
        leaves = [np.array(leaf) for leaf in self._entry.arguments.flatten(arguments)]
        work = partial(self._warm, self._entry.arguments.restore(leaves))
        # Without a thread, the interim runner goes on.
        with suppress(RuntimeError):
            JOBS.put(Job("warming", "compile", work))

    def _warm(self, arguments: tuple[Any, ...]) -> None:
        try:
            # Twice: a child may give the first answer while the engine is loaded.
            self._entry.run(arguments)
            self._entry.run(arguments)
        except FusewireError as error:
            LOG.info("%s is not ready for another size: %s", self._entry.backend, error)
            return
        self._done(self._entry.run)
