"""Keys of the store: named fields, so that a miss can say which of them differs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

from fusewire.errors import StoreError

# The kinds of entries. Code, and weights beside it, are used as they are; data is JSON, and
# checked.
CODE = frozenset({"artifact", "module", "weights"})
DATA = frozenset({"plan", "measurement", "verdict", "quarantine", "tuning"})
# Valid on this machine only: neither exported nor imported.
LOCAL = frozenset({"stamp"})
KINDS = CODE | DATA | LOCAL
# Trusted only if this user wrote it. Other imported data makes a program slower at worst.
VOUCHED = CODE | LOCAL | {"plan", "verdict"}
# The field of a quarantine that says that somebody else wrote it.
IMPORTED = "is_imported"
# Texts up to this length are shown in full; longer ones with this much around a difference.
_LONG, _AROUND = 64, 20
_SHA256 = re.compile("[0-9a-f]{64}")


def is_sha256(held: object) -> TypeGuard[str]:
    """Tell whether this is a SHA-256 as we write it: 64 lower-case hex digits."""
    return isinstance(held, str) and _SHA256.fullmatch(held) is not None


def canonical_json(held: object) -> bytes:
    """Write JSON in the one way that has the same bytes everywhere; no NaN, no infinity."""
    return json.dumps(held, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True)
class Key:
    """What an entry depends on; ``fields`` are ordered, each a name and a text.

    >>> key = Key.of("measurement", graph="ab12", engine="openvino 2026.4.1", threads=2)
    >>> key.fields
    (('graph', 'ab12'), ('engine', 'openvino 2026.4.1'), ('threads', '2'))
    """

    kind: str
    fields: tuple[tuple[str, str], ...]

    @staticmethod
    def of(kind: str, **fields: object) -> Key:
        """Make a key; values are converted to text."""
        if kind not in KINDS:
            raise StoreError(f"Unknown kind of entry {kind!r}. Kinds: {', '.join(sorted(KINDS))}.")
        return Key(kind, tuple((name, str(value)) for name, value in fields.items()))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of kind and fields, as hex: the name of the entry."""
        return hashlib.sha256(json.dumps([self.kind, self.fields]).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "fields": [list(pair) for pair in self.fields]}

    @staticmethod
    def from_json(held: Any) -> Key:
        """Read a key; StoreError if it is malformed."""
        kind = held.get("kind") if isinstance(held, Mapping) else None
        if not isinstance(kind, str) or kind not in KINDS:
            raise StoreError("An entry of the store has an unknown kind.")
        fields = held.get("fields")
        if not isinstance(fields, list) or not all(_is_pair(pair) for pair in fields):
            raise StoreError("An entry of the store has no fields.")
        return Key(kind, tuple((pair[0], pair[1]) for pair in fields))

    def differs(self, other: Key) -> list[tuple[str, str, str]]:
        """List the fields in which another key differs: name, its text, this text."""
        mine, theirs = dict(self.fields), dict(other.fields)
        names = dict.fromkeys([*mine, *theirs])
        pairs = [(name, theirs.get(name, "absent"), mine.get(name, "absent")) for name in names]
        return [pair for pair in pairs if pair[1] != pair[2]]


def shorten(text: str) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= _AROUND * 2 else f"{text[:_AROUND]}..."


def apart(theirs: str, mine: str) -> tuple[str, str]:
    """Cut two long texts to where they differ, with some context.

    >>> apart("same " * 20 + "old" + " same" * 20, "same " * 20 + "new" + " same" * 20)[0]
    '...same same same same old same same same same...'
    """
    if max(len(theirs), len(mine)) <= _LONG:
        return theirs, mine
    start = _alike(theirs, mine)
    end = _alike(theirs[start:][::-1], mine[start:][::-1])
    return _cut(theirs, start, end), _cut(mine, start, end)


def _alike(one: str, other: str) -> int:
    """Count the characters of the common prefix."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _cut(text: str, start: int, end: int) -> str:
    """Cut a text to a part in the middle, with some context."""
    first, last = max(start - _AROUND, 0), min(len(text) - end + _AROUND, start + _LONG)
    return f"{'...' * (first > 0)}{text[first:last]}{'...' * (last < len(text))}"


def nearest(key: Key, others: Iterable[Key]) -> Key | None:
    """Find the most similar key of the same kind; among equal ones, the first."""
    alike = [other for other in others if other.kind == key.kind and other != key]
    # Fields are ordered by weight: a difference in a late field counts less.
    names = [name for name, _ in key.fields]

    def distance(other: Key) -> tuple[int, int]:
        places = [names.index(n) if n in names else 0 for n, _, _ in key.differs(other)]
        return len(places), -sum(places)

    return min(alike, key=distance, default=None)


def _is_pair(pair: object) -> bool:
    is_two = isinstance(pair, list | tuple) and len(pair) == 2
    return is_two and isinstance(pair[0], str) and isinstance(pair[1], str)  # type: ignore[index] # a list by now
