"""``fw.capture``: several programs, and what they hand over to each other, as one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Unpack

from fusewire import compiler
from fusewire.contract.frontend import Spec
from fusewire.errors import GraphError, OptionsError
from fusewire.ops.operand import PROGRAMS_MET
from fusewire.options import FALLBACK, OptionFields, Options
from fusewire.program.program import Program
from fusewire.session.model_source import ModelSource


def capture(
    function: Callable[..., Any], *example: Any, **options: Unpack[OptionFields]
) -> Program:
    """Record a function that calls programs, to launch all of it many times with new inputs.

    The function is traced: the programs that it calls become parts of one graph, with their
    hand-overs and the NumPy code between them. That graph is planned, judged and timed like any
    other, and the function itself, which calls one program after the other, is a candidate where
    engines are compared. ``example`` has arrays or Specs; other shapes are recorded when they first
    come. Options are those of the programs, unless given: OptionsError if they differ.

    >>> import fusewire as fw
    >>> import numpy as np
    >>> double = fw.compile(lambda x: x + x, backend="reference")
    >>> square = fw.compile(lambda x: x * x, backend="reference")
    >>> both = capture(lambda x: square(double(x)), np.ones(2, np.float32))
    >>> both(np.array([1, 3], np.float32))
    array([ 4., 36.], dtype=float32)
    """
    programs = _called_by(function, example)
    chosen = _shared_options(programs, options)
    if any(isinstance(leaf, Spec) for leaf in example):
        return compiler.compile(function, *example, options=chosen)
    captured = compiler.compile(function, options=chosen)
    captured.entry(example)
    return captured


def _called_by(function: Callable[..., Any], example: tuple[Any, ...]) -> list[Any]:
    """List the programs that a function calls, by tracing it."""
    if not example:
        raise GraphError("Nothing was given to record a call with. Give arrays or Specs after it.")
    called: list[Any] = []
    token = PROGRAMS_MET.set(called)
    try:
        ModelSource(function).read(example)
    finally:
        PROGRAMS_MET.reset(token)
    if not called:
        name = getattr(function, "__name__", type(function).__name__)
        raise GraphError(f"{name} calls no program. To compile it by itself, use fw.compile.")
    return list(dict.fromkeys(called))


def _shared_options(programs: Sequence[Any], given: OptionFields) -> Options:
    """Merge the options of programs under those that are given."""
    known = [program.options or Options() for program in programs]
    first = known[0]
    for one in fields(Options):
        if one.name in given or one.name in ("backend", "progress"):
            continue
        if any(getattr(options, one.name) != getattr(first, one.name) for options in known):
            values = " and ".join({repr(getattr(options, one.name)): None for options in known})
            raise OptionsError(
                f"The captured programs were compiled with {one.name} {values}. "
                f"Say which: fw.capture(..., {one.name}=...)."
            )
    all_names = dict.fromkeys(name for options in known for name in options.backend_names)
    # What comes after the fallback would get nothing.
    names = tuple(sorted(all_names, key=lambda name: name == FALLBACK))
    is_named = all(options.backend_names for options in known)
    backend = (names if len(names) > 1 else names[0]) if is_named else first.backend
    return Options.of(replace(first, backend=backend), given)
