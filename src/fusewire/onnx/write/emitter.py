"""Emit ONNX nodes as plain data: one emitter for the model, one for each body inside it.

Names are unique over the whole model, because bodies see the names around them. Constants belong
to the outermost graph. Nothing here imports onnx: ``proto`` makes a model of what is emitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import DType, bool_, float64, int64, string, uint64
from fusewire.errors import FormatError
from fusewire.ir.dims import Apply, Dim, Shape, Sym, Symbol, lone_symbol
from fusewire.ir.graph import Constant, Graph, Node, Value
from fusewire.ir.types import TensorType, tensor_of, type_symbols
from fusewire.onnx.elements import element_of
from fusewire.onnx.write.model import Model, OnnxAttr, OnnxBody, OnnxStep, Ref, Write
from fusewire.onnx.write.target import COMPARING
from fusewire.ops.declare import Op
from fusewire.ops.elementwise import floor_divide, maximum, minimum
from fusewire.ops.table import get_op
from fusewire.rewrite.expand import simpler

if TYPE_CHECKING:
    from fusewire.onnx.write.model import Ref


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
        self.steps: list[OnnxStep] = []
        self._values: dict[Value, Ref] = {}
        self._casts: dict[tuple[str, DType], Ref] = {}
        self._sizes = EmittedSizes(self)

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
        move = self._ordered if lead is uint64 and op in COMPARING else self.cast
        wide = [move(x, work) if x is not None and x.dtype is lead else x for x in inputs]
        found = self.raw(op, wide, [work if d is lead else d for d in made], attrs)
        ends = zip(found, made, strict=True)
        return [move(x, lead) if d is lead else x for x, d in ends]

    def _ordered(self, x: Ref, to: DType) -> Ref:
        """Move uint64 to int64 or back so that the order stays: the lowest is the lowest."""
        lowest = self.constant(np.array(int64.range[0], np.int64))
        if to is uint64:
            return self.cast(self("Add", x, lowest), uint64)
        return self("Add", self.cast(x, int64), lowest)

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
        self.steps.append(OnnxStep(op, names, [x.name for x in found], kept, self._sizes.is_busy))
        return found

    def cast(self, x: Ref, to: DType) -> Ref:
        """Convert as ONNX does, where what is out of range has no meaning."""
        if x.dtype is to:
            return x
        if (x.name, to) not in self._casts:
            self._casts[x.name, to] = self.cast_anew(x, to)
        return self._casts[x.name, to]

    def cast_anew(self, x: Ref, to: DType) -> Ref:
        """Convert by a node of its own."""
        self.target.require("Cast", x.dtype, 0)
        self.target.require("Cast", to, -1)
        # What was widened comes back: an infinity to what it was, not to the largest number.
        saturate = 0 if to.is_float and to.is_narrow else None
        return self.raw("Cast", [x], [to], {"to": element_of(to), "saturate": saturate})[0]

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
        if value.constant is None or value in self._values:
            return self._values[value]
        kept = self.model.kept
        if kept is None:
            return self.constant(value.constant)
        if value not in kept:
            kept[value] = self.model.own(value.name, "constant")
            self.model.constants[kept[value]] = value.constant
        return Ref(kept[value], value.constant.type.dtype)

    def shape(self, dims: Shape) -> Ref:
        """Give sizes as a list of int64."""
        return self._sizes.shape(dims)

    def size(self, dim: Dim) -> Ref:
        """Give a size as a list of one int64."""
        return self._sizes.size(dim)

    def joined(self, sizes: Sequence[Ref]) -> Ref:
        """Give lists of sizes as one list."""
        return self._sizes.joined(sizes)

    def scalar(self, dim: Dim) -> Ref:
        """Give a size as an int64 scalar."""
        return self._sizes.scalar(dim)

    def nodes(self, nodes: Iterable[Node]) -> None:
        """Emit nodes of ours in their order; FormatError when one cannot be written."""
        for node in nodes:
            before = len(self.steps)
            called = self.model.call and self.model.call(self, node)
            found = self._written(node) if called is None else called
            if len(self.steps) > before:
                self.steps[-1].name = node.name
            for step in self.steps[before:]:
                step.source = node
            made = [found] if isinstance(found, Ref) else found
            for value, ref in zip(node.outputs, made, strict=True):
                assert ref.dtype is tensor_of(value.type).dtype, f"{value!r} was written as {ref}"
                self.bind(value, ref)

    def op(self, op: Op[Any], *operands: Ref) -> Ref:
        """Emit an op of ours over lists of one int64, as sizes are."""
        values = [Value(TensorType(int64, (1,))) for _ in operands]
        for value, ref in zip(values, operands, strict=True):
            self._values[value] = ref
        node = op.make(values, {})
        self.nodes([node])
        return self._values[node.outputs[0]]

    def _written(self, node: Node) -> Ref | Sequence[Ref]:
        write, op = self.model.table.get(node.op), get_op(node.op)
        operands = [None if v is None else self.ref(v) for v in node.inputs]
        # What is in a body cannot be given back to be expanded, so it is expanded here.
        expands = self.model.expands or (self.outer is not None and op.kept_whole is None)
        if op.is_composite and expands and refusal(node, self.model) is not None:
            return self.run(op.expansion(node), [x for x in operands if x], inline=True)[0]
        write = write or self._in_simpler_ops(node)
        if not self.is_trial and is_nothing(node):
            # Engines do not agree about work on nothing; some of them stop the process.
            return [self.nothing(v.tensor) for v in node.outputs]
        return write(self, node, *operands)

    def _in_simpler_ops(self, node: Node) -> Write:
        """Find what writes a primitive as ops that the target has."""
        is_primitive = not get_op(node.op).is_composite
        parts = simpler(node, lambda part: refusal(part, self.model)) if is_primitive else None
        if parts is None:
            raise FormatError(f"{self.target.name} has no op that does what {node.op} does.")
        return lambda e, node, *operands: e.run(parts, operands, inline=True)[0]

    def caution(self, sentence: str) -> None:
        """Refuse what the specification allows and engines do not agree about."""
        if self.target.is_cautious:
            raise FormatError(sentence)

    def nothing(self, type_: TensorType) -> Ref:
        """Make a tensor that is known to have no elements."""
        zero = self.constant(np.full((), "" if type_.dtype is string else 0, type_.dtype.numpy))
        return self("Expand", zero, self.shape(type_.shape))

    def run(
        self, graph: Graph, operands: Sequence[Ref], *, inline: bool = False
    ) -> tuple[list[Ref], list[OnnxStep]]:
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
        self.steps.append(OnnxStep("Identity", [x.name], [found.name], {}))
        return found


def tried(node: Node, model: Model) -> Emitter:
    """Write a node as it is, for the sake of seeing how; FormatError when it cannot be."""
    emitter = Emitter(Model(model.target, model.table), is_trial=True)
    for value in node.operands:
        of = tensor_of(value.type).dtype
        element_of(of)
        emitter.bind(value, Ref(emitter.model.fresh("operand"), of))
    emitter.nodes([node])
    return emitter


def refusal(node: Node, model: Model) -> str | None:
    """Say why a node cannot be written as it is; None when it can."""
    try:
        tried(node, model)
    except FormatError as error:
        return str(error)
    return None


def is_nothing(node: Node) -> bool:
    """Tell whether outputs are known to have no elements, and which sizes they have."""
    types = [type_ for type_ in node.types if isinstance(type_, TensorType) and type_.size == 0]
    told = not any(symbol.unbacked for type_ in types for symbol in type_symbols(type_))
    return told and len(types) == len(node.types)


def _lead(inputs: Sequence[Ref | None]) -> DType:
    return next(x.dtype for x in inputs if x is not None)


def _require_short(op: str, attrs: Mapping[str, OnnxAttr | None]) -> None:
    """Refuse attributes that lose digits: ONNX keeps them in float32."""
    for key, attr in attrs.items():
        if isinstance(attr, float) and float(np.float32(attr)) != attr:
            raise FormatError(f"ONNX keeps the {key} of {op} in float32, too short for float64.")


_OPS = {"floordiv": floor_divide, "max": maximum, "min": minimum}


class EmittedSizes:
    """The sizes that one graph of the model can tell: read off shapes, or computed from others.

    A size is a list of one int64, because shapes are lists joined from them.
    """

    def __init__(self, emitter: Emitter) -> None:
        self._emit = emitter
        self._sources: dict[Sym, tuple[Ref, int]] = {}
        self._found: dict[Sym, Ref] = {}
        self.is_busy = False

    def learn(self, shape: Shape, ref: Ref) -> None:
        """Remember which dims a value tells."""
        for axis, dim in enumerate(shape):
            if not isinstance(dim, int):
                self._sources.setdefault(dim, (ref, axis))

    def shape(self, dims: Shape) -> Ref:
        """Give sizes as a list of int64; a constant where all are known."""
        with self._busy():
            return self._shape(dims)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        before, self.is_busy = self.is_busy, True
        try:
            yield
        finally:
            self.is_busy = before

    def _shape(self, dims: Shape) -> Ref:
        emit, parts = self._emit, []
        for _, group in itertools.groupby(dims, lambda dim: isinstance(dim, int)):
            listed = list(group)
            known = [dim for dim in listed if isinstance(dim, int)]
            parts += [emit.integers(*known)] if known else [self.size(dim) for dim in listed]
        return self.joined(parts) if parts else emit.integers()

    def joined(self, parts: Sequence[Ref]) -> Ref:
        """Give lists of sizes as one list; a constant where all are."""
        if len(parts) == 1:
            return parts[0]
        held = [self._emit.model.constants.get(part.name) for part in parts]
        if all(held):
            return self._emit.integers(*(n for c in held if c for n in c.array.tolist()))
        with self._busy():
            return self._emit("Concat", *parts, axis=0)

    def scalar(self, dim: Dim) -> Ref:
        """Give a size as an int64 scalar."""
        if isinstance(dim, int):
            return self._emit.constant(np.int64(dim))
        with self._busy():
            return self._emit("Squeeze", self.size(dim), self._emit.integers(0))

    def size(self, dim: Dim) -> Ref:
        """Give a size as a list of one int64."""
        if isinstance(dim, int):
            return self._emit.integers(dim)
        found = self._found.get(dim)
        if found is None:
            with self._busy():
                found = self._found[dim] = self._read(dim) or self._computed(dim)
        return found

    def _read(self, dim: Sym) -> Ref | None:
        source = self._sources.get(dim)
        if source is None:
            return None
        value, axis = source
        return self._emit("Shape", value, dtype=int64, start=axis, end=axis + 1)

    def _computed(self, dim: Sym) -> Ref:
        alone = lone_symbol(dim)
        if alone is not None:
            return self._solved(alone) or self._outside(dim)
        emit = self._emit
        total: Ref | None = None
        for monomial, factor in dim.terms:
            term = None if factor == 1 and monomial else emit.integers(factor)
            for atom, power in monomial:
                is_symbol = isinstance(atom, Symbol)
                size = self.size(Sym({((atom, 1),): 1})) if is_symbol else self._applied(atom)
                for _ in range(power):
                    term = size if term is None else emit("Mul", term, size)
            assert term is not None
            total = term if total is None else emit("Add", total, term)
        assert total is not None
        return total

    def _solved(self, symbol: Symbol) -> Ref | None:
        """Find a symbol in a dim like 2*n+1."""
        for known in self._sources:
            (first, factor), *rest = known.terms
            if first == ((symbol, 1),) and all(monomial == () for monomial, _ in rest):
                more = sum(term for _, term in rest)
                moved = self._emit("Sub", self.size(known), self._emit.integers(more))
                return self._emit("Div", moved, self._emit.integers(factor))
        return None

    def _outside(self, dim: Sym) -> Ref:
        if self._emit.outer is not None:
            return self._emit.outer.size(dim)
        if self._emit.model.outside is not None:
            return self._emit.model.outside(dim)
        if self._emit.is_trial:
            return self._emit.integers(1)
        raise FormatError(
            f"The size {dim} is needed at run time, and no input or earlier node has it as a dim."
        )

    def _applied(self, atom: Symbol | Apply) -> Ref:
        assert isinstance(atom, Apply)
        emit = self._emit
        left, right = self.size(atom.left), self.size(atom.right)
        if emit.model.call is not None:
            # Said so that a reader reads on in sizes: an op by its name, a broadcast by doing it.
            if atom.function in _OPS:
                return emit.op(_OPS[atom.function], left, right)
            nothing = emit.constant(np.array(False))
            rows = [emit("Expand", nothing, n) for n in (left, right)]
            return emit("Shape", emit("Or", *rows), dtype=int64)
        if atom.function in ("max", "min"):
            # Compared, because engines get Max and Min of int64 wrong.
            sides = (right, left) if atom.function == "max" else (left, right)
            is_less = emit("Less", left, right, dtype=bool_)
            return emit("Where", is_less, *sides, of=int64)
        one, zero = emit.integers(1), emit.integers(0)
        if atom.function == "broadcast":
            is_one = emit("Equal", left, one, dtype=bool_)
            return emit("Where", is_one, right, left, of=int64)
        # Rounded down, and 0 for a division by 0.
        none = emit("Equal", right, zero, dtype=bool_)
        divisor = emit("Where", none, one, right, of=int64)
        whole = emit("Sub", left, emit("Mod", left, divisor))
        return emit("Where", none, zero, emit("Div", whole, divisor), of=int64)


def name_outputs(
    emitter: Emitter,
    found: Sequence[Ref],
    wanted: Sequence[str],
    kept: Mapping[Value, str] | None = None,
) -> None:
    """Give what nodes make the names of outputs; inputs, constants and repeats are copied.

    ``kept`` are names that other values should have if nothing else has them.
    """
    made = {name for step in emitter.steps for name in step.outputs}
    renamed: dict[str, str] = {}
    for ref, name in zip(found, wanted, strict=True):
        if ref.name in made and ref.name not in renamed:
            renamed[ref.name] = name
        elif ref.name != name:
            emitter.give(ref, name)
    for value, name in (kept or {}).items():
        ref = emitter.ref(value)
        if ref.name in made and ref.name not in renamed and name not in emitter.model.taken:
            renamed[ref.name] = emitter.model.own(name, name)
    rename(emitter.steps, renamed)


def rename(steps: Sequence[OnnxStep], names: Mapping[str, str]) -> None:
    """Change names wherever they are made or used, in bodies too."""
    for step in steps:
        step.inputs = [names.get(name, name) for name in step.inputs]
        step.outputs = [names.get(name, name) for name in step.outputs]
        for attr in step.attrs.values():
            if isinstance(attr, OnnxBody):
                rename(attr.steps, names)
