"""What a child is confined to, as its parent decides it: programs, variables, one folder."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

# "run" starts no program, "compile" the programs that its backend declares, "open" is not closed.
Closing = Literal["open", "run", "compile"]

# A child does not inherit what it has no need of: tokens, keys, addresses of proxies and agents.
_INHERITED = (
    *("HOME", "USER", "LOGNAME", "PATH", "LANG", "LANGUAGE", "TZ", "TERM", "XDG_DATA_DIRS"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV"),
    # What Windows and macOS have instead, and without which Python does not start there.
    *("SYSTEMROOT", "WINDIR", "SYSTEMDRIVE", "COMSPEC", "PATHEXT", "USERPROFILE", "USERNAME"),
    *("LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES", "PROGRAMFILES(X86)", "COMMONPROGRAMFILES"),
    *("PROCESSOR_ARCHITECTURE", "NUMBER_OF_PROCESSORS", "DYLD_LIBRARY_PATH"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
)
# Locales, the interpreter, allocators, and the pools of threads that every engine brings.
_PREFIXES = (
    *("LC_", "PYTHON", "MALLOC_", "FUSEWIRE_"),
    *("OMP_", "OPENBLAS_", "MKL_", "KMP_", "GOMP_", "BLIS_", "NPY_"),
)
# The server's tokens. No process that this one starts has any need of them.
_WITHHELD = "FUSEWIRE_SERVE_"
# Variables that backends asked for, by reference: children that come later have them at once.
_asked_for: dict[str, tuple[str, ...]] = {}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MOST_NAMES = 256
# What names the folder for temporary files; Windows reads the last two.
_TEMPORARY = ("TMPDIR",) if sys.platform != "win32" else ("TMPDIR", "TEMP", "TMP")


class MissingVariables(Exception):
    """A child lacks variables that its backend reads and that this process has."""


@dataclass(frozen=True)
class Confinement:
    """How a child is closed, the programs that it may start, and variables that it gets too."""

    closing: Closing = "run"
    programs: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()

    def of(self, reference: str) -> Confinement:
        """Add the variables that this backend asked for."""
        return replace(self, variables=(*self.variables, *_asked_for.get(reference, ())))

    def note(self, reference: str, names: object) -> None:
        """Note what a child says that its backend reads; MissingVariables if it must start anew."""
        listed = names if isinstance(names, list) else []
        asked = tuple(x for x in listed[:_MOST_NAMES] if type(x) is str and _NAME.fullmatch(x))
        _asked_for[reference] = tuple(
            {**dict.fromkeys(_asked_for.get(reference, ())), **dict.fromkeys(asked)}
        )
        given = self.environment("")
        if any(name not in given for name in asked if name in inherited()):
            raise MissingVariables(reference)

    @property
    def is_open(self) -> bool:
        """Whether this child is not closed, or none is."""
        return self.closing == "open" or os.environ.get("FUSEWIRE_CHILDREN") == "open"

    def as_argument(self, scratch: str) -> str:
        """Write it for the command line of the child, with the folder that it may write to."""
        closing = "open" if self.is_open else self.closing
        return json.dumps({"closing": closing, "scratch": scratch, "programs": self.programs})

    def environment(self, scratch: str) -> dict[str, str]:
        """Return the environment variables of the child."""
        wanted = {*_INHERITED, *self.variables}
        given = {
            name: text
            for name, text in inherited().items()
            if self.is_open or name in wanted or name.startswith(_PREFIXES)
        }
        # The child imports the same modules as this process.
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        folders = dict.fromkeys(_TEMPORARY, scratch)
        return {**given, "PYTHONPATH": path, **folders}


def inherited() -> dict[str, str]:
    """Return what processes may have of the environment variables of this one."""
    return {name: text for name, text in os.environ.items() if not name.startswith(_WITHHELD)}
