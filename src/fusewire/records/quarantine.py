"""What is known to go wrong: remembered, so that nobody meets it twice.

A fact is kept under the fields of the artifact that it is about: region, backend, versions and
settings. Another version of the engine, or of the code that translates for it, is another
artifact, and nothing is held against it.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from fusewire.errors import StoreError
from fusewire.store.key import Key

# What is a fault of engine and region. Other failures are cheap to meet again, or the machine's.
CODES = ("wrong", "crashed", "hung", "compile-timeout", "garbage")
# What more time may mend.
_TIMED = ("hung", "compile-timeout")


class Keeper(Protocol):
    """Where facts are kept: a store, or what stands for one."""

    def get(self, key: Key, /) -> bytes | None: ...
    def put(self, key: Key, payload: bytes, /) -> object: ...
    def drop(self, key: Key, /) -> object: ...


@dataclass(frozen=True)
class Fact:
    """Why an artifact is not to be used; ``when`` is a time of UTC.

    ``seconds`` is what a hang was given, ``place`` and ``op`` are of the first wrong node, where
    one was found.
    """

    code: str
    reason: str
    when: str = ""
    seconds: float = 0.0
    place: str = ""
    op: str = ""

    def sentence(self) -> str:
        """Say it to people."""
        at = f" at node {self.place} ({self.op})" if self.op else ""
        return f"in quarantine since {self.when}: {self.code}{at}: {self.reason}"

    @staticmethod
    def from_data(held: Any) -> Fact:
        """Read it back; StoreError when it is not one."""
        if not isinstance(held, dict) or set(held) != set(Fact.__dataclass_fields__):
            raise StoreError("A fact of the quarantine has other fields than those known.")
        seconds = held["seconds"]
        texts = [text for name, text in held.items() if name != "seconds"]
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not all(isinstance(text, str) for text in texts):
            raise StoreError("A fact of the quarantine holds what is not of its kind.")
        if held["code"] not in CODES:
            raise StoreError(f"The quarantine knows no {held['code']!r}.")
        return Fact(**held)


def quarantine(keeper: Keeper, artifact: Key, fact: Fact) -> bool:
    """Hold a fact against an artifact; tells whether it is one to be held."""
    if fact.code not in CODES:
        return False
    when = fact.when or time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    payload = json.dumps({**asdict(fact), "when": when}).encode()
    keeper.put(_key(artifact), payload)
    return True


def quarantined(keeper: Keeper, artifact: Key, seconds: float = 0.0) -> Fact | None:
    """Tell what is held against an artifact; a hang is not where ``seconds`` are more than then."""
    held = keeper.get(_key(artifact))
    if held is None:
        return None
    try:
        fact = Fact.from_data(json.loads(held))
    except (ValueError, RecursionError):
        keeper.drop(_key(artifact))
        return None
    return None if fact.code in _TIMED and seconds > fact.seconds else fact


def release(keeper: Keeper, artifact: Key) -> None:
    """Hold nothing against an artifact any more."""
    keeper.drop(_key(artifact))


def _key(artifact: Key) -> Key:
    return Key("quarantine", artifact.fields)
