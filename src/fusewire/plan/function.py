"""Run the user's own function in place of a plan: a program must not be slower than it.

The meaning of a program is its trace. The function runs as Python would run it, outside of tracing,
but never changes the caller's arrays: those that it writes to are copied first. What it returns is
checked against the trace, and no other code holds that memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import Any, final

import numpy as np
from numpy import ndarray

from fusewire.contract.backend import Held
from fusewire.contract.frontend import Reading, Structure
from fusewire.errors import EngineGarbage, ShapeMismatchError
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.plan.runner import Runner
from fusewire.process.guard import guarded

_Place = Callable[[Sequence[Any]], Sequence[Any]]


@final
class FunctionRunner:
    """A Python function that takes the flat inputs of the graph traced from it.

    ``call`` raises what the function raises, and EngineGarbage if its results have another
    structure, shape or dtype than those of the trace. So does making one of a function that cannot
    stand for its trace.
    """

    def __init__(self, reading: Reading) -> None:
        assert reading.function is not None, "the graph was traced"
        traced = reading.function
        if traced.writes_captured:
            raise EngineGarbage(
                "It writes to arrays that are not its arguments, which a program must not change"
            )
        self._function = traced.function
        self.title, self._may_share = traced.title, traced.may_share
        self._burden = traced.burden
        self._written = sorted(traced.written)
        self._arguments = _arranged(reading.arguments)
        self._keywords = _keywords(traced.function, reading.arguments)
        self._results = reading.results
        self._is_alone = reading.results.tree is Structure.LEAF
        self._is_flat = all(item is Structure.LEAF for item in _items(reading.results.tree))
        self._checks = [_ResultCheck(value) for value in reading.graph.outputs]
        is_simple = self._is_alone and _is_flat(reading.arguments)
        is_simple = is_simple and not self._keywords and not self._written
        # Returns fresh arrays; small functions take less time than the general checks.
        self.call: Callable[[Sequence[Held]], list[Any]] = (
            self._call_simple if is_simple else self._call
        )

    def _call_simple(self, inputs: Sequence[Held]) -> list[Any]:
        """Run a function of arrays that returns one array."""
        result = self._function(*inputs)
        check = self._checks[0]
        if (
            type(result) is ndarray
            and result.base is None
            and result.dtype is check.dtype
            and result.shape == check.shape
            and getrefcount(result) <= _SOLE_LOCAL
        ):
            return [result]
        leaves = [result]
        # Only the list may hold the result, so that its references can be counted.
        del result, inputs
        return self._fresh(leaves)

    def _call(self, inputs: Sequence[Held]) -> list[Any]:
        if self._written:
            inputs = [*inputs]
            for place in self._written:
                inputs[place] = np.array(inputs[place], order="C")
        arguments = self._arguments(inputs)
        if self._keywords:
            count = len(arguments) - len(self._keywords)
            named = dict(zip(self._keywords, arguments[count:], strict=True))
            results = self._function(*arguments[:count], **named)
        else:
            results = self._function(*arguments)
        leaves = [results] if self._is_alone else self._flat(results)
        # Only the list may hold the results, so that their references can be counted.
        del results, arguments, inputs
        return self._fresh(leaves)

    def _fresh(self, leaves: list[Any]) -> list[Any]:
        """Check results, and copy those whose memory others hold."""
        for place, check in enumerate(self._checks):
            leaves[place] = check.array(leaves[place])
        if not self._may_share:
            _own(leaves)
        return leaves

    def opponent(self, runner: Runner) -> Runner:
        """Return a runner as it is timed against this one: with all that its calls take."""
        return runner if self._burden is None else _Burdened(runner, self._burden)

    def attempt(self, inputs: Sequence[Held]) -> list[Any]:
        """Run for the first time: whatever goes wrong is an EngineError."""
        return guarded(self.title, "run", "on arrays", self.call, inputs)

    def close(self) -> None:
        """Nothing to close."""

    def _flat(self, results: Any) -> list[Any]:
        if self._is_flat and type(results) is tuple and len(results) == len(self._checks):
            return [*results]
        try:
            return self._results.flatten(results)
        except ShapeMismatchError:
            raise EngineGarbage(
                f"It returned {type(results).__name__}, with another structure than when it was "
                "traced"
            ) from None


@final
@dataclass(frozen=True, eq=False)
class _Burdened:
    """Runs an engine, and before it what each of its calls takes besides."""

    runner: Runner
    burden: Callable[[Sequence[Any]], object]

    def call(self, inputs: Sequence[Held]) -> list[Any]:
        """Run both."""
        self.burden(inputs)
        return self.runner.call(inputs)

    def close(self) -> None:
        """Close the engine."""
        self.runner.close()


@final
class _ResultCheck:
    """Checks that a result has the type of an output of the graph."""

    def __init__(self, value: Value) -> None:
        if not isinstance(value.type, TensorType):
            raise EngineGarbage(f"The output is {value.type}, which is not an array")
        self._type = value.type
        self.dtype = value.type.dtype.numpy
        # None where only a run shows the size.
        self.shape = tuple(dim if isinstance(dim, int) else None for dim in value.type.shape)

    def array(self, result: Any) -> Any:
        """Return the result as an array of the output's dtype."""
        array = result if type(result) is ndarray else np.asarray(result)
        if array.dtype != self.dtype:
            if not np.can_cast(array.dtype, self.dtype, "same_kind"):
                raise self._misfit(array)
            array = array.astype(self.dtype)
        if array.shape != self.shape and not self._fits(array.shape):
            raise self._misfit(array)
        return array

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            dim is None or dim == size for dim, size in zip(self.shape, shape, strict=True)
        )

    def _misfit(self, array: Any) -> EngineGarbage:
        return EngineGarbage(
            f"It returned {array.dtype}{list(array.shape)} where its trace has {self._type}"
        )


