"""What a call of a program runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fusewire.contract.backend import Held


class Runner(Protocol):
    """Runs to the end and returns values on the host, as the caller gets them."""

    @property
    def call(self) -> Callable[[Sequence[Held]], list[Any]]: ...

    def close(self) -> None: ...
