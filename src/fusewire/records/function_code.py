"""The digest of a Python function's code: what its speed depends on besides its arguments.

Two functions with the same graph may take different times, so what was measured of one says nothing
about another. Where code stands in a file does not count.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

# Functions of these packages change with their versions; those of NumPy are in the digest.
_OPAQUE = frozenset({"fusewire", "numpy", *sys.stdlib_module_names})


def function_digest(function: Any) -> str | None:
    """Return the SHA-256, as hex, of a function and the functions that it calls by name.

    None if the callable has no Python code.
    """
    first = _python_function(function)
    if first is None:
        return None
    digest = hashlib.sha256(f"{sys.version} numpy {np.__version__}".encode())
    waiting, seen = [first], {first}
    while waiting:
        current = waiting.pop()
        for part in _parts(current.__code__):
            digest.update(part.encode() + b"\0")
        for other in _callees(current):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return digest.hexdigest()


def importable_name(function: Any) -> str | None:
    """Return "module:name" of a function that another process can import; None for any other.

    A script is another module in another process, and so are functions inside functions.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    found = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is function and module != "__main__" else None


def _python_function(callee: Any) -> FunctionType | None:
    """Look through methods, partial applications, decorators and objects that can be called."""
    while isinstance(callee, MethodType | functools.partial):
        callee = callee.__func__ if isinstance(callee, MethodType) else callee.func
    callee = inspect.unwrap(callee)
    if not isinstance(callee, FunctionType):
        callee = inspect.getattr_static(type(callee), "__call__", None)
    return callee if isinstance(callee, FunctionType) else None


def _parts(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield " ".join(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        elif isinstance(constant, frozenset):
            # The order of a set differs between processes.
            yield repr(sorted(map(repr, constant)))
        else:
            yield repr(constant)


def _callees(function: FunctionType) -> Iterator[FunctionType]:
    """Yield the functions that the code names, in a fixed order."""
    scope = function.__globals__
    named = [scope[name] for name in _names(function.__code__) if name in scope]
    for cell in function.__closure__ or ():
        # A cell is empty until the outer function has assigned it.
        with contextlib.suppress(ValueError):
            named.append(cell.cell_contents)
    for thing in named:
        callee = _python_function(thing) if callable(thing) else None
        if callee is not None and (callee.__module__ or "").partition(".")[0] not in _OPAQUE:
            yield callee


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
