"""Fingerprints of code, by its content: the same code is the same on every machine."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fusewire.store.disk import shared_store
from fusewire.store.stamps import files_digest

# Compiled kernels that lie beside the code are a part of it.
_SUFFIXES = (".py", ".json", ".wgsl", ".cubin", ".hsaco")


@cache
def state_of(folder: str, without: tuple[str, ...] = ()) -> str:
    """Fingerprint a folder of code."""
    files, folders = [], [folder]
    for path in folders:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIXES):
                    files.append((entry.path, entry.stat()))
                elif "." in entry.name or entry.name == "__pycache__" or entry.path in without:
                    continue
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return files_digest(folder, files, shared_store())[:16]


def module_state(name: str) -> str | None:
    """Fingerprint the outermost package with code that a module is in, or the module alone.

    A namespace package has no code of its own, and what else is in it belongs to others. None if
    there is no file to look at, as for what was typed in: nothing about it can be remembered.
    """
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:count]))
        if spec is None:
            return None
        if spec.origin is None or not Path(spec.origin).is_file():
            continue
        if spec.submodule_search_locations:
            return state_of(str(Path(spec.origin).parent))
        return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:16]
    return None


def _spec(name: str) -> Any:
    try:
        return find_spec(name)
    except (ValueError, ImportError):
        # A module without a spec, such as __main__.
        return None
