"""Names of other modules that a module gives on, each loaded when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, final


@final
class LazyNames:
    """The names that a module gives on, by the modules of this package that have them.

    Its ``load`` is the ``__getattr__`` of that module, and ``names`` its ``__all__``.
    """

    def __init__(self, module: str, names: Mapping[str, tuple[str, ...]]) -> None:
        self._module = module
        self._module_of = {name: home for home, found in names.items() for name in found}
        self.names = list(self._module_of)

    def load(self, name: str) -> Any:
        """Load a name, and put it where the next use finds it."""
        if name not in self._module_of:
            raise AttributeError(f"{self._module} has no {name!r}. It has {', '.join(self.names)}.")
        value = getattr(import_module(f"fusewire.{self._module_of[name]}"), name)
        setattr(sys.modules[self._module], name, value)
        return value
