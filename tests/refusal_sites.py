"""Where type rules and importers refuse, and which of these places bad samples reach.

A place is a call that can refuse, such as ``require(...)`` or ``call.refuse(...)``. A bad sample
reaches it if the error it is refused with was raised there or below.
"""

from __future__ import annotations

import ast
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

Site = tuple[str, int, int]

# Calls in type rules that refuse, and are more than their own sentence.
CHECKS = frozenset({
    "require", "require_dims", "same_dim", "same_dtype", "axis_of", "axes_of", "broadcast_shapes",
    "broadcast_types",
})  # fmt: skip


def type_rule_checks(node: ast.AST) -> bool:
    """Tell whether it is a check that type rules share, or raises a TypeRuleError."""
    if isinstance(node, ast.Raise):
        return isinstance(node.exc, ast.Call) and _name(node.exc.func) == "TypeRuleError"
    return isinstance(node, ast.Call) and _name(node.func) in CHECKS


def importer_refusals(node: ast.AST) -> bool:
    """Tell whether it is ``call.refuse(...)``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "refuse"
    )


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else ""


def sites(files: Iterable[Path], is_site: Callable[[ast.AST], bool]) -> set[Site]:
    """List the places of files: file, first line, last line."""
    return {
        (str(file), node.lineno, node.end_lineno or node.lineno)
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.expr | ast.stmt) and is_site(node)
    }


def lines_of(error: BaseException | None) -> set[tuple[str, int]]:
    """List the lines through which an error came, and those that it replaced."""
    found: set[tuple[str, int]] = set()
    while error is not None:
        for frame, line in traceback.walk_tb(error.__traceback__):
            found.add((frame.f_code.co_filename, line))
        error = error.__context__
    return found


def reached(places: Iterable[Site], lines: set[tuple[str, int]]) -> set[Site]:
    """Keep the places that errors came through."""
    return {
        (file, first, last)
        for file, first, last in places
        if any((file, line) in lines for line in range(first, last + 1))
    }
