"""External data of a model: only bytes of files inside the model's folder.

A location comes from a stranger. It is opened below a descriptor of the folder, through no link,
and the descriptor that was checked is the one that is read. Nothing is mapped into memory: a file
that someone cuts short would kill the process that has it mapped.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fusewire.errors import FormatError, SourceError
from fusewire.ir.graph import Array
from fusewire.onnx.read.shown import shown
from fusewire.system.beneath import FLAGS, FOLDER, can_open_in_steps, open_beneath

# Opens a relative path, given by its parts, below an open folder.
Opener: TypeAlias = Callable[[int, Sequence[str]], int]

_PIECE = 2**22
_LINK = "it is, or passes through, a symbolic link"
_REASONS = {
    errno.ENOENT: "there is no such file",
    errno.ELOOP: _LINK,
    errno.EMLINK: _LINK,
    errno.ENOTDIR: "it passes through a file, or through a symbolic link",
    errno.EXDEV: "it leads out of the model's folder",
    errno.ENXIO: "it is not a regular file",
}


class State(NamedTuple):
    """What tells a file, as it is now, from any other."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @staticmethod
    def of(found: os.stat_result) -> State:
        times = found.st_mtime_ns, found.st_ctime_ns
        return State(found.st_dev, found.st_ino, found.st_size, *times)


class ModelFolder:
    """The folder of a model, held open so that it stays the same one."""

    def __init__(self, path: str | os.PathLike[str], opener: Opener = open_beneath) -> None:
        self.path = os.fspath(path)
        self._open = opener
        if not can_open_in_steps():
            raise _unsafe()
        self._descriptor = os.open(path, FLAGS | FOLDER)
        weakref.finalize(self, os.close, self._descriptor)

    def open(self, location: str) -> tuple[int, os.stat_result]:
        """Open a regular file that has no other name, and give its descriptor and state."""
        try:
            descriptor = self._open(self._descriptor, _parts(location))
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, error.strerror or "it cannot be opened")
            raise _refused(location, reason) from None
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise _refused(location, _REASONS[errno.ENXIO])
            if found.st_nlink != 1:
                names = f"the file has {found.st_nlink} names (hard links)"
                raise _refused(location, f"{names}, and another may be outside the folder")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, found

    @contextmanager
    def reopened(self, location: str, state: State) -> Iterator[int]:
        """Open a file again that must be what it was when it was checked."""
        descriptor, found = self.open(location)
        try:
            if State.of(found) != state:
                raise _changed(location)
            yield descriptor
        finally:
            os.close(descriptor)


def _parts(location: str) -> list[str]:
    """Take a location apart; refuse what could mean another place than it seems."""
    parts = [part for part in location.split("/") if part != "."]
    if not parts or "" in parts:
        raise _refused(location, "it is absolute, empty, or has empty parts")
    if ".." in parts:
        raise _refused(location, "it goes up with '..'")
    if "\0" in location or "\\" in location or (os.name == "nt" and ":" in location):
        raise _refused(location, "it holds a character that no path of a model needs")
    return parts


def _refused(location: str, reason: str) -> FormatError:
    return FormatError(
        f"External data at {shown(location)} cannot be read: {reason}. It must be a regular file "
        "in the model's folder or below. Put a copy there, or save the model with its data inside."
    )


def _unsafe() -> SourceError:
    return SourceError(
        "This model has external data, and this system cannot open a file beneath a folder "
        "safely. Save the model with its data inside, and load that."
    )


def _changed(location: str) -> FormatError:
    return _refused(location, "the file was changed while the model was in use")


@dataclass(frozen=True)
class Span:
    """Bytes of a file beneath a folder, and what the file was when they were checked."""

    folder: ModelFolder
    location: str
    offset: int
    length: int
    state: State

    def read(self) -> Array:
        """Read the bytes; FormatError when the file is no longer what was checked."""
        with self.folder.reopened(self.location, self.state) as descriptor:
            made = read_at(descriptor, self.offset, self.length)
        if made is None:
            raise _changed(self.location)
        return np.frombuffer(made, np.uint8)


def span_of(folder: ModelFolder, entries: Any, needed: int) -> Span:
    """Check the ``external_data`` of a tensor that needs so many bytes."""
    keys = [entry.key for entry in entries]
    given = {entry.key: entry.value for entry in entries}
    location = given.get("location", "")
    twice = [key for key in ("location", "offset", "length") if keys.count(key) > 1]
    if twice:
        raise _refused(location, f"{twice[0]} is given twice")
    offset, length = (_number(given, key, default) for key, default in _DEFAULTS)
    if length not in (None, needed):
        raise _refused(location, f"it has {length:,} bytes for a tensor of {needed:,}")
    descriptor, found = folder.open(location)
    os.close(descriptor)
    assert offset is not None
    if offset + needed > found.st_size:
        reach = f"bytes {offset:,} to {offset + needed:,}"
        raise _refused(location, f"{reach} are asked for and the file has {found.st_size:,}")
    return Span(folder, location, offset, needed, State.of(found))


_DEFAULTS = (("offset", 0), ("length", None))


def _number(given: dict[str, str], key: str, default: int | None) -> int | None:
    text = given.get(key)
    if text is None or text == "":
        return default
    # int() also takes signs, spaces, underscores and digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise _refused(given.get("location", ""), f"{key} is {shown(text)}, which is not a number")
    return int(text)


def digest_of(folder: ModelFolder, location: str, state: State) -> bytes:
    """Hash a whole file of external data."""
    sha = hashlib.sha256()
    with folder.reopened(location, state) as descriptor:
        for offset in range(0, state.size, _PIECE):
            piece = read_at(descriptor, offset, min(_PIECE, state.size - offset))
            if piece is None:
                raise _changed(location)
            sha.update(piece)
    return sha.digest()


def read_at(descriptor: int, offset: int, length: int) -> bytearray | None:
    """Read so many bytes of a file, or give None when it ends before."""
    made = bytearray(length)
    view = memoryview(made)
    done = 0
    with io.FileIO(descriptor, closefd=False) as file:
        file.seek(offset)
        while done < length:
            count = file.readinto(view[done:])
            if not count:
                return None
            done += count
    return made
