"""What commands about a model share: its options, inputs given or made up, and how it fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from fusewire.errors import FusewireError, OptionsError, RegistryError, SizesNeededError
from fusewire.frontend import Limits
from fusewire.ir.dims import Dim, Symbol, evaluate, lone_symbol, symbols
from fusewire.ir.graph import Graph
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type
from fusewire.ops.sample import Draw
from fusewire.registry import REGISTRY

# Sizes of dims that nobody specified: a batch of one, an image, and anything else.
_BATCH, _PIXELS, _OTHER = 1, 64, 16

_OPTIONS = (
    click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
    click.option("--shape", "shapes", multiple=True, metavar="NAME=1,3,48,320",
                 help="The shape of an input."),
    click.option("--input", "files", multiple=True, metavar="NAME=FILE.npy",
                 help="The elements of an input."),
    click.option("--seed", default=0, help="What inputs that are made up begin from."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables."),
)  # fmt: skip


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the model, and how its inputs are told, to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@contextmanager
def failing() -> Iterator[None]:
    """End with 2 for a wrong option and with 1 for whatever else is refused, and say why."""
    try:
        yield
    except (OptionsError, RegistryError) as error:
        raise click.UsageError(str(error)) from error
    except FusewireError as error:
        raise click.ClickException(str(error)) from error


def loudly(sentence: str) -> None:
    """Say what the user should not overlook."""
    Console(stderr=True).print(
        sentence, style="bold yellow", markup=False, highlight=False, soft_wrap=True
    )


@dataclass(frozen=True)
class Inputs:
    """Inputs of a model by name, and the sizes that were made up for dims."""

    values: Mapping[str, Any]
    assumed: Mapping[str, int]

    @staticmethod
    def of(model: Path, shapes: tuple[str, ...], files: tuple[str, ...], seed: int) -> Inputs:
        """Take what is given, make up the rest, and say which sizes that took."""
        types = REGISTRY.frontend_for(model).inputs(model, Limits())
        arrays = {name: _loaded(text) for name, text in _named(files, types, "--input").items()}
        given = {name: _shape(text) for name, text in _named(shapes, types, "--shape").items()}
        given |= {name: array.shape for name, array in arrays.items()}
        known: dict[Symbol, int] = {}
        for name, shape in given.items():
            _bind(name, types[name], shape, known)
        assumed = assume(types, known)
        for name, sizes in assumed.items():
            said = ", ".join(f"{dim} = {size}" for dim, size in sizes.items())
            loudly(
                f"{name} is {types[name]}, and not all of it is given: {said}. "
                f"Say --shape {name}=... to choose."
            )
        rng = np.random.default_rng(seed)
        values = {name: _made(type_, known, rng) for name, type_ in types.items()}
        for name, array in arrays.items():
            values[name] = _checked(name, array, types[name])
        return Inputs(values, {d: n for sizes in assumed.values() for d, n in sizes.items()})


def read_graph(model: Path, shapes: tuple[str, ...], files: tuple[str, ...]) -> Graph:
    """Read a model as far as it tells its sizes, or with sizes that are given or made up."""
    frontend = REGISTRY.frontend_for(model)
    if not shapes and not files:
        try:
            return frontend.read(model)
        except SizesNeededError as error:
            loudly(f"{error} Sizes are made up.")
    values = Inputs.of(model, shapes, files, 0).values
    return frontend.convert(model, values, Limits()).graph


def _named(texts: tuple[str, ...], types: Mapping[str, Type], option: str) -> dict[str, str]:
    found = {}
    for text in texts:
        name, is_told, rest = text.rpartition("=")
        if not is_told or name not in types:
            raise click.UsageError(
                f"{option} {text}: say NAME=... with one of the model's inputs: {', '.join(types)}."
            )
        found[name] = rest
    return found


def _shape(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise click.UsageError(f"--shape {text}: a shape is numbers such as 1,3,48,320.")
    return tuple(map(int, parts))


def _loaded(text: str) -> Any:
    try:
        return np.load(text, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--input {text}: {error}") from error


def _bind(name: str, type_: Type, shape: tuple[int, ...], known: dict[Symbol, int]) -> None:
    """Learn sizes from a shape that is given."""
    if not isinstance(type_, TensorType) or type_.rank != len(shape):
        raise click.UsageError(f"{name} is {type_} in the model, found {list(shape)}.")
    for dim, size in zip(type_.shape, shape, strict=True):
        alone = lone_symbol(dim)
        wanted = known.setdefault(alone, size) if alone is not None else dim
        if isinstance(wanted, int) and wanted != size:
            said = f"{dim} is {wanted}" if alone is not None else f"{wanted} is wanted"
            raise click.UsageError(f"{name} is {type_}, found {list(shape)}: {said}.")


def assume(types: Mapping[str, Type], known: dict[Symbol, int]) -> dict[str, dict[str, int]]:
    """Make up sizes that nobody specified; gives them by input and dim."""
    assumed: dict[str, dict[str, int]] = {}
    for name, type_ in types.items():
        for axis, dim in enumerate(type_.shape if isinstance(type_, TensorType) else ()):
            for symbol in symbols(dim):
                if symbol not in known:
                    known[symbol] = _size(type_, axis)
                    assumed.setdefault(name, {})[symbol.name] = known[symbol]
    return assumed


def _size(type_: Type, axis: int) -> int:
    if axis == 0:
        return _BATCH
    is_image = isinstance(type_, TensorType) and type_.rank == 4 and axis >= 2
    return _PIXELS if is_image else _OTHER


def _made(type_: Type, known: Mapping[Symbol, int], rng: np.random.Generator) -> Any:
    """Make up elements: fractions, zeros and ones, a word."""
    if isinstance(type_, SequenceType):
        return [_made(type_.element, known, rng)]
    if isinstance(type_, OptionalType):
        return _made(type_.element, known, rng)
    sizes: dict[Symbol, int] = {s: _OTHER for dim in type_.shape for s in symbols(dim)}
    shape = tuple(_evaluated(dim, {**sizes, **known}) for dim in type_.shape)
    return Draw(shape, low=0.0, high=1.0).make(type_.dtype, rng)


def _evaluated(dim: Dim, known: Mapping[Symbol, int]) -> int:
    return max(evaluate(dim, known), 0)


def _checked(name: str, array: Any, type_: Type) -> Any:
    assert isinstance(type_, TensorType)
    if array.dtype != type_.dtype.numpy:
        raise click.UsageError(f"{name} is {type_}, and the file holds {array.dtype}.")
    return array


def plain(number: float) -> float | str:
    """Give a number as JSON can hold it."""
    return number if math.isfinite(number) else str(number)
