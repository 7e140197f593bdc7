"""A model as plain data: what emitters collect, and ``proto`` turns into ONNX's own classes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fusewire.dtypes import DType
from fusewire.ir.dims import Sym
from fusewire.ir.graph import Constant, Node, Value
from fusewire.ir.types import Type
from fusewire.onnx.write.target import OnnxTarget


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the model: its name and its dtype."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a graph of the model; in a body, dims that are symbols stay open."""

    name: str
    type: Type
    has_symbols: bool = True


@dataclass
class OnnxBody:
    """A graph inside a node, or the outermost."""

    name: str
    inputs: list[Port]
    outputs: list[Port]
    steps: list[OnnxStep]


OnnxAttr: TypeAlias = (
    "int | float | str | Sequence[int] | Sequence[float] | Sequence[str] | Type | OnnxBody"
)


@dataclass(slots=True)
class OnnxStep:
    """A node of the model; an absent input or output has no name.

    One that only computes a size says so: whoever reads the model finds that out by itself.
    ``source`` is the node of ours that it was written for.
    """

    op: str
    inputs: list[str]
    outputs: list[str]
    attrs: Mapping[str, OnnxAttr]
    is_size: bool = False
    name: str | None = None
    source: Node | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class LocalFunction:
    """A local function, and which op of ours it stands for, with attributes as we print them."""

    op: str
    attrs: Mapping[str, str]
    inputs: Sequence[str]
    outputs: Sequence[str]
    steps: Sequence[OnnxStep]
    constants: Mapping[str, Constant] = field(repr=False)


# Emits a node of ours, given its operands, and gives its outputs.
Write: TypeAlias = Callable[..., "Ref | Sequence[Ref]"]


@dataclass
class Model:
    """What all emitters of a model share.

    With ``expands``, composites that cannot be written are written out; else they are refused.
    ``call`` may write a node as the call of a local function, ``outside`` tells sizes that nothing
    inside tells. ``kept`` are constants that go by names of their own.
    """

    target: OnnxTarget
    table: Mapping[str, Write]
    expands: bool = False
    call: Callable[..., Sequence[Ref] | None] | None = None
    outside: Callable[[Sym], Ref] | None = None
    kept: dict[Value, str] | None = None
    taken: set[str] = field(default_factory=set)
    constants: dict[str, Constant] = field(default_factory=dict)
    counter: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self, stem: str) -> str:
        """Make a name that nothing has."""
        name = next(n for i in self.counter if (n := f"{stem}_{i}") not in self.taken)
        self.taken.add(name)
        return name

    def own(self, name: str | None, stem: str) -> str:
        """Take a name if it is free, else make one."""
        if name is None or name in self.taken:
            return self.fresh(stem)
        self.taken.add(name)
        return name
