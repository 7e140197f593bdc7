"""What the commands that take a model share: options, inputs and warnings."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np

from fusewire.calibration import Calibration, split_samples
from fusewire.cli.terminal import Terminal
from fusewire.contract.frontend import Reading
from fusewire.errors import SizesNeededError
from fusewire.example import MODEL
from fusewire.ir.dims import Dim, Symbol, evaluate, lone_symbol, symbols
from fusewire.ir.graph import Graph
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type
from fusewire.ops.sample import Draw
from fusewire.options import EXACT, Accuracy, Isolation, Nan, Options
from fusewire.session.model_source import ModelSource

# Assumed sizes of open dims: a batch of one, an image, and anything else.
_BATCH, _PIXELS, _OTHER = 1, 64, 16

# Guesses the size of an open dim from the type of an input and the axis.
Guess = Callable[[Type, int], int]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OPTIONS = (
    click.option(
        "--shape", "shapes", multiple=True, metavar="NAME=1,3,48,320", help="Shape of an input."
    ),
    click.option(
        "--input",
        "files",
        multiple=True,
        metavar="NAME=FILE.npy",
        help="An input: a .npy file, a number, or numbers such as 1,2,3.",
    ),
    click.option("--seed", default=0, help="Seed for generated inputs."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables."),
)


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the model argument and the input options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return click.argument("model", type=_FILE)(command)


def model_or_example(command: Callable[..., None]) -> Callable[..., None]:
    """Add them, and let ``--example`` stand for the model that the package brings."""

    @wraps(command)
    def called(*, model: Path | None, is_example: bool, **given: Any) -> None:
        if (model is None) != is_example:
            raise click.UsageError("Give either a model file, or --example to try a small one.")
        command(model=MODEL if model is None else model, **given)

    for option in reversed(_OPTIONS):
        called = option(called)
    example = click.option(
        "--example", "is_example", is_flag=True, help="Use the model that comes with Fusewire."
    )
    return click.argument("model", type=_FILE, required=False)(example(called))


_BACKEND = click.option(
    "--backend",
    metavar="A,B",
    default="auto",
    help="Engine to use, or several in order; `fusewire backends` lists them.",
)
_COMPILING = (
    click.option("--device", help="Device of the engine, such as cpu."),
    click.option(
        "--level",
        type=int,
        help="0 measures nothing; 1 compares engines, the default with backend auto; 2 also "
        "compares those that compile for long, and every form; 3 also tunes kernels.",
    ),
    click.option(
        "--budget",
        type=float,
        default=20.0,
        show_default=True,
        help="Approximate time limit of a comparison, in seconds.",
    ),
    click.option(
        "--accuracy",
        metavar="BOUND",
        default="exact",
        show_default=True,
        help="Relative error that is allowed, such as 1e-2, or module:function that accepts "
        "outputs; engines may then compute in less than the model's dtypes.",
    ),
    click.option(
        "--nan",
        type=click.Choice(get_args(Nan)),
        default="inputs",
        show_default=True,
        help="NaN and infinities that no engine may lose: those in inputs, or with exact also "
        "those that arise inside.",
    ),
    click.option(
        "--calibrate",
        type=click.Path(exists=True, dir_okay=False),
        metavar="SAMPLES.npz",
        help="Samples for int8 with fixed scales, on which reduced precision is judged, too: an "
        "array for each input, with samples along its first axis.",
    ),
    click.option(
        "--max-fallback-share",
        type=float,
        metavar="SHARE",
        help="Refuse a plan that spends more than this share of its time, such as 0.01, outside of "
        "the engines asked for.",
    ),
    click.option("--threads", type=int, help="Number of threads an engine may use."),
    click.option(
        "--isolate",
        type=click.Choice(get_args(Isolation)),
        default="first",
        show_default=True,
        help="Which calls of an engine run in a child process, with limits.",
    ),
)


def _fallback(default: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--fallback",
        type=click.Choice(["error", "warn", "allow"]),
        default=default,
        show_default=True,
        help="What to do with nodes that the engine refuses.",
    )


def compile_options(
    *, fallback: str = "warn", has_backend: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of ``fw.compile`` to a command, which receives them as ``options``."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:
            options = _taken(given)
            command(options=options, **given)

        added: Callable[..., None] = called
        for option in reversed(_COMPILING):
            added = option(added)
        added = _fallback(fallback)(added)
        return _BACKEND(added) if has_backend else added

    return add


def _taken(given: dict[str, Any]) -> Options:
    """Move the compile options out of the arguments of a command."""
    return Options(
        _policy(given.pop("backend", "auto")),
        given.pop("device"),
        given.pop("level"),
        fallback=given.pop("fallback"),
        nan=given.pop("nan"),
        max_fallback_share=given.pop("max_fallback_share"),
        # A command reports what it measured, and then ends.
        start="measured",
        budget_seconds=given.pop("budget"),
        accuracy=_accuracy(given.pop("accuracy")),
        calibrate=given.pop("calibrate"),
        threads=given.pop("threads"),
        isolate=given.pop("isolate"),
        seed=given.pop("seed"),
    )


def _accuracy(text: str) -> Accuracy:
    """Read a bound, or the name of a function that is imported; UsageError for anything else."""
    if text == EXACT:
        return EXACT
    if ":" in text:
        return imported_function("--accuracy", text)
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(
            f"--accuracy {text}: give exact, a bound such as 1e-2, or module:function."
        ) from None


def imported_function(option: str, text: str) -> Callable[..., Any]:
    """Import a function that the user names as module:function; UsageError if there is none."""
    module, _, name = text.partition(":")
    # As Python does for a script: a file of the user's own, beside where they stand.
    sys.path.insert(0, "")
    try:
        function = getattr(import_module(module), name, None)
    except ImportError as error:
        raise click.UsageError(f"{option} {text}: {error}.") from error
    finally:
        sys.path.remove("")
    if not callable(function):
        raise click.UsageError(f"{option} {text}: {module} has no function {name!r}.")
    return function  # type: ignore[no-any-return]  # a callable is all that is known


def _policy(text: str) -> str | list[str]:
    """Read the name of a backend, or several with commas between them."""
    names = [name.strip() for name in text.split(",")]
    return names if len(names) > 1 else text


def loudly(sentence: str) -> None:
    """Print a sentence that the user should not overlook."""
    Terminal(stderr=True).print(
        sentence, style="bold yellow", markup=False, highlight=False, soft_wrap=True
    )


@dataclass(frozen=True)
class Inputs:
    """Inputs of a model by name, which of them were given, and the sizes assumed for dims."""

    values: Mapping[str, Any]
    given: frozenset[str]
    sizes: Mapping[str, Mapping[str, int]]
    # The reference runs at the assumed sizes; until then they are a guess.
    is_proven: bool = False

    @property
    def assumed(self) -> dict[str, int]:
        """Assumed sizes of all inputs."""
        return {dim: size for sizes in self.sizes.values() for dim, size in sizes.items()}

    def described(self) -> list[dict[str, Any]]:
        """Describe each input, and what was assumed about it."""
        return [
            {
                "name": name,
                "type": _typed(value),
                "is_given": name in self.given,
                "assumed": dict(self.sizes.get(name, {})),
            }
            for name, value in self.values.items()
        ]

    @staticmethod
    def of(
        model: ModelSource,
        shapes: tuple[str, ...],
        files: tuple[str, ...],
        seed: int,
        *,
        guess: Guess | None = None,
        is_quiet: bool = False,
    ) -> Inputs:
        """Take the inputs that are given, generate the rest, and say which sizes that took."""
        types = model.inputs()
        given_inputs = _named(files, types, "--input")
        arrays = {name: _loaded(text, types[name]) for name, text in given_inputs.items()}
        given = {name: _shape(text) for name, text in _named(shapes, types, "--shape").items()}
        given |= {name: array.shape for name, array in arrays.items()}
        known: dict[Symbol, int] = {}
        for name, shape in given.items():
            _bind(name, types[name], shape, known)
        assumed = assume(types, known, guess or _size)
        for name, sizes in {} if is_quiet else assumed.items():
            loudly(
                f"{name} is {types[name]}, and not every size is given: assuming "
                f"{sizes_text(sizes)}. Use --shape {name}=... to choose."
            )
        rng = np.random.default_rng(seed)
        values = {name: _made(type_, known, rng) for name, type_ in types.items()}
        for name, array in arrays.items():
            values[name] = _checked(name, array, types[name])
        return Inputs(values, frozenset(arrays), assumed)

    @staticmethod
    def sampled(
        model: ModelSource, shapes: tuple[str, ...], calibration: Calibration
    ) -> Inputs | None:
        """Take a sample of the user's; None if its sizes are not those asked for."""
        types = model.inputs()
        sample = split_samples(calibration.stacked, types, "--calibrate")[-1]
        asked = {name: _shape(text) for name, text in _named(shapes, types, "--shape").items()}
        if any(sample[name].shape != shape for name, shape in asked.items()):
            return None
        return Inputs(sample, frozenset(sample), {})


