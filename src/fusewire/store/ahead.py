"""Read large entries on another thread, while this one imports an engine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar, final

from fusewire.errors import FusewireError, StoreError
from fusewire.store.disk import ENTRY, Store
from fusewire.store.key import Key

Found = TypeVar("Found")
# Reading a smaller entry takes less time than starting a thread.
LARGE = 2**21


@final
class Ahead(Generic[Found]):
    """The result of a function that already runs; a failed one is called once more."""

    def __init__(self, work: Callable[[], Found]) -> None:
        self._work = work
        self._found: list[Found] = []
        self._thread = threading.Thread(target=self._do, daemon=True)
        # If no thread can be started, ``result`` does the work.
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    def _do(self) -> None:
        # ``result`` calls it again, and raises what is wrong.
        with contextlib.suppress(OSError, MemoryError, ValueError, FusewireError):
            self._found.append(self._work())

    def result(self) -> Found:
        """Wait for the result."""
        if self._thread.ident is not None:
            self._thread.join()
        return self._found[0] if self._found else self._work()


def is_large(store: Store, key: Key) -> bool:
    """Return whether an entry is large enough to be read ahead."""
    opened = store.opened()
    with contextlib.suppress(OSError, StoreError):
        if opened is not None:
            with opened[0].open(key.digest + ENTRY) as file:
                return file.size >= LARGE
    return False
