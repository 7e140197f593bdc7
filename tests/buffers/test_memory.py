"""Large outputs are written where earlier ones were as soon as nobody holds those, never before."""

import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import get, trace
from fusewire import host_memory as host
from fusewire.contract.backend import Executable
from fusewire.contract.frontend import Spec
from fusewire.contract.region import build, first_device
from fusewire.host_memory import POOL
from fusewire.ir.graph import Array
from fusewire.plan.transfer import to_host
from fusewire.system.processes import resident

HOSTS = ("reference", "xla", "onnxruntime", "openvino")
# How often an engine is called while results of it are kept; one that runs in software, less.
TURNS = dict.fromkeys(HOSTS, 200) | {"webgpu": 25}
ROWS, WIDTH = 56, 5000
# Bytes in which no float32, bool or int32 of an answer here is written.
POISON = 0xA5


def built(engine: str, function: Callable[..., Any], *specs: Spec) -> Executable:
    backend = get(engine)
    return build(backend, trace(function, *specs), first_device(backend))


def called(executable: Executable, *inputs: Array) -> list[Array]:
    return [to_host(x) for x in executable.run(inputs)]


@pytest.fixture(autouse=True)
def spares_for_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have every output that is not tiny written into used memory; an engine decides by size."""
    monkeypatch.setattr("fusewire.backends.xla.engine.SPARE_BYTES", (1, 1))
    monkeypatch.setattr("fusewire.backends.openvino.executable.SMALL", 0)
    monkeypatch.setattr(host, "LARGE", 1)
    POOL.clear()
    yield
    POOL.clear()


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fill all that comes back to the pool with what is no answer, and count what comes."""
    sizes: list[int] = []
    give = host.Pool.give

    def spoilt(self: host.Pool, key: Any, size: int, thing: Any) -> None:
        if isinstance(thing, tuple):
            # A block of ours, and where arrays begin in it.
            thing[0].fill(POISON)
        else:
            of = np.dtype(np.uint8)
            host.lender((size,), of)(None, thing.unsafe_buffer_pointer()).fill(POISON)
        sizes.append(size)
        give(self, key, size, thing)

    monkeypatch.setattr(host.Pool, "give", spoilt)
    return sizes


# One of every way in which an engine makes an output: computed, moved, put together of pieces,
# copied from what comes in or from a constant, given twice.
WAYS: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: np.maximum(x * 2 + 1, 0),
    "transpose": lambda x: np.transpose(x),
    "concat": lambda x: np.concatenate([x, x * 2], axis=1),
    "broadcast": lambda x: np.broadcast_to(x[:1] + 1, x.shape) * 1,
    "pad": lambda x: np.pad(x, ((3, 5), (0, 7))),
    "reduction": lambda x: np.sum(x, axis=0),
    "matmul": lambda x: x @ np.transpose(x),
    "input": lambda x: (x, x + x),
    "constant": lambda x: (x + x, np.ones((ROWS, WIDTH), np.float32) * 2),
    "twice": lambda x: (x + x,) * 2,
    "same type": lambda x: (x + x, x * x, x - 1),
    "bool": lambda x: x > 0,
    "slice": lambda x: (x + x)[5:50, ::3],
}


def tuple_of(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ["xla", "openvino"])
def test_engines_write_every_element(engine: str, way: str, poisoned: list[int]) -> None:
    function = WAYS[way]
    # Whole numbers, so small that every sum of them is exact.
    x = np.random.default_rng(0).integers(-3, 4, (ROWS, WIDTH)).astype(np.float32)
    executable = built(engine, function, Spec(x.shape, "float32"))
    for scale in map(np.float32, (1, 2, 3, 4)):
        wanted = tuple_of(function(x * scale))
        for found, expected in zip(called(executable, x * scale), wanted, strict=True):
            np.testing.assert_array_equal(found, expected)
    assert poisoned, "no output was written into memory that was used before"


