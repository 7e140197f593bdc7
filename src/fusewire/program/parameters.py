"""The parameters of a program: how a call by name becomes one by position."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

from fusewire.errors import ShapeMismatchError

Arguments = tuple[Any, ...]


class Parameters(Protocol):
    """Puts arguments into the order of the parameters."""

    def bind(self, arguments: Arguments, named: Mapping[str, Any]) -> Arguments:
        """Return the arguments by position; ShapeMismatchError if they do not fit the names."""

    def has(self, name: str) -> bool:
        """Tell whether an argument may be given under this name."""


@final
@dataclass(frozen=True)
class InputNames:
    """The inputs of a model, each an array. One mapping gives all of them by name."""

    name: str
    list_names: Callable[[], Sequence[str]]

    def bind(self, arguments: Arguments, named: Mapping[str, Any]) -> Arguments:
        """Return the arguments by position."""
        if not named and len(arguments) == 1:
            (only,) = arguments
            if isinstance(only, Mapping):
                arguments, named = (), only
        if not named:
            return arguments
        names = self.list_names()
        given = {**dict(zip(names, arguments, strict=False)), **named}
        self._check(names, len(arguments), named, given)
        return tuple([given[name] for name in names])

    def has(self, name: str) -> bool:
        """Tell whether it is the name of an input."""
        return name in self.list_names()

    def _check(
        self, names: Sequence[str], count: int, named: Mapping[str, Any], given: Mapping[str, Any]
    ) -> None:
        takes = f"{self.name} takes {', '.join(names) or 'no inputs'}"
        if unknown := [str(name) for name in named if name not in names]:
            close = difflib.get_close_matches(unknown[0], names, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ShapeMismatchError(f"{takes}; {unknown[0]!r} is not one of them.{hint}")
        if twice := [name for name in names[:count] if name in named]:
            raise ShapeMismatchError(f"{takes}; {twice[0]!r} was given by position and by name.")
        if missing := [name for name in names if name not in given]:
            raise ShapeMismatchError(f"{takes}; {', '.join(missing)} was not given.")


@final
@dataclass(frozen=True)
class FunctionParameters:
    """The parameters of a Python function; those left out have its defaults."""

    function: Callable[..., Any]

    def bind(self, arguments: Arguments, named: Mapping[str, Any]) -> Arguments:
        """Return the arguments by position: first the positional ones, then keyword-only ones."""
        if not named:
            return arguments
        name = getattr(self.function, "__name__", type(self.function).__name__)
        try:
            signature = inspect.signature(self.function)
            bound = signature.bind(*arguments, **named)
        except (TypeError, ValueError) as error:
            raise ShapeMismatchError(f"{name}: {error}.") from None
        kinds = {parameter.kind for parameter in signature.parameters.values()}
        if inspect.Parameter.VAR_KEYWORD in kinds or (
            inspect.Parameter.VAR_POSITIONAL in kinds and bound.kwargs
        ):
            raise ShapeMismatchError(
                f"{name}{signature} takes any number of arguments, so those by name have no "
                "fixed place. Compile a function with a parameter for each."
            )
        named_or_placed = set(bound.arguments)
        bound.apply_defaults()
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            return bound.args
        # Defaults at the end stay left out, so that this is the same call as one by position.
        names = list(signature.parameters)
        while names and names[-1] not in named_or_placed:
            names.pop()
        return tuple([bound.arguments[name] for name in names])

    def has(self, name: str) -> bool:
        """Tell whether the function has a parameter of this name, or takes any."""
        try:
            parameters = inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            return False
        takes_any = (p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        return name in parameters or any(takes_any)
