"""What cannot be traced is refused with the user's line, the reason and what to do instead."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.frontend import Limits, Spec
from fusewire.errors import BudgetError, FusewireError, TraceError
from fusewire.frontends.trace import TraceFrontend

RNG = np.random.default_rng(0)


def branch(x: Any) -> Any:
    if x.sum() > 0:
        return x
    return -x


def loop(x: Any) -> Any:
    while np.abs(x).max() > 1e-3:
        x = x / 2
    return x


def python_max(x: Any) -> Any:
    return max(x[0], 0.5)


def short_circuit(x: Any) -> Any:
    return (x > 0).all() and (x < 1).all()


def to_float(x: Any) -> Any:
    return float(x[0]) * 2


def by_math(x: Any) -> Any:
    return math.sqrt(x[0])


def count(x: Any) -> Any:
    return [i + 1 for i in range(x[0])]


def list_index(x: Any) -> Any:
    return ["a", "b"][x[0]]


def item(x: Any) -> Any:
    return x.item(0)


def listed(x: Any) -> Any:
    return x.tolist()


def random(x: Any) -> Any:
    return x + np.random.normal(size=3)


def generator(x: Any) -> Any:
    return x * RNG.random(3)


def compare_with_none(x: Any) -> Any:
    nothing: Any = None
    return np.equal(x, nothing)


def random_of_python(x: Any) -> Any:
    import random

    return x * random.random()


def random_import(x: Any) -> Any:
    from numpy.random import rand

    return x + rand(3)


def eigenvalues(x: Any) -> Any:
    return np.linalg.eig(np.outer(x, x))


def strided(x: Any) -> Any:
    return np.lib.stride_tricks.as_strided(x, (2, 2), (8, 8))


def roots(x: Any) -> Any:
    return np.roots(x)


def greatest_divisor(x: Any) -> Any:
    return np.gcd(x.astype(int), 4)


def slice_by_value(x: Any) -> Any:
    return x[: x.argmax()]


def length_by_value(x: Any) -> Any:
    return np.arange(x.argmax())


def shape_by_value(x: Any) -> Any:
    return np.zeros(x.argmax())


def does_not_broadcast(x: Any) -> Any:
    return x + np.ones(5)


def wrong_product(x: Any) -> Any:
    return np.ones((4, 4)) @ x


def iterate(x: Any) -> Any:
    return [row + 1 for row in x[x > 0]]


def missing(x: Any) -> Any:
    return x.to_numpy()


def cast_by_type(x: Any) -> Any:
    return np.float32(x)


REFUSED: list[tuple[Any, str, str]] = [
    (branch, "if x.sum() > 0:", r"truth of an array.*np\.where.*ops\.cond"),
    (loop, "while np.abs(x).max() > 1e-3:", r"truth of an array.*while_"),
    (python_max, "return max(x[0], 0.5)", r"np\.maximum"),
    (short_circuit, "return (x > 0).all() and (x < 1).all()", "truth"),
    (to_float, "return float(x[0]) * 2", "Python float"),
    (by_math, "return math.sqrt(x[0])", r"np\.sqrt\(x\)"),
    (count, "return [i + 1 for i in range(x[0])]", r"range\(n\)"),
    (list_index, 'return ["a", "b"][x[0]]', "Index arrays by arrays"),
    (item, "return x.item(0)", "Python number"),
    (listed, "return x.tolist()", r"np\.stack"),
    (random, "return x + np.random.normal(size=3)", r"random_normal\(key"),
    (generator, "return x * RNG.random(3)", r"random_normal\(key"),
    (compare_with_none, "return np.equal(x, nothing)", "numbers and objects"),
    (random_of_python, "return x * random.random()", r"random_normal\(key"),
    (random_import, "from numpy.random import rand", r"random_normal\(key"),
    (eigenvalues, "return np.linalg.eig(np.outer(x, x))", r"np\.linalg\.eigh"),
    (strided, "return np.lib.stride_tricks.as_strided(x, (2, 2), (8, 8))", "sliding_window_view"),
    (roots, "return np.roots(x)", r"np\.roots cannot be traced"),
    (greatest_divisor, "return np.gcd(x.astype(int), 4)", "No op corresponds to the ufunc gcd"),
    (slice_by_value, "return x[: x.argmax()]", "size must be known while tracing"),
    (length_by_value, "return np.arange(x.argmax())", "known while tracing"),
    (shape_by_value, "return np.zeros(x.argmax())", "size must be known while tracing"),
    (does_not_broadcast, "return x + np.ones(5)", "do not broadcast"),
    (wrong_product, "return np.ones((4, 4)) @ x", "must be equal"),
    (iterate, "return [row + 1 for row in x[x > 0]]", "known only when the program runs"),
    (cast_by_type, "return np.float32(x)", "astype"),
]


@pytest.mark.parametrize(
    ("function", "line", "advice"), REFUSED, ids=[f.__name__ for f, *_ in REFUSED]
)
def test_refusal_shows_the_line_and_what_to_use(function: Any, line: str, advice: str) -> None:
    with pytest.raises(TraceError) as caught:
        TraceFrontend().read(
            function,
            [np.linspace(0.1, 0.9, 3) if function not in (count, list_index) else np.arange(3)],
        )
    message = str(caught.value)
    assert f"{__file__}:" in message
    assert f"`{line}`" in message
    assert re.search(advice, message, re.DOTALL), message
    number = int(message.split(f"{__file__}:")[1].split(":")[0])
    start = function.__code__.co_firstlineno
    assert start < number <= start + 4


def test_unknown_attribute_is_an_attribute_error_that_lists_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"no 'to_numpy'.*cumsum"):
        TraceFrontend().read(missing, [np.ones(3)])


SIZES: list[tuple[Any, str]] = [
    (lambda x: [x for _ in range(x.shape[0])], "as an int"),
    (lambda x: x if x.shape[0] > 3 else -x, "n > 3"),
    (lambda x: x if x.shape[0] == 3 else -x, "n == 3"),
    (lambda x: x / float(x.shape[0]), "as a float"),
    (lambda x: list(x), "as an int"),
]


@pytest.mark.parametrize(("function", "asked"), SIZES, ids=[asked for _, asked in SIZES])
def test_open_size_where_a_number_is_needed(function: Any, asked: str) -> None:
    with pytest.raises(TraceError, match=rf"(?s)test_errors.py:\d+.*size n is known only.*{asked}"):
        TraceFrontend().read(function, [Spec(("n",))])


def test_what_is_certain_of_a_size_is_answered() -> None:
    def function(x: Any) -> Any:
        n = x.shape[0]
        assert n >= 0
        assert n == x.size
        assert n + 1 > n
        assert n != n + 1
        assert x.shape == x.shape
        return x / n**0.5 + (n // 2) * 2

    TraceFrontend().read(function, [Spec(("n",))])


def test_endless_loop_meets_the_limit() -> None:
    def endless(x: Any) -> Any:
        while True:
            x = x + 1

    with pytest.raises(BudgetError, match=r"more than 500 nodes, at test_errors.py:\d+"):
        TraceFrontend().read(endless, [np.ones(2)], Limits(nodes=500))


def test_wrong_number_of_arguments() -> None:
    with pytest.raises(TraceError, match="takes 1 argument"):
        TraceFrontend().read(branch, [np.ones(2), np.ones(2)])


def test_every_refusal_is_one_of_ours() -> None:
    assert issubclass(TraceError, FusewireError)
    assert issubclass(TraceError, TypeError)


def test_array_made_outside_cannot_take_a_traced_element() -> None:
    class Holder:
        __slots__ = ()
        table = np.zeros(3)

    def function(x: Any, holder: Any) -> Any:
        holder.table[0] = x[0]
        return x

    with pytest.raises(TraceError, match="made outside of the traced function"):
        TraceFrontend().read(function, [np.ones(3), Holder()])
    assert Holder.table.tolist() == [0, 0, 0]


def test_transform_of_another_library_is_a_typed_error() -> None:
    import torch

    transformed = torch.func.grad(lambda x: (x * x).sum())
    for x in (np.ones(4, np.float32), torch.ones(4)):
        with pytest.raises(TraceError, match="make_fx"):
            fw.trace(transformed, x)
        with pytest.raises(TraceError, match="make_fx"):
            fw.compile(transformed, backend="reference")(x)


def test_function_that_calls_itself_without_end_is_a_typed_error() -> None:
    def endless(x: Any) -> Any:
        return endless(x + 1)

    with pytest.raises(TraceError, match="calls itself without end"):
        fw.trace(endless, np.ones(4, np.float32))
