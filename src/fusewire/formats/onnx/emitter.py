"""Emit ONNX nodes as plain data: one emitter for the model, one for each body inside it.

Names are unique over the whole model, because bodies see the names around them. Constants belong
to the outermost graph. Nothing here imports onnx: ``proto`` makes a model of what is emitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from fusewire.dtypes import DType, bool_, float64, string
from fusewire.errors import FormatError
from fusewire.formats.onnx.elements import element_of
from fusewire.formats.onnx.sizes import Sizes
from fusewire.formats.onnx.target import Target
from fusewire.ir.dims import Dim, Shape
from fusewire.ir.graph import Constant, Graph, Node, Value
from fusewire.ir.types import TensorType, Type, tensor_of, type_symbols


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
class Body:
    """A graph inside a node, or the outermost."""

    name: str
    inputs: list[Port]
    outputs: list[Port]
    steps: list[Step]


OnnxAttr: TypeAlias = (
    "int | float | str | Sequence[int] | Sequence[float] | Sequence[str] | Type | Body"
)


@dataclass(slots=True)
class Step:
    """A node of the model; an absent input or output has no name."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attrs: Mapping[str, OnnxAttr]


# Emits a node of ours, given its operands, and gives its outputs.
Write: TypeAlias = Callable[..., "Ref | Sequence[Ref]"]


@dataclass
class Model:
    """What all emitters of a model share."""

    target: Target
    table: Mapping[str, Write]
    taken: set[str] = field(default_factory=set)
    constants: dict[str, Constant] = field(default_factory=dict)
    counter: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self, stem: str) -> str:
        """Make a name that nothing has."""
        name = next(n for i in self.counter if (n := f"{stem}_{i}") not in self.taken)
        self.taken.add(name)
        return name