def _is_flat(arguments: Structure) -> bool:
    return all(item is Structure.LEAF for item in arguments.tree)


def _items(tree: Any) -> tuple[Any, ...]:
    """Return the parts of a tuple; anything else is one part that is not an array."""
    return tree if type(tree) is tuple else (tree, None)


def _arranged(arguments: Structure) -> _Place:
    """Return what puts flat inputs into the structure of the arguments."""
    return (lambda inputs: inputs) if _is_flat(arguments) else arguments.restore


def _keywords(function: Callable[..., Any], arguments: Structure) -> tuple[str, ...]:
    """Name the last arguments if the function takes them by keyword only."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return ()
    by_name = [x.name for x in parameters if x.kind is x.KEYWORD_ONLY]
    by_place = [x for x in parameters if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    return tuple(by_name[: max(len(arguments.tree) - len(by_place), 0)])


# A result may be an argument, a view of one, an array that the function keeps, or the memory of
# another result. Counting references tells all of these from an array that nobody else holds, and
# is much cheaper than comparing memory.


def _counts(arrays: list[Any]) -> list[int]:
    return [getrefcount(array) for array in arrays]


def _base_count(array: Any) -> int:
    return getrefcount(array.base)


def _local_count() -> int:
    array = np.empty(1)
    return getrefcount(array)


_SOLE_LOCAL = _local_count()
_SOLE = _counts([np.empty(1)])[0]
_SOLE_BASE = _base_count(np.empty(1)[:])


def _own(arrays: list[Any]) -> None:
    """Copy the arrays that others hold, or whose memory they hold."""
    for place, count in enumerate(_counts(arrays)):
        if count > _SOLE or not _is_sole(arrays[place]):
            arrays[place] = np.array(arrays[place], order="C")


def _is_sole(array: Any) -> bool:
    """Tell whether an array has memory of its own, or all the memory of one that nobody holds."""
    base = array.base
    if base is None:
        return bool(array.flags.owndata)
    if type(base) is not ndarray or base.base is not None or base.size != array.size:
        return False
    del base
    return array.flags.writeable and _base_count(array) <= _SOLE_BASE
