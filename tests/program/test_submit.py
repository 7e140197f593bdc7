"""Submitted calls: in order on each device, cancellable, with errors on the future, and bounded."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import CheckError, GraphError, ShapeMismatchError
from fusewire.program.submitting import QUEUES, DeviceQueue

X = np.arange(4, dtype=np.float32)


@pytest.fixture
def twice() -> Iterator[Any]:
    with fw.compile(lambda x: x * 2, X, backend="reference") as program:
        yield program


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """The queue of the processor, held up until the event is set."""
    release, is_held = threading.Event(), threading.Event()
    queue = QUEUES.of("cpu")

    def hold() -> bool:
        is_held.set()
        return release.wait(30)

    future = queue.submit(None, hold, (), {})
    assert is_held.wait(10)
    yield release
    release.set()
    assert future.result(10)


def test_future_gets_the_answer(twice: Any) -> None:
    future = twice.submit(X)
    assert isinstance(future, Future)
    assert np.array_equal(future.result(10), 2 * X)


def test_arguments_may_be_given_by_name(twice: Any) -> None:
    assert np.array_equal(twice.submit(x=X).result(10), 2 * X)


def test_calls_of_a_device_run_in_order(twice: Any, held: threading.Event) -> None:
    other = fw.compile(lambda x: x + 1, X, backend="reference")
    done: list[int] = []
    futures = []
    for number in range(20):
        future = (twice if number % 3 else other).submit(X)
        future.add_done_callback(partial(_note, done, number))
        futures.append(future)
    held.set()
    wait(futures, 10)
    assert done == [*range(20)]


def _note(done: list[int], number: int, future: Future[Any]) -> None:
    done.append(number)


def test_call_that_has_not_begun_can_be_cancelled(twice: Any, held: threading.Event) -> None:
    first, second, third = [twice.submit(X) for _ in range(3)]
    assert second.cancel()
    held.set()
    assert np.array_equal(first.result(10), third.result(10))
    with pytest.raises(CancelledError):
        second.result(10)
    done, _ = wait([first, second, third], 10)
    assert len(done) == 3


def test_cancelled_call_leaves_the_queue_and_its_arguments(held: threading.Event) -> None:
    program = fw.compile(lambda x: x * 2, X, backend="reference")
    futures = [program.submit(X) for _ in range(10)]
    queue = QUEUES.of("cpu")
    assert len(queue._waiting) == 10
    for future in futures:
        future.cancel()
    assert not queue._waiting


def test_error_is_on_the_future() -> None:
    program = fw.compile(lambda x, i: np.take(x, i), X, np.int64(0), backend="reference")
    future = program.submit(X, np.int64(9))
    with pytest.raises(CheckError):
        future.result(10)
    assert isinstance(future.exception(), CheckError)
    assert program.submit(X, np.int64(3)).result(10) == 3


def test_arguments_that_do_not_fit_are_refused_at_once(twice: Any) -> None:
    with pytest.raises(ShapeMismatchError):
        twice.submit(np.ones(3, np.float32))


def test_own_exception_of_a_function_is_on_the_future() -> None:
    queue = DeviceQueue("test")

    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        queue.submit(None, fail, (), {}).result(10)
    assert queue.submit(None, lambda: 7, (), {}).result(10) == 7


def test_queue_is_bounded() -> None:
    queue, release = DeviceQueue("test", most=2), threading.Event()
    futures = [queue.submit(None, release.wait, (), {}) for _ in range(3)]
    assert queue.is_full
    late = threading.Thread(
        target=lambda: futures.append(queue.submit(None, lambda: 1, (), {})), daemon=True
    )
    late.start()
    late.join(0.2)
    assert late.is_alive()
    release.set()
    late.join(10)
    assert futures[3].result(10) == 1


def test_callback_may_submit_to_a_full_queue() -> None:
    queue, release = DeviceQueue("test", most=1), threading.Event()
    more: list[Future[Any]] = []
    first = queue.submit(None, release.wait, (), {})
    first.add_done_callback(lambda _: more.extend(_submit_two(queue)))
    second = queue.submit(None, lambda: 2, (), {})
    release.set()
    assert second.result(10) == 2
    assert [future.result(10) for future in more] == [3, 3]


def _submit_two(queue: DeviceQueue) -> list[Future[Any]]:
    return [queue.submit(None, lambda: 3, (), {}) for _ in range(2)]


def test_callback_that_exits_does_not_stop_the_queue() -> None:
    queue, release = DeviceQueue("test"), threading.Event()
    first = queue.submit(None, release.wait, (), {})

    def leave(_: Any) -> None:
        raise SystemExit

    first.add_done_callback(leave)
    second = queue.submit(None, lambda: 2, (), {})
    release.set()
    assert second.result(10) == 2


def test_closing_a_program_cancels_its_calls(twice: Any, held: threading.Event) -> None:
    other = fw.compile(lambda x: x + 1, X, backend="reference")
    mine, theirs = twice.submit(X), other.submit(X)
    twice.close()
    assert mine.cancelled()
    held.set()
    assert np.array_equal(theirs.result(10), X + 1)
    with pytest.raises(GraphError, match="closed"):
        twice.submit(X)


def test_coroutine_gets_the_answer(twice: Any) -> None:
    async def main() -> list[Any]:
        return await asyncio.gather(*(twice.acall(X + i) for i in range(8)))

    for i, y in enumerate(asyncio.run(main())):
        assert np.array_equal(y, 2 * (X + i))


def test_event_loop_goes_on_while_a_program_is_compiled() -> None:
    def slow(x: Any) -> Any:
        # To read it takes long, whatever the engine has ready.
        time.sleep(0.3)
        return np.tanh(x @ x)

    program = fw.compile(slow, backend="onnxruntime", level=0)
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def main() -> Any:
        task = asyncio.create_task(tick())
        y = await program.acall(np.eye(4, dtype=np.float32))
        task.cancel()
        return y

    assert np.allclose(asyncio.run(main()), np.tanh(np.eye(4)))
    assert len(ticks) > 3
    assert max(np.diff(ticks)) < 0.5


def test_cancelled_task_cancels_its_call(twice: Any, held: threading.Event) -> None:
    async def main() -> None:
        task = asyncio.create_task(twice.acall(X))
        await asyncio.sleep(0.05)
        assert len(QUEUES.of("cpu")._waiting) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not QUEUES.of("cpu")._waiting


def test_task_cancelled_while_it_waits_for_room_leaves_no_call(held: threading.Event) -> None:
    program = fw.compile(lambda x: x * 2, X, backend="reference")

    async def main() -> None:
        queue = QUEUES.of("cpu")
        queue._most, most = 1, queue._most
        try:
            first = asyncio.create_task(program.acall(X))
            await asyncio.sleep(0.05)
            second = asyncio.create_task(program.acall(X))
            await asyncio.sleep(0.05)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            held.set()
            await first
        finally:
            queue._most = most

    asyncio.run(main())


def test_many_threads_submit_cancel_and_fail() -> None:
    program = fw.compile(lambda x, i: np.take(x, i), X, np.int64(0), backend="reference")
    futures: list[list[tuple[int, Future[Any]]]] = [[] for _ in range(4)]

    def work(number: int) -> None:
        chance = random.Random(number)
        for _ in range(100):
            index = chance.randrange(6)
            future = program.submit(X, np.int64(index))
            futures[number].append((index, future))
            if chance.random() < 0.3:
                chance.choice(futures[number])[1].cancel()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, future in [pair for row in futures for pair in row]:
        wait([future], 20)
        if future.cancelled():
            continue
        if index > 3:
            assert isinstance(future.exception(10), CheckError)
        else:
            assert future.result(10) == index


_AT_EXIT = """
import numpy as np, fusewire as fw
x = np.ones(3, np.float32)
f = fw.compile(lambda x: x * 2, x, backend="reference")
for _ in range(50):
    f.submit(x).add_done_callback(lambda future: print(future.result().sum()))
