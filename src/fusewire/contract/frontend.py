"""The contract between Fusewire and what reads sources: functions, files, modules of others.

A frontend turns a source into a graph, and tells how nested arguments and results lie in the
graph's flat inputs and outputs. Must never name a frontend.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from fusewire.dtypes import DType, DTypeLike, dtype
from fusewire.errors import DimError, ShapeMismatchError
from fusewire.ir.dims import Dim, Shape, Sym
from fusewire.ir.graph import Graph
from fusewire.ir.parse import parse_dim
from fusewire.ir.types import TensorType, Type

# Positional arguments in order, or arguments by name.
Example: TypeAlias = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True, init=False)
class Spec:
    """An array known by shape and dtype alone.

    >>> Spec((3, "n", "2*n + 1"), "float32")
    Spec(float32[3, n, 2*n+1])
    """

    shape: Shape
    dtype: DType

    def __init__(self, shape: Sequence[int | str | Sym], dtype_: DTypeLike = "float32") -> None:
        """Read dims that are names or expressions of names; each name needs a dim of its own."""
        object.__setattr__(self, "shape", tuple(_dim(dim) for dim in shape))
        object.__setattr__(self, "dtype", dtype(dtype_))

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    def __repr__(self) -> str:
        return f"Spec({self.type})"


def _dim(dim: Any) -> Dim:
    found: Any = parse_dim(dim) if isinstance(dim, str) else dim
    if not isinstance(found, int | Sym) or (isinstance(found, int) and found < 0):
        raise DimError(f"{dim!r} is no size. Give an int from 0 up, or a name such as 'n'.")
    return found if isinstance(found, Sym) else int(found)


@dataclass(frozen=True)
class Limits:
    """What a source may cost before it is refused with a BudgetError.

    Functions count in ``nodes`` as often as they are called, and in ``depth`` like graphs inside
    each other. ``sparse_bytes`` is for sparse constants, which files hold in less than they take.
    """

    nodes: int = 1_000_000
    depth: int = 64
    rank: int = 64
    constant_bytes: int = 16 * 2**30
    sparse_bytes: int = 2**28
    file_bytes: int = 64 * 2**30


@dataclass(frozen=True)
class Structure:
    """How nested tuples, lists and dicts lie in a flat list of arrays.

    ``tree`` has ``Structure.LEAF`` where an array goes; anything else in it is put back as it is.

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
        """Take a tree apart: ``kind`` is the class of leaves, or tells whether one is."""
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
        """Give one output alone, and several as a tuple."""
        tree = Structure.LEAF if len(names) == 1 else (Structure.LEAF,) * len(names)
        return Structure(tree, names)

    def flatten(self, tree: Any) -> list[Any]:
        """List the leaves of a tree that is built like this one."""
        return list(_paired(self.tree, tree, "the argument"))

    def restore(self, leaves: Sequence[Any]) -> Any:
        """Put arrays back in their places."""
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
    """Rebuild a container, giving each child and its path to ``visit``."""
    children = _children(item)
    if children is None:
        return item
    made = [visit(child, f"{path}.{key}" if path else str(key)) for key, child in children]
    if isinstance(item, dict):
        return dict(zip(item, made, strict=True))
    # A named tuple takes its fields one by one.
    return type(item)(*made) if hasattr(item, "_fields") else type(item)(made)


def _paired(pattern: Any, tree: Any, path: str) -> Iterator[Any]:
    if pattern is Structure.LEAF:
        yield tree
        return
    wanted, found = _children(pattern), _children(tree)
    if wanted is None:
        if pattern is not tree and plain_key(pattern) != plain_key(tree):
            raise ShapeMismatchError(
                f"{path} was {pattern!r} when the program was made, found {tree!r}. "
                "Arguments that are no arrays are part of the program: make another one."
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
    """Key of a plain value: 1, True and 1.0 differ, as do 0.0 and -0.0; NaN is itself."""
    return type(value), repr(value) if isinstance(value, float | complex) else value


@dataclass(frozen=True)
class Reading:
    """A graph with the structure of what the source takes and gives.

    ``digest`` is the SHA-256 of the file, as hex, where one file is all that was read.
    """

    graph: Graph
    arguments: Structure
    results: Structure
    digest: str | None = None


class Document(abc.ABC):
    """A source that was opened, and checked as far as that takes no sizes."""

    @property
    @abc.abstractmethod
    def inputs(self) -> Mapping[str, Type]:
        """The arguments that a source declares itself; none when it needs an example."""

    @property
    @abc.abstractmethod
    def digest(self) -> str | None:
        """The SHA-256 of the file, as hex, where one file is all that was read."""

    @abc.abstractmethod
    def convert(self, example: Example, *, is_open: bool = False) -> Reading:
        """Turn it into a graph; ``example`` holds Specs or arrays, as the source takes them.

        With ``is_open``, dims that the source leaves open stay open: only sizes that it cannot do
        without are taken from the example.
        Raises TraceError or SourceError for what cannot be one, BudgetError past the limits.
        """


class Frontend(abc.ABC):
    """Turns one kind of source into graphs.

    ``needs_example`` says that sources do not tell the types of their arguments themselves.
    """

    needs_example: ClassVar[bool]

    @abc.abstractmethod
    def accepts(self, source: object) -> bool:
        """Tell whether this frontend reads such a source; looks at it and imports nothing."""

    @abc.abstractmethod
    def open(self, source: Any, limits: Limits) -> Document:
        """Open a source: whatever takes long for any use of it is done once."""

    def read(self, source: Any, example: Example = (), limits: Limits = Limits()) -> Graph:
        """Turn a source into a graph; what the graph alone cannot say is in ``convert``."""
        return self.open(source, limits).convert(example).graph
