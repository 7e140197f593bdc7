"""A model file that an earlier process compiled: found by its digest, loaded, not read.

Nothing is parsed, planned, asked or compiled, and nothing that would do so is imported, until it
turns out to be needed. What is recalled was proved in a child when it was made, on this machine,
with these packages; whatever does not fit is forgotten, and the model is compiled as if new.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fusewire.contract.frontend import Reading
from fusewire.errors import FallbackWarning, FormatError
from fusewire.options import Options
from fusewire.records.again import Again, Planner
from fusewire.records.keys import code_fields, host_fields, settings
from fusewire.records.remember import Memory
from fusewire.runtime.entry import Entry
from fusewire.store.disk import shared_store
from fusewire.store.key import Key
from fusewire.store.stamps import file_digest

_PACKAGE = str(Path(__file__).parent)


Read: TypeAlias = Callable[[tuple[Any, ...], bool], Reading]


def file_key(digest: str, example: Sequence[Any], is_open: bool, options: Options) -> Key | None:
    """Name what is remembered of a file; None where nothing is.

    ``is_open``: of the example it took only those sizes that it cannot do without.
    """
    registry = sys.modules.get("fusewire.registry")
    is_changed = registry is not None and registry.REGISTRY.default != "auto"
    if not isinstance(options.backend, str) or is_changed:
        return None
    return Key.of(
        "plan",
        file=digest,
        example=" ".join(map(_typed, example)),
        open=is_open,
        backend=options.backend,
        device=options.device or "any",
        level=options.level,
        fallback=options.fallback,
        max_crossings=options.max_crossings,
        canary=options.canary,
        **settings(options.config),
        packages=_packages(),
        **code_fields(options.backend),
        **dict(host_fields()),
    )


def _typed(example: Any) -> str:
    """Name the type of an example: what a graph is specialised to."""
    if isinstance(example, np.ndarray | np.generic):
        return f"{example.dtype}{list(example.shape)}"
    return repr(example)


def _packages() -> str:
    """Tell whether anything was installed, replaced or removed since."""
    folders = [Path(path) for path in sys.path if path.endswith("-packages")]
    states = [f"{path} {path.stat().st_mtime_ns}" for path in folders if path.is_dir()]
    return hashlib.sha256("\n".join(states).encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Recall:
    """What earlier processes left of a source; ``read`` reads it after all."""

    source: object
    options: Options
    read: Read
    planner: Callable[[], Planner]

    @cached_property
    def _memory(self) -> Memory | None:
        store = shared_store() if self.options.cache else None
        is_file = isinstance(self.source, str | os.PathLike)
        return Memory(store) if is_file and store is not None else None

    def _digest(self) -> str | None:
        if self._memory is None:
            return None
        assert isinstance(self.source, str | os.PathLike)
        return file_digest(self.source, self._memory.store)

    @cached_property
    def _first_digest(self) -> str | None:
        """The file's when it is compiled."""
        return self._digest()

    def _key(self, example: Sequence[Any], is_open: bool) -> Key | None:
        # What is open is read at a call, which may be long after.
        digest = self._digest() if is_open and example else self._first_digest
        return None if digest is None else file_key(digest, example, is_open, self.options)

    @property
    def needs_sizes(self) -> bool:
        """Whether it is known that this cannot be read before the sizes of a call are there."""
        key = self._key((), True)
        return key is not None and self._memory is not None and self._memory.get(key) is not None

    def note_sizes(self) -> None:
        """Remember that it cannot be read before the sizes of a call are there."""
        if (key := self._key((), True)) is not None and self._memory is not None:
            self._memory.put(key, b"{}")

    def entry(self, example: tuple[Any, ...], is_open: bool = False) -> Entry | None:
        """Make an entry of what was compiled before; None where nothing was, or nothing fits."""
        key, memory, options = self._key(example, is_open), self._memory, self.options
        sketch = None if key is None or memory is None else memory.sketch(key)
        if key is None or memory is None or sketch is None:
            return None
        if sketch.cut_at is not None and options.budget_seconds > sketch.cut_at:
            return None
        for station in sketch.stations.values():
            if any(os.environ.get(name) != x for name, x in station.environment.items()):
                return None
        digest = dict(key.fields)["file"]
        again = Again(
            key,
            sketch,
            memory,
            lambda: self._read(digest, example, is_open),
            self.planner,
            options.deadline,
        )
        if again.is_quarantined:
            memory.drop(key)
            return None
        again.begin()
        for said in sketch.said:
            warn_outside(said)
        return again.entry

    def _read(self, digest: str, example: tuple[Any, ...], is_open: bool) -> Reading:
        found = self.read(example, is_open)
        if found.digest != digest:
            # What is made of it would be kept, and used, as that of the file that was there.
            raise FormatError(
                f"{self.source} has changed since it was compiled, and must be read again for "
                "this. Compile it anew."
            )
        return found


def warn_outside(said: str) -> None:
    """Warn at the line outside of this package that asked."""
    depth, frame = 1, sys._getframe(0).f_back
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(said, FallbackWarning, stacklevel=depth)
