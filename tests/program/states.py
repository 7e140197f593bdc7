"""Programs of every source in every state, by public calls alone: what the tests here share.

A program of a function, of a graph or of a file is brought into a state within a moment, and stays
there until the test does something: ``undecided`` (it has no example, and was not called),
``serving`` (an engine could answer, and nobody has called), ``waiting`` (the comparison waits for
its turn on this machine), ``comparing`` (an engine of it compiles for ever), ``settled`` (a search
has ended), ``late`` (settled, and slow compilers are compared in a while) and ``late comparing``
(settled, and their comparison waits for its turn). A program that recalls, or compares nothing, is
``recalled`` or ``alone``.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.background import slow
from fusewire.background.turns import one_on_this_machine
from tests.comparers import comparer

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
SOURCES = ("function", "graph", "file")
# What ``state`` says.
WORDS = {
    "undecided": "serving-first",
    "serving": "serving-first",
    "waiting": "comparing",
    "comparing": "comparing",
    "settled": "settled",
    "late": "settled",
    "late comparing": "settled",
    "recalled": "settled",
    "alone": "settled",
}
STATES = tuple(WORDS)
# Nothing here takes long, but on cores that are busy.
PATIENCE = 180.0
# Engines run in the process that asks them.
ISOLATE = "never"
SLOW = {"slow": "tests.toy:slow"}
ENDLESS = {"chaos": "fusewire.testing.chaos:hang_at_compile"}
# This process remembers decisions: every program has a graph of its own.
_NUMBERS = itertools.count(2)


def engines(**others: str) -> fw.Registry:
    """Make a registry of the reference and others, by their references."""
    registry = fw.Registry()
    for name in registry.backends.names():
        if name != "reference":
            registry.unregister(name)
    for name, reference in others.items():
        registry.register(reference, name)
    return registry


def _scaled(number: np.float32, during: list[Callable[[], object]]) -> Callable[[Any], Any]:
    def scaled(x: Any) -> Any:
        for act in during:
            act()
        return np.tanh(x) * number

    return scaled


@dataclass(eq=False)
class Source:
    """A function, a graph or a file that computes what nothing else in this process computes."""

    kind: str
    folder: Path
    number: int = field(default_factory=lambda: next(_NUMBERS))
    # What a function does besides, in each call with arrays: a test adds it once it is compiled.
    during: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        function = _scaled(np.float32(self.number), self.during)
        self.expected = function(X)
        self.value: Any = function if self.kind == "function" else fw.trace(function, X)
        if self.kind == "file":
            graph, self.value = self.value, self.folder / f"scaled{self.number}.onnx"
            fw.save_onnx(graph, self.value)

    def compiled(self, *example: Any, registry: fw.Registry, **options: Any) -> Any:
        """Compile it for the engines of a registry."""
        fields = {"isolate": ISOLATE, "budget_seconds": 0.2, **options}
        return fw.compile(self.value, *example, registry=registry, **fields)

    def decide(self, registry: fw.Registry, **options: Any) -> None:
        """Record what a comparison of the engines decides, as a search behind a program would."""
        other = Source("graph", self.folder, self.number) if self.kind == "function" else self
        other.compiled(X, registry=registry, start="measured", **options).close()


@dataclass(eq=False)
class Case:
    """A program in a state."""

    program: Any
    source: Source
    state: str

    def call(self) -> None:
        """Call it, and check the answer."""
        self.check(self.program(X))

    def check(self, found: Any) -> None:
        """Check an answer for ``X``."""
        np.testing.assert_allclose(np.asarray(found), self.source.expected, rtol=1e-5)


def eventually(is_so: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Wait until something is so; returns whether it is."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def environment(folder: Path) -> dict[str, str]:
    """Give a process of a test a cache of its own, and a machine without other comparisons."""
    own = {"FUSEWIRE_CACHE": str(folder / "cache"), "XDG_RUNTIME_DIR": str(folder)}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextmanager
def held_turn() -> Iterator[None]:
    """Have every comparison of this machine wait for its turn."""
    with one_on_this_machine(600.0):
        yield


def _undecided(stack: ExitStack, source: Source) -> Any:
    # What the test calls stays where it is.
    stack.enter_context(held_turn())
    return source.compiled(registry=engines())


def _serving(stack: ExitStack, source: Source) -> Any:
    stack.enter_context(held_turn())
    return source.compiled(X, registry=engines())


def _waiting(stack: ExitStack, source: Source) -> Any:
    stack.enter_context(held_turn())
    program = source.compiled(X, registry=engines())
    program(X)
    comparer()
    return program


def _comparing(stack: ExitStack, source: Source) -> Any:
    begun = threading.Event()
    program = source.compiled(
        X,
        registry=engines(**ENDLESS),
        budget_seconds=60.0,
        progress=lambda what, share: begun.set(),
    )
    program(X)
    assert begun.wait(PATIENCE)
    return program


def _settled_by(source: Source, registry: fw.Registry) -> Any:
    """Have a search settle on what was decided since the program was compiled."""
    program = source.compiled(X, registry=registry)
    source.decide(registry)
    program(X)
    assert program.wait(PATIENCE)
    return program


def _settled(stack: ExitStack, source: Source) -> Any:
    return _settled_by(source, engines())


class _Moment:
    """Stands for the module ``time`` where slow compilers wait: until the test says so."""

    def __init__(self) -> None:
        self.is_waited_for, self.has_come = threading.Event(), threading.Event()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        self.is_waited_for.set()
        self.has_come.wait(seconds)


def _moment(stack: ExitStack) -> _Moment:
    """Have slow compilers wait for a moment; at the end, nobody waits any more."""
    moment = _Moment()
    stack.enter_context(pytest.MonkeyPatch.context()).setattr(slow, "time", moment)
    stack.callback(moment.has_come.set)
    return moment


def _late(stack: ExitStack, source: Source) -> Any:
    moment = _moment(stack)
    program = _settled_by(source, engines(**SLOW))
    assert moment.is_waited_for.wait(PATIENCE)
    return program


def _late_comparing(stack: ExitStack, source: Source) -> Any:
    stack.enter_context(held_turn())
    _moment(stack).has_come.set()
    program = _settled_by(source, engines(**SLOW))
    comparer()
    return program


def _recalled(stack: ExitStack, source: Source) -> Any:
    registry = engines()
    source.compiled(X, registry=registry, start="measured").close()
    return source.compiled(X, registry=registry, level="recall")


def _alone(stack: ExitStack, source: Source) -> Any:
    return source.compiled(X, registry=engines(), level=0)


_MADE: dict[str, Callable[[ExitStack, Source], Any]] = {
    "undecided": _undecided,
    "serving": _serving,
    "waiting": _waiting,
    "comparing": _comparing,
    "settled": _settled,
    "late": _late,
    "late comparing": _late_comparing,
    "recalled": _recalled,
    "alone": _alone,
}


@contextmanager
def in_state(state: str, source: Source) -> Iterator[Case]:
    """Bring a program into a state; it is closed at the end, if it is there still."""
    with ExitStack() as stack:
        case = Case(_MADE[state](stack, source), source, state)
        try:
            yield case
        finally:
            if case.program is not None:
                case.program.close()