"""


def test_python_ends_after_what_was_submitted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _AT_EXIT], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["6.0"] * 50


_FORKED = """
import os, numpy as np, fusewire as fw
x = np.ones(3, np.float32)
f = fw.compile(lambda x: x * 2, x, backend="reference")
futures = [f.submit(x) for _ in range(20)]
child = os.fork()
if child == 0:
    assert f.submit(x).result(30).sum() == 6
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert all(future.result(30).sum() == 6 for future in futures)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
def test_forked_process_has_queues_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORKED], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


_INTERRUPTED = """
import signal, sys, numpy as np, fusewire as fw
# A shell has what it starts in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
x = np.ones((64, 64), np.float32)
f = fw.compile(lambda x: np.tanh(x @ x), x, backend="reference")
f.submit(x).result()
print("ready", flush=True)
futures = []
try:
    while True:
        futures.append(f.submit(x))
        if len(futures) % 7 == 0:
            futures[-1].result()
except KeyboardInterrupt:
    pass
done = [future.result(30) for future in futures]
assert f.submit(x).result(30).shape == (64, 64)
print("clean", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals to one process")
@pytest.mark.parametrize("seed", range(3))
def test_interrupt_leaves_the_queue_in_order(seed: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(random.Random(seed).uniform(0, 0.2))
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (out, err, process.returncode) == ("clean\n", "", 0)