def read_graph(model: ModelSource, shapes: tuple[str, ...], files: tuple[str, ...]) -> Graph:
    """Read a model with the sizes it declares, or with sizes that are given or generated."""
    if not shapes and not files:
        try:
            return model.read().graph
        except SizesNeededError as error:
            loudly(f"{error} Sizes are generated.")
    return read_sized(model, shapes, files, 0)


def read_sized(
    model: ModelSource, shapes: tuple[str, ...], files: tuple[str, ...], seed: int
) -> Graph:
    """Read a model with every size known."""
    return model.read(Inputs.of(model, shapes, files, seed).values).graph


def read_open(model: ModelSource, inputs: Inputs) -> tuple[Reading, list[Any]]:
    """Read a model as ``fw.compile`` does, dims open, and give its inputs in their order."""
    try:
        reading = model.read()
    except SizesNeededError:
        reading = model.read(inputs.values, is_open=True)
    return reading, [inputs.values[name] for name in reading.arguments.names]


def _named(texts: tuple[str, ...], types: Mapping[str, Type], option: str) -> dict[str, str]:
    found = {}
    for text in texts:
        name, is_told, rest = text.rpartition("=")
        if not is_told or name not in types:
            raise click.UsageError(
                f"{option} {text}: expected NAME=... with one of the inputs: {', '.join(types)}."
            )
        found[name] = rest
    return found


