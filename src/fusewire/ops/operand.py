"""What ops are called on: values, stand-ins for them while tracing, arrays, scalars."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias, cast

import numpy as np

from fusewire.dtypes import dtype
from fusewire.ir.builder import constant
from fusewire.ir.graph import Attr, Value
from fusewire.ir.types import tensor_of


class Traced(abc.ABC):
    """A stand-in for an array while Python code is traced."""

    @property
    @abc.abstractmethod
    def value(self) -> Value:
        """What it stands for now."""

    @abc.abstractmethod
    def wrap(self, value: Value) -> Traced:
        """Stand for another value of the same trace."""


# The programs that a trace has met so far, where somebody wants to know.
PROGRAMS_MET: ContextVar[list[Any] | None] = ContextVar("PROGRAMS_MET", default=None)


def note_program(program: Any) -> None:
    """Note that a trace has met a program, which becomes a part of it."""
    met = PROGRAMS_MET.get()
    if met is not None:
        met.append(program)


Operand: TypeAlias = Any  # Value, Traced, array, scalar, or None where optional


def as_values(operands: Sequence[Operand]) -> list[Value | None]:
    """Turn arrays and scalars among values into constants; a scalar takes a value's dtype.

    That of the first value which is not bool, if there is one: ``where(condition, x, 0.0)``.
    """
    dtypes = [tensor_of(x.type).dtype for x in operands if isinstance(x, Value)]
    first = next((d for d in dtypes if d.kind != "bool"), dtypes[0])
    values: list[Value | None] = []
    for x in operands:
        if x is None or isinstance(x, Value):
            values.append(x)
        elif isinstance(x, bool | int | float | complex):
            values.append(constant(np.array(x, first.numpy)))
        else:
            values.append(constant(x))
    return values


def annotation_text(annotation: object) -> str:
    """Spell an annotation: a module without postponed annotations has the types themselves."""
    return annotation.__name__ if type(annotation) is type else str(annotation)


def canonical(attr: Any, annotation: object) -> Attr:
    """Bring an attribute to the one form that graphs hold."""
    if isinstance(attr, list | tuple):
        return tuple(canonical(item, "") for item in attr)
    if "DType" in str(annotation) and attr is not None:
        return dtype(attr)
    if isinstance(attr, np.generic):
        attr = attr.item()
    if annotation_text(annotation) == "float" and isinstance(attr, int):
        return float(attr)
    return cast(Attr, attr)
