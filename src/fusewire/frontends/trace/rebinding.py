"""Copies of the user's functions, for one trace, that see stand-ins for NumPy.

NumPy dispatches functions of traced arrays to us, but not those that create arrays. So the traced
function is a copy whose globals, closure and builtins hold stand-ins: for numpy and its functions,
for arrays (known, and never written), and for the user's own functions. The user's function,
modules and arrays stay as they are.
"""

from __future__ import annotations

import abc
import builtins
import contextlib
import functools
import random
import sys
import time
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import dtype
from fusewire.errors import DTypeError, warn_outside
from fusewire.frontends.trace.substitutes import ArrayLike, Converter, ModuleLike, Refused
from fusewire.ops.declare import Op
from fusewire.ops.operand import Traced, note_program

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording

_DISPATCHER = type(np.sum)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, _DISPATCHER)
# The code of these is not copied. (pytest is in every function whose assertions it rewrites.)
_OPAQUE = frozenset({"fusewire", "ml_dtypes", "pytest", "_pytest", *sys.stdlib_module_names})
# Classes of r_, c_, mgrid and ogrid, which are like functions.
_INDEX_TRICKS = type(np.r_).__module__
# A cache would leak arrays from one trace into the next.
_CACHED: Any = type(functools.cache(len))
# What these return is known while tracing, and is a constant from then on.
_CLOCKS = frozenset({time.time, time.time_ns, time.monotonic, time.perf_counter})
_RANDOM = (np.random.Generator, np.random.RandomState, random.Random)


