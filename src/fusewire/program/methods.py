"""Compiled methods: each object has programs of its own, as it has attributes of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, final

from fusewire.errors import SourceError

if TYPE_CHECKING:
    from fusewire.program.program import Program

# Where an object keeps the programs of its methods.
_KEY = "__fusewire_programs__"


@final
@dataclass(eq=False)
class _MethodPrograms:
    """The programs of one object, by that of the class.

    They live as long as the object. A copy of it shares this, and finds that it is not the owner.
    """

    owner: Any
    programs: dict[Program, Program] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave programs out of pickles and deep copies of the object."""
        return _no_programs, ()


def _no_programs() -> None:
    """Return what an unpickled object has: its methods are compiled again."""


def bound(program: Program, instance: Any) -> Program:
    """Return the program of an object's method; of anything but a function, the program itself."""
    origin = program.origin
    if origin is None or not isinstance(origin.source, FunctionType):
        return program
    try:
        attributes = instance.__dict__
        kept: _MethodPrograms | None = attributes.get(_KEY)
        if kept is None or kept.owner is not instance:
            kept = _MethodPrograms(instance)
            if isinstance(instance, type):
                # A class method: before Python 3.13 it binds what it wraps to the class.
                setattr(instance, _KEY, kept)
            else:
                attributes[_KEY] = kept
    except (AttributeError, TypeError):
        name, kind = program.name, type(instance).__name__
        raise SourceError(
            f"The compiled method {name} needs a __dict__ to keep the program of each object, and "
            f"an object of type {kind} has none to write to. Compile a function in place of it: "
            f"fw.compile(lambda x: {name}(self, x)), once for each object."
        ) from None
    found: Program | None = kept.programs.get(program)
    if found is None:
        made: Program = origin.compile(
            MethodType(origin.source, instance), origin.example, origin.options
        )
        found = kept.programs.setdefault(program, made)
    return found
