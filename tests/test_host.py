"""Memory of the host: where it lies, and how long it lives."""

import gc
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fusewire.host_memory import ALIGNMENT, LARGE, POOL, Pool, address, aligned_empty, lender


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (7, 11), (1000, 257)])
@pytest.mark.parametrize("of", [np.float32, np.bool_, np.int64, ml_dtypes.bfloat16])
def test_aligned_array_is_an_ordinary_one_that_begins_at_the_right_place(
    shape: tuple[int, ...], of: Any
) -> None:
    for _ in range(8):
        found = aligned_empty(shape, np.dtype(of))
        assert (found.shape, found.dtype) == (shape, of)
        assert found.ctypes.data % ALIGNMENT == 0
        assert found.flags.c_contiguous
        found[...] = 1
        assert (found == 1).all()


def _locked(array: Any) -> Any:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 4), np.float32),
        np.zeros((), np.int64),
        np.zeros((0, 3), np.float32),
        np.zeros((4, 4))[:, 1:3],
        np.zeros((3, 4)).T,
        np.zeros(8)[3:],
        np.zeros(5)[::-1],
        _locked(np.zeros(5)),
        np.zeros((2, 2), ml_dtypes.bfloat16),
        np.array(["a", "b"], object),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}{array.strides}",
)
def test_address_of_any_array_is_where_its_first_element_lies(array: Any) -> None:
    assert address(array) == array.ctypes.data


class Tensor:
    """Stands for what an engine keeps alive: memory, for as long as itself."""

    def __init__(self, array: Any) -> None:
        self.array = array


@pytest.mark.parametrize("shape", [(), (3, 4)])
@pytest.mark.parametrize("of", [np.float32, np.bool_, ml_dtypes.bfloat16])
def test_lent_memory_is_the_same_and_lives_as_long_as_a_view_of_it(
    shape: tuple[int, ...], of: Any
) -> None:
    tensor = Tensor(np.zeros(shape, of))
    gone = weakref.ref(tensor)
    found = lender(shape, np.dtype(of))(tensor, tensor.array.ctypes.data)
    found[...] = 1
    assert (tensor.array == 1).all()
    view = found.reshape(-1)[:1]
    del tensor, found
    gc.collect()
    assert gone() is not None
    assert (view == 1).all()
    del view
    gc.collect()
    assert gone() is None


def test_nothing_is_lent_of_a_tensor_without_elements() -> None:
    assert lender((3, 0), np.dtype(np.float32))(object(), 0).shape == (3, 0)


# The pool

FLOAT = np.dtype(np.float32)
MANY = LARGE // FLOAT.itemsize


@pytest.fixture
def empty_pool() -> Iterator[None]:
    POOL.clear()
    yield
    POOL.clear()


def place(array: Any) -> int:
    return int(array.ctypes.data)


# What a caller may keep of an array, so that its memory stays as it is.
HOLDS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda x: x,
    "slice": lambda x: x[5:7],
    "view of a view": lambda x: x.reshape(2, -1).view(np.uint8).T[1:],
    "memoryview": lambda x: x.data,
    "part of a memoryview": lambda x: x.data[3:4],
    "dlpack": lambda x: np.from_dlpack(x)[:1],
    "capsule": lambda x: x.__dlpack__(),
    "base": lambda x: x[3:].base,
    "interface": lambda x: np.asarray(Shown(x)),
    "iterator": lambda x: x.flat,
    "cycle": lambda x: tied(x),
}


