"""Execute the text of a program: the one place in Fusewire that executes text as Python.

Triton takes kernels as Python functions with their source. What is executed is what this process
has just printed of kernels in their loop-level form, and functions that installed packages bring,
as the process that imported those packages sent them; never text that was read from a file.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import linecache
from types import ModuleType

from fusewire.backends.triton.program import Program


class _Text(importlib.abc.ExecutionLoader):
    """Code that is in no file: a child may be killed at any time, and a file would stay behind."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_source(self, fullname: str) -> str:
        """Give the text, whatever it is called."""
        return self._text

    def get_filename(self, fullname: str) -> str:
        """Name a file that is not there."""
        return f"fusewire:triton/{fullname}.py"


def execute(program: Program, name: str) -> ModuleType:
    """Import a program; Triton asks for the source of its functions, so lines are at hand."""
    loader = _Text(program.text)
    spec = importlib.util.spec_from_loader(name, loader, origin=loader.get_filename(name))
    assert spec is not None
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    linecache.lazycache(loader.get_filename(name), vars(module))
    loader.exec_module(module)
    return module


def forget(module: ModuleType) -> None:
    """Let go of the lines of a module."""
    assert module.__file__ is not None
    linecache.cache.pop(module.__file__, None)
