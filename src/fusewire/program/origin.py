"""What a program was compiled from: enough to compile it again after a fork, or elsewhere.

Engines belong to the process that loaded them: their threads do not exist in a forked child, and
XLA waits for them for ever. So a program that was forked lets go of its engines, without closing
them, and is compiled again at its next call, with engines in child processes of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from fusewire.contract.frontend import Spec
from fusewire.errors import GraphError
from fusewire.process.forks import in_forked_child

if TYPE_CHECKING:
    from fusewire.program.module_program import ModuleProgram
    from fusewire.program.program import Program


@dataclass(frozen=True)
class Origin:
    """The source, the example and the options of a program.

    ``compile`` takes these three; a pickle names it. ``save`` takes the program, a path, the
    options, the source, and how to save.
    """

    source: Any
    example: tuple[Any, ...]
    options: Any
    compile: Callable[..., Any]
    save: Callable[..., tuple[str, ...]] | None = None

    def remake(self, name: str) -> Any:
        """Compile again in a forked child; GraphError if engines may not run in children."""
        if self.options.isolate == "never":
            raise GraphError(
                f"The program {name} was compiled before this process was forked, and engines do "
                'not survive a fork. Compile it in the child, or without isolate="never".'
            )
        options = replace(self.options, isolate="always")
        return self.compile(self.source, self.example, options)

    def reduced(self, program: Any, name: str) -> tuple[Any, ...]:
        """Return what a pickle holds: a file's path or a function's name, and the options."""
        options = replace(self.options, progress=None)
        example = tuple(
            Spec(x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in self.example
        )
        if isinstance(self.source, str | os.PathLike):
            path = str(Path(os.fsdecode(self.source)).absolute())
            return self.compile, (path, example, options)
        module = sys.modules.get(getattr(self.source, "__module__", None) or "")
        found: Any = module
        for part in getattr(self.source, "__qualname__", "<nameless>").split("."):
            found = getattr(found, part, None)
        if found is self.source:
            return self.compile, (self.source, example, options)
        if found is program and module is not None:
            # A decorated function: its name stands for the program itself.
            return importable, (module.__name__, self.source.__qualname__)
        raise TypeError(
            f"The program {name} cannot be pickled or copied: its source is neither a file nor a "
            "function that can be imported. Compile the model in each process, which the cache "
            "makes quick; threads may share one program."
        )


def importable(module: str, name: str) -> Any:
    """Import a program that its module defines with a decorator."""
    from importlib import import_module

    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


# The programs of this process, and what forked children must not let Python destroy.
PROGRAMS: WeakSet[Program | ModuleProgram] = WeakSet()
_ABANDONED: list[Any] = []


def _after_fork() -> None:
    for program in list(PROGRAMS):
        _ABANDONED.append(program.abandon())


in_forked_child(_after_fork)
