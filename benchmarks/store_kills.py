"""Is anything torn ever seen when writers of the cache are killed?

    python benchmarks/store_kills.py --count 10000 --size 2000000
    python benchmarks/store_kills.py --count 10000 --size 64000
    python benchmarks/store_kills.py --count 300 --size 2000000 --writer jax

Each time a child puts entries one after the other, and is killed (SIGKILL) after a random part of
the time that one takes. Then every file that is visible under an entry's name is read and compared
with what was put. `jax` is the file cache of jax (`jax._src.lru_cache`), in the same harness. Exit
1 if an entry was torn or wrong, or if files of dead writers stay.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.forked import Row, fork, report
from fusewire.errors import StoreError
from fusewire.store.blob import Bytes, unpack
from fusewire.store.disk import Store
from fusewire.store.key import Key

# Entries are put again and again under these, so that old ones are replaced too.
SLOTS = 2
_NUMBER = 8


class Writer(Protocol):
    """A cache of files: a payload of it begins with its number."""

    def put(self, number: int, payload: bytes) -> None: ...

    def torn(self, body: bytes) -> list[str]:
        """Look at every visible entry: say which are not what was put."""
        ...

    def left(self) -> int:
        """Count files of writers that are gone."""
        ...

    def tidy(self) -> None: ...


class Ours:
    """The store of Fusewire."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder / "cache", kind
        self.store = Store(self.folder)
        opened = self.store.opened()
        assert opened is not None
        self.opened, self.secret = opened

    def _key(self, number: int) -> Key:
        return Key.of(self.kind, slot=number % SLOTS)

    def put(self, number: int, payload: bytes) -> None:
        self.store.put(self._key(number), payload)

    def torn(self, body: bytes) -> list[str]:
        problems = []
        for path in self.folder.glob("*.entry"):
            # Not by `get`, which would remove it.
            try:
                unpack(Bytes(path.read_bytes()), None, self.secret)
            except StoreError as error:
                problems.append(f"{path.name}: {error}")
        for slot in range(SLOTS):
            held = self.store.get(self._key(slot))
            if held is not None and (held[_NUMBER:] != body or _number(held) % SLOTS != slot):
                problems.append(f"slot {slot}: read what was not put")
        return problems

    def left(self) -> int:
        return len(list(self.folder.glob(".part-*")))

    def tidy(self) -> None:
        self.opened.sweep()


class Jax:
    """The file cache of jax, as its compilation cache uses it by default."""

    def __init__(self, folder: Path) -> None:
        from jax._src.lru_cache import LRUCache

        self.folder = folder / "jax"
        self.cache = LRUCache(str(self.folder), max_size=-1)

    def put(self, number: int, payload: bytes) -> None:
        self.cache.put(f"entry{number}", payload)

    def torn(self, body: bytes) -> list[str]:
        found = []
        for path in self.folder.glob("entry*-cache"):
            held = self.cache.get(path.name.removesuffix("-cache"))
            if held is not None and held[_NUMBER:] != body:
                found.append(f"{path.name}: {len(held):,} of {len(body) + _NUMBER:,} bytes")
            # It never replaces an entry that is there.
            path.unlink()
        return found

    def left(self) -> int:
        return 0

    def tidy(self) -> None:
        pass


def _number(payload: bytes) -> int:
    return int.from_bytes(payload[:_NUMBER], "big")


def _put_on(writer: Writer, payloads: list[bytes], fd: int) -> None:
    os.write(fd, b"!")
    for number in count():
        writer.put(number, payloads[number % SLOTS])


def _seconds(writer: Writer, payloads: list[bytes]) -> float:
    """Time a put."""
    times = []
    for number in range(7):
        start = time.perf_counter()
        writer.put(number, payloads[number % SLOTS])
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(given: argparse.Namespace) -> Row:
    """Kill writers."""
    draw = random.Random(given.seed)
    body = draw.randbytes(given.size - _NUMBER)
    payloads = [number.to_bytes(_NUMBER, "big") + body for number in range(SLOTS)]
    problems: list[str] = []
    rounds_torn = caught = rounds = 0
    folder = Path(tempfile.mkdtemp(prefix="store-kills-", dir=given.folder))
    try:
        writer = Jax(folder) if given.writer == "jax" else Ours(folder, given.kind)
        put = _seconds(writer, payloads)
        writer.torn(body)
        end = time.monotonic() + given.wait
        # A busy machine may kill every child too late or too early: go on until one is hit.
        while rounds < given.count or (caught < given.hits and time.monotonic() < end):
            rounds += 1
            child = fork(lambda fd: _put_on(writer, payloads, fd))
            os.read(child.fd, 1)
            time.sleep(draw.uniform(0, put))
            os.kill(child.pid, signal.SIGKILL)
            os.close(child.fd)
            os.waitpid(child.pid, 0)
            caught += writer.left() > 0
            found = writer.torn(body)
            rounds_torn += bool(found)
            problems += found
            # As the next process that writes does.
            writer.tidy()
        left = writer.left()
    finally:
        shutil.rmtree(folder)
    if left:
        problems.append(f"{left} files of dead writers stay")
    return {
        "writer": given.writer,
        "kills": rounds,
        "size": given.size,
        "torn": rounds_torn,
        "killed_while_writing": caught if given.writer == "ours" else "not seen",
        "left_after_sweep": left,
        "put_ms": round(put * 1e3, 2),
        "problems": problems[:10],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=2_000_000)
    parser.add_argument("--writer", choices=("ours", "jax"), default="ours")
    parser.add_argument("--kind", default="artifact", help="measurement: written without fsync")
    parser.add_argument("--hits", type=int, default=0, help="go on until so many were writing")
    parser.add_argument("--wait", type=float, default=120.0, help="seconds to wait for these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where the cache lies; the temporary folder otherwise")
    report(measure, parser)
