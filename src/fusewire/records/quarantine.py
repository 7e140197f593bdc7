"""The quarantine: records of artifacts that are wrong, crash or hang, so that none is used twice.

A fault is recorded under the fields of its artifact: region, backend, versions and settings.
Another version of the engine, or of the code that translates for it, makes another artifact, which
starts without faults. A fault that somebody else recorded, in an imported cache, only has the
artifact compiled and judged again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fusewire.errors import StoreError, note
from fusewire.store.key import IMPORTED, Key

if TYPE_CHECKING:
    from fusewire.store.disk import Store

# Faults of an engine on a region. Other failures are cheap to repeat, or the machine's.
CODES = ("wrong", "crashed", "hung", "compile-timeout", "garbage")
# Faults that a longer deadline may avoid.
_TIMED = ("hung", "compile-timeout")
# Fields that older facts do not have.
_NAMES = ("model", "candidate")
# What races say of candidates that are then in quarantine, or were.
_LOST = ("wrong", "refused", "quarantined")


class Keeper(Protocol):
    """Where faults are recorded: a store, or a substitute for one."""

    def get(self, key: Key, /) -> bytes | None: ...
    def put(self, key: Key, payload: bytes, /) -> object: ...
    def drop(self, key: Key, /) -> object: ...


@dataclass(frozen=True)
class Fact:
    """Why an artifact must not be used; ``when`` is in UTC.

    ``seconds`` is the deadline that a hang exceeded; ``place`` and ``op`` are those of the first
    wrong node, if it is known. ``is_imported``: somebody else recorded it. ``model`` is the name of
    the model, and ``candidate`` that of the engine with its options; older facts have neither.
    """

    code: str
    reason: str
    when: str = ""
    seconds: float = 0.0
    place: str = ""
    op: str = ""
    is_imported: bool = False
    model: str = ""
    candidate: str = ""

    def sentence(self) -> str:
        """Describe the fault in a sentence."""
        at = f" at node {self.place} ({self.op})" if self.op else ""
        return f"in quarantine since {self.when}: {self.code}{at}: {self.reason}"

    @staticmethod
    def from_data(data: Any) -> Fact:
        """Read plain data; StoreError if it is not a fault."""
        if not isinstance(data, dict) or {*_NAMES, *data} != set(Fact.__dataclass_fields__):
            raise StoreError("A fault in quarantine has unknown or missing fields.")
        seconds = data["seconds"]
        texts = [text for name, text in data.items() if name not in ("seconds", IMPORTED)]
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        is_typed = is_number and isinstance(data[IMPORTED], bool)
        if not is_typed or not all(isinstance(text, str) for text in texts):
            raise StoreError("A fault in quarantine has a field of the wrong type.")
        if data["code"] not in CODES:
            raise StoreError(f"A fault in quarantine has the unknown code {data['code']!r}.")
        return Fact(**data)


def quarantine(keeper: Keeper, artifact: Key, fact: Fact) -> bool:
    """Put an artifact into quarantine; returns False if the code is not a lasting fault."""
    if fact.code not in CODES:
        return False
    when = fact.when or time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    note(f"In quarantine from now on ({fact.code}): {fact.reason}", is_warning=True)
    payload = json.dumps({**asdict(fact), "when": when}).encode()
    keeper.put(_key(artifact), payload)
    return True


def quarantined(keeper: Keeper, artifact: Key, seconds: float = 0.0) -> Fact | None:
    """Return the fault of an artifact, if any; a hang only if ``seconds`` are no more than then."""
    payload = keeper.get(_key(artifact))
    if payload is None:
        return None
    try:
        fact = Fact.from_data(json.loads(payload))
    except (ValueError, RecursionError):
        keeper.drop(_key(artifact))
        return None
    return None if fact.code in _TIMED and seconds > fact.seconds else fact


def release(keeper: Keeper, artifact: Key) -> None:
    """Take an artifact out of quarantine."""
    keeper.drop(_key(artifact))


def reconsider(keeper: Keeper, artifact: Key) -> bool:
    """Forget an artifact with an imported fault, so that it is met anew; False if it has none."""
    fact = quarantined(keeper, artifact)
    if fact is None or not fact.is_imported:
        return False
    keeper.drop(artifact)
    release(keeper, artifact)
    return True


def _key(artifact: Key) -> Key:
    return Key("quarantine", artifact.fields)


@dataclass(frozen=True)
class Confined:
    """An entry of the quarantine, for people to read."""

    key: Key
    fact: Fact

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.fact.model or "unknown"

    @property
    def candidate(self) -> str:
        """The engine, with its options if they are known."""
        fields = dict(self.key.fields)
        return self.fact.candidate or fields.get("candidate") or fields.get("backend", "unknown")

    @property
    def device(self) -> str:
        """The id of the device."""
        return dict(self.key.fields).get("device", "unknown")

    @property
    def engine(self) -> str:
        """The name of the engine."""
        return dict(self.key.fields).get("backend") or self.candidate.partition(" ")[0]


def confined(store: Store) -> list[Confined]:
    """List what is in quarantine, the newest first."""
    found = []
    for entry in store.entries("quarantine"):
        payload = store.get(entry.key)
        try:
            fact = None if payload is None else Fact.from_data(json.loads(payload))
        except (ValueError, RecursionError):
            fact = None
        if fact is not None:
            found.append(Confined(entry.key, fact))
    return sorted(found, key=lambda one: one.fact.when, reverse=True)


def lift(store: Store, entries: Sequence[Confined]) -> int:
    """Take entries out of quarantine, and forget decisions in which their engines lost by a fault.

    Returns how many decisions are forgotten. They are made again, with the engines.
    """
    for entry in entries:
        store.drop(entry.key)
    engines = {entry.engine for entry in entries}
    count = 0
    for plan in list(store.entries("plan")) if engines else ():
        payload = store.get(plan.key)
        if payload is not None and _has_fault(payload, engines):
            store.drop(plan.key)
            count += 1
    return count


def _is_of(row: Mapping[str, Any], engines: Collection[str]) -> bool:
    """Tell whether a row is of a candidate with one of these engines."""
    return any(name in engines for name in (row["backend"], *row.get("engines", ())))


def _has_fault(payload: bytes, engines: Collection[str]) -> bool:
    """Tell whether an engine lost a race by a fault, as far as a recorded plan says so."""
    try:
        data = json.loads(payload)
        # A saved plan has its header in a row of its own.
        rows = data.get("row", data)["tried"]
        return any(row["status"] in _LOST and _is_of(row, engines) for row in rows)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
