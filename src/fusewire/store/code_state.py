"""Fingerprints of code, by its content: the same code is the same on every machine."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusewire.ir.graph import Graph
from fusewire.ops.outside import OUTSIDE
from fusewire.store.disk import shared_store
from fusewire.store.stamps import files_digest

if TYPE_CHECKING:
    from fusewire.ops.declare import Op

# Compiled kernels that lie beside the code are a part of it.
_SUFFIXES = (".py", ".json", ".wgsl", ".cubin", ".hsaco")
# Stands for code that cannot be fingerprinted: what is recorded about it is found by nobody else.
UNKNOWN = os.urandom(8).hex()


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


def meaning_state(op: Op[Any]) -> str | None:
    """Fingerprint the code that says what an op means and on what it is tried; None as above.

    A type rule may be one of ours, while the meaning is the package's.
    """
    functions = (op.rule, op.reference, op.expand, op.samples)
    modules = {getattr(x, "__module__", None) or "" for x in functions if x is not None}
    if "." in op.name:
        modules.add(OUTSIDE.module(op.name))
    states = [module_state(name) if name else None for name in sorted(modules)]
    known = [state for state in states if state is not None]
    return " ".join(known) if len(known) == len(states) else None


def meanings_state(graph: Graph) -> str:
    """Fingerprint the meanings of the ops of packages that a graph holds; "" if it holds none."""
    names = {node.op for part in graph.walk() for node in part.nodes if "." in node.op}
    if not names:
        return ""
    # It imports all families of ops.
    from fusewire.ops.table import get_op

    return " ".join(meaning_state(get_op(name)) or UNKNOWN for name in sorted(names))


def _spec(name: str) -> Any:
    try:
        return find_spec(name)
    except (ValueError, ImportError):
        # A module without a spec, such as __main__.
        return None
