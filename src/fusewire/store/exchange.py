"""Export entries to one file and import them; an imported entry is untrusted until checked.

    magic (8) · entries, one after the other, each as `blob` writes it

For data, digests and size are checked and that it is JSON; its reader checks what it says. What
would have to be trusted (code, plans, verdicts) is imported only under the same user's key, and
a quarantine of somebody else is marked as such.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from fusewire.errors import StoreError
from fusewire.store.blob import Header, pack, read_header, unpack
from fusewire.store.disk import Store
from fusewire.store.files import File, plain_file
from fusewire.store.key import DATA, IMPORTED, LOCAL, VOUCHED, Key

_MAGIC = b"FUSEWIRX"
# Data is small; anything larger is not data. Parsed JSON takes up to twenty times the memory.
_MOST_DATA = 2**24
_MOST_ENTRIES = 100_000


@dataclass
class Moved:
    """The result of a transfer: entries kept by kind, and those refused with the reason."""

    kept: Counter[str] = field(default_factory=Counter)
    present: int = 0
    refused: list[str] = field(default_factory=list)

    def refuse(self, key: Key, error: StoreError) -> None:
        """Record why an entry was refused."""
        self.refused.append(f"{key.kind} {key.digest[:12]}: {error}")


def export(store: Store, path: Path, kinds: Set[str] = DATA) -> Moved:
    """Write the entries of some kinds to one file, atomically."""
    opened = store.opened()
    if opened is None:
        raise StoreError(f"The cache {store.path} cannot be used, so nothing can be exported.")
    moved = Moved()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("xb") as file:
            file.write(_MAGIC)
            for entry in store.entries():
                payload = store.get(entry.key) if entry.key.kind in kinds - LOCAL else None
                if payload is None:
                    continue
                try:
                    check_payload(entry.key, payload)
                    file.writelines(pack(entry.key, payload, opened[1], entry.provenance))
                    moved.kept[entry.key.kind] += 1
                except StoreError as error:
                    moved.refuse(entry.key, error)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return moved


def take(store: Store, path: Path) -> Moved:
    """Import an exported file; existing entries stay. StoreError if it is not such a file."""
    opened = store.opened()
    if opened is None:
        raise StoreError(f"The cache {store.path} cannot be used, so nothing can be imported.")
    moved = Moved()
    with plain_file(path.resolve()) as file:
        if file.read(0, len(_MAGIC)) != _MAGIC:
            raise StoreError(f"{path} was not written by `fusewire cache export`.")
        # Check the structure of the whole file before keeping anything.
        for header, part in list(_parts(file)):
            key = header.key
            try:
                if key.kind in LOCAL:
                    raise StoreError("It is valid only on the machine that wrote it.")
                # Before anything is read: the stated size is only a claim.
                most = _MOST_DATA if key.kind in DATA else store.limit
                vouched = opened[1] if key.kind in VOUCHED else None
                _, payload = unpack(part, key, vouched, most)
                check_payload(key, payload)
                if key.kind == "quarantine" and not _is_own(part, key, opened[1]):
                    payload = json.dumps({**json.loads(payload), IMPORTED: True}).encode()
            except StoreError as error:
                moved.refuse(key, error)
                continue
            if store.get(key) is not None:
                moved.present += 1
            elif store.put(key, payload, header.provenance):
                moved.kept[key.kind] += 1
            else:
                moved.refuse(key, StoreError("It could not be written."))
    return moved


def _is_own(part: File, key: Key, secret: bytes) -> bool:
    """Tell whether an entry, which is whole, was written with this user's key."""
    try:
        unpack(part, key, secret, _MOST_DATA)
    except StoreError:
        return False
    return True


def _parts(file: File) -> Iterator[tuple[Header, File]]:
    at, count = len(_MAGIC), 0
    while at < file.size:
        rest = replace(file, size=file.size - at, start=at)
        try:
            header = read_header(rest)
            if header.total > rest.size:
                raise StoreError(f"It has {header.total:,} bytes, but only {rest.size:,} are left.")
        except StoreError as error:
            raise StoreError(f"Entry {count} of the file, at byte {at:,}: {error}") from None
        if (count := count + 1) > _MOST_ENTRIES:
            raise StoreError(f"The file has more than {_MOST_ENTRIES:,} entries.")
        yield header, replace(rest, size=header.total)
        at += header.total


def check_payload(key: Key, payload: bytes) -> None:
    """Check that data is a JSON object of bounded size."""
    if key.kind not in DATA:
        return
    if len(payload) > _MOST_DATA:
        raise StoreError(f"It has {len(payload):,} bytes of data; the limit is {_MOST_DATA:,}.")
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        raise StoreError("Its data is not JSON.") from None
    if not isinstance(found, dict):
        raise StoreError("Its data is not a JSON object.")
