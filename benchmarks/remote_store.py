"""Does a shared store that is torn, forged, slow or down ever make an answer wrong, or late?

    python benchmarks/remote_store.py kills --server rclone --count 2000
    python benchmarks/remote_store.py mutations --server moto --count 20000
    python benchmarks/remote_store.py faults --server rclone --count 15

kills: writers end at random moments, and readers look at what they left. mutations: objects are
changed, swapped, replayed, forged and downgraded, and each is read. faults: a proxy before the
server is down, takes 10 s, answers 503, or changes one byte in a hundred, while new processes
compile a model that somebody has pushed; their first answers are compared with those of processes
without a shared store. Exit 1 if anything wrong is used.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.forked import QUICK, Row, fork, report
from benchmarks.object_proxy import MODES, FaultyProxy
from benchmarks.object_servers import serve
from fusewire.errors import RemoteError, StoreError
from fusewire.store.disk import Store
from fusewire.store.key import Key
from fusewire.store.remote import INLINE, Pointer, RemoteClient, blob_path, perform, pointer_path
from fusewire.store.sharing import Release, SharedStore
from fusewire.store.signing import AllowedSigner, AllowedSigners, Signer, Statement
from fusewire.store.transport import Transport, open_transport

SERVERS = ("rclone", "moto", "folder")
KEYS = [Key.of("artifact", region=f"r{number}", backend="xla") for number in range(8)]


@contextlib.contextmanager
def served(name: str) -> Iterator[tuple[str, Path]]:
    """Start a server; yields the address of the store, and a folder for other things."""
    folder = Path(tempfile.mkdtemp(prefix="remote-store-", dir=QUICK))
    try:
        if name == "folder":
            yield str(folder / "shared"), folder
            return
        with serve(name, folder) as server:
            os.environ.update(server.variables)
            yield server.url, folder
    finally:
        shutil.rmtree(folder)


def client_of(signer: Signer, folder: Path | None = None) -> RemoteClient:
    """Return a client that believes this signer, and remembers generations in a folder."""
    seen = None if folder is None else Store(folder)
    return RemoteClient(AllowedSigners((AllowedSigner(signer.id, "builder"),)), signer, seen)


def payload_of(key: Key, generation: int) -> bytes:
    """Make the payload of a key: small for even generations, which are in the pointer."""
    size = INLINE // 4 if generation % 2 == 0 else 3 * INLINE
    return generation.to_bytes(4, "big") + random.Random(f"{key.digest}{generation}").randbytes(
        size
    )


# Killed writers.


def write_on(url: str, signer: Signer, start: int, fd: int) -> None:
    """Publish one generation after the other, until killed."""
    transport, client = open_transport(url), client_of(signer)
    payloads = [[payload_of(key, start + step) for key in KEYS] for step in range(4)]
    os.write(fd, b"ready")
    for step in range(4):
        for key, payload in zip(KEYS, payloads[step], strict=True):
            perform(client.publish(key, payload, start + step), transport)
    os.write(fd, b"done")


def read_all(url: str, signer: Signer, fd: int) -> None:
    """Read every key, and say what came of it."""
    transport, client = open_transport(url), client_of(signer)
    counts: Counter[str] = Counter()
    for key in KEYS:
        try:
            entry = perform(client.fetch(key), transport)
        except StoreError:
            counts["refused"] += 1
            continue
        if entry is None:
            counts["missing"] += 1
            continue
        generation = int.from_bytes(entry.payload[:4], "big")
        counts["right" if entry.payload == payload_of(key, generation) else "wrong"] += 1
    os.write(fd, json.dumps(counts).encode())


def kills(given: argparse.Namespace) -> Row:
    """Kill writers. Children are forked before this process has used the library."""
    draw, signer = random.Random(given.seed), Signer.generate()
    counts: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    with served(given.server) as (url, _):
        for number in range(given.count):
            child = fork(lambda fd, start=number * 4: write_on(url, signer, start, fd))  # type: ignore[misc] # a default
            os.set_blocking(child.fd, True)
            os.read(child.fd, 5)
            time.sleep(draw.uniform(0, given.window))
            os.kill(child.pid, signal.SIGKILL)
            said, _ = child.read()
            ends["after" if b"done" in said else "while writing"] += 1
            if number % 10 == 9 or number == given.count - 1:
                said, _ = fork(lambda fd: read_all(url, signer, fd)).read()
                counts.update(json.loads(said))
    problems = ["something wrong was read"] * counts["wrong"]
    if not counts["right"]:
        problems.append("nothing was read")
    row = {"kills": given.count, "ends": dict(ends), "reads": dict(counts)}
    return {"server": given.server, **row, "problems": problems}


# Mutated objects.


@dataclass(frozen=True)
class Victim:
    """Two entries of a signer as they are stored, and an older one of the first."""

    key: Key
    payload: bytes
    pointer: bytes
    other: bytes
    older: bytes
    path: str
    other_payload: bytes


def flip(held: bytes, victim: Victim, draw: random.Random) -> bytes:
    changed = bytearray(held)
    changed[draw.randrange(len(held))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(held: bytes, victim: Victim, draw: random.Random) -> bytes:
    return held[: draw.randrange(len(held))]


def overwrite(held: bytes, victim: Victim, draw: random.Random) -> bytes:
    at, length = draw.randrange(len(held)), draw.randint(1, 300)
    return (held[:at] + draw.randbytes(length) + held[at + length :])[: len(held)]


def lengthen(held: bytes, victim: Victim, draw: random.Random) -> bytes:
    at = draw.randint(0, len(held))
    return held[:at] + draw.randbytes(draw.randint(1, 100)) + held[at:]


def replay_other(held: bytes, victim: Victim, draw: random.Random) -> bytes:
    """Put the entry of another key here, under its own name or under this one."""
    if draw.random() < 0.5:
        return victim.other
    return replace(Pointer.from_bytes(victim.other), key=victim.key).to_bytes()


def downgrade(held: bytes, victim: Victim, draw: random.Random) -> bytes:
    """Put an older entry of the same key and signer in its place."""
    return victim.older


def _signed_by(signer: Signer, victim: Victim, payload: bytes, **change: object) -> bytes:
    statement = Statement.of(victim.key, payload, format=1, generation=9)
    envelope = signer.sign(replace(statement, **change))  # type: ignore[arg-type] # fields by name
    return Pointer(victim.key, len(payload), statement.payload, envelope, payload).to_bytes()


def forge(held: bytes, victim: Victim, draw: random.Random) -> bytes:
    """Sign another payload with a key that nobody believes."""
    return _signed_by(Signer.generate(), victim, draw.randbytes(900))


def impersonate(held: bytes, victim: Victim, draw: random.Random) -> bytes:
    """Sign another payload with one's own key, in the name of the believed signer."""
    stranger, builder = Signer.generate(), Pointer.from_bytes(victim.pointer)
    forged = Pointer.from_bytes(_signed_by(stranger, victim, draw.randbytes(900)))
    theirs, ours = json.loads(builder.envelope), json.loads(forged.envelope)
    theirs[draw.choice(("payload", "signatures"))] = ours["payload"]
    if not isinstance(theirs["signatures"], list):
        theirs["signatures"] = ours["signatures"]
    envelope = json.dumps(theirs, sort_keys=True, separators=(",", ":")).encode()
    return replace(forged, envelope=envelope).to_bytes()


