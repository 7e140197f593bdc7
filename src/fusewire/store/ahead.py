"""Read large entries on a thread, while this one imports an engine or does something else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar, final

from fusewire.errors import FusewireError, StoreError
from fusewire.store.disk import ENTRY, Store
from fusewire.store.key import Key

Found = TypeVar("Found")
# Smaller ones are read in less time than a thread takes to start.
_LARGE = 2**21


@final
class Ahead(Generic[Found]):
    """What a function gives, which is at work already; one that failed is asked once more."""

    def __init__(self, work: Callable[[], Found]) -> None:
        self._work = work
        self._found: list[Found] = []
        self._thread = threading.Thread(target=self._do, daemon=True)
        # Where no thread is to be had, it is done when it is asked for.
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    def _do(self) -> None:
        # Whoever asks for the result does it again, and is told what is wrong.
        with contextlib.suppress(OSError, MemoryError, ValueError, FusewireError):
            self._found.append(self._work())

    def result(self) -> Found:
        """Wait for it."""
        if self._thread.ident is not None:
            self._thread.join()
        return self._found[0] if self._found else self._work()


def is_large(store: Store, key: Key) -> bool:
    """Tell whether reading an entry takes so long that it should begin early."""
    opened = store.opened()
    with contextlib.suppress(OSError, StoreError):
        if opened is not None:
            with opened[0].open(key.digest + ENTRY) as file:
                return file.size >= _LARGE
    return False
