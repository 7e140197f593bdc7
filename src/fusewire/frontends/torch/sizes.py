"""Sizes that PyTorch leaves open, as dims; and dims as the sizes that torch.export is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from fusewire.errors import TraceError
from fusewire.ir.dims import Dim, ceildiv, dim_max, dim_min, floordiv


def _modulo(left: Dim, right: Dim) -> Dim:
    return left - floordiv(left, right) * right


def _product(left: Dim, right: Dim) -> Dim:
    return left * right


# By the names of sympy's classes and of PyTorch's own functions.
_FUNCTIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "Add": lambda left, right: left + right,
    "Mul": _product,
    "FloorDiv": floordiv,
    "CleanDiv": floordiv,
    "CeilDiv": ceildiv,
    "Mod": _modulo,
    "PythonMod": _modulo,
    "Max": dim_max,
    "Min": dim_min,
}


def dim_from(expression: Any, known: Mapping[str, Dim]) -> Dim:
    """Translate a sympy expression; ``known`` has the dims of its symbols, by name."""
    if isinstance(expression, int) or expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        if expression.name not in known:
            raise TraceError(
                f"The size {expression.name} depends on the elements of a tensor, which are known "
                "only when the module runs. Use a size that the shapes of arguments give."
            )
        return known[expression.name]
    return _applied(expression, known)


def _applied(expression: Any, known: Mapping[str, Dim]) -> Dim:
    name, arguments = type(expression).__name__, expression.args
    if name == "Pow" and arguments[1].is_Integer and int(arguments[1]) > 0:
        return reduce(_product, [dim_from(arguments[0], known)] * int(arguments[1]))
    if name in ("CeilToInt", "FloorToInt") and type(arguments[0]).__name__ == "IntTrueDiv":
        divide = ceildiv if name == "CeilToInt" else floordiv
        left, right = arguments[0].args
        return divide(dim_from(left, known), dim_from(right, known))
    function = _FUNCTIONS.get(name)
    if function is None:
        raise TraceError(
            f"The size {expression} cannot be written with +, *, // , max and min of sizes. "
            "Compile the module for sizes that are numbers."
        )
    return reduce(function, [dim_from(item, known) for item in arguments])
