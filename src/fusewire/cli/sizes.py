"""Sizes that nobody gave: guesses, and what to do if nothing runs at them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import click

from fusewire.cli.model import Inputs, loudly, sizes_text
from fusewire.compiler import Session
from fusewire.errors import FusewireError, OptionsError, RegistryError
from fusewire.ir.types import TensorType, Type
from fusewire.options import Options
from fusewire.session.model_source import ModelSource

# Sizes that models are often made for, in the order in which they are tried.
USUAL = (16, 64, 256, 512, 1024)
# Seconds that the reference may take at each.
_DEADLINE = 10.0
# Seconds that it may take in any case.
_LEAST_DEADLINE = 1.0

Used = TypeVar("Used")


def with_usual_sizes(
    model: ModelSource,
    shapes: tuple[str, ...],
    files: tuple[str, ...],
    options: Options,
    use: Callable[[Inputs], Used],
    end: float = math.inf,
) -> Used:
    """Use inputs of the first guess; if nothing runs, of sizes at which the reference runs.

    Guesses do not run for long after ``end``, a time of ``time.monotonic()``. With samples of
    inputs to calibrate with, one of them is used: generated ones are unlike it.
    """
    if options.calibrate is not None and not files:
        sample = Inputs.sampled(model, shapes, options.calibrate)
        if sample is not None:
            return use(sample)
    make = partial(Inputs.of, model, shapes, files, options.seed)
    first = make()
    try:
        return use(first)
    except (OptionsError, RegistryError):
        raise
    except FusewireError as error:
        if not first.assumed:
            raise
        found = next(filter(partial(_runs, model, end), _guesses(make, first)), None)
        if found is None:
            raise click.UsageError(_question(model, first, error)) from error
    loudly(
        f"Nothing runs at the assumed sizes ({sizes_text(first.assumed)}). Using "
        f"{sizes_text(found.assumed)}, at which the reference runs; --shape chooses others."
    )
    return use(replace(found, is_proven=True))


def _guesses(make: Callable[..., Inputs], first: Inputs) -> Iterator[Inputs]:
    tried = [first.assumed]
    for size in USUAL:
        for guess in (partial(_every, size), partial(_last, size)):
            inputs = make(guess=guess, is_quiet=True)
            if inputs.assumed not in tried:
                tried.append(inputs.assumed)
                yield inputs


def _every(size: int, type_: Type, axis: int) -> int:
    """Guess that every dim but the first has this size."""
    return 1 if axis == 0 else size


def _last(size: int, type_: Type, axis: int) -> int:
    """Guess that only the last dim does, or both of an image; states often lead with ones."""
    rank = type_.rank if isinstance(type_, TensorType) else 0
    return size if axis and (axis == rank - 1 or (rank == 4 and axis >= 2)) else 1


def _runs(model: ModelSource, end: float, inputs: Inputs) -> bool:
    seconds = min(_DEADLINE, max(end - time.monotonic(), _LEAST_DEADLINE))
    options = Options(backend="reference", isolate="never", deadline=seconds, cache=False)
    try:
        program = Session(options).program(ModelSource(model.source))
        program.run(**_by_name(inputs))
    except FusewireError:
        return False
    return True


def _by_name(inputs: Inputs) -> dict[str, Any]:
    return dict(inputs.values)


def _question(model: ModelSource, first: Inputs, error: FusewireError) -> str:
    name = next(iter(first.sizes))
    tried = ", ".join(map(str, USUAL))
    return (
        f"Nothing runs {model.name} at the assumed sizes ({sizes_text(first.assumed)}; {tried} "
        f"were tried too). Give the sizes that it was made for, such as --shape {name}=1,512. "
        f"The first error was: {error}"
    )
