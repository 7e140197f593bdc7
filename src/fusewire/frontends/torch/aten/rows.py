"""What the table of ATen ops is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

# Takes the call and the arguments of the op's schema, in order; returns its results.
Convert: TypeAlias = Callable[..., Any]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class AtenRow:
    """How an ATen op is converted; ``ops`` says which of our ops it becomes."""

    convert: Convert
    ops: str


class Rows:
    """The rows of a family."""

    def __init__(self) -> None:
        self._rows: dict[str, AtenRow] = {}

    def add(self, *names: str, ops: str) -> Callable[[Function], Function]:
        """Register a function for ops such as ``add.Tensor``; ``.default`` may be left out."""

        def register(convert: Function) -> Function:
            for name in names:
                full = name if "." in name else f"{name}.default"
                assert full not in self._rows, f"two rows for {full}"
                self._rows[full] = AtenRow(convert, ops)
            return convert

        return register

    @property
    def by_name(self) -> Mapping[str, AtenRow]:
        return self._rows