def strip(held: bytes, victim: Victim, draw: random.Random) -> bytes:
    """Leave out the signature, and change the payload."""
    payload = draw.randbytes(900)
    envelope = draw.choice((b"", b"{}", b"null"))
    sha256 = hashlib.sha256(payload).hexdigest()
    return Pointer(victim.key, len(payload), sha256, envelope, payload).to_bytes()


Mutate = Callable[[bytes, Victim, random.Random], bytes]
# How many of a hundred; the first four change bytes of the pointer or of the payload.
SHARES: dict[Mutate, int] = {
    flip: 30, cut: 10, overwrite: 10, lengthen: 10, replay_other: 10, downgrade: 10, forge: 8,
    impersonate: 7, strip: 5,
}  # fmt: skip
_OF_BYTES = (flip, cut, overwrite, lengthen)


def victim_of(transport: Transport, client: RemoteClient, large: bool) -> Victim:
    """Publish entries whose objects are changed then."""
    key, other = KEYS[int(large)], KEYS[2 + int(large)]
    generation = 2 * 3 + int(large)
    payloads = [payload_of(key, generation - 2), payload_of(other, generation)]
    perform(client.publish(key, payloads[0], generation - 2), transport)
    older = transport.get(pointer_path(key), 2**20)
    payload = payload_of(key, generation)
    perform(client.publish(key, payload, generation), transport)
    perform(client.publish(other, payloads[1], generation), transport)
    found = [transport.get(pointer_path(one), 2**20) for one in (key, other)]
    assert older is not None
    pointer, swapped = (held or b"" for held in found)
    path = blob_path(hashlib.sha256(payload).hexdigest()) if large else pointer_path(key)
    return Victim(key, payload, pointer, swapped, older, path, payloads[1])


def mutations(given: argparse.Namespace) -> Row:
    """Change objects, and read each."""
    draw, signer = random.Random(given.seed), Signer.generate()
    counts: Counter[str] = Counter()
    problems: list[str] = []
    turns = [mutate for mutate, share in SHARES.items() for _ in range(share)]
    with served(given.server) as (url, folder):
        transport, client = open_transport(url), client_of(signer, folder / "seen")
        victims = [victim_of(transport, client, large) for large in (False, True)]
        for victim in victims:
            # From now on the generation of each is known.
            assert perform(client.fetch(victim.key), transport) is not None
        for number in range(given.count):
            mutate, victim = draw.choice(turns), victims[number % 2]
            of_blob = mutate in _OF_BYTES and victim.path != pointer_path(victim.key)
            path = victim.path if of_blob and draw.random() < 0.5 else pointer_path(victim.key)
            whole = (
                victim.payload
                if path == victim.path != pointer_path(victim.key)
                else victim.pointer
            )
            put_surely(transport, path, mutate(whole, victim, draw))
            outcome = _outcome(client, transport, victim)
            counts[f"{mutate.__name__}: {outcome}"] += 1
            if outcome == "WRONG" or (outcome == "right" and mutate not in _OF_BYTES):
                problems.append(f"{mutate.__name__} {number}: {outcome}")
            put_surely(transport, path, whole)
            if number % 100 == 0 and _outcome(client, transport, victim) not in ("right", "failed"):
                problems.append(f"{number}: the true one is not read")
    row = {"server": given.server, "mutants": given.count, "outcomes": dict(sorted(counts.items()))}
    return {**row, "problems": problems[:10]}


