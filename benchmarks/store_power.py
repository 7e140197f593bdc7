"""What does the cache look like after the power failed?

    python benchmarks/store_power.py --count 50000

A model, not real power cuts: all that a run does to the disk is recorded where all of it is, in
`fusewire.store.files`. Then states are drawn that a disk may be in if the power fails after any of
these operations: data that was not synced is there, lost, zeros, or cut at a multiple of 512 bytes;
names that were not synced are there or not, each by itself. In each state the cache must give what
was put once, or miss; what was written through (code) must be there once `put` has returned; and
the next process must be able to use it. Exit 1 if it is not so.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.forked import QUICK, Row, report
from fusewire.store import files
from fusewire.store.disk import Store
from fusewire.store.key import Key

KEYS = Key.of("artifact", name="a"), Key.of("artifact", name="b"), Key.of("plan", name="c")
# A payload that is put, or None: the entry is dropped. The first of a key is put.
Steps = list[tuple[Key, bytes | None]]
_STEPS, _MOST = 12, 5000
# States that are drawn from one record.
_DRAWN = 50
_SECTOR = 512


@dataclass(eq=False)
class Inode:
    """A file: its bytes as they grew, and how many operations came before each."""

    states: list[tuple[int, bytes]] = field(default_factory=list)
    synced: list[int] = field(default_factory=list)

    def after(self, time_: int, draw: random.Random) -> bytes:
        """Draw what is on the disk of it."""
        held = [data for at, data in self.states if at <= time_][-1]
        # All that was written before the last sync is there.
        last = max((at for at in self.synced if at <= time_), default=-1)
        least = next((data for at, data in reversed(self.states) if at <= last), b"")
        if least == held:
            return held
        cut = draw.randrange(len(least), len(held) + 1) // _SECTOR * _SECTOR
        whole = held[: max(cut, len(least))]
        return draw.choice((held, least, whole, whole + bytes(len(held) - len(whole))))


@dataclass(frozen=True)
class Change:
    """A change to a folder: names that go, and one that is set; a name has its folder."""

    time: int
    removed: str | None
    name: str | None = None
    inode: Inode | None = None


class Recorder:
    """The module os, whose changes to the disk are done and noted.

    A name is "folder/name": the key has a folder of its own, which is synced by itself.
    """

    def __init__(self) -> None:
        self.time = 0
        self.changes: list[Change] = []
        self.synced: dict[str, list[int]] = {}
        self._open: dict[int, Inode] = {}
        self._names: dict[str, Inode] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, name: Any, flags: int, *given: Any, **named: Any) -> int:
        fd = os.open(name, flags, *given, **named)
        self._open.pop(fd, None)
        if flags & os.O_CREAT:
            place = _place(named["dir_fd"], name)
            inode = self._open[fd] = self._names[place] = Inode()
            inode.states.append((self._tick(), b""))
            self.changes.append(Change(self.time, None, place, inode))
        return fd

    def write(self, fd: int, data: bytes) -> int:
        count = os.write(fd, data)
        inode = self._open[fd]
        inode.states.append((self._tick(), inode.states[-1][1] + bytes(data[:count])))
        return count

    def fsync(self, fd: int) -> None:
        os.fsync(fd)
        at = self._tick()
        known = self._open.get(fd)
        synced = known.synced if known else self.synced.setdefault(_place(fd), [])
        synced.append(at)

    def replace(self, old: str, new: str, src_dir_fd: int, dst_dir_fd: int) -> None:
        os.replace(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        place = _place(dst_dir_fd, new)
        self._names[place] = self._names.pop(_place(src_dir_fd, old))
        self.changes.append(
            Change(self._tick(), _place(src_dir_fd, old), place, self._names[place])
        )

    def link(self, old: str, new: str, src_dir_fd: int, dst_dir_fd: int) -> None:
        os.link(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        place = _place(dst_dir_fd, new)
        self._names[place] = self._names[_place(src_dir_fd, old)]
        self.changes.append(Change(self._tick(), None, place, self._names[place]))

    def unlink(self, name: str, dir_fd: int) -> None:
        os.unlink(name, dir_fd=dir_fd)
        place = _place(dir_fd, name)
        self._names.pop(place, None)
        self.changes.append(Change(self._tick(), place))

    def _tick(self) -> int:
        self.time += 1
        return self.time

    def state(self, at: int, draw: random.Random) -> dict[str, bytes]:
        """Draw a state of the folders after the power failed at a time."""
        names: dict[str, Inode] = {}
        for change in self.changes:
            folder = str(Path(change.name or change.removed or "").parent)
            synced = max((x for x in self.synced.get(folder, ()) if x <= at), default=-1)
            if change.time > at or (change.time > synced and draw.random() < 0.5):
                continue
            if change.removed is not None:
                names.pop(change.removed, None)
            if change.name is not None and change.inode is not None:
                names[change.name] = change.inode
        drawn: dict[Inode, bytes] = {}
        for inode in names.values():
            if inode not in drawn:
                drawn[inode] = inode.after(at, draw)
        return {name: drawn[inode] for name, inode in names.items()}


def _place(folder: int, name: str = "") -> str:
    """Name a file by the name of its folder, which is open, and its own."""
    return str(Path(Path(f"/proc/self/fd/{folder}").readlink().name, name))


def draw_steps(draw: random.Random) -> Steps:
    """Draw what a run does to three entries."""
    steps: Steps = [(key, draw.randbytes(draw.randint(1, _MOST))) for key in KEYS]
    while len(steps) < _STEPS:
        # Code is not dropped here: once it was put, it must be there.
        key, is_dropped = draw.choice(KEYS), draw.random() < 0.3
        payload = draw.randbytes(draw.randint(1, _MOST))
        steps.append((key, None if is_dropped and key.kind == "plan" else payload))
    return steps


def record(parent: Path, steps: Steps) -> tuple[Recorder, list[int]]:
    """Do all steps; give what was recorded, and when each of them was done."""
    recorder = Recorder()
    os.environ["FUSEWIRE_CONFIG"] = str(parent / "config")
    vars(files)["os"] = recorder
    done = []
    try:
        store = Store(parent / "cache")
        for key, payload in steps:
            if payload is None:
                store.drop(key)
            else:
                assert store.put(key, payload)
            done.append(recorder.time)
    finally:
        vars(files)["os"] = os
    for name in ("cache", "config"):
        shutil.rmtree(parent / name)
    return recorder, done


def check(folder: Path, steps: Steps, done: list[int], at: int) -> list[str]:
    """Say what is wrong with a cache in which the power failed at a time."""
    store, problems = Store(folder), []
    for key in KEYS:
        count = sum(of == key and when <= at for (of, _), when in zip(steps, done, strict=True))
        put = [payload for of, payload in steps if of == key]
        held = store.get(key)
        if held is not None and held not in put:
            problems.append(f"{key.fields} was never put")
        # Of code, what was put last before the power failed, or what was being put then.
        if key.kind == "artifact" and count and held not in put[count - 1 : count + 1]:
            problems.append(f"{key.fields} is lost or old")
        if not store.put(key, b"new") or store.get(key) != b"new":
            problems.append(f"{key.fields} cannot be kept")
    return problems


def measure(given: argparse.Namespace) -> Row:
    """Draw states and look at each."""
    warnings.simplefilter("error")
    draw = random.Random(given.seed)
    parent = Path(tempfile.mkdtemp(prefix="store-power-", dir=QUICK))
    problems: list[str] = []
    seen: set[int] = set()
    operations = 0
    for first in range(0, given.count, _DRAWN):
        steps = draw_steps(draw)
        recorder, done = record(parent, steps)
        operations += recorder.time
        for _ in range(min(_DRAWN, given.count - first)):
            at = draw.randint(0, recorder.time)
            state = recorder.state(at, draw)
            seen.add(hash((at, tuple(sorted(state.items())))))
            for name in ("cache", "config"):
                (parent / name).mkdir(mode=0o700)
            for name, data in state.items():
                (parent / name).write_bytes(data)
                (parent / name).chmod(0o600)
            found = check(parent / "cache", steps, done, at)
            problems += [f"after {at} of {recorder.time}: {said}" for said in found]
            for name in ("cache", "config"):
                shutil.rmtree(parent / name)
    shutil.rmtree(parent)
    return {
        "operations": operations,
        "states": given.count,
        "distinct": len(seen),
        "problems": problems[:10],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    report(measure, parser)
