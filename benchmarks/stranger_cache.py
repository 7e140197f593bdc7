"""Can a cache folder of somebody else make a program wrong, stop it, or run code in it?

    python benchmarks/stranger_cache.py --count 1100

Real engines fill a stranger's cache with models whose inputs and outputs are alike. Then it is
changed under the stranger's own key: payloads swapped between entries, bytes changed, code planted
in Triton kernels, in plans (a backend of the stranger's) and as a pickle, engines accused, verdicts
and times forged. It arrives as a folder, alone or over the user's own, with a key of its own (a
file, a link, a pipe, an empty file, a folder, none), with other owners and permissions, or by
`cache import`. A program that starts from it must answer right, with fallback="error" too; nothing
of the stranger's may be loaded; and the file that planted code would create must not be there.

The control runs the same changes with the stranger's key in place of the user's: there, swapped
payloads and planted backends must do harm, or the campaign would show nothing. Exit 1 if a variant
did harm, or if the control did none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import fusewire as fw
from benchmarks.forked import QUICK, Row, report
from fusewire.errors import FusewireError
from fusewire.records.framing import framed, unframed
from fusewire.records.quarantine import CODES
from fusewire.store.blob import pack
from fusewire.store.disk import Store, shared_store
from fusewire.store.exchange import take
from fusewire.store.key import DATA, Key

Entries = dict[Key, bytes]
# How many variants of 1,100 start on which backend; all shares shrink and grow alike.
SHARES = {"onnxruntime": 300, "webgpu": 100, "openvino": 250, "xla": 250, "triton": 160, "auto": 40}
# How long choosing may take, where engines are compared.
BUDGET = 0.5
KEYS = ("own", "open", "link", "pipe", "empty", "folder", "none")
ARRIVALS = ("folder", "folder", "over", "import")
PLANTED = "planted_by_a_stranger"
_SIZE = 5


def functions() -> dict[str, Callable[[Any], Any]]:
    """Models in pairs: the same types, other answers."""
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, _SIZE, 300)).astype(np.float32)
    return {
        "dense_a": lambda x: np.tanh(x @ first).sum(1),
        "dense_b": lambda x: np.tanh(x @ second).sum(1),
        "chain_a": lambda x: np.exp(x) * 2 + x.sum(1, keepdims=True),
        "chain_b": lambda x: np.exp(x) - 3 * x.sum(1, keepdims=True),
    }


def given() -> Any:
    return np.random.default_rng(1).normal(size=(3, _SIZE)).astype(np.float32)


def options(backend: str) -> dict[str, Any]:
    chosen = {"budget_seconds": BUDGET, "start": "measured"} if backend == "auto" else {"level": 0}
    return {"backend": backend, **chosen}


# Changes. Each is made to the entries of the stranger, who has a key and may sign anything.


def swap(entries: Entries, draw: random.Random, canary: Path) -> None:
    """Give the entries of each kind the payloads of others."""
    for kind in ("artifact", "weights", "plan"):
        keys = [key for key in entries if key.kind == kind]
        payloads = [entries[key] for key in keys]
        shift = draw.randrange(1, max(len(keys), 2))
        entries |= zip(keys, payloads[shift:] + payloads[:shift], strict=True)


def swap_alike(entries: Entries, draw: random.Random, canary: Path) -> None:
    """Swap code and weights of entries of about the same size, which fit in each other's place."""
    for kind in ("artifact", "weights"):
        keys = sorted((key for key in entries if key.kind == kind), key=lambda k: len(entries[k]))
        for one, other in zip(keys[::2], keys[1::2], strict=False):
            entries[one], entries[other] = entries[other], entries[one]