class Emitter:
    """Collects the nodes of one graph of the model.

    Called with the name of an ONNX op and its inputs, it emits a node and gives its output.
    """

    def __init__(self, model: Model, outer: Emitter | None = None, *, is_trial: bool = False):
        """Begin a graph; on trial, sizes that nothing tells are taken to be told."""
        self.model = model
        self.target = model.target
        self.outer = outer
        self.is_trial = is_trial
        self.steps: list[Step] = []
        self._values: dict[Value, Ref] = {}
        self._casts: dict[tuple[str, DType], Ref] = {}
        self._sizes = Sizes(self)

    def __call__(
        self,
        op: str,
        *inputs: Ref | None,
        of: DType | None = None,
        dtype: DType | None = None,
        **attrs: OnnxAttr | None,
    ) -> Ref:
        """Emit a node with one output; ``of`` decides its kernel, ``dtype`` is the output's.

        Both default to the dtype of the first input. Attributes that are None are left out.
        """
        lead = _lead(inputs) if of is None else of
        return self.many(op, *inputs, of=lead, made=[dtype or lead], **attrs)[0]

    def many(
        self,
        op: str,
        *inputs: Ref | None,
        made: Sequence[DType | None],
        of: DType | None = None,
        **attrs: OnnxAttr | None,
    ) -> list[Ref]:
        """Emit a node with outputs of these dtypes; one that is None is not wanted."""
        lead = _lead(inputs) if of is None else of
        work = self.target.work(op, lead)
        if work is float64:
            _require_short(op, attrs)
        if work is lead:
            return self.raw(op, inputs, made, attrs)
        wide = [self.cast(x, work) if x is not None and x.dtype is lead else x for x in inputs]
        found = self.raw(op, wide, [work if d is lead else d for d in made], attrs)
        ends = zip(found, made, strict=True)
        return [self.cast(x, lead) if d is lead else x for x, d in ends]

    def raw(
        self,
        op: str,
        inputs: Sequence[Ref | None],
        made: Sequence[DType | None],
        attrs: Mapping[str, OnnxAttr | None],
    ) -> list[Ref]:
        """Emit a node as it is, whatever the target takes."""
        stem = op.rpartition(":")[2].lower()
        found = [Ref("" if d is None else self.model.fresh(stem), d or bool_) for d in made]
        names = ["" if x is None else x.name for x in inputs]
        while names and not names[-1]:
            names.pop()
        kept = {key: attr for key, attr in attrs.items() if attr is not None}
        self.steps.append(Step(op, names, [x.name for x in found], kept))
        return found

    def cast(self, x: Ref, to: DType) -> Ref:
        """Convert as ONNX does, where what is out of range has no meaning."""
        if x.dtype is to:
            return x
        known = self._casts.get((x.name, to))
        if known is None:
            self.target.require("Cast", x.dtype, 0)
            self.target.require("Cast", to, -1)
            # What was widened comes back: an infinity to what it was, not to the largest number.
            saturate = 0 if to.is_float and to.is_narrow else None
            attrs = {"to": element_of(to), "saturate": saturate}
            (known,) = self.raw("Cast", [x], [to], attrs)
            self._casts[(x.name, to)] = known
        return known

    def constant(self, array: Any, of: DType | None = None) -> Ref:
        """Give a constant, of an array or of a Constant that exists."""
        held = array
        if not isinstance(held, Constant):
            held = Constant.of(np.array(array, None if of is None else of.numpy))
        name = f"constant.{held.digest}"
        self.model.constants[name] = held
        return Ref(name, held.type.dtype)

    def integers(self, *numbers: int) -> Ref:
        """Give a list of int64."""
        return self.constant(np.array(numbers, np.int64))

    def bind(self, value: Value, ref: Ref) -> None:
        """Let a name stand for a value of ours, and tell its dims."""
        self._values[value] = ref
        if isinstance(value.type, TensorType):
            self._sizes.learn(value.type.shape, ref)

    def ref(self, value: Value) -> Ref:
        """Find what stands for a value."""
        return self._values[value] if value.constant is None else self.constant(value.constant)

    def shape(self, dims: Shape) -> Ref:
        """Give sizes as a list of int64."""
        return self._sizes.shape(dims)

    def size(self, dim: Dim) -> Ref:
        """Give a size as a list of one int64."""
        return self._sizes.size(dim)

    def scalar(self, dim: Dim) -> Ref:
        """Give a size as an int64 scalar."""
        return self._sizes.scalar(dim)

    def nodes(self, nodes: Iterable[Node]) -> None:
        """Emit nodes of ours in their order; FormatError when one cannot be written."""
        for node in nodes:
            write = self.model.table.get(node.op)
            if write is None:
                raise FormatError(f"{self.target.name} has no op that does what {node.op} does.")
            if all(_is_nothing(type_) for type_ in node.types):
                # Engines do not agree about work on nothing; some of them stop the process.
                found: Ref | Sequence[Ref] = [self.nothing(v.tensor) for v in node.outputs]
            else:
                operands = [None if v is None else self.ref(v) for v in node.inputs]
                found = write(self, node, *operands)
            made = [found] if isinstance(found, Ref) else found
            for value, ref in zip(node.outputs, made, strict=True):
                assert ref.dtype is tensor_of(value.type).dtype, f"{value!r} was written as {ref}"
                self.bind(value, ref)

    def nothing(self, type_: TensorType) -> Ref:
        """Make a tensor that is known to have no elements."""
        zero = self.constant(np.full((), "" if type_.dtype is string else 0, type_.dtype.numpy))
        return self("Expand", zero, self.shape(type_.shape))

    def run(
        self, graph: Graph, operands: Sequence[Ref], *, inline: bool = False
    ) -> tuple[list[Ref], list[Step]]:
        """Emit a graph of ours over operands in place of its inputs, here or as a body."""
        inner = Emitter(self.model, self, is_trial=self.is_trial)
        if inline:
            inner.steps = self.steps
        for value, ref in zip(graph.inputs, operands, strict=True):
            inner.bind(value, ref)
        inner.nodes(graph.nodes)
        found = [inner.ref(v) for v in graph.outputs]
        return found if inline else [inner.give(x) for x in found], inner.steps

    def give(self, x: Ref, name: str | None = None) -> Ref:
        """Give a value a name of its own, as outputs need; a fresh one if none is given."""
        found = Ref(name or self.model.fresh("output"), x.dtype)
        self.steps.append(Step("Identity", [x.name], [found.name], {}))
        return found


def _is_nothing(type_: Type) -> bool:
    """Tell whether a tensor is known to have no elements, and what sizes it has."""
    told = isinstance(type_, TensorType) and type_.size == 0
    return told and not any(symbol.unbacked for symbol in type_symbols(type_))


def _lead(inputs: Sequence[Ref | None]) -> DType:
    return next(x.dtype for x in inputs if x is not None)


def _require_short(op: str, attrs: Mapping[str, OnnxAttr | None]) -> None:
    """Refuse attributes that lose digits: ONNX keeps them in float32."""
    for key, attr in attrs.items():
        if isinstance(attr, float) and float(np.float32(attr)) != attr:
            raise FormatError(f"ONNX keeps the {key} of {op} in float32, too short for float64.")
