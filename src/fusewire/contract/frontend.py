"""The contract between Fusewire and a reader of sources: functions, files, modules of others.

A frontend turns a source into a graph, and maps nested arguments and results to the graph's flat
inputs and outputs. Must never name a frontend.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from fusewire.dtypes import DType, DTypeLike, dtype
from fusewire.errors import DimError, ShapeMismatchError, SourceError
from fusewire.ir.dims import Dim, Shape, Sym
from fusewire.ir.graph import Graph
from fusewire.ir.parse import parse_dim
from fusewire.ir.types import TensorType, Type

if TYPE_CHECKING:
    from fusewire.contract.calling import Calling
    from fusewire.contract.model_file import ModelFile

# Positional arguments in order, or arguments by name.
Example: TypeAlias = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True, init=False)
class Spec:
    """The shape and dtype of an array.

    >>> Spec((3, "n", "2*n + 1"), "float32")
    Spec(float32[3, n, 2*n+1])
    """

    shape: Shape
    dtype: DType

    def __init__(self, shape: Sequence[int | str | Sym], dtype_: DTypeLike = "float32") -> None:
        """Dims may be ints, names or expressions of names; each name must be a whole dim once."""
        object.__setattr__(self, "shape", tuple(_dim(dim) for dim in shape))
        object.__setattr__(self, "dtype", dtype(dtype_))

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    def __repr__(self) -> str:
        return f"Spec({self.type})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as text: there is one object for each dtype of a process."""
        dims = tuple(dim if isinstance(dim, int) else str(dim) for dim in self.shape)
        return Spec, (dims, self.dtype.name)


def _dim(dim: Any) -> Dim:
    found: Any = parse_dim(dim) if isinstance(dim, str) else dim
    if not isinstance(found, int | Sym) or (isinstance(found, int) and found < 0):
        raise DimError(f"{dim!r} is not a size. Give an int from 0 up, or a name such as 'n'.")
    return found if isinstance(found, Sym) else int(found)


@dataclass(frozen=True)
class Limits:
    """Limits of a source; beyond them it is refused with a BudgetError.

    Functions count in ``nodes`` as often as they are called, and in ``depth`` like nested graphs.
    ``sparse_bytes`` is for sparse constants, which take less space in a file than in memory.
    """

    nodes: int = 1_000_000
    depth: int = 64
    rank: int = 64
    constant_bytes: int = 16 * 2**30
    sparse_bytes: int = 2**28
    file_bytes: int = 64 * 2**30


@dataclass(frozen=True)
class Structure:
    """How nested tuples, lists and dicts map to a flat list of arrays.

    ``tree`` has ``Structure.LEAF`` in place of each array; anything else in it stays as it is.

    >>> structure, arrays = Structure.of({"a": 1.5, "b": (2.5, "name")}, float)
    >>> arrays, structure.names
    ([1.5, 2.5], ('a', 'b.0'))
    >>> structure.restore(["first", "second"])
    {'a': 'first', 'b': ('second', 'name')}
    """

    LEAF: ClassVar[object] = type("Leaf", (), {"__repr__": lambda self: "leaf"})()

    tree: Any
    names: tuple[str, ...]

    @staticmethod
    def of(
        tree: Any, kind: type | Callable[[Any], bool], name: str = ""
    ) -> tuple[Structure, list[Any]]:
        """Take a tree apart; ``kind`` is the class of leaves, or a test for them."""
        names: list[str] = []
        leaves: list[Any] = []

        def visit(item: Any, path: str) -> Any:
            if isinstance(item, kind) if isinstance(kind, type) else kind(item):
                names.append(path)
                leaves.append(item)
                return Structure.LEAF
            return _mapped(item, visit, path)

        return Structure(visit(tree, name), tuple(names)), leaves

    @staticmethod
    def of_results(names: tuple[str, ...]) -> Structure:
        """Return one output by itself, and several as a tuple."""
        tree = Structure.LEAF if len(names) == 1 else (Structure.LEAF,) * len(names)
        return Structure(tree, names)

    def flatten(self, tree: Any) -> list[Any]:
        """List the leaves of a tree with the same structure."""
        return list(_paired(self.tree, tree, "the argument"))

    def restore(self, leaves: Sequence[Any]) -> Any:
        """Put arrays back into the tree."""
        rest = iter(leaves)

        def visit(item: Any, path: str) -> Any:
            return next(rest) if item is Structure.LEAF else _mapped(item, visit, path)

        return visit(self.tree, "")


def _children(item: Any) -> Iterator[tuple[Any, Any]] | None:
    if isinstance(item, dict):
        return iter(item.items())
    if isinstance(item, list | tuple):
        return iter(enumerate(item))
    return None


def _mapped(item: Any, visit: Callable[[Any, str], Any], path: str) -> Any:
    """Rebuild a container, passing each child and its path to ``visit``."""
    children = _children(item)
    if children is None:
        return item
    made = [visit(child, f"{path}.{key}" if path else str(key)) for key, child in children]
    if isinstance(item, dict):
        return dict(zip(item, made, strict=True))
    # A named tuple takes its fields as separate arguments.
    return type(item)(*made) if hasattr(item, "_fields") else type(item)(made)