def edit_bytes(entries: Entries, draw: random.Random, canary: Path) -> None:
    """Change some bytes of some payloads."""
    for key in draw.sample(list(entries), max(len(entries) // 2, 1)):
        payload = bytearray(entries[key])
        for _ in range(draw.randint(1, 20)):
            payload[draw.randrange(len(payload))] = draw.randrange(256)
        entries[key] = bytes(payload)


def plant_in_kernels(entries: Entries, draw: random.Random, canary: Path) -> None:
    """Put code where a Triton artifact has, or had, names and text."""
    code = f"x): pass\nopen({str(canary)!r}, 'w').close()\ndef more("
    for key in entries:
        if key.kind != "artifact" or ("backend", "triton") not in key.fields:
            continue
        try:
            header, blobs = unframed(entries[key])
            first, *rest = blobs
            data = json.loads(first.tobytes())
        except ValueError:
            # Another change was here before.
            continue
        place = draw.choice(("name", "buffer", "text", "configuration"))
        kernel = data["sources"][0][0]
        if place == "name":
            kernel[1] = code
        elif place == "buffer":
            kernel[4][0][1] = code
        elif place == "configuration":
            data["sources"][0][1][0] = code
        else:
            text = f"({code}):\n    pass"
            function = {"name": "map_1", "text": text, "pointers": [], "steps": 0}
            data |= {"functions": [{**function, "warps": 4, "stages": 0}], "text": text}
        raw = np.frombuffer(json.dumps(data).encode(), np.uint8)
        header["payload"] = raw.nbytes
        entries[key] = framed(header, [raw, *rest])


def plant_in_plans(entries: Entries, draw: random.Random, canary: Path) -> None:
    """Have plans name a backend of the stranger's, which creates the canary when imported."""
    for key in entries:
        if key.kind == "plan":
            entries[key] = re.sub(
                rb'("reference": )"[^"]+"', rb'\1"%s:Backend"' % PLANTED.encode(), entries[key]
            )


def plant_pickles(entries: Entries, draw: random.Random, canary: Path) -> None:
    """Replace payloads by pickles that create the canary."""
    for key in draw.sample(list(entries), max(len(entries) // 2, 1)):
        entries[key] = f"cos\nsystem\n(S'touch {canary}'\ntR.".encode()


def accuse(entries: Entries, draw: random.Random, canary: Path) -> None:
    """Put every artifact into quarantine, with control characters in the reason."""
    for key in [key for key in entries if key.kind == "artifact"]:
        fact: Row = {"code": draw.choice(CODES), "reason": "\x1b[2J\x1b]0;gone\x07", "when": "now"}
        fact |= {"seconds": 1e9, "place": "", "op": "", "is_imported": draw.random() < 0.5}
        entries[Key("quarantine", key.fields)] = json.dumps(fact).encode()


def forge_data(entries: Entries, draw: random.Random, canary: Path) -> None:
    """Turn verdicts round, and change times and numbers."""
    for key in [key for key in entries if key.kind in DATA]:
        try:
            data = json.loads(entries[key])
        except ValueError:
            continue
        entries[key] = json.dumps(_forged(data, draw)).encode()


def _forged(data: Any, draw: random.Random) -> Any:
    if isinstance(data, dict):
        return {name: _forged(item, draw) for name, item in data.items()}
    if isinstance(data, list):
        return [_forged(item, draw) for item in data]
    if draw.random() < 0.7:
        return data
    if isinstance(data, bool):
        return not data
    if isinstance(data, int | float):
        return draw.choice((0, -1, 1e-12, 1e300, float("nan"), 2**70))
    return {"right": "wrong", "wrong": "right"}.get(str(data), "\x1b[31m")


CHANGES = (
    swap,
    swap_alike,
    edit_bytes,
    plant_in_kernels,
    plant_in_plans,
    plant_pickles,
    accuse,
    forge_data,
)


# Arrivals.


def arrive(
    folder: Path, entries: Entries, secret: bytes, how: str, key: str, draw: random.Random
) -> None:
    """Put entries of the stranger, and a key, into the folder that the user will use."""
    if how == "import":
        file = folder.with_suffix(".fwx")
        parts = [b"".join(pack(name, payload, secret)) for name, payload in entries.items()]
        file.write_bytes(b"FUSEWIRX" + b"".join(parts))
        take(Store(folder), file)
        file.unlink()
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, payload in entries.items():
        path = folder / f"{name.digest}.entry"
        path.unlink(missing_ok=True)
        path.write_bytes(b"".join(pack(name, payload, secret)))
        path.chmod(draw.choice((0o600, 0o644, 0o666, 0o400, 0o4755)))
        if draw.random() < 0.1 and os.geteuid() == 0:
            os.chown(path, 12345, 12345)
    bring(folder / "key", secret, key)


def bring(place: Path, secret: bytes, what: str) -> None:
    """Put a key of the stranger's into a cache folder, or something of its name."""
    if what in ("own", "open"):
        place.write_bytes(secret)
        place.chmod(0o600 if what == "own" else 0o644)
    elif what == "link":
        beside = place.with_name("beside")
        beside.write_bytes(secret)
        place.symlink_to(beside)
    elif what == "pipe":
        os.mkfifo(place)
    elif what == "empty":
        place.write_bytes(b"")
    elif what == "folder":
        place.mkdir()


# The work, in one process for each backend.


def read_all(folder: Path) -> Entries:
    store = Store(folder)
    found = {entry.key: store.get(entry.key) for entry in store.entries()}
    store.close()
    return {key: payload for key, payload in found.items() if payload is not None}


class Place:
    """The folders of a campaign, as every process of it sees them."""

    def __init__(self, root: Path, backend: str) -> None:
        self.root, self.backend = root, backend
        self.models = {name: root / f"{name}.onnx" for name in functions()}
        self.canary = root / f"canary-{backend}"

    def config(self, who: str) -> Path:
        return self.root / f"config-{who}"

    def cache(self, who: str) -> Path:
        return self.root / f"cache-{who}-{self.backend}"

    def be(self, who: str, cache: Path) -> None:
        """Use the key of somebody, and a cache folder."""
        os.environ |= {"FUSEWIRE_CONFIG": str(self.config(who)), "FUSEWIRE_CACHE": str(cache)}
        shared_store.cache_clear()

    def run(self, name: str, **more: Any) -> tuple[str, int]:
        """Run a model; say what was wrong, and how many artifacts were loaded as they were."""
        try:
            program = fw.compile(self.models[name], **options(self.backend), **more)
            found = program(given())
            hits = sum(contact.cache == "hit" for contact in program.why().contacts)
            program.close()
        except FusewireError as error:
            return f"{type(error).__name__}: {error}", 0
        wanted = functions()[name](given().astype(np.float64))
        got = np.asarray(found)
        is_right = got.shape == wanted.shape and np.allclose(got, wanted, rtol=1e-3, atol=1e-4)
        return "" if is_right else "a wrong answer", hits


def fill(place: Place) -> None:
    """Fill a cache of the stranger's and one of the user's."""
    for who in ("stranger", "user"):
        place.be(who, place.cache(who))
        for name in place.models:
            if said := place.run(name)[0]:
                raise SystemExit(f"{place.backend} cannot run {name}: {said}")


def variant(place: Place, number: int, seed: int) -> Row:
    """Make one variant, start from it, and say what happened."""
    draw = random.Random(f"{seed} {place.backend} {number}")
    place.be("stranger", place.cache("stranger"))
    entries = read_all(place.cache("stranger"))
    secret = (place.config("stranger") / "key").read_bytes()
    first = CHANGES[number % len(CHANGES)]
    changes = dict.fromkeys([first, *draw.sample(CHANGES, draw.randint(0, 2))])
    for change in changes:
        change(entries, draw, place.canary)
    how, key = draw.choice(ARRIVALS), KEYS[number // len(CHANGES) % len(KEYS)]
    folder = place.root / f"used-{place.backend}"
    if how == "over":
        shutil.copytree(place.cache("user"), folder)
    place.be("user", folder)
    arrive(folder, entries, secret, how, key, draw)
    names = draw.sample(sorted(place.models), 2)
    policy = draw.choice(("error", "warn"))
    start, problems = time.monotonic(), []
    for name in names:
        said, hits = place.run(name, fallback=policy)
        problems += [f"{name}: {said}"] if said else []
        # What the stranger did not replace of the user's own cache is loaded, rightly; and "auto"
        # loads what it has compiled while it chose.
        if hits and how == "folder" and place.backend != "auto":
            problems.append(f"{name}: {hits} artifacts of the stranger were loaded")
    seconds = time.monotonic() - start
    if place.canary.exists():
        problems.append("planted code was executed")
        place.canary.unlink()
    shutil.rmtree(folder)
    about = {"changes": [change.__name__ for change in changes], "arrival": how, "key": key}
    return {"number": number, **about, "seconds": seconds, "problems": problems}


def control(place: Place, number: int, seed: int) -> Row:
    """Make the same with the stranger's key as the user's: it must do harm."""
    draw = random.Random(f"{seed} {place.backend} control {number}")
    place.be("stranger", place.cache("stranger"))
    entries = read_all(place.cache("stranger"))
    secret = (place.config("stranger") / "key").read_bytes()
    change = (swap_alike, plant_in_plans, plant_in_kernels)[number % 3]
    change(entries, draw, place.canary)
    folder = place.root / f"used-{place.backend}"
    arrive(folder, entries, secret, "folder", "none", draw)
    place.be("stranger", folder)
    said = []
    for name in sorted(place.models):
        # The planted backend is none, which is found out once its module was executed.
        with contextlib.suppress(AttributeError):
            said.append(place.run(name)[0])
    is_executed = place.canary.exists()
    place.canary.unlink(missing_ok=True)
    shutil.rmtree(folder)
    sys.modules.pop(PLANTED, None)
    is_wrong = any("wrong" in text for text in said)
    return {"change": change.__name__, "is_wrong": is_wrong, "is_executed": is_executed}


def work(given: argparse.Namespace) -> None:
    """Do one backend's part; print a row for each variant."""
    warnings.simplefilter("ignore")
    place = Place(Path(given.root), given.work)
    sys.path.insert(0, str(place.root / "planted" / given.work))
    fill(place)
    for number in range(given.control):
        print(json.dumps({"control": control(place, number, given.seed)}), flush=True)
    for number in range(given.count):
        print(json.dumps({"begun": number}), flush=True)
        print(json.dumps(variant(place, number, given.seed)), flush=True)


def prepare(root: Path) -> None:
    """Save the models, and plant a module for each backend that creates its canary."""
    for name, function in functions().items():
        graph = fw.trace(function, fw.Spec((3, _SIZE), "float32"))
        fw.save_onnx(graph, root / f"{name}.onnx")
    for backend in SHARES:
        folder = root / "planted" / backend
        folder.mkdir(parents=True)
        text = f"open({str(root / f'canary-{backend}')!r}, 'w').close()\n"
        (folder / f"{PLANTED}.py").write_text(text)


def rows_of(root: Path, backend: str, count: int, given: argparse.Namespace) -> Iterator[Row]:
    """Have a process do the part of a backend; yield its rows, and how it ended."""
    command = [sys.executable, __file__, "--work", backend, "--root", str(root)]
    command += ["--count", str(count), "--seed", str(given.seed), "--control", str(given.control)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    yield from map(json.loads, done.stdout.splitlines())
    yield {"ended": done.returncode}


def measure(given: argparse.Namespace) -> Row:
    """Try variants on every backend."""
    root = Path(tempfile.mkdtemp(prefix="stranger-", dir=QUICK))
    counts: dict[str, Counter[str]] = {
        name: Counter() for name in ("backend", "change", "arrival", "key")
    }
    controls: Counter[str] = Counter()
    problems: list[str] = []
    seconds: list[float] = []
    try:
        prepare(root)
        shares = {name: SHARES[name] for name in given.backends or SHARES}
        for backend, share in shares.items():
            count, begun = max(round(given.count * share / sum(shares.values())), 1), -1
            for row in rows_of(root, backend, count, given):
                begun = row.get("begun", begun)
                if "number" in row:
                    counts["backend"][backend] += 1
                    counts["change"].update(row["changes"])
                    counts["arrival"][row["arrival"]] += 1
                    counts["key"][row["key"]] += row["arrival"] != "import"
                    seconds.append(row["seconds"])
                    problems += [f"{backend} {row['number']}: {said}" for said in row["problems"]]
                elif "control" in row:
                    found = row["control"]
                    controls[f"{found['change']}: tried"] += 1
                    controls[f"{found['change']}: wrong answers"] += found["is_wrong"]
                    controls[f"{found['change']}: executed"] += found["is_executed"]
                elif row.get("ended"):
                    problems.append(f"{backend}: ended with {row['ended']} at variant {begun}")
    finally:
        shutil.rmtree(root)
    if given.control and not (
        controls["swap_alike: wrong answers"] and controls["plant_in_plans: executed"]
    ):
        problems.append("the control did no harm, so nothing is shown")
    if controls["plant_in_kernels: executed"]:
        problems.append("code in kernels was executed under the user's own key")
    return {
        "variants": counts["backend"].total(),
        **{name: dict(found) for name, found in counts.items()},
        "control": dict(controls),
        "median_seconds": round(float(np.median(seconds)), 2) if seconds else 0,
        "harmful": len(problems),
        "problems": problems[:20],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--control", type=int, default=6, help="of each backend, how many")
    parser.add_argument("--backends", nargs="*", choices=SHARES)
    parser.add_argument("--work", choices=SHARES, help=argparse.SUPPRESS)
    parser.add_argument("--root", help=argparse.SUPPRESS)
    known, _ = parser.parse_known_args()
    if known.work:
        work(known)
    else:
        report(measure, parser)