def put_surely(transport: Transport, path: str, held: bytes) -> None:
    """Write an object; a server that drops a connection is asked again."""
    for _ in range(5):
        try:
            transport.put(path, held)
        except RemoteError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{path} cannot be written.")


def _outcome(client: RemoteClient, transport: Transport, victim: Victim) -> str:
    try:
        entry = perform(client.fetch(victim.key), transport)
    except RemoteError as error:
        # More bytes than the pointer says are refused, too; other failures are the server's.
        return "refused" if error.is_lasting else "failed"
    except StoreError:
        return "refused"
    if entry is None:
        return "missing"
    return "right" if entry.payload == victim.payload else "WRONG"


# Stores that fail.

FIRST_ANSWER = """
import json, sys, time
import numpy as np
import fusewire as fw
x = np.linspace(-1, 1, 64 * 256, dtype=np.float32).reshape(64, 256)
start = time.perf_counter()
program = fw.compile(sys.argv[1], backend="onnxruntime")
answer = program(x)
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "answer": float(np.asarray(answer, np.float64).sum())}))
"""


def first_answer(
    model: Path, config: Path, remote: str, cache: Path | None = None
) -> tuple[float, float]:
    """Compile and call in a new process; returns the seconds, and the sum of the answer.

    Its cache is empty, and is kept only if it is named.
    """
    with tempfile.TemporaryDirectory(dir=QUICK) as folder:
        done = subprocess.run(
            [sys.executable, "-c", FIRST_ANSWER, str(model)],
            env={
                **os.environ,
                "FUSEWIRE_CACHE": str(cache or f"{folder}/own"),
                "FUSEWIRE_CONFIG": str(config),
                "FUSEWIRE_REMOTE": remote,
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-2000:]}")
    row = json.loads(done.stdout)
    return row["seconds"], row["answer"]


def write_model(path: Path) -> None:
    """Write a small network."""
    import numpy as np

    import fusewire as fw

    draw = np.random.default_rng(1)
    weights = [draw.standard_normal((256, 256)).astype(np.float32) / 16 for _ in range(4)]

    def network(x):  # type: ignore[no-untyped-def] # traced
        for weight in weights:
            x = np.tanh(x @ weight)
        return x

    fw.save_onnx(fw.trace(network, fw.Spec((64, 256), "float32")), path)


def faults(given: argparse.Namespace) -> Row:
    """Compile with a shared store that fails, beside none."""
    modes = [mode for mode in MODES if given.mode in (None, mode)]
    seconds: dict[str, list[float]] = {name: [] for name in ("none", *modes)}
    problems: list[str] = []
    with served(given.server) as (url, folder), contextlib.ExitStack() as stack:
        # That of this campaign, so that it can read what its processes recorded.
        config = Path(os.environ["FUSEWIRE_CONFIG"])
        signer = Signer.generate()
        (config / "allowed_signers").write_text(AllowedSigner(signer.id, "builder").line() + "\n")
        (config / "allowed_signers").chmod(0o600)
        write_model(folder / "model.onnx")
        target = os.environ["AWS_ENDPOINT_URL"]
        proxies = {mode: stack.enter_context(FaultyProxy(target, mode)) for mode in modes}
        _, right = first_answer(folder / "model.onnx", config, "", folder / "builder")
        builder = SharedStore(open_transport(url), client_of(signer))
        assert builder.push(Store(folder / "builder"), Release.now()).kept
        for _ in range(given.count):
            for name in seconds:
                proxy = proxies.get(name)
                os.environ["AWS_ENDPOINT_URL"] = target if proxy is None else proxy.endpoint
                took, answer = first_answer(
                    folder / "model.onnx", config, "" if proxy is None else url
                )
                seconds[name].append(took)
                if answer != right:
                    problems.append(f"{name}: {answer} instead of {right}")
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    delays = {name: round(medians[name] - medians["none"], 3) for name in modes}
    problems += [f"{name}: {late} s" for name, late in delays.items() if late > given.most_delay]
    row = {"server": given.server, "runs": given.count, "none": round(medians["none"], 3)}
    return {**row, "delays": delays, "problems": problems}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parts = {"kills": kills, "mutations": mutations, "faults": faults}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--server", choices=SERVERS, default="rclone")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--window", type=float, default=0.06, help="longest time before a kill")
    parser.add_argument("--mode", choices=MODES, help="only this fault")
    parser.add_argument("--most-delay", type=float, default=0.2)
    report(lambda given: parts[given.part](given), parser)
