"""Whatever an engine throws becomes a typed error that says what was asked and what was found."""

from collections.abc import Callable
from typing import Any

import pytest

from fusewire.contract.backend import Executable
from fusewire.errors import (
    BackendHung,
    CompileTimeout,
    EngineError,
    EngineGarbage,
    EngineOutOfMemory,
    EngineRaised,
    OptionsError,
    ShapeMismatchError,
)
from fusewire.ir.graph import Graph
from fusewire.process.guard import BY_CODE, KINDS, blaming, failure, guarded, refusal
from fusewire.process.trial import run as run_once


class Panic(BaseException):
    """As libraries written in Rust throw."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def throwing(error: BaseException) -> Callable[[], None]:
    def throw() -> None:
        raise error

    return throw


@pytest.mark.parametrize(
    ("thrown", "kind"),
    [
        (ValueError("no such kernel"), EngineRaised),
        (SystemExit(3), EngineRaised),
        (Panic("unwrap on None"), EngineRaised),
        (Unspeakable(), EngineRaised),
        (RecursionError("too deep"), EngineRaised),
        (MemoryError(), EngineOutOfMemory),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"), EngineOutOfMemory),
        (RuntimeError("std::bad_alloc"), EngineOutOfMemory),
    ],
)
def test_what_is_thrown_becomes_typed(thrown: BaseException, kind: type[EngineError]) -> None:
    with pytest.raises(kind) as caught:
        guarded("xla", "compile", "main (3 nodes)", throwing(thrown))
    assert type(caught.value) is kind
    assert caught.value.__cause__ is thrown
    assert caught.value.reason.startswith("xla ")
    assert f"while compiling main (3 nodes): {type(thrown).__name__}" in caught.value.reason
    assert caught.value.advice


@pytest.mark.parametrize(
    "thrown",
    [OptionsError("x"), ShapeMismatchError("x"), EngineGarbage("x", "y"), KeyboardInterrupt()],
)
def test_what_is_not_the_engines_goes_through(thrown: BaseException) -> None:
    with pytest.raises(type(thrown)) as caught:
        guarded("xla", "run", "main", throwing(thrown))
    assert caught.value is thrown


def test_answers_go_through() -> None:
    assert guarded("xla", "run", "main", max, 2, 3) == 3


def test_long_messages_are_cut() -> None:
    with pytest.raises(EngineRaised) as caught:
        guarded("xla", "run", "main", throwing(ValueError("x" * 100000)))
    assert len(str(caught.value)) < 2000


def test_a_hang_while_compiling_is_a_compile_timeout() -> None:
    assert type(failure(BackendHung, "xla", "compile", "main", "3 s")) is CompileTimeout
    assert type(failure(BackendHung, "xla", "run", "main", "3 s")) is BackendHung


def test_an_error_becomes_the_refusal_of_every_node() -> None:
    found = refusal(EngineRaised("xla failed: no.", "Run it elsewhere."), Graph([], []))
    assert (found.nodes, found.code) == ((), "raised")
    assert (found.reason, found.suggestion) == ("xla failed: no.", "Run it elsewhere.")


def test_garbage_is_blamed_on_who_gave_it() -> None:
    with (
        pytest.raises(EngineGarbage, match=r"xla broke the .* while loading main: odd slots"),
        blaming("xla", "load", "main"),
    ):
        raise EngineGarbage("odd slots")


def test_codes_tell_the_kinds_apart() -> None:
    assert len(BY_CODE) == len(KINDS)


def test_failure_that_a_child_has_named_is_not_named_twice() -> None:
    once = failure(EngineRaised, "chaos", "compile", "5 kernels", "no ptxas")
    twice = failure(EngineRaised, "chaos", "compile", "5 kernels", once.reason)
    assert twice.reason == once.reason


class Bare(Executable):
    """Forgets that there is a list of outputs."""

    @property
    def is_reentrant(self) -> bool:
        return True

    def run(self, inputs: Any, into: Any = ()) -> Any:
        return inputs[0]


def test_run_that_does_not_return_a_list_is_told_so() -> None:
    with pytest.raises(TypeError, match="run must return a list of outputs, found str"):
        run_once(Bare(), ["three"])
