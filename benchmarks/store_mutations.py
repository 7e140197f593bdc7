"""Is every damaged entry of the cache found out, and healed?

    python benchmarks/store_mutations.py --count 100000

Entries cut at every byte, with every bit flipped, swapped, overwritten, shortened, lengthened,
forged with right digests by someone without the key, and replaced by links, folders and pipes. Each
must be a miss that leaves no file, or none that hinders, and the next put must be read back. Exit 1
if one is not.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.forked import QUICK, Row, report
from fusewire.store.blob import pack
from fusewire.store.disk import Store
from fusewire.store.key import Key

# Of a kind that is not synced to the disk, which would take most of the time; the format is one.
KEY = Key.of("measurement", graph="ab12", engine="openvino 2026.4.1", threads=2)
OTHER = Key.of("measurement", graph="ab12", engine="openvino 2026.4.1", threads=4)
LARGE = Key.of("measurement", graph="cd34", engine="openvino 2026.4.1", threads=2)
SIZE, LARGE_SIZE = 4096, 9 << 20


def cut(whole: bytes, other: bytes, number: int, draw: random.Random) -> bytes:
    return whole[: number % len(whole)]


def flip(whole: bytes, other: bytes, number: int, draw: random.Random) -> bytes:
    held = bytearray(whole)
    held[number // 8 % len(whole)] ^= 1 << number % 8
    return bytes(held)


def overwrite(whole: bytes, other: bytes, number: int, draw: random.Random) -> bytes:
    held, at = bytearray(whole), draw.randrange(len(whole))
    length = draw.randint(1, 600)
    held[at : at + length] = draw.choice((bytes(length), draw.randbytes(length)))
    return bytes(held)


def lengthen(whole: bytes, other: bytes, number: int, draw: random.Random) -> bytes:
    at = draw.randint(0, len(whole))
    return whole[:at] + draw.randbytes(draw.randint(1, 100)) + whole[at:]


def leave_out(whole: bytes, other: bytes, number: int, draw: random.Random) -> bytes:
    at = draw.randrange(len(whole))
    return whole[:at] + whole[at + draw.randint(1, 100) :]


def swap(whole: bytes, other: bytes, number: int, draw: random.Random) -> bytes:
    """Take the entry of another key, or the beginning of one and the end of the other."""
    at = draw.choice((0, draw.randrange(len(whole))))
    return whole[:at] + other[at:]


def forge(whole: bytes, other: bytes, number: int, draw: random.Random) -> bytes:
    """Make what only the key tells from a true entry."""
    return b"".join(pack(KEY, draw.randbytes(SIZE), draw.randbytes(32)))


def rubbish(whole: bytes, other: bytes, number: int, draw: random.Random) -> bytes:
    return draw.choice((b"", whole[:12])) + draw.randbytes(draw.randint(0, 9000))


Mutate = Callable[[bytes, bytes, int, random.Random], bytes]
# How many of a hundred.
SHARES: dict[Mutate, int] = {
    cut: 10, flip: 50, overwrite: 10, lengthen: 5, leave_out: 5, swap: 10, forge: 5, rubbish: 5
}  # fmt: skip


def place(path: Path, number: int) -> str:
    """Put something that is no file where an entry is expected."""
    path.unlink(missing_ok=True)
    name = ("link", "broken link", "pipe", "loop")[number % 4]
    if name == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"link": "/etc/passwd", "broken link": "/none", "loop": str(path)}[name])
    return name


def heals(store: Store, path: Path, key: Key, payload: bytes) -> str:
    """See that what lies there is a miss, and that a put makes all well; say what is wrong."""
    if store.get(key) is not None:
        return "was read"
    if os.path.lexists(path):
        return "stays"
    if not store.put(key, payload) or store.get(key) != payload:
        return "did not heal"
    return ""


def measure(given: argparse.Namespace) -> Row:
    """Damage entries."""
    warnings.simplefilter("error")
    folder = Path(tempfile.mkdtemp(prefix="store-mutations-", dir=QUICK))
    store, draw = Store(folder / "cache"), random.Random(given.seed)
    payloads = {
        KEY: draw.randbytes(SIZE),
        OTHER: draw.randbytes(SIZE),
        LARGE: draw.randbytes(LARGE_SIZE),
    }
    paths = {key: store.path / f"{key.digest}.entry" for key in payloads}
    wholes = {}
    for key, payload in payloads.items():
        store.put(key, payload)
        wholes[key] = paths[key].read_bytes()
    counts: Counter[str] = Counter()
    problems = []
    turns = [mutate for mutate, share in SHARES.items() for _ in range(share)]
    draw.shuffle(turns)
    try:
        for number in range(given.count):
            # Of the exhaustive ones, each its own next.
            mutate = turns[number % len(turns)]
            key = LARGE if number % 500 == 499 else KEY
            if number % 100 == 99:
                name, key = place(paths[KEY], number // 100), KEY
            else:
                name = mutate.__name__
                held = mutate(wholes[key], wholes[OTHER], counts[name], draw)
                if held == wholes[key]:
                    continue
                paths[key].write_bytes(held)
            counts[name] += 1
            if problem := heals(store, paths[key], key, payloads[key]):
                problems.append(f"{name} {number}: {problem}")
    finally:
        shutil.rmtree(folder)
    return {
        "mutants": counts.total(),
        "found": counts.total() - len(problems),
        "entry_bytes": len(wholes[KEY]),
        "kinds": dict(counts),
        "problems": problems[:10],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    report(measure, parser)