class Shown:
    """Gives an array on by its address, and holds it."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


def tied(array: Any) -> list[Any]:
    made: list[Any] = [array]
    made.append(made)
    return made


@pytest.mark.parametrize("kind", HOLDS)
def test_memory_is_used_again_only_when_nobody_holds_any_of_it(kind: str, empty_pool: None) -> None:
    first = aligned_empty((MANY,), FLOAT)
    start = place(first)
    held = HOLDS[kind](first)
    del first
    gc.collect()
    second = aligned_empty((MANY,), FLOAT)
    assert place(second) != start
    del held
    gc.collect()
    third = aligned_empty((MANY,), FLOAT)
    assert place(third) == start


def test_small_arrays_do_not_come_from_the_pool(empty_pool: None) -> None:
    del [aligned_empty((MANY - 1,), FLOAT)][:]
    assert POOL.idle_bytes == 0
    del [aligned_empty((MANY,), FLOAT)][:]
    assert POOL.idle_bytes == LARGE


def test_sizes_nearby_share_memory(empty_pool: None) -> None:
    whole = aligned_empty((MANY * 8,), FLOAT)
    start = place(whole)
    del whole
    near = aligned_empty((MANY * 8 - 1000,), np.dtype(np.int32))
    assert place(near) == start
    far = aligned_empty((MANY * 6,), FLOAT)
    assert place(far) != start
    near[...] = 1
    assert (near == 1).all()


def test_what_is_idle_is_bounded_in_bytes_number_and_age() -> None:
    pool = Pool(limit=100, count=4, seconds=30.0)
    for size in (60, 50, 30):
        pool.give("key", size, size)
    assert pool.idle_bytes == 80
    for _ in range(9):
        pool.give("key", 1, 1)
    assert pool.idle_bytes == 4
    pool.give("key", 101, 101)
    assert pool.idle_bytes == 0
    old = Pool(limit=100, seconds=-1.0)
    old.give("key", 1, 1)
    assert old.idle_bytes == 0


def test_latest_of_a_kind_is_used_first_and_once() -> None:
    pool = Pool(limit=100)
    for number in range(3):
        pool.give("key", 1, number)
        pool.give("other", 1, -number)
    assert [pool.take("key") for _ in range(4)] == [2, 1, 0, None]
    pool.clear()
    assert pool.take("other") is None


def test_garbage_that_comes_back_in_the_midst_of_a_take_is_no_trouble() -> None:
    pool = Pool(limit=1000, count=8)

    class Odd:
        """A key whose comparison gives back to the pool, as the garbage collector might."""

        def __eq__(self, other: object) -> bool:
            pool.give("fresh", 1, 1)
            pool.clear()
            return True

        def __hash__(self) -> int:
            return 0

    for number in range(4):
        pool.give("key", 1, number)
    assert pool.take(Odd()) is None


def test_threads_never_get_the_same_thing() -> None:
    pool = Pool(limit=1000)
    taken: list[int] = []
    for number in range(50):
        pool.give("key", 1, number)

    def work() -> None:
        while (thing := pool.take("key")) is not None:
            taken.append(thing)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(50))


# Whoever has threads is warned of forks: by Python from 3.12 on, and by jax.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_forked_process_has_memory_of_its_own(empty_pool: None) -> None:
    del [aligned_empty((MANY,), FLOAT)][:]
    mine = aligned_empty((MANY,), FLOAT)
    mine[...] = 1
    child = os.fork()
    if child == 0:
        mine[...] = 2
        del mine
        aligned_empty((MANY,), FLOAT)[...] = 3
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (mine == 1).all()


def test_lending_takes_no_longer_beside_many_arrays() -> None:
    memory = np.empty(16, np.uint8)
    start = memory.ctypes.data
    pool = Pool(1 << 20)

    def lend() -> np.ndarray[Any, Any]:
        return pool.lend((4,), np.dtype(np.float32), "key", memory, start)

    def seconds() -> float:
        times = []
        for _ in range(50):
            begun = time.perf_counter()
            lend()
            times.append(time.perf_counter() - begun)
        return min(times)

    few = seconds()
    held = [lend() for _ in range(30_000)]
    many = seconds()
    assert pool.use().in_use == 16 * len(held)
    # To add up what is lent took a hundred times as long.
    assert many < 10 * few


def test_bytes_in_use_are_right_beside_threads_that_free_what_others_made() -> None:
    memory = np.empty(16, np.uint8)
    pool = Pool(1 << 20)
    made: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def make() -> None:
        for _ in range(2000):
            made.put(pool.lend((4,), np.dtype(np.float32), "key", memory, memory.ctypes.data))

    def free() -> None:
        for _ in range(1999):
            made.get()

    threads = [threading.Thread(target=work) for work in (make, free) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.use().in_use == 3 * 16
