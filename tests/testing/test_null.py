"""The backend that computes nothing: right types, no work, and nobody's choice."""

from collections.abc import Iterator

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import RegistryError

X = np.ones((3, 4), np.float32)


@pytest.fixture(params=["NullBackend", "only__exp__add"])
def null(request: pytest.FixtureRequest) -> Iterator[str]:
    yield fw.register(f"fusewire.testing.null:{request.param}")
    fw.unregister("null")


def test_outputs_are_zeros_of_the_right_type(null: str) -> None:
    program = fw.compile(lambda x: (np.exp(x), x + 1), fw.Spec(("n", 4)), backend=null)
    for rows in (3, 5):
        for found in program(np.ones((rows, 4), np.float32)):
            assert (found.shape, found.dtype) == ((rows, 4), np.float32)
            assert not found.any()
            assert found.flags.writeable


def test_only_the_named_ops_are_claimed() -> None:
    fw.register("fusewire.testing.null:only__exp", "null")
    try:
        with pytest.warns(fw.FallbackWarning, match="null claims only exp"):
            program = fw.compile(lambda x: np.tanh(np.exp(x)) + 1, X, backend="null")
        assert not (program(X) - 1).any()
    finally:
        fw.unregister("null")


def test_it_is_never_chosen_by_itself(null: str) -> None:
    assert fw.compile(np.exp, X)(X).all()


def test_ops_that_are_not_there_are_named() -> None:
    with pytest.raises(RegistryError, match="Unknown op: eksp"):
        fw.register("fusewire.testing.null:only__eksp")
