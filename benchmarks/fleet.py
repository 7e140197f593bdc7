"""How long does a fleet take to be ready, if all of it starts at once against one shared store?

    python benchmarks/fleet.py --hosts 1000 --policy bundle
    python benchmarks/fleet.py --hosts 100000 --policy lease
    python benchmarks/fleet.py --hosts 1000 --policy bundle --real rclone

Every host runs the client of `fusewire.store.remote` above its transport; the store, the network
and the clock are simulated. The store has token buckets for requests and for bytes, and answers
503 when one is empty; for a while it throttles to a tenth. Some hosts are slow, some are lost.
Policies:

objects   everything is published before: each host fetches 40 entries
bundle    the same, as one entry
lease     nothing is there: one host makes the entry and publishes it, the others look for it.
          The first holder of the lease is killed
forged    as bundle, but a bad signer has replaced the entry for a while

With --real, one host in a hundred does the same with a server on this machine, in real time. Exit 1
if more than one host makes an entry that another could have had, if something forged is used, if
polls exceed a tenth of the store's limit, or if the 99th of a hundred hosts with a bundle needs
more than twice bytes over bandwidth.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.forked import Row, report
from benchmarks.object_servers import serve
from fusewire.errors import RemoteError, StoreError
from fusewire.store.key import Key
from fusewire.store.remote import (
    BLOBS,
    INLINE,
    POINTERS,
    BelievedEntry,
    Get,
    Pause,
    Put,
    RemoteClient,
    Reply,
    Steps,
    perform,
)
from fusewire.store.signing import AllowedSigner, AllowedSigners, Signer
from fusewire.store.transport import StoredObject, Transport, open_transport

POLICIES = ("objects", "bundle", "lease", "forged")
# What a host needs, in bytes; and the seconds that making it takes.
OBJECTS, TOTAL_BYTES, COMPILE = 40, 80 * 10**6, 300.0
LEASE = 2 * COMPILE
# Reads per second that S3 promises per prefix, and bytes per second of the store and of a host.
GETS, PUTS, STORE_RATE, HOST_RATE = 5500.0, 3500.0, 12.5e9, 1.25e9
LATENCY = 0.02
# Hosts that are ten times slower, and hosts that end at some moment; starts within so many seconds.
SLOW, LOST, SPREAD = 0.005, 0.005, 2.0
# From when to when the store gives a tenth of its requests.
THROTTLED = (5.0, 15.0)
FORGED_UNTIL = 30.0


class Throttled(RemoteError):
    """The simulated store has no token left."""


@dataclass
class TokenBucket:
    """So many tokens a second, at most those of one second, or of one request, at once."""

    rate: float
    level: float = field(init=False)
    at: float = 0.0

    def __post_init__(self) -> None:
        self.level = self.rate

    def take(self, now: float, count: float, share: float = 1.0) -> bool:
        """Take tokens, if there are any; a large request may borrow from the next second."""
        self.level = min(self.rate, self.level + (now - self.at) * self.rate * share)
        self.at = now
        if self.level <= 0:
            return False
        self.level -= count
        return True


@dataclass
class SimulatedStore:
    """Objects, and when requests for them end; sizes of payloads are those of the model."""

    scale: float
    rate: float
    objects: dict[str, bytes] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: Counter[int] = field(default_factory=Counter)
    asked: set[tuple[int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._gets, self._puts = TokenBucket(GETS), TokenBucket(PUTS)
        self._bytes = TokenBucket(self.rate)

    def ask(self, now: float, host: Host, request: Get | Put) -> tuple[float, Reply | RemoteError]:
        """Return when the answer arrives, and the answer."""
        latency = LATENCY * host.slowness
        is_get = isinstance(request, Get)
        self.counts["get" if is_get else "put"] += 1
        share = 0.1 if THROTTLED[0] <= now < THROTTLED[1] else 1.0
        if not (self._gets if is_get else self._puts).take(now, 1, share):
            return now + latency, self._busy()
        held = self.objects.get(request.path) if isinstance(request, Get) else request.payload
        size = self._size(request.path, held)
        if size and not self._bytes.take(now, size):
            return now + latency, self._busy()
        end = now + latency + size * host.slowness / HOST_RATE
        if isinstance(request, Get):
            self._note_poll(now, host, request.path, held)
            return end, held
        if request.only_new and request.path in self.objects:
            return end, False
        self.objects[request.path] = request.payload
        return end, True

    def _size(self, path: str, held: bytes | None) -> float:
        if held is None:
            return 0.0
        return len(held) * (self.scale if path.startswith(f"{BLOBS}/") else 1.0)

    def _busy(self) -> RemoteError:
        self.counts["503"] += 1
        return Throttled("503 Slow Down")

    def _note_poll(self, now: float, host: Host, path: str, held: bytes | None) -> None:
        """Count reads of an entry that a host knew to be missing."""
        if held is None and path.startswith(f"{POINTERS}/"):
            if (host.number, path) in self.asked:
                self.counts["poll"] += 1
                self.seconds[int(now // 10)] += 1
            self.asked.add((host.number, path))

    @property
    def polls_per_second(self) -> float:
        """The most polls within ten seconds, per second."""
        return max(self.seconds.values(), default=0) / 10


@dataclass(eq=False)
class Host:
    """A virtual host: what it does, and when it was ready."""

    number: int
    steps: Steps[str]
    slowness: float = 1.0
    ends_at: float = float("inf")
    ready: float | None = None
    outcome: str = "lost"


class VirtualClock:
    """Carries out the steps of hosts in the order of virtual time."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store
        self._events: list[tuple[float, int, Host, Reply | RemoteError]] = []
        self._count = 0
        self.now = 0.0

    def at(self, when: float, host: Host, reply: Reply | RemoteError) -> None:
        """Have a host go on at a time, with an answer."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, host, reply))

    def run(self) -> None:
        """Go on until nobody waits."""
        while self._events:
            self.now, _, host, reply = heapq.heappop(self._events)
            if self.now >= host.ends_at:
                host.steps.close()
                continue
            try:
                throws = isinstance(reply, RemoteError)
                request = host.steps.throw(reply) if throws else host.steps.send(reply)  # type: ignore[arg-type] # told apart
            except StopIteration as stop:
                host.ready, host.outcome = self.now, stop.value
                continue
            if isinstance(request, Pause):
                self.at(self.now + request.seconds, host, None)
            else:
                self.at(*_with_host(host, self._store.ask(self.now, host, request)))


def _with_host(
    host: Host, answer: tuple[float, Reply | RemoteError]
) -> tuple[float, Host, Reply | RemoteError]:
    return answer[0], host, answer[1]


# What hosts do: only calls of the client, and the time that compiling takes.


def fetch_all(client: RemoteClient, keys: list[Key]) -> Steps[str]:
    """Fetch every entry; what is not to be believed, or not to be had, is made here."""
    made = 0
    for key in keys:
        try:
            entry = yield from client.fetch(key)
        except StoreError:
            entry = None
        if entry is None:
            yield Pause(COMPILE / len(keys))
            made += 1
        else:
            check(key, entry)
    return "compiled" if made else "fetched"


def fetch_or_make(client: RemoteClient, keys: list[Key], holder: str) -> Steps[str]:
    """Fetch an entry, or make and publish it."""
    outcome = "fetched"
    for key in keys:
        entry = yield from client.fetch_or_claim(key, holder, LEASE)
        if entry is None:
            outcome = "compiled"
            yield Pause(COMPILE)
            yield from client.publish(key, payload_of(key), 1)
        else:
            check(key, entry)
    return outcome


def payload_of(key: Key) -> bytes:
    """Return the payload of a key: larger than what a pointer holds, so that it is a blob."""
    return hashlib.sha256(key.digest.encode()).digest() * (INLINE // 32 + 1)


def check(key: Key, entry: BelievedEntry) -> None:
    """Raise AssertionError if an entry is not what was published."""
    assert entry.payload == payload_of(key), "something wrong was used"


@dataclass(frozen=True)
class Fleet:
    """A number of hosts, and how they get what they need."""

    hosts: int
    policy: str
    seed: int = 0
    rate: float = STORE_RATE

    @property
    def keys(self) -> list[Key]:
        count = OBJECTS if self.policy == "objects" else 1
        return [Key.of("artifact", region=f"r{number}", backend="xla") for number in range(count)]

    def steps(self, client: RemoteClient, number: int) -> Steps[str]:
        """Return what a host does."""
        if self.policy == "lease":
            return fetch_or_make(client, self.keys, f"host {number}")
        return fetch_all(client, self.keys)

    def run(self) -> Row:
        """Simulate it."""
        draw, signer = random.Random(self.seed), Signer.generate()
        signers = AllowedSigners((AllowedSigner(signer.id, "builder"),))
        keys = self.keys
        scale = TOTAL_BYTES / len(keys) / len(payload_of(keys[0]))
        store = SimulatedStore(scale, self.rate)
        clock = VirtualClock(store)
        is_writer = self.policy == "lease"
        if not is_writer:
            publish(store.objects, RemoteClient(signers, signer), keys)
        hosts = []
        for number in range(self.hosts):
            chance = random.Random(draw.random())
            client = RemoteClient(
                signers, signer if is_writer else None, None, self.hosts, 60, chance
            )
            host = Host(number, self.steps(client, number))
            host.slowness = 10.0 if draw.random() < SLOW else 1.0
            if draw.random() < LOST:
                host.ends_at = draw.uniform(0, 60)
            hosts.append(host)
            clock.at(draw.uniform(0, SPREAD), host, None)
        if is_writer:
            # The one that starts first gets the lease, and is killed while it works.
            clock._events[0][2].ends_at = COMPILE / 2
        if self.policy == "forged":
            self._forge(clock, store, hosts, keys)
        clock.run()
        return self._row(store, hosts, clock)

    def _forge(
        self, clock: VirtualClock, store: SimulatedStore, hosts: list[Host], keys: list[Key]
    ) -> None:
        """Replace the entries by those of a bad signer, for a while."""
        true, stranger = dict(store.objects), Signer.generate()
        publish(store.objects, RemoteClient(AllowedSigners(), stranger), keys)

        def restore() -> Steps[str]:
            yield Pause(FORGED_UNTIL)
            store.objects.update(true)
            return "restored"

        clock.at(0.0, Host(-1, restore()), None)

    def _row(self, store: SimulatedStore, hosts: list[Host], clock: VirtualClock) -> Row:
        ready = sorted(host.ready for host in hosts if host.ready is not None)
        outcomes = Counter(host.outcome for host in hosts)
        ideal = TOTAL_BYTES * self.hosts / self.rate
        p50, p99 = (ready[int(share * (len(ready) - 1))] for share in (0.5, 0.99))
        return {
            "hosts": self.hosts,
            "policy": self.policy,
            "ready_p50": round(p50, 1),
            "ready_p99": round(p99, 1),
            "bytes_over_bandwidth": round(ideal, 1),
            "p99_over_that": round(p99 / ideal, 2),
            "outcomes": dict(outcomes),
            "requests": dict(store.counts),
            "requests_per_host": round((store.counts["get"] + store.counts["put"]) / self.hosts, 1),
            "polls_per_second": round(store.polls_per_second, 1),
            "problems": self._problems(outcomes, store, p99 / ideal),
        }

    def _problems(self, outcomes: Counter[str], store: SimulatedStore, ratio: float) -> list[str]:
        problems = []
        # In "lease" one host makes it, after the first holder was killed.
        most = {"lease": 1, "forged": self.hosts}.get(self.policy, 0)
        if outcomes["compiled"] > most:
            problems.append(f"{outcomes['compiled']} hosts compiled, {most} had to")
        if store.polls_per_second > 0.1 * GETS:
            problems.append(f"{store.polls_per_second:.0f} polls per second")
        # Of the other policies it is a figure: they wait for requests, or for a compiler.
        if self.policy == "bundle" and ratio > 2:
            problems.append(f"the last hosts need {ratio:.1f} times bytes over bandwidth")
        return problems


class _Objects:
    """A transport over a dictionary, to fill the simulated store with."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    def get(self, path: str, most: int) -> bytes | None:
        return self._objects.get(path)

    def put(self, path: str, payload: bytes, *, only_new: bool = False) -> bool:
        self._objects[path] = payload
        return True

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return iter(())

    def remove(self, path: str) -> None:
        self._objects.pop(path, None)


