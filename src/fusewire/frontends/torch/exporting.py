"""Have PyTorch export a call: a functional graph that keeps the ops for which we have one.

Ops for which the table has a row stay as they are; others are decomposed with PyTorch's own tables,
until only those are left that nothing decomposes. torch.export is imported here only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fusewire.errors import EngineError, TraceError
from fusewire.frontends.torch.aten.table import aten_rows
from fusewire.frontends.torch.flat_call import FlatCall
from fusewire.frontends.torch.location import located, raised_at
from fusewire.frontends.torch.quiet import quiet_export
from fusewire.frontends.torch.ranges import Range
from fusewire.frontends.torch.tensors import torch_dtype
from fusewire.ir.dims import Sym, Symbol, evaluate, lone_symbol, symbols
from fusewire.ir.types import TensorType
from fusewire.process.guard import guarded

# What to do, by a part of the name of the exception.
_ADVICE = {
    "DataDependent": "Code that branches on elements of tensors has no graph: use torch.where or "
    "torch.cond there.",
    "Unbacked": "Sizes that depend on elements of tensors cannot be used there.",
    "Constraint": "The module works for some sizes only: give numbers for them.",
    "UserError": "The module works for some sizes only: give numbers for them, or change the line.",
}
_OTHERWISE = "Change the line, or leave the module as it is: it runs on PyTorch."
# The first size that is tried for an open dim of which nothing is known, and the step to the next.
_FIRST_HINT, _HINT_STEP = 8, 4
# ATen, and what PyTorch's flows of quantization write. No name is in both.
_NAMESPACES = ("aten", "quantized_decomposed")
# Ops by which a module asserts something of elements of tensors.
ASSERTIONS = frozenset({"_assert_async.default", "_assert_async.msg"})
# Sizes 0 and 1 have a meaning of their own: torch.export takes them as numbers.
_LEAST_HINT = 2


# A size may be limited by another once that is limited.
_MOST_TRIES = 3
_FIX = re.compile(r"(\w+) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(?:(\d+)|oo|int_oo))?\)")


_VIOLATED = re.compile(r"Constraints violated \(([\w, ]+)\)!")
_UNEQUAL = re.compile(r" != \d+\.?$")
_LARGER = 4


def exported(call: FlatCall, types: Sequence[TensorType]) -> Any:
    """Export a call for arguments of these types; TraceError says why that cannot be."""
    try:
        return guarded("torch.export", "compile", call.label, _exported, call, types)
    except EngineError as error:
        raise _refused(call.label, error.__cause__) from error.__cause__


def decomposed_program(program: Any) -> Any:
    """Decompose an exported program of a user; TraceError says why that cannot be."""
    try:
        return guarded("torch.export", "compile", "the program", decomposed, program)
    except EngineError as error:
        raise _refused("the program", error.__cause__) from error.__cause__


def _refused(label: str, cause: BaseException | None) -> TraceError:
    """Say in a sentence why there is no graph, with the line of the user's module."""
    if isinstance(cause, TraceError):
        return cause
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    said = f"{type(cause).__name__}: {' '.join(lines[:2])}"[:400].rstrip(".:")
    name = type(cause).__name__
    advice = next((text for part, text in _ADVICE.items() if part in name), _OTHERWISE)
    where = raised_at(cause)
    return located(f"torch.export cannot make a graph of {label}: {said}. {advice}", where)


def _exported(call: FlatCall, types: Sequence[TensorType]) -> Any:
    ranges: dict[str, Range] = {}
    for _ in range(_MOST_TRIES):
        try:
            return _exported_within(call, types, ranges)
        except RuntimeError as error:
            # A UserError of torch.export, among others, which suggest nothing.
            narrower = _suggested(str(error))
            if narrower is None or narrower.items() <= ranges.items():
                raise
            ranges |= narrower
    return _exported_within(call, types, ranges)


def _suggested(message: str) -> dict[str, Range] | None:
    """Read the ranges of sizes that torch.export suggests; None if it suggests anything else."""
    _, found, fixes = message.partition("Suggested fixes:")
    if not found:
        return _larger(message)
    lines = [line for line in fixes.strip().split("\n\n")[0].splitlines() if line.strip()]
    matches = [_FIX.fullmatch(line.strip()) for line in lines]
    if not lines or not all(matches):
        return None
    return {
        match[1]: (int(match[2] or _LEAST_HINT), int(match[3]) if match[3] else None)
        for match in matches
        if match
    }


def _larger(message: str) -> dict[str, Range] | None:
    """Leave out small sizes where the code is traced for parts of them that are not 0 or 1."""
    names = _VIOLATED.search(message)
    guards = [line for line in message.splitlines() if "generated guard" in line]
    if names is None or not guards or not all(_UNEQUAL.search(guard) for guard in guards):
        return None
    return dict.fromkeys(names[1].split(", "), (_LARGER, None))


