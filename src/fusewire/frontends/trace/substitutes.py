"""Stand-ins for NumPy's modules, random generators and classes in traced code."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.frontends.trace.location import refusal
from fusewire.ops.operand import Traced

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording


class ModuleLike:
    """A module whose names are stand-ins."""

    def __init__(self, module: ModuleType, rebinder: Callable[[Any], Any]) -> None:
        self._module = module
        self._rebinder = rebinder

    def __getattr__(self, name: str) -> Any:
        found = self._rebinder(getattr(self._module, name))
        setattr(self, name, found)
        return found

    def __repr__(self) -> str:
        return repr(self._module)


class Refused:
    """Something that a traced function must not use: its result would become a constant."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self) -> Any:
        raise refusal(
            f"{self._name} returns other numbers at every call, but a traced function runs once: "
            "they would become constants. Use fusewire.ops.random_normal(key, shape=...), "
            "random_uniform or random_integers with a key (uint32[2]) as an argument."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._refuse()


class Converter:
    """Stands for the class with which NumPy's own code converts its arguments."""

    def __init__(self, recording: Recording, *args: Any) -> None:
        self._recording = recording
        self._arrays = tuple(recording.array(x) for x in args)

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, key: Any) -> Any:
        return self._arrays[key]

    @property
    def scalar_input(self) -> tuple[bool, ...]:
        return tuple(x.is_scalar or x.weak is not None for x in self._arrays)

    def as_arrays(self, *, subok: bool = True, pyscalars: str = "convert") -> tuple[Any, ...]:
        return self._arrays

    def result_type(self, extra_dtype: Any = None, ensure_inexact: bool = False) -> Any:
        more = [*([extra_dtype] if extra_dtype is not None else []), *([1.0] * ensure_inexact)]
        return self._recording.call(np.result_type, (*self._arrays, *more), {})

    def wrap(self, array: Any, to_scalar: Any = None) -> Any:
        return array


class _ArrayLike(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        is_traced = isinstance(instance, Traced)
        return isinstance(instance, np.ndarray) or (is_traced and not instance.is_scalar)


class ArrayLike(metaclass=_ArrayLike):
    """Stands for np.ndarray, so that ``isinstance(x, np.ndarray)`` holds for traced arrays."""