def _paired(pattern: Any, tree: Any, path: str) -> Iterator[Any]:
    if pattern is Structure.LEAF:
        yield tree
        return
    wanted, found = _children(pattern), _children(tree)
    if wanted is None:
        if pattern is not tree and plain_key(pattern) != plain_key(tree):
            raise ShapeMismatchError(
                f"{path} was {pattern!r} when the program was compiled, found {tree!r}. "
                "Arguments that are not arrays are part of the program: compile another one."
            )
        return
    left, right = dict(wanted), dict(found or ())
    if type(pattern) is not type(tree) or left.keys() != right.keys():
        raise ShapeMismatchError(
            f"{path} was a {type(pattern).__name__} with {_listed(left)} in it, "
            f"found {type(tree).__name__} with {_listed(right)}."
        )
    for key in left:
        yield from _paired(left[key], right[key], f"{path}.{key}")


def _listed(keys: Mapping[Any, Any]) -> str:
    return ", ".join(map(str, keys)) or "nothing"


def plain_key(value: Any) -> tuple[type, Any]:
    """Return the key of a plain value: 1, True and 1.0 differ, as do 0.0 and -0.0."""
    return type(value), repr(value) if isinstance(value, float | complex) else value


@dataclass(frozen=True)
class TracedFunction:
    """A Python function that computes on arrays what a graph computes, and its side effects.

    ``written`` are the places of the inputs that it writes to. ``writes_captured``: it writes to
    arrays that are not its arguments. The graph writes to neither. ``title`` names it to people.
    With ``may_share``, its results stay as they are, even if their memory belongs to others.
    ``burden`` does, on flat inputs, what a call that an engine answers takes besides the engine,
    and one of the function does not: it is timed with the engine.
    """

    function: Callable[..., Any]
    written: frozenset[int] = frozenset()
    writes_captured: bool = False
    title: str = "your function"
    may_share: bool = False
    burden: Callable[[Sequence[Any]], object] | None = None


@dataclass(frozen=True)
class Reading:
    """A graph with the structure of the source's arguments and results.

    ``digest`` is the SHA-256 of the file, as hex, if only one file was read. ``function`` is the
    Python function that the graph was traced from, if it was. ``file`` is what an engine that reads
    such files may be given, if that is as safe as the graph. ``updates`` are pairs of an output and
    an input that a call replaces by it: state that the source changes in place.
    """

    graph: Graph
    arguments: Structure
    results: Structure
    digest: str | None = None
    function: TracedFunction | None = None
    file: ModelFile | None = None
    updates: tuple[tuple[int, int], ...] = ()


class Document(abc.ABC):
    """An open source, checked as far as possible without sizes."""

    @property
    @abc.abstractmethod
    def inputs(self) -> Mapping[str, Type]:
        """The arguments that the source declares; none if it needs an example."""

    @property
    @abc.abstractmethod
    def digest(self) -> str | None:
        """The SHA-256 of the file, as hex, if only one file was read."""

    @abc.abstractmethod
    def convert(self, example: Example, *, is_open: bool = False) -> Reading:
        """Turn it into a graph; ``example`` has Specs or arrays for its arguments.

        With ``is_open``, dims that the source leaves open stay open: only the sizes that it needs
        come from the example. Raises TraceError or SourceError if it cannot be a graph, and
        BudgetError if it exceeds the limits.
        """


class Frontend(abc.ABC):
    """Turns one kind of source into graphs.

    ``needs_example`` says that sources do not declare the types of their arguments. ``package``
    names what reading them imports, beyond what every installation has.
    """

    needs_example: ClassVar[bool]
    package: ClassVar[str | None] = None

    @abc.abstractmethod
    def accepts(self, source: object) -> bool:
        """Return whether this frontend reads such a source; imports nothing."""

    @abc.abstractmethod
    def open(self, source: Any, limits: Limits) -> Document:
        """Open a source; work that every use needs is done once."""

    def calling(self, source: Any) -> Calling | None:
        """Return how a source is called that takes values of its own library, not arrays."""
        return None

    def save(
        self,
        graph: Graph,
        path: str | os.PathLike[str],
        opset: int | None,
        inside_bytes: int | None,
    ) -> None:
        """Write a graph to a file that this frontend reads; None is the format's usual setting."""
        raise SourceError(f"{type(self).__name__} does not write files.")

    def annotate(
        self,
        source: str | os.PathLike[str],
        path: str | os.PathLike[str],
        notes: Mapping[str, Mapping[str, str]],
        otherwise: Mapping[str, str],
    ) -> None:
        """Copy a file that was read, with notes in its nodes, by what nodes name as their source.

        Nodes without notes of their own get those of ``otherwise``.
        """
        raise SourceError(f"{type(self).__name__} does not write notes into files.")

    def wrapped(self, program: Callable[..., Any], name: str, takes_arrays: bool) -> Any:
        """Return an object of the frontend's library that runs a program, which takes arrays."""
        raise SourceError(f"{type(self).__name__} does not wrap programs.")

    def read(self, source: Any, example: Example = (), limits: Limits = Limits()) -> Graph:
        """Turn a source into a graph; a Document also has the structure of its arguments."""
        return self.open(source, limits).convert(example).graph