class Rebinder:
    """Makes stand-ins, one per object."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        # By identity; the original is kept alive, so that its id is not reused.
        self._made: dict[int, tuple[Any, Any]] = {}
        self._copies: dict[FunctionType, FunctionType] = {}
        self._globals: dict[int, dict[str, Any]] = {}

    def __call__(self, thing: Any) -> Any:
        """Return what stands for an object in traced code: mostly the object itself."""
        found = self._made.get(id(thing))
        if found is None:
            found = self._made[id(thing)] = (thing, self._stand_in(thing))
        return found[1]

    @property
    def has_written(self) -> bool:
        """Whether traced code has written to arrays of the user's, which changed copies."""
        arrays = [pair for pair in self._made.values() if isinstance(pair[0], np.ndarray)]
        return any(made is not array and made.is_written for array, made in arrays)

    def _stand_in(self, thing: Any) -> Any:
        if isinstance(thing, ModuleType):
            return self._module(thing)
        if isinstance(thing, np.ndarray):
            return self._recording.known(thing) if _is_ours(thing) else thing
        if isinstance(thing, _RANDOM) or isinstance(getattr(thing, "__self__", None), _RANDOM):
            return Refused("A random generator")
        if thing is np.ndarray:
            return ArrayLike
        if isinstance(thing, Op):
            return functools.partial(self._recording.call_op, thing)
        if isinstance(thing, _FUNCTIONS):
            return self._callable(thing)
        if isinstance(thing, _CACHED):
            return self(thing.__wrapped__)
        if _is_compiled(thing):
            note_program(thing)
            return self(thing.__wrapped__)
        if isinstance(thing, MethodType):
            return MethodType(self(thing.__func__), self(thing.__self__))
        if isinstance(thing, functools.partial):
            options = {key: self(value) for key, value in thing.keywords.items()}
            return functools.partial(self(thing.func), *map(self, thing.args), **options)
        if type(thing) in (list, tuple, dict):
            return self._container(thing)
        if isinstance(thing, type):
            if thing.__name__ == "_array_converter":
                return functools.partial(Converter, self._recording)
            return self._class(thing) if _is_plain(thing) else thing
        return self._instance(thing) if _is_plain(type(thing)) else thing

    def _container(self, thing: Any) -> Any:
        """Copy a container if something in it is replaced; otherwise keep its identity."""
        # Registered first: a container may contain itself.
        self._made[id(thing)] = (thing, thing)
        items = thing.values() if type(thing) is dict else thing
        made = [self(item) for item in items]
        if all(new is old for new, old in zip(made, items, strict=True)):
            return thing
        return dict(zip(thing, made, strict=True)) if type(thing) is dict else type(thing)(made)

    def _class(self, kind: type) -> type:
        """Derive a class whose methods see stand-ins."""
        members: dict[str, Any] = {}
        for owner in kind.__mro__:
            for name, member in vars(owner).items() if _is_plain(owner) else ():
                if isinstance(member, FunctionType):
                    members.setdefault(name, self.function(member))
                elif _is_compiled(member):
                    members.setdefault(name, self.function(member.__wrapped__))
                elif isinstance(member, staticmethod):
                    members.setdefault(name, staticmethod(self(member.__func__)))
                elif isinstance(member, property) and isinstance(member.fget, FunctionType):
                    members.setdefault(name, property(self.function(member.fget), member.fset))
        members |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        return type(kind)(kind.__name__, (kind,), members)

    def _instance(self, thing: Any) -> Any:
        """Copy a user's object: its arrays are known, its methods see stand-ins."""
        made = object.__new__(self(type(thing)))
        # Registered first: an object may contain itself.
        self._made[id(thing)] = (thing, made)
        slots = [name for owner in type(thing).__mro__ for name in vars(owner).get("__slots__", ())]
        held = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
        for name, value in (held | getattr(thing, "__dict__", {})).items():
            object.__setattr__(made, name, self(value))
        return made

    def _module(self, module: ModuleType) -> Any:
        root = module.__name__.partition(".")[0]
        if module.__name__ in ("numpy.random", "random"):
            return Refused(module.__name__.replace("numpy", "np"))
        if module.__name__ in ("fusewire", "fusewire.ops", "time") or root not in _OPAQUE:
            return ModuleLike(module, self)
        return module

    def _callable(self, function: Any) -> Any:
        root = (getattr(function, "__module__", None) or "builtins").partition(".")[0]
        if root == "numpy":

            def stand_in(*args: Any, **options: Any) -> Any:
                return self._recording.call(function, args, options)
        elif root == "time" and function in _CLOCKS:

            def stand_in(*args: Any, **options: Any) -> Any:
                warn_outside(
                    f"time.{function.__name__}() is read once, when the function is traced: what "
                    "it returns becomes a constant of the program. Pass it as an argument.",
                    UserWarning,
                )
                return function(*args, **options)
        elif root in _OPAQUE or not isinstance(function, FunctionType):
            return function
        else:

            def stand_in(*args: Any, **options: Any) -> Any:
                return self.function(function)(*args, **options)

        return functools.update_wrapper(stand_in, function)

    def entry(self, source: Any) -> Any:
        """Return what runs in place of the traced function."""
        if isinstance(source, FunctionType):
            return self.function(source)
        if isinstance(source, MethodType):
            return MethodType(self.entry(source.__func__), self(source.__self__))
        return self(source)

    def function(self, function: FunctionType) -> Any:
        """Copy a function so that it sees stand-ins."""
        found = self._copies.get(function)
        if found is None:
            found = self._copies[function] = self._copied(function)
        return found

    def _copied(self, function: FunctionType) -> FunctionType:
        named = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        # Of the class that stands for it, super() would find the same method once more.
        cells = tuple(cell if name == "__class__" else self._cell(cell) for name, cell in named)
        known = self._scope(function.__globals__, function.__code__)
        copy = FunctionType(
            function.__code__, known, function.__name__, self(function.__defaults__), cells
        )
        copy.__kwdefaults__ = self(function.__kwdefaults__)
        copy.__dict__.update(function.__dict__)
        copy.__doc__, copy.__module__ = function.__doc__, function.__module__
        copy.__qualname__ = function.__qualname__
        return copy

    def _cell(self, cell: CellType) -> CellType:
        found = self._made.get(id(cell))
        if found is None:
            made = CellType()
            # Registered first: the content of a cell may refer back to it.
            found = self._made[id(cell)] = (cell, made)
            # The cell is empty until the outer function has assigned it.
            with contextlib.suppress(ValueError):
                made.cell_contents = self(cell.cell_contents)
        return found[1]

    def _scope(self, names: dict[str, Any], code: CodeType) -> dict[str, Any]:
        """Return the globals of a module, with stand-ins for the names in the code."""
        known = self._globals.get(id(names))
        if known is None:
            known = self._globals[id(names)] = dict(names)
            replaced = {"__import__": self._import, "len": _length}
            known["__builtins__"] = {**vars(builtins), **replaced}
        stack = [code]
        while stack:
            code = stack.pop()
            for name in code.co_names:
                if name in names:
                    known[name] = self(names[name])
            stack.extend(item for item in code.co_consts if isinstance(item, CodeType))
        return known

    def _import(self, *args: Any, **options: Any) -> Any:
        return self(builtins.__import__(*args, **options))


def _length(x: Any) -> Any:
    """Return a length; Python's own ``len`` could only return a number."""
    shape: Any = getattr(x, "shape", ()) if isinstance(x, Traced) else ()
    return shape[0] if shape else len(x)


def _is_ours(array: np.ndarray[Any, Any]) -> bool:
    try:
        return dtype(array.dtype).kind != "string"
    except DTypeError:
        return False


def _is_compiled(thing: Any) -> bool:
    """Return whether this is the program of a function: it is traced with what calls it."""
    is_ours = type(thing).__module__.startswith("fusewire.")
    return is_ours and isinstance(getattr(thing, "__wrapped__", None), FunctionType | MethodType)


def _is_plain(kind: type) -> bool:
    """Return whether a user's class can be subclassed without side effects."""
    root = kind.__module__.partition(".")[0]
    return (
        root not in _OPAQUE
        and (root != "numpy" or kind.__module__ == _INDEX_TRICKS)
        and type(kind) in (type, abc.ABCMeta)
        and vars(object)["__new__"] is getattr(kind, "__new__", None)
        # A subclass might be registered somewhere, and a copy might release shared resources.
        and not {"__init_subclass__", "__del__"} & {n for c in kind.__mro__[:-1] for n in vars(c)}
    )