def _shape(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise click.UsageError(f"--shape {text}: expected numbers, such as 1,3,48,320.")
    return tuple(map(int, parts))


def _loaded(text: str, type_: Type) -> Any:
    """Read an input from a file, or from the numbers themselves."""
    if isinstance(type_, TensorType) and not Path(text).exists():
        try:
            return _numbers(text, type_)
        except ValueError:
            if not text.endswith(".npy"):
                raise click.UsageError(
                    f"--input {text}: it is neither a file nor {type_}. Give a .npy file, a number "
                    "such as 16000, or numbers such as 1,2,3."
                ) from None
    try:
        return np.load(text, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--input {text}: {error}") from error


def _numbers(text: str, type_: TensorType) -> Any:
    """Parse numbers into the dtype of an input, and into its shape if that is known."""
    parts = [part.strip() for part in text.split(",")]
    array = np.array(parts).astype(np.float64 if type_.dtype.is_float else np.int64)
    array = array.astype(type_.dtype.numpy)
    if type_.rank == 0 and len(parts) == 1:
        return array.reshape(())
    leading = [1 if not isinstance(dim, int) else dim for dim in type_.shape[:-1]]
    return array.reshape(*leading, -1) if type_.rank else array


def _bind(name: str, type_: Type, shape: tuple[int, ...], known: dict[Symbol, int]) -> None:
    """Bind the symbols of a type to the sizes of a given shape."""
    if not isinstance(type_, TensorType) or type_.rank != len(shape):
        raise click.UsageError(f"{name} is {type_} in the model, found {list(shape)}.")
    for dim, size in zip(type_.shape, shape, strict=True):
        alone = lone_symbol(dim)
        wanted = known.setdefault(alone, size) if alone is not None else dim
        if isinstance(wanted, int) and wanted != size:
            said = f"{dim} is {wanted}" if alone is not None else f"expected {wanted}"
            raise click.UsageError(f"{name} is {type_}, found {list(shape)}: {said}.")


def assume(
    types: Mapping[str, Type], known: dict[Symbol, int], guess: Guess | None = None
) -> dict[str, dict[str, int]]:
    """Assume sizes for open dims; returns them by input and dim."""
    assumed: dict[str, dict[str, int]] = {}
    for name, type_ in types.items():
        for axis, dim in enumerate(type_.shape if isinstance(type_, TensorType) else ()):
            for symbol in symbols(dim):
                if symbol not in known:
                    known[symbol] = (guess or _size)(type_, axis)
                    assumed.setdefault(name, {})[symbol.name] = known[symbol]
    return assumed


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Write the sizes of dims."""
    return ", ".join(f"{dim} = {size}" for dim, size in sizes.items())


def _size(type_: Type, axis: int) -> int:
    if axis == 0:
        return _BATCH
    is_image = isinstance(type_, TensorType) and type_.rank == 4 and axis >= 2
    return _PIXELS if is_image else _OTHER


def _made(type_: Type, known: Mapping[Symbol, int], rng: np.random.Generator) -> Any:
    """Generate elements: fractions, zeros and ones, a word."""
    if isinstance(type_, SequenceType):
        return [_made(type_.element, known, rng)]
    if isinstance(type_, OptionalType):
        return _made(type_.element, known, rng)
    sizes: dict[Symbol, int] = {s: _OTHER for dim in type_.shape for s in symbols(dim)}
    shape = tuple(_evaluated(dim, {**sizes, **known}) for dim in type_.shape)
    return Draw(shape, low=0.0, high=1.0).make(type_.dtype, rng)


def _evaluated(dim: Dim, known: Mapping[Symbol, int]) -> int:
    return max(evaluate(dim, known), 0)


def _typed(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    of = "string" if value.dtype == object else str(value.dtype)
    return f"{of}[{', '.join(map(str, value.shape))}]"


def _checked(name: str, array: Any, type_: Type) -> Any:
    assert isinstance(type_, TensorType)
    if array.dtype != type_.dtype.numpy:
        raise click.UsageError(f"{name} is {type_}, but the file holds {array.dtype}.")
    return array


def plain(number: float) -> float | str:
    """Return a number in a form that JSON can hold."""
    return number if math.isfinite(number) else str(number)
