"""Bundles: plans with all that they need, in one file (.fw) that other machines open.

    magic (8) · length of the header (4) · length of the signature (4) · SHA-256 of all before the
    sections (32) · header (JSON) · signature (an envelope, or nothing) · sections, each aligned

The header names every section with its place, size and digest, so that the signature, which covers
the header, covers all of it. A bundle is data: nothing in it runs as it is read. Small sections are
checked when it is opened, large ones when they are used. Nothing is used before it is checked.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

from fusewire.errors import FormatError, StoreError
from fusewire.ir.graph import Array
from fusewire.process.codec import read_value
from fusewire.records.framing import unframed
from fusewire.store.blob import piece_digests
from fusewire.store.disk import Store
from fusewire.store.files import File, plain_file
from fusewire.store.key import KINDS, Key, canonical_json, is_sha256
from fusewire.store.signing import Statement
from fusewire.store.stamps import check_once, was_checked
from fusewire.system.ownership import KNOWS_OWNERS, is_mine, is_open_to

FORMAT = 1
ENDING = ".fw"
MAGIC = b"FUSEWIRB"
_LENGTHS = struct.Struct(">II")
_DIGEST = 32
_START = len(MAGIC) + _LENGTHS.size + _DIGEST
# What is mapped is as aligned as what engines need.
_ALIGNED = 64
# Parsed JSON takes up to twenty times the memory.
_MOST_HEADER, _MOST_SIGNATURE, _MOST_SECTIONS = 2**22, 2**16, 10_000
# Larger sections are checked when they are used.
_SMALL = 2**20
# Whoever may write to the file could change it after it was checked.
_WRITERS = 0o022
# What a section holds beside the entries of a store.
GRAPH, CONSTANTS = "graph", "constants"
_KIND = "bundle"


@dataclass(frozen=True)
class Section:
    """A part of a bundle: an entry of a store under its key, or what ``name`` says."""

    name: str
    key: Key | None
    offset: int
    size: int
    digest: str

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True)
class NewSection:
    """A section to write."""

    name: str
    key: Key | None
    payload: bytes

    @staticmethod
    def entry(key: Key, payload: bytes) -> NewSection:
        """Make the section of an entry of a store."""
        return NewSection(key.digest, key, payload)


@dataclass(frozen=True)
class BundleHead:
    """What a bundle says about itself.

    ``about`` is what its writer wants readers to know, as JSON; ``digest`` is the SHA-256 of the
    header, which stands for all of the bundle.
    """

    about: Mapping[str, Any]
    sections: tuple[Section, ...]
    digest: str
    signature: bytes = b""


def statement_of(header_digest: str, plans: Sequence[str]) -> Statement:
    """State what a bundle is: the plans in it are its key, and its header stands for all of it."""
    key = hashlib.sha256(json.dumps([_KIND, *plans]).encode()).hexdigest()
    return Statement(_KIND, FORMAT, key, header_digest)


def header_of(about: Mapping[str, Any], sections: Sequence[NewSection]) -> bytes:
    """Write the header, in which the places of sections count from the first."""
    rows, at = [], 0
    for section in sections:
        at += -at % _ALIGNED
        row: dict[str, Any] = {"name": section.name, "offset": at, "size": len(section.payload)}
        row["digest"] = _digest(memoryview(section.payload))
        if section.key is not None:
            row["key"] = section.key.to_json()
        rows.append(row)
        at += len(section.payload)
    header = canonical_json({"format": FORMAT, "about": dict(about), "sections": rows})
    if len(header) > _MOST_HEADER or len(rows) > _MOST_SECTIONS:
        raise FormatError(
            f"A bundle of {len(rows):,} sections, with a header of {len(header):,} bytes, is "
            "larger than readers take."
        )
    return header


def write_bundle(
    path: Path, header: bytes, signature: bytes, sections: Sequence[NewSection]
) -> None:
    """Write a bundle atomically: readers of an older one keep what they read."""
    lengths = _LENGTHS.pack(len(header), len(signature))
    digest = hashlib.sha256(MAGIC + lengths + header + signature).digest()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("xb") as file:
            file.writelines((MAGIC, lengths, digest, header, signature))
            start = at = _aligned(_START + len(header) + len(signature))
            file.seek(at)
            for section in sections:
                # A seek beyond the end leaves zeros.
                at = start + _aligned(at - start)
                file.seek(at)
                file.write(section.payload)
                at += len(section.payload)
            file.truncate(at)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise FormatError(
            f"The bundle {path} cannot be written: {error.strerror or error}."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


@final
class Bundle:
    """An open bundle; a file that is mapped must be replaced rather than written to."""

    def __init__(self, path: Path, held: Bytes, head: BundleHead, start: int, is_own: bool) -> None:
        self.path = path
        # Nobody else can write to the file.
        self._is_own = is_own
        self.head = head
        self._held = held
        self._start = start
        self._entries = {
            section.key.digest: section for section in head.sections if section.key is not None
        }
        self._named = {section.name: section for section in head.sections if section.key is None}
        self._checked: set[str] = set()

    @staticmethod
    def open(
        path: str | os.PathLike[str], store: Store | None = None, *, copies: bool = False
    ) -> Bundle:
        """Open a bundle; FormatError says what is wrong with the file.

        A file that ``store`` knows to be checked, and to be as it was then, is not checked again.
        With ``copies`` it is read into memory, so that somebody may write to the file later.
        """
        place = Path(path)
        try:
            with plain_file(place.resolve()) as file:
                if file.size < _START:
                    raise FormatError("it is too short.")
                is_own = copies or _is_own(os.fstat(file.fd))
                held = _copied(file) if copies else _mapped(file) if is_own else _Pieces(file)
                bundle = Bundle(place, held, *_read_head(held), is_own)
                bundle._check_gaps()
                bundle._check_small(file.fd, None if copies else store)
        except (FormatError, StoreError) as error:
            raise FormatError(f"{place} is not a bundle that can be used: {error}") from None
        except OSError as error:
            raise FormatError(f"{place} cannot be read: {error.strerror or error}.") from None
        return bundle

    def _check_small(self, fd: int, store: Store | None) -> None:
        """Check what is quickly checked, or nothing of a file that was checked before."""
        if store is not None and self._is_own:
            if was_checked(fd, self.head.digest, store):
                self._checked.update(section.name for section in self.head.sections)
                return
            check_once(fd, self.head.digest, store, self.verify)
        for section in self.head.sections:
            if section.size <= _SMALL:
                self._checked_section(section)

    def verify(self) -> None:
        """Check every section; FormatError if one was changed."""
        for section in self.head.sections:
            self._checked_section(section)

    @property
    def keys(self) -> Iterator[Key]:
        """The keys of its entries."""
        return (section.key for section in self._entries.values() if section.key is not None)

    def has(self, key: Key) -> bool:
        """Tell whether it has an entry."""
        return key.digest in self._entries

    def size(self, key: Key) -> int:
        """Return the bytes of an entry; 0 if there is none."""
        section = self._entries.get(key.digest)
        return 0 if section is None else section.size

    def entry(self, key: Key) -> memoryview | None:
        """Return the payload of an entry, checked; None if there is none."""
        section = self._entries.get(key.digest)
        return None if section is None else self._checked_section(section)

    def text(self, name: str) -> str | None:
        """Return a section of text; None if there is none."""
        section = self._named.get(name)
        if section is None:
            return None
        try:
            return str(self._checked_section(section), "utf-8")
        except UnicodeDecodeError:
            raise FormatError(f"The section {name} of {self.path} is not text.") from None

    @property
    def has_constants(self) -> bool:
        """Whether the weights came with it."""
        return CONSTANTS in self._named

    @property
    def constants_size(self) -> int:
        """The bytes of the weights."""
        section = self._named.get(CONSTANTS)
        return 0 if section is None else section.size

    @cached_property
    def constants(self) -> Mapping[str, Array]:
        """The weights by digest, in place; FormatError if they are not such."""
        section = self._named.get(CONSTANTS)
        if section is None:
            return {}
        try:
            header, blobs = unframed(self._checked_section(section))
            return {digest: read_value(x, blobs) for digest, x in header.items()}
        except (
            StoreError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            RecursionError,
        ) as error:
            raise FormatError(f"The weights in {self.path} are malformed: {error}") from None

    def _view(self, section: Section) -> memoryview:
        return self._held[self._start + section.offset : self._start + section.end]

    def _checked_section(self, section: Section) -> memoryview:
        """Return a section that has its digest.

        It is a copy where others may write to the file, even after it was checked.
        """
        view = self._view(section)
        if not self._is_own or section.name not in self._checked:
            self._check(section, view)
            self._checked.add(section.name)
        return view

    def _check(self, section: Section, view: memoryview) -> None:
        if _digest(view) != section.digest:
            raise FormatError(f"the section {section.name} does not match its digest.")

    def _check_gaps(self) -> None:
        """Check that what no digest covers is zero, and that nothing follows the last section."""
        at = self._start
        for section in self.head.sections:
            if any(self._held[at : self._start + section.offset]):
                raise FormatError("there is something between its sections.")
            at = self._start + section.end
        if at != len(self._held):
            raise FormatError(f"it has {len(self._held):,} bytes, and its header says {at:,}.")


@final
class _Pieces:
    """A file that others may write to, read in pieces.

    It is never mapped: if another process cut it short, reading the map would end this one.
    """

    def __init__(self, file: File) -> None:
        self._file = replace(file, fd=os.dup(file.fd))
        weakref.finalize(self, os.close, self._file.fd).atexit = False

    def __len__(self) -> int:
        return self._file.size

    def __getitem__(self, part: slice) -> memoryview:
        """Read a part of the file anew."""
        begin, end, _ = part.indices(self._file.size)
        view = memoryview(bytearray(max(end - begin, 0)))
        if self._file.fill(view, begin) != len(view):
            raise FormatError("it became shorter while it was read.")
        return view.toreadonly()


Bytes: TypeAlias = memoryview | _Pieces


def _mapped(file: File) -> memoryview:
    return memoryview(mmap.mmap(file.fd, file.size, access=mmap.ACCESS_READ))


def _copied(file: File) -> memoryview:
    """Read a file into memory, as aligned as if it were mapped."""
    view = memoryview(mmap.mmap(-1, file.size))
    if file.fill(view, 0) != file.size:
        raise FormatError("it became shorter while it was read.")
    return view.toreadonly()


def _is_own(about: os.stat_result) -> bool:
    """Tell whether nobody but this user and root can have written a file, if the system tells."""
    is_ours = is_mine(about) or about.st_uid == 0
    return KNOWS_OWNERS and is_ours and not is_open_to(about, _WRITERS)


def _read_head(held: Bytes) -> tuple[BundleHead, int]:
    """Read what is before the sections, and where they begin."""
    if held[: len(MAGIC)] != MAGIC:
        raise FormatError("it does not begin as one.")
    size, extra = _LENGTHS.unpack(held[len(MAGIC) : _START - _DIGEST])
    if size > _MOST_HEADER or extra > _MOST_SIGNATURE:
        raise FormatError(f"its header has {size:,} bytes, and its signature {extra:,}.")
    end = _START + size + extra
    if end > len(held):
        raise FormatError("it is truncated.")
    header, signature = bytes(held[_START : _START + size]), bytes(held[_START + size : end])
    digest = hashlib.sha256(MAGIC + _LENGTHS.pack(size, extra) + header + signature).digest()
    if digest != held[_START - _DIGEST : _START]:
        raise FormatError("its header does not match its digest.")
    start = _aligned(end)
    if any(held[end:start]):
        raise FormatError("there is something between its header and its sections.")
    return _parsed_head(header, signature, len(held) - start), start


def _parsed_head(header: bytes, signature: bytes, room: int) -> BundleHead:
    try:
        found = json.loads(header)
    except (ValueError, RecursionError):
        raise FormatError("its header is not JSON.") from None
    if not isinstance(found, dict) or type(found.get("format")) is not int:
        raise FormatError("its header says no format.")
    if found["format"] != FORMAT:
        raise FormatError(f"it has format {found['format']}, and this version reads {FORMAT}.")
    about, rows = found.get("about"), found.get("sections")
    if not isinstance(about, dict) or not isinstance(rows, list) or len(rows) > _MOST_SECTIONS:
        raise FormatError("its header is malformed.")
    sections: list[Section] = []
    for row in rows:
        sections.append(_read_section(row, _aligned(sections[-1].end if sections else 0), room))
    if len({section.name for section in sections}) != len(sections):
        raise FormatError("two of its sections have the same name.")
    return BundleHead(about, tuple(sections), hashlib.sha256(header).hexdigest(), signature)


def _read_section(row: Any, at: int, room: int) -> Section:
    """Read a section, which must begin where the one before it ends."""
    if not isinstance(row, dict):
        raise FormatError("its header is malformed.")
    name, size, digest = row.get("name"), row.get("size"), row.get("digest")
    if (
        not isinstance(name, str)
        or type(row.get("offset")) is not int
        or type(size) is not int
        or not is_sha256(digest)
    ):
        raise FormatError("its header is malformed.")
    if row["offset"] != at or not 0 <= size <= room - at:
        raise FormatError(f"its section {name} is not where it should be.")
    key = Key.from_json(row["key"]) if "key" in row else None
    expected = (
        name == CONSTANTS or name.startswith(f"{GRAPH}/") if key is None else key.digest == name
    )
    if not expected or (key is not None and key.kind not in KINDS):
        raise FormatError("a section has the name of another one.")
    return Section(name, key, at, size, digest)


def _aligned(at: int) -> int:
    return at + -at % _ALIGNED


def _digest(view: memoryview) -> str:
    """Return the SHA-256 of the digests of the pieces: several threads work on a large one."""
    return hashlib.sha256(piece_digests(view)).hexdigest()
