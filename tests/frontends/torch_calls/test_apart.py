"""Reading in a forked process: what could hang there does not, and what hangs is tried again."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusewire.contract.frontend import Limits
from fusewire.errors import TraceError
from fusewire.frontends.torch import apart
from fusewire.frontends.torch.calling import ModuleCalling
from fusewire.session.model_source import ModelSource

HERE = os.getpid()


class Locking(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Takes a lock in another process than the first, where nobody will release it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != HERE:
            held = threading.Lock()
            held.acquire()
            held.acquire()
        return self.linear(x)


class Plain(nn.Module):  # type: ignore[misc]  # torch is not typed here
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def source_of(module: nn.Module) -> Any:
    return ModuleCalling(module.eval()).form((torch.ones(2, 4),), {}).source


def nodes_of(source: Any) -> int:
    reading = ModelSource(source, Limits()).read((np.ones((2, 4), np.float32),))
    return len(reading.graph.nodes)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_HUNG", 1.0)


@pytest.mark.usefixtures("impatient")
def test_a_process_that_hangs_is_ended_and_the_module_is_read_here() -> None:
    start = time.monotonic()
    assert nodes_of(source_of(Locking())) > 0
    assert time.monotonic() - start < 60


def test_another_thread_does_not_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_HUNG", 1.0)
    source = source_of(Locking())
    with ThreadPoolExecutor(1) as pool, pytest.raises(TraceError, match=r"waited for ever"):
        pool.submit(nodes_of, source).result()


class Slow(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Takes seconds in the forked process: of work, or of waiting for its turn."""

    def __init__(self, works: bool) -> None:
        super().__init__()
        self.linear, self.works = nn.Linear(4, 4), works

    def forward(self, x: Tensor) -> Tensor:
        clock = time.process_time if self.works else time.monotonic
        end = clock() + 4
        while os.getpid() != HERE and clock() < end:
            time.sleep(0 if self.works else 0.1)
        return self.linear(x)


def test_only_work_counts_against_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes_of(source_of(Plain()))
    monkeypatch.setattr(apart, "_DEADLINE", 3.0)
    assert nodes_of(source_of(Slow(works=False))) > 0


def test_a_process_that_works_for_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_DEADLINE", 0.5)
    with pytest.raises(TraceError, match=r"took more than .* for Slow"):
        nodes_of(source_of(Slow(works=True)))


class Ending:
    """Garbage that must not be ended in another process, such as an engine with threads."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        if os.getpid() != HERE:
            time.sleep(600)


@pytest.fixture
def garbage() -> Iterator[None]:
    gc.disable()
    Ending()
    yield
    gc.enable()
    gc.collect()


@pytest.mark.usefixtures("garbage")
def test_garbage_of_this_process_is_not_ended_in_the_forked_one() -> None:
    start = time.monotonic()
    assert nodes_of(source_of(Plain())) > 0
    assert time.monotonic() - start < 60


def test_the_forked_process_holds_no_connection_of_this_one() -> None:
    ours, theirs = socket.socketpair()
    source = source_of(Plain())
    nodes_of(source)
    ours.close()
    theirs.settimeout(5)
    # The forked process lives on for a while, to be asked again.
    assert theirs.recv(1) == b""
    theirs.close()