def _exported_within(
    call: FlatCall, types: Sequence[TensorType], ranges: Mapping[str, Range]
) -> Any:
    import torch

    hints = _hints(call, types)
    dims: dict[str, Any] = {}
    example = tuple(
        torch.empty([evaluate(dim, hints) for dim in type_.shape], dtype=torch_dtype(type_.dtype))
        for type_ in types
    )
    shapes = tuple(
        {
            axis: _open(dim, dims, ranges)
            for axis, dim in enumerate(type_.shape)
            if isinstance(dim, Sym)
        }
        for type_ in types
    )
    with torch.no_grad(), quiet_export():
        program = torch.export.export(
            _module(call), example, dynamic_shapes={"tensors": shapes}, strict=False
        )
        return decomposed(program)


def _module(call: FlatCall) -> Any:
    """Make a module of a call, which has its module inside: torch.export takes nothing else."""
    import torch

    class Call(torch.nn.Module):  # type: ignore[misc] # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.module = call.module

        def forward(self, *tensors: Any) -> Any:
            return tuple(call.function(*tensors))

    return Call().eval() if call.module is None else _in_mode(Call(), call.module.training)


def _in_mode(wrapper: Any, training: bool) -> Any:
    # Only the flag of the wrapper: train() would change the modules inside.
    wrapper.training = training
    return wrapper


def _hints(call: FlatCall, types: Sequence[TensorType]) -> dict[Symbol, int]:
    """Choose a size for each open dim: that of the latest conversion, if there was one."""
    hints: dict[Symbol, int] = {}
    for type_, sizes in zip(types, call.sizes, strict=False):
        for dim, size in zip(type_.shape, sizes, strict=False):
            alone = lone_symbol(dim)
            if alone is not None and size >= _LEAST_HINT:
                hints.setdefault(alone, size)
    for type_ in types:
        for dim in type_.shape:
            for symbol in symbols(dim):
                hints.setdefault(symbol, _FIRST_HINT + _HINT_STEP * len(hints))
    return hints


def _open(dim: Sym, dims: dict[str, Any], ranges: Mapping[str, Range]) -> Any:
    """Translate an open dim to torch.export's: a symbol times a number, plus a number."""
    import torch

    total: Any = None
    offset = 0
    for monomial, factor in dim.terms:
        if not monomial:
            offset = factor
            continue
        ((atom, power), *more) = monomial
        if more or power != 1 or not isinstance(atom, Symbol) or total is not None:
            raise TraceError(
                f"The dim {dim} of an argument cannot be given to torch.export, which takes a name "
                "times a number plus a number. Name the dim."
            )
        name = _plain(atom.name)
        least, most = ranges.get(name, (None, None))
        total = dims.setdefault(name, torch.export.Dim(name, min=least, max=most))
        total = total if factor == 1 else factor * total
    return total + offset if offset else total


def _plain(name: str) -> str:
    return name if name.isidentifier() else "".join(x if x.isalnum() else "_" for x in f"n_{name}")


def decomposed(program: Any) -> Any:
    """Decompose the ops for which there is no row, and make those that write functional."""
    if not _needs_decomposing(program.graph_module):
        return program
    with quiet_export():
        return program.run_decompositions(decompositions())


def _needs_decomposing(module: Any) -> bool:
    rows = aten_rows()
    for graph_module in module.modules():
        for node in getattr(graph_module, "graph", _EMPTY).nodes:
            if getattr(node.target, "__name__", "") == "wrap_with_autocast" and node.args[2]:
                # Tracing once more writes out what autocast casts.
                return True
            schema = getattr(node.target, "_schema", None)
            if node.op != "call_function" or schema is None:
                continue
            name = row_name(node.target)
            if schema.is_mutable or (name not in rows and name not in ASSERTIONS):
                return True
    return False


class _EMPTY:
    """Stands in for the graph of a module that has none."""

    nodes: tuple[Any, ...] = ()


def row_name(target: Any) -> str | None:
    """Name an op as the table does; None for ops that are neither ATen's nor of codes."""
    namespace, _, name = str(target).partition(".")
    return name if namespace in _NAMESPACES else None


@cache
def decompositions() -> Mapping[Any, Any]:
    """Collect PyTorch's decompositions of the ops that the table lacks."""
    import torch
    from torch._decomp import decomposition_table

    rows = aten_rows()
    table: dict[Any, Any] = {}
    for source in (torch.export.default_decompositions(), decomposition_table):
        for op, decompose in source.items():
            if hasattr(op, "_schema") and row_name(op) not in rows:
                table.setdefault(op, decompose)
    return table
