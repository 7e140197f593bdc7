"""Calls of NumPy's functions while tracing: by NumPy, by our table, or by tracing NumPy's code."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import ops
from fusewire.errors import TraceError
from fusewire.frontends.trace import (
    algebra,
    creation,
    joining,
    movement,
    ordering,
    reductions,
    selection,
)
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.sizes import Size
from fusewire.frontends.trace.table import Replacement, promoted

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording
    from fusewire.frontends.trace.tracer import Tracer

_MODULES = (creation, movement, joining, reductions, selection, ordering, algebra)
ROWS: dict[Any, Replacement] = {
    f: row for module in _MODULES for f, row in module.TABLE.rows.items()
}
# NumPy's own code calls the functions behind its public ones.
_BEHIND = {getattr(f, "_implementation", None): row for f, row in ROWS.items()}
_ADVICE = {
    "eig": "np.linalg.eigh, for symmetric matrices",
    "eigvals": "np.linalg.eigvalsh, for symmetric matrices",
    "lstsq": "np.linalg.pinv(a) @ b, or np.linalg.solve(a.T @ a, a.T @ b)",
    "as_strided": "np.lib.stride_tricks.sliding_window_view, or slices and reshape",
    "nanmedian": "np.nanmean, or np.median after np.nan_to_num",
    "nanquantile": "np.quantile after np.nan_to_num",
    "nanpercentile": "np.percentile after np.nan_to_num",
    "fromiter": "np.stack of a list",
    "vectorize": "the function on whole arrays, with np.where for its branches",
}


def call(trace: Recording, function: Any, given: Any, more: Any) -> Any:
    """Call a NumPy function on traced arrays."""
    row = ROWS.get(function) or _BEHIND.get(function)
    args, options, out = _without_out(function, given, dict(more))
    if row is not None and (row.takes_known or is_unknown((args, options))):
        found = row.handler(trace, *args, **options)
    elif not is_unknown((args, options)):
        found = function(*plain(args), **plain(options))
        if row is None and _is_view(found, args):
            # By its code, because the result must stay a view.
            return _by_its_code(trace, function, given, more)
        found = trace.lift(found)
    else:
        return _by_its_code(trace, function, given, more)
    if out is None:
        return found
    trace.array(out).assign(found)
    return out


def _is_view(found: Any, args: Any) -> bool:
    """Return whether a result may share memory with a known array."""
    arrays = [x.known for x in leaves(args) if isinstance(x, _tracer())]
    results = [x for x in leaves(found) if isinstance(x, np.ndarray)]
    return any(np.may_share_memory(x, y) for x in results for y in arrays)


@cache
def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except ValueError:
        return None


def _without_out(function: Any, args: Any, options: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Take ``out`` from the arguments, even if it is positional."""
    if options.get("out", 0) is None:
        del options["out"]
    signature = _signature(function)
    if signature is None or "out" not in signature.parameters:
        return args, options, None
    if len(args) <= [*signature.parameters].index("out"):
        return args, options, options.pop("out", None)
    bound = signature.bind(*args, **options)
    out = bound.arguments.pop("out", None)
    return bound.args, bound.kwargs, out


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of nested tuples, lists and dicts."""
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        yield tree
        return
    for item in tree:
        yield from leaves(item)


def _tracer() -> type[Tracer]:
    from fusewire.frontends.trace.tracer import Tracer

    return Tracer


def is_unknown(tree: Any) -> bool:
    """Return whether anything in a tree is known only when the program runs."""
    kind = _tracer()
    return any(
        isinstance(leaf, Size) or (isinstance(leaf, kind) and leaf.known is None)
        for leaf in leaves(tree)
    )


def plain(tree: Any) -> Any:
    """Replace known traced arrays by real ones."""
    if isinstance(tree, dict):
        return {key: plain(item) for key, item in tree.items()}
    if type(tree) in (tuple, list):
        return type(tree)(plain(item) for item in tree)
    return tree.known if isinstance(tree, _tracer()) else tree


def nested(trace: Recording, x: Any, of: Any = None) -> Tracer:
    """Make an array of nested lists, as np.array does, even if some elements are traced."""
    if not is_unknown(x):
        return trace.known(np.asarray(plain(x), of))
    if isinstance(x, _tracer() | Size):
        array = trace.array(x)
        return array if of is None else array.astype(of, copy=False)
    rows = [nested(trace, item, of) for item in x]
    common = promoted(rows)
    return trace.wrap(
        trace.checked(ops.stack, *(trace.value(row, common) for row in rows), axis=0),
        is_scalar=False,
    )


def _by_its_code(trace: Recording, function: Any, args: Any, options: Any) -> Any:
    """Trace NumPy's own Python code of a function, which calls functions in our table."""
    name = name_of(function)
    code = getattr(function, "_implementation", function)
    if not isinstance(code, FunctionType) or code.__name__ in _ADVICE:
        raise refusal(f"{name} cannot be traced. {_instead(function)}")
    try:
        return trace.rebinder.function(code)(*args, **options)
    except TraceError as error:
        # The cause comes with its own advice; a name that looks alike would only distract.
        sentence = str(error).rpartition("\n  ")[2]
        raise refusal(f"{name} cannot be traced: {sentence}") from error


def name_of(function: Any) -> str:
    """Name a function as users do."""
    module = getattr(function, "__module__", None) or "numpy"
    return f"{module}.{function.__name__}".replace("numpy", "np", 1)


def _instead(function: Any) -> str:
    advice = _ADVICE.get(function.__name__)
    if advice is not None:
        return f"Use {advice}."
    names = {f.__name__: name_of(f) for f in ROWS if getattr(f, "__module__", None)}
    near = difflib.get_close_matches(function.__name__, names, 3)
    return f"Similar: {', '.join(names[word] for word in near)}." if near else ""
