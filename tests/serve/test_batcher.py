"""Batches, queues, deadlines and failures, on real programs."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import BackendHung, CheckError, EngineError, RequestTimeout, ServerBusy
from fusewire.planning.rows import RowProof, prove_rows
from fusewire.serve.batcher import Batcher, BatchPolicy
from fusewire.serve.metrics import ModelCounts
from fusewire.serve.replicas import Replicas
from fusewire.testing.chaos import asking_for

TABLE = np.arange(40, dtype=np.float32).reshape(10, 4)


def look_up(indices: Any) -> Any:
    return TABLE[indices]


class Rig:
    """A batcher over replicas of a program that looks rows up in a table."""

    def __init__(
        self, policy: BatchPolicy, queue: int = 64, replicas: int = 1, programs: Any = None
    ) -> None:
        spec = fw.Spec(("n",), "int64")
        programs = programs or [
            fw.compile(look_up, spec, backend="reference") for _ in range(replicas)
        ]
        self.proof: RowProof = prove_rows(programs[0].graph)
        self.counts = ModelCounts()
        self.replicas = Replicas(programs, self.proof, policy.pads)
        self.batcher = Batcher(self.replicas, policy, queue, self.counts)

    def ask(self, *indices: int, seconds: float = 30.0, key: Any = ()) -> Any:
        array = np.array(indices, np.int64)
        return self.batcher.submit([array], key, len(indices), time.monotonic() + seconds)


def run(policy: BatchPolicy, use: Callable[[Rig], Coroutine[Any, Any, None]], **more: Any) -> Rig:
    async def main() -> Rig:
        rig = Rig(policy, **more)
        await use(rig)
        rig.replicas.close()
        return rig

    return asyncio.run(main())


def test_requests_run_together_and_get_their_own_rows() -> None:
    async def use(rig: Rig) -> None:
        futures = [rig.ask(n, n + 1) for n in range(6)]
        for n, future in enumerate(futures):
            (found,) = await future
            np.testing.assert_array_equal(found, TABLE[[n, n + 1]])

    rig = run(BatchPolicy(4, 0.05), use)
    # Two requests of two rows fill a batch.
    assert rig.counts.rows.counts == [0, 0, 3, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("most", [2, 4, 5])
def test_batch_has_no_more_rows_than_it_may(most: int) -> None:
    sizes: list[int] = []

    class Noted(Replicas):
        def start(self, batch: list[Any], done: Batcher) -> None:
            sizes.append(sum(pending.rows for pending in batch))
            super().start(batch, done)

    async def use(rig: Rig) -> None:
        rig.batcher = Batcher(
            Noted([rig.replicas.all[0].program], rig.proof), rig.batcher.policy, 64, rig.counts
        )
        lengths = [1, 2, 1, 1, 2, 2, 1, 2, 1]
        futures = [rig.ask(*range(length)) for length in lengths]
        for length, future in zip(lengths, futures, strict=True):
            np.testing.assert_array_equal((await future)[0], TABLE[:length])

    run(BatchPolicy(most, 0.01), use)
    assert sum(sizes) == 13
    assert max(sizes) == most


def test_batch_is_filled_up_with_rows_that_change_nothing() -> None:
    async def use(rig: Rig) -> None:
        futures = [rig.ask(1, 2), rig.ask(3)]
        np.testing.assert_array_equal((await futures[0])[0], TABLE[[1, 2]])
        np.testing.assert_array_equal((await futures[1])[0], TABLE[[3]])

    run(BatchPolicy(4, 0.01, pads=True), use)


def test_request_that_fails_its_batch_fails_alone() -> None:
    async def use(rig: Rig) -> None:
        good, bad, other = rig.ask(1), rig.ask(99), rig.ask(2)
        np.testing.assert_array_equal((await good)[0], TABLE[[1]])
        np.testing.assert_array_equal((await other)[0], TABLE[[2]])
        with pytest.raises(CheckError):
            await bad

    rig = run(BatchPolicy(8, 0.01), use)
    assert (rig.counts.repeated, rig.counts.failed) == (3, 1)


def test_full_queue_refuses_and_says_when_to_come_again() -> None:
    async def use(rig: Rig) -> None:
        futures = [rig.ask(1) for _ in range(4)]
        with pytest.raises(ServerBusy, match="4 requests wait already") as caught:
            rig.ask(1)
        assert caught.value.retry_after >= 1
        await asyncio.gather(*futures)
        await rig.ask(1)

    assert run(BatchPolicy(64, 0.05), use, queue=4).counts.refused == 1


def test_late_and_cancelled_requests_are_not_run() -> None:
    async def use(rig: Rig) -> None:
        late, left, live = rig.ask(1, seconds=-1.0), rig.ask(99), rig.ask(3)
        left.cancel()
        np.testing.assert_array_equal((await live)[0], TABLE[[3]])
        with pytest.raises(RequestTimeout):
            await late
        assert not rig.batcher.is_busy

    rig = run(BatchPolicy(8, 0.02), use)
    assert (rig.counts.late, rig.counts.cancelled, rig.counts.failed) == (1, 1, 0)


def test_requests_of_other_forms_do_not_share_a_batch() -> None:
    async def use(rig: Rig) -> None:
        await asyncio.gather(rig.ask(1, key="a"), rig.ask(2, key="b"), rig.ask(3, key=None))

    assert sum(run(BatchPolicy(8, 0.01), use).counts.rows.counts) == 3


def test_many_requests_on_several_replicas_are_all_answered() -> None:
    async def use(rig: Rig) -> None:
        futures = [rig.ask(n % 10) for n in range(300)]
        for n, future in enumerate(futures):
            np.testing.assert_array_equal((await future)[0], TABLE[[n % 10]])

    run(BatchPolicy(8, 0.001), use, queue=1000, replicas=3)


def test_engine_that_hangs_costs_others_one_retry() -> None:
    fw.register("fusewire.testing.chaos:asked_at_row")
    spec = fw.Spec(("n", 2), "float32")
    options: dict[str, Any] = {"backend": "chaos", "isolate": "always", "deadline": 1.5}
    try:
        program = fw.compile(lambda x: x * 2, spec, **options)
        program(np.zeros((1, 2), np.float32))
    finally:
        fw.unregister("chaos")

    async def use(rig: Rig) -> None:
        deadline = time.monotonic() + 60
        rows = [np.full((1, 2), x, np.float32) for x in (1.0, asking_for("hang"), 3.0)]
        good, bad, other = [rig.batcher.submit([row], (), 1, deadline) for row in rows]
        assert (await good)[0].tolist() == [[2.0, 2.0]]
        assert (await other)[0].tolist() == [[6.0, 6.0]]
        with pytest.raises(BackendHung):
            await bad

    rig = run(BatchPolicy(8, 0.05), use, programs=[program])
    assert (rig.counts.repeated, rig.counts.failed) == (3, 1)


def test_requests_of_other_forms_are_answered_while_one_form_fills_all_batches() -> None:
    async def use(rig: Rig) -> None:
        is_over = False

        async def keep_asking() -> None:
            while not is_over:
                await rig.ask(1, key="many")

        asking = [asyncio.create_task(keep_asking()) for _ in range(64)]
        await asyncio.sleep(0.05)
        few = [rig.ask(2, key="few"), rig.ask(3, key=None)]
        done, _ = await asyncio.wait(few, timeout=5)
        is_over = True
        await asyncio.gather(*asking)
        assert len(done) == 2

    run(BatchPolicy(4, 0.001), use, queue=128)


def test_call_that_raises_something_else_fails_alone_and_typed() -> None:
    def repeated(text: Any) -> Any:
        return np.strings.add(text, text)

    class Texts:
        """Stands for a program; encodes its input, as does whoever sends it to a child."""

        graph = fw.trace(look_up, fw.Spec(("n",), "int64"))

        def __call__(self, text: Any) -> Any:
            [word.encode() for word in text]
            return repeated(text.astype(str))

        def close(self) -> None:
            pass

    async def use(rig: Rig) -> None:
        deadline = time.monotonic() + 30
        words = [np.array([word], object) for word in ("a", "\ud800", "b")]
        good, bad, other = [rig.batcher.submit([word], (), 1, deadline) for word in words]
        assert (await good)[0].tolist() == ["aa"]
        assert (await other)[0].tolist() == ["bb"]
        with pytest.raises(EngineError, match="raised UnicodeEncodeError"):
            await bad

    run(BatchPolicy(8, 0.02), use, programs=[Texts()])


def test_request_that_runs_for_too_long_gets_its_answer_in_time() -> None:
    program = fw.compile(look_up, fw.Spec(("n",), "int64"), backend="reference")

    class Slow:
        graph = program.graph

        def __call__(self, indices: Any) -> Any:
            time.sleep(4.0)
            return program(indices)

        def close(self) -> None:
            program.close()

    async def use(rig: Rig) -> None:
        start = time.monotonic()
        running, waiting = rig.ask(1, seconds=0.5, key="a"), rig.ask(2, seconds=0.5, key="b")
        for future in (running, waiting):
            with pytest.raises(RequestTimeout):
                await future
        assert time.monotonic() - start < 3

    rig = run(BatchPolicy(1, 0.0), use, programs=[Slow()])
    assert rig.counts.late >= 1
