"""A backend whose answers are odd stops nobody, and leads to a right answer or a typed error."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import FusewireError
from fusewire.process.limits import ChildLimits
from fusewire.registry import REGISTRY
from tests import odd

X = np.arange(3, dtype=np.float32)


@pytest.fixture
def register() -> Iterator[Callable[[str], None]]:
    names: list[str] = []
    yield lambda kind: names.append(fw.register(f"tests.odd:{kind}", "odd"))
    for name in names:
        REGISTRY.close(name)
        fw.unregister(name)


@pytest.mark.parametrize("kind", odd.KINDS)
def test_right_answer_or_typed_error(register: Callable[[str], None], kind: str) -> None:
    register(kind)
    with fw.compile(lambda x: x + x, backend="odd", fallback="allow") as program:
        for _ in range(2):
            np.testing.assert_array_equal(program(X), [0, 2, 4])
    np.testing.assert_array_equal(X, np.arange(3))
    program = fw.compile(lambda x: x + x, backend="odd", fallback="error")
    with pytest.raises(FusewireError):
        _call_twice(program)


def _call_twice(program: fw.Program) -> None:
    """Call it until this process runs the engine: a child may give the first answer."""
    for _ in range(2):
        program(X)


@pytest.mark.parametrize("kind", odd.INFOS)
def test_who_does_not_say_who_it_is_stops_nobody(
    register: Callable[[str], None], kind: str
) -> None:
    register(kind)
    assert "odd" not in {place.backend for place in fw.devices()}
    np.testing.assert_array_equal(fw.compile(lambda x: x + x)(X), [0, 2, 4])


def test_who_hangs_is_waited_for_once() -> None:
    fw.register("fusewire.testing.chaos:hang_at_import", "chaos")
    try:
        limits = ChildLimits(0.5)
        first = REGISTRY.meet("chaos", limits=limits)
        assert first.is_broken
        assert REGISTRY.meet("chaos", limits=limits) is first
        assert REGISTRY.meet("chaos", limits=ChildLimits(0.6)) is not first
        REGISTRY.close("chaos")
        assert REGISTRY.meet("chaos", limits=limits) is not first
    finally:
        fw.unregister("chaos")


def test_closed_program_closes_its_executables_when_nobody_runs_them(
    register: Callable[[str], None],
) -> None:
    register("plain")
    program = fw.compile(lambda x: x + x, X, backend="odd", isolate=False)
    program(X)
    closed = odd.OddExecutable.closed
    runs = program.entry((X,)).run
    program.close()
    assert odd.OddExecutable.closed == closed + 1
    # Whoever was about to call meets an executable of its own.
    np.testing.assert_array_equal(runs((X,))[0], X + X)
