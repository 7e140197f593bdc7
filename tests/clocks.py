"""Marks tests that assert how long something took: ``timing``, since a busy machine fails them.

The mark follows from the text of a test, and of the functions of its file that it calls: an
``assert`` compares a difference of two readings of a clock. Waiting until some time is no such
assertion. Where something else took the time, in the library or in another process, the mark is
written by hand.
"""

import ast
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_READINGS = {f"time.{clock}{suffix}" for clock in _CLOCKS for suffix in ("", "_ns")}
# What these return is of the kind of what they are given.
_PASSING = {"abs", "float", "list", "max", "min", "round", "sorted", "sum", "statistics.median"}
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and item.originalname in timing_functions(item.path):
        item.add_marker("timing")


@functools.cache
def timing_functions(file: Path) -> frozenset[str]:
    """List the functions of a file that assert how long something took."""
    text = file.read_text(encoding="utf-8")
    if not any(f"{reading}()" in text for reading in _READINGS):
        return frozenset()
    tree = ast.parse(text)
    every = {node.name: node for node in ast.walk(tree) if isinstance(node, _Function)}
    timers = _closed(every, _returns_duration)
    # What is inside a function is looked at with it.
    outer = {node.name: node for node in tree.body if isinstance(node, _Function)}
    return _closed(outer, lambda node, known: _asserts_duration(node, timers, known))


def _closed(
    functions: dict[str, _Function], holds: Callable[[_Function, frozenset[str]], bool]
) -> frozenset[str]:
    """Select functions, of which some are selected because of others that they call."""
    known = frozenset[str]()
    while True:
        more = frozenset(name for name, node in functions.items() if holds(node, known))
        if more == known:
            return known
        known = more


def _returns_duration(function: _Function, timers: frozenset[str]) -> bool:
    durations = _Durations(function, timers)
    returned = (node.value for node in ast.walk(function) if isinstance(node, ast.Return))
    return any(value is not None and durations.has(value) for value in returned)


def _asserts_duration(
    function: _Function, timers: frozenset[str], asserting: frozenset[str]
) -> bool:
    durations = _Durations(function, timers)
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and _name(node.func) in asserting:
            return True
        if isinstance(node, ast.Assert) and any(map(durations.has, _compared(node.test))):
            return True
    return False


def _compared(test: ast.expr) -> Iterator[ast.expr]:
    """Yield what is said to be less or more than something."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], _ORDERS):
            yield from (node.left, *node.comparators)


class _Durations:
    """Tells which expressions of a function are durations."""

    def __init__(self, function: _Function, timers: frozenset[str]) -> None:
        self._timers = timers
        self._readings, self._durations = set[str](), set[str]()
        size = -1
        while size != (size := len(self._readings) + len(self._durations)):
            for name, value in _assigned(function):
                if self._is_reading(value):
                    self._readings.add(name)
                if self.has(value):
                    self._durations.add(name)

    def _is_reading(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Call):
            return _name(value.func) in _READINGS
        return isinstance(value, ast.Name) and value.id in self._readings

    def has(self, value: ast.expr) -> bool:
        """Tell whether a duration is in an expression, and not only passed to a function in it."""
        match value:
            case ast.Name():
                return value.id in self._durations
            case ast.Call():
                called = _name(value.func)
                passed = called in _PASSING and any(map(self.has, value.args))
                return passed or called in self._timers
            case ast.BinOp(op=ast.Sub(), left=left, right=right) if self._is_reading(left):
                return self._is_reading(right)
            case ast.Compare():
                return False
        parts = ast.iter_child_nodes(value)
        return any(self.has(part) for part in parts if isinstance(part, ast.expr))


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return f"{module}.{name}"
    return ""


def _assigned(function: _Function) -> Iterator[tuple[str, ast.expr]]:
    """Yield names, and what they are made of."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = zip(names, values, strict=False)
                yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                yield name, value
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value]):
                yield name, value