@pytest.mark.parametrize("engine", ["xla", "openvino"])
def test_memory_of_outputs_is_used_again(engine: str) -> None:
    x = np.ones((ROWS, WIDTH), np.float32)
    executable = built(engine, lambda x: x + x, Spec(x.shape, "float32"))
    places = set()
    for _ in range(20):
        (found,) = called(executable, x)
        places.add(found.ctypes.data)
        del found
    # The engine itself may hold the latest.
    assert len(places) <= 3


def test_openvino_sizes_outputs_by_its_inputs(poisoned: list[int]) -> None:
    executable = built(
        "openvino", lambda x: np.concatenate([x, x * 2]), Spec(("n", WIDTH), "float32")
    )
    for rows in (3, 40, 7, 0, 40):
        x = np.full((rows, WIDTH), rows, np.float32)
        for _ in range(2):
            (found,) = called(executable, x)
            np.testing.assert_array_equal(found, np.concatenate([x, x * 2]))
    assert poisoned, "no output was written into memory that was used before"


# What a caller may keep of an output, and how to see it as an array again.
KEPT: tuple[Callable[[Array], Any], ...] = (
    lambda x: x,
    lambda x: x[3:50, ::7],
    lambda x: x.T,
    lambda x: x.data[5:9],
    lambda x: np.from_dlpack(x)[1:],
    lambda x: x.reshape(-1).view(np.uint8)[:4096],
)


@pytest.mark.parametrize("engine", TURNS)
def test_what_is_kept_never_changes(engine: str) -> None:
    executable = built(engine, lambda x: (x + x, x * 3), Spec((ROWS, WIDTH), "float32"))
    chance = random.Random(0)
    inputs = [np.full((ROWS, WIDTH), n, np.float32) for n in range(8)]
    kept: list[tuple[Any, bytes]] = []
    for _ in range(TURNS[engine]):
        for found in called(executable, chance.choice(inputs)):
            if chance.random() < 0.2:
                part = chance.choice(KEPT)(found)
                kept.append((part, np.array(part).tobytes()))
        while len(kept) > 50:
            kept.pop(chance.randrange(len(kept)))
        if kept:
            part, was = chance.choice(kept)
            assert np.array(part).tobytes() == was
    for part, was in kept:
        assert np.array(part).tobytes() == was


@pytest.mark.parametrize("engine", HOSTS)
def test_threads_never_share_an_output(engine: str) -> None:
    executable = built(engine, lambda x: x + x, Spec((ROWS, WIDTH), "float32"))
    problems: list[Any] = []

    def work(number: int) -> None:
        chance = random.Random(number)
        x = np.full((ROWS, WIDTH), number, np.float32)
        kept: list[Array] = []
        for _ in range(40):
            kept += called(executable, x)
            problems.extend(y for y in kept if not (y[:: ROWS - 1] == 2 * number).all())
            while kept and chance.random() < 0.7:
                kept.pop(chance.randrange(len(kept)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


@pytest.mark.parametrize("engine", ["xla", "openvino"])
def test_memory_does_not_grow(engine: str) -> None:
    executable = built(engine, lambda x: x + x, Spec((ROWS, WIDTH), "float32"))
    x = np.ones((ROWS, WIDTH), np.float32)
    chance = random.Random(0)
    kept: list[Array] = []
    before = 0
    for turn in range(400):
        kept += called(executable, x)
        while len(kept) > chance.randrange(1, 16):
            kept.pop(chance.randrange(len(kept)))
        if turn == 150:
            before = resident(os.getpid())
    assert resident(os.getpid()) - before < 8 * x.nbytes
    assert POOL.idle_bytes <= 32 * x.nbytes


def test_closed_program_lets_go_of_what_is_idle() -> None:
    program = fw.compile(lambda x: x + x, Spec((ROWS, WIDTH), "float32"), backend="openvino")
    program(np.ones((ROWS, WIDTH), np.float32))
    program(np.ones((ROWS, WIDTH), np.float32))
    assert POOL.idle_bytes
    program.close()
    assert POOL.idle_bytes == 0