def publish(objects: dict[str, bytes], client: RemoteClient, keys: list[Key]) -> None:
    """Publish entries to a dictionary."""
    for key in keys:
        perform(client.publish(key, payload_of(key), 1), _Objects(objects))


class _Counting:
    """A transport that counts requests."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.counts: Counter[str] = Counter()

    def get(self, path: str, most: int) -> bytes | None:
        self.counts["get"] += 1
        return self._transport.get(path, most)

    def put(self, path: str, payload: bytes, *, only_new: bool = False) -> bool:
        self.counts["put"] += 1
        return self._transport.put(path, payload, only_new=only_new)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self._transport.list(prefix)

    def remove(self, path: str) -> None:
        self._transport.remove(path)


def run_real(fleet: Fleet, server: str) -> Row:
    """Run one host in a hundred against a server, several at a time; pauses are shortened."""
    count = max(fleet.hosts // 100, 2)
    signer = Signer.generate()
    signers = AllowedSigners((AllowedSigner(signer.id, "builder"),))
    with tempfile.TemporaryDirectory() as folder, serve(server, Path(folder)) as running:
        os.environ.update(running.variables)
        transport = _Counting(open_transport(running.url))
        is_writer = fleet.policy == "lease"
        writer = RemoteClient(signers, signer)
        for key in () if is_writer else fleet.keys:
            perform(writer.publish(key, payload_of(key), 1), transport)
        transport.counts.clear()

        def one(number: int) -> tuple[str, float]:
            start = time.monotonic()
            client = RemoteClient(signers, signer if is_writer else None, hosts=fleet.hosts)
            outcome = perform(fleet.steps(client, number), transport, lambda s: time.sleep(s / 200))
            return outcome, time.monotonic() - start

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(one, range(count)))
    outcomes = Counter(outcome for outcome, _ in found)
    seconds = sorted(took for _, took in found)
    # rclone has no conditional writes: hosts that start together make the same.
    most = {"moto": 1, "rclone": 8}[server] if fleet.policy == "lease" else 0
    return {
        "server": server,
        "hosts": count,
        "policy": fleet.policy,
        "outcomes": dict(outcomes),
        "requests_per_host": round(transport.counts.total() / count, 2),
        "median_seconds": round(seconds[len(seconds) // 2], 4),
        "problems": [f"{outcomes['compiled']} compiled"] if outcomes["compiled"] > most else [],
    }


def measure(given: argparse.Namespace) -> Row:
    """Simulate a fleet, or run a part of it."""
    fleet = Fleet(given.hosts, given.policy, given.seed, given.gigabits / 8 * 1e9)
    return fleet.run() if given.real is None else run_real(fleet, given.real)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--policy", choices=POLICIES, default="bundle")
    parser.add_argument("--gigabits", type=float, default=100.0, help="of the store, per second")
    parser.add_argument("--real", choices=("rclone", "moto"))
    parser.add_argument("--seed", type=int, default=0)
    report(measure, parser)
