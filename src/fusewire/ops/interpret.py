"""Run graphs in NumPy, node by node, by the references of the ops.

Two precisions. *Stored*: every value is rounded to its dtype; float16, bfloat16 and the small
floats are computed in float32 and then rounded. *Wide*: all floats are float64 and all complex
numbers complex128 from end to end (ints stay exact): the oracle. Small floats (8 bits or fewer)
are codes rather than numbers with a little noise, so they are rounded in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fusewire import dtypes
from fusewire.dtypes import DType
from fusewire.errors import (
    CheckError,
    DimError,
    FusewireError,
    GraphError,
    ShapeMismatchError,
)
from fusewire.ir.dims import Sym, Symbol, bind_alone, evaluate, lone_symbol, symbols
from fusewire.ir.graph import Array, Attr, Graph, HostValue, Node, Value
from fusewire.ir.types import SequenceType, TensorType, Type, tensor_of
from fusewire.ops import limits
from fusewire.ops.declare import Op, Trait
from fusewire.ops.limits import Meter
from fusewire.ops.requires import check_node, label_of
from fusewire.ops.table import get_op, nodes_by_sizes, size_makers

# Sees a node's outputs before anyone uses them, and may give others in their place.
Observe = Callable[[Node, list[HostValue]], list[HostValue]]
Bindings = dict[Symbol, int]
# Sees a node's operands before it runs.
Before = Callable[[Node, list[HostValue], Bindings], None]
# Runs a subgraph elsewhere, given its inputs and the symbols of the graph around it.
RunBody = Callable[[Graph, Sequence[HostValue], Bindings], list[HostValue]]

_STORED = {d: dtypes.float32 for d in dtypes.NARROW if d.is_float}
_STORED |= {dtypes.float16: dtypes.float32, dtypes.bfloat16: dtypes.float32}
_STORED |= {
    d: dtypes.int8 if d.kind == "int" else dtypes.uint8 for d in dtypes.NARROW if d.is_integer
}
# Ops that see values as they are kept, not in the dtype that others compute in.
_AS_STORED = {Trait.MOVEMENT, Trait.CONTROL, Trait.HOST}
_WIDE = dict.fromkeys(dtypes.FLOATS, dtypes.float64)
_WIDE |= dict.fromkeys(dtypes.COMPLEX, dtypes.complex128)


class Interpreter:
    """Runs one graph; expansions of composites are made once and kept."""

    def __init__(
        self,
        graph: Graph,
        *,
        wide: bool = False,
        observe: Observe | None = None,
        before: Before | None = None,
        run_body: RunBody | None = None,
        expansions: dict[Node, Graph] | None = None,
    ) -> None:
        self.graph = graph
        self._wide = wide
        self._observe = observe
        self._before = before
        # Given, so that several interpreters of one graph see the same nodes inside composites.
        self._expansions: dict[Node, Graph] = {} if expansions is None else expansions
        self._run_body = run_body
        self._bodies: dict[Node | Graph, Interpreter] = {}
        # The node whose expansion the graph is: errors name it, rather than a node of ours.
        self._composite: Node | None = None
        # Parts of a composite may name a size that another part tells.
        self._nodes = nodes_by_sizes(graph, size_makers(graph))
        self._last_use = _last_uses(self._nodes, graph.outputs)
        self._inputs = set(graph.inputs)
        # What nodes take whose sizes are known before the run.
        self._bytes: dict[Node, int] = {}
        self._constants: dict[Value, HostValue] = {}

    def __call__(
        self, inputs: Sequence[HostValue], bindings: Mapping[Symbol, int] | None = None
    ) -> list[HostValue]:
        """Run on arrays; in wide mode, floats come back as float64."""
        graph = self.graph
        bound: Bindings = dict(bindings or {})
        meter = limits.meter()
        counts = None if self._is_small else meter
        if len(inputs) != len(graph.inputs):
            names = ", ".join(str(v.name) for v in graph.inputs)
            raise ShapeMismatchError(
                f"The graph {graph.name} takes {len(graph.inputs)} inputs ({names}), "
                f"found {len(inputs)}."
            )
        values: dict[Value, HostValue] = {}
        for value, given in zip(graph.inputs, inputs, strict=True):
            values[value] = self.accept(value, given, bound)
        with np.errstate(all="ignore"):
            for position, node in enumerate(self._nodes):
                operands = [None if v is None else self.read(values, v) for v in node.inputs]
                if meter is not None:
                    meter.tick(node)
                if self._before is not None:
                    self._before(node, operands, bound)
                outputs = self.node(node, operands, bound)
                if self._observe is not None:
                    outputs = self._observe(node, outputs)
                values.update(zip(node.outputs, outputs, strict=True))
                if counts is not None:
                    counts.hold(outputs)
                for value in self._last_use.get(position, ()):
                    spent = values.pop(value)
                    if counts is not None and value not in self._inputs:
                        counts.drop((spent,))
                    del spent
        if counts is not None:
            # Whoever runs this graph counts what it returns.
            counts.drop([x for v, x in values.items() if v not in self._inputs])
        return [self.read(values, v) for v in graph.outputs]

    @cached_property
    def _is_small(self) -> bool:
        """Whether every value is known to be too small to count.

        Of an op that tells its shapes from operands, the type is only what somebody says.
        """
        nodes = self.graph.nodes
        are_small = all(self._is_small_type(t) for node in nodes for t in node.types)
        return are_small and all(get_op(node.op).output_shapes is None for node in nodes)

    def _is_small_type(self, type_: Type) -> bool:
        if not isinstance(type_, TensorType) or type_.dtype == dtypes.string:
            return False
        size = type_.size
        return isinstance(size, int) and size * self.held(type_.dtype).numpy.itemsize < limits.SMALL

    def predict(self, meter: Meter, node: Node, operands: list[HostValue], bound: Bindings) -> None:
        """Ask for the bytes that a node will take, before it takes them."""
        known = self._bytes.get(node)
        if known is not None:
            meter.need(known, node)
            return
        op = get_op(node.op)
        if op.expand is not None or op.is_(Trait.CONTROL):
            # The nodes inside are asked about.
            self._bytes[node] = 0
            return
        if op.output_shapes is not None:
            attrs = {key: self.attr(op, attr, bound) for key, attr in node.attrs.items()}
            shapes = op.output_shapes(*operands, **attrs)
        else:
            shapes = [_told_shape(t, bound) for t in node.types]
        kept = [tensor_of(t).dtype for t in node.types]
        count = limits.array_bytes(shapes, [self.held(of).numpy.itemsize for of in kept])
        if not op.is_(Trait.MOVEMENT):
            # What a node computes is often there twice: before it is rounded, and after.
            count += limits.array_bytes(shapes, [self.computed(of).numpy.itemsize for of in kept])
        texts = [x for x in operands if isinstance(x, np.ndarray) and x.dtype == object]
        count += sum(limits.text_bytes(x) * _repeats(x, shapes) for x in texts)
        if not texts and all(isinstance(t, TensorType) and t.is_static for t in node.types):
            self._bytes[node] = count
        meter.need(count, node)

    def read(self, values: Mapping[Value, HostValue], value: Value) -> HostValue:
        if value.constant is None:
            return values[value]
        held = self._constants.get(value)
        if held is None:
            held = self._constants[value] = self.store(value.constant.array, value.type)
        return held

    def accept(self, value: Value, given: HostValue, bound: Bindings) -> HostValue:
        """Check an input against its type and bind the symbols of its shape."""
        type_ = value.type
        if isinstance(type_, TensorType):
            given = np.asarray(given)
            if given.dtype.kind in "UT":
                given = given.astype(object)
            stored = self.held(type_.dtype)
            if given.dtype not in (type_.dtype.numpy, stored.numpy):
                raise ShapeMismatchError(
                    f"The input {value.name} is {type_}, found an array of {given.dtype}. Cast it."
                )
            bind(type_, given.shape, bound, f"The input {value.name}")
        return self.store(given, type_)

    def held(self, of: DType) -> DType:
        """The dtype in which values are kept between nodes."""
        return _WIDE.get(of, of) if self._wide else of

    def computed(self, of: DType) -> DType:
        """The dtype in which a node computes."""
        return _STORED.get(of, _WIDE.get(of, of) if self._wide else of)

    def store(self, value: HostValue, type_: Type) -> HostValue:
        """Round a value to the dtype in which it is kept."""
        if isinstance(type_, TensorType):
            return np.asarray(value).astype(self.held(type_.dtype).numpy, copy=False)
        if isinstance(type_, SequenceType):
            return [self.store(item, type_.element) for item in value]
        return None if value is None else self.store(value, type_.element)

    def node(self, node: Node, operands: list[HostValue], bound: Bindings) -> list[HostValue]:
        """Run one node; CheckError if it does not allow the values of its operands."""
        op = get_op(node.op)
        if op.requires:
            check_node(node, op.requires, op.parameters[0], operands, bound)
        try:
            if not self._is_small and (meter := limits.meter()) is not None:
                self.predict(meter, node, operands, bound)
            if op.expand is not None:
                outputs = self._expansion(op, node)([x for x in operands if x is not None], bound)
            else:
                outputs = self.primitive(op, node, operands, bound)
        except (ArithmeticError, LookupError, ValueError) as error:
            if isinstance(error, FusewireError) and not isinstance(error, DimError):
                raise
            raise _disallowed(self._composite or node, error) from error
        for value, output in zip(node.outputs, outputs, strict=True):
            if isinstance(value.type, TensorType):
                bind(value.type, output.shape, bound, f"{node.op}, by its type rule,")
        return outputs

    def _expansion(self, op: Op[Any], node: Node) -> Interpreter:
        expansion = self._bodies.get(node)
        if expansion is None:
            if node not in self._expansions:
                self._expansions[node] = op.expansion(node)
            expansion = self._bodies[node] = self.inside(self._expansions[node])
            expansion._composite = self._composite or node
        return expansion

    def inside(self, graph: Graph) -> Interpreter:
        return Interpreter(
            graph,
            wide=self._wide,
            observe=self._observe,
            before=self._before,
            expansions=self._expansions,
        )

    def primitive(
        self, op: Op[Any], node: Node, operands: list[HostValue], bound: Bindings
    ) -> list[HostValue]:
        attrs = {key: self.attr(op, attr, bound) for key, attr in node.attrs.items()}
        types = [None if v is None else v.type for v in node.inputs]
        if op.is_(Trait.BITS):
            operands = [_rounded(x, t) for x, t in zip(operands, types, strict=True)]
        elif not op.traits & _AS_STORED:
            operands = [self.work(x, t) for x, t in zip(operands, types, strict=True)]
        assert op.reference is not None
        if op.is_(Trait.CONTROL):
            found = self.control(op, node, operands, attrs, bound)
        else:
            found = op.reference(*operands, **attrs)
        outputs = found if isinstance(found, tuple) else (found,)
        if op.is_(Trait.CONTROL):
            # A loop that never ran knows of what it would have stacked no more than the type.
            ends = zip(outputs, node.types, strict=True)
            outputs = tuple(_nothing(t, bound) if x is None else x for x, t in ends)
        return [self.store(x, t) for x, t in zip(outputs, node.types, strict=True)]

    def control(
        self,
        op: Op[Any],
        node: Node,
        operands: list[HostValue],
        attrs: Mapping[str, Any],
        bound: Bindings,
    ) -> Any:
        """Run a node with subgraphs; what each round adds is counted until it is stacked."""
        assert op.reference is not None
        assert op.layout is not None
        meter, first = limits.meter(), op.layout.flags + op.layout.carries(node)
        rounds: list[list[HostValue]] = []
        carried: list[HostValue] = []

        def run(graph: Graph, inputs: Sequence[HostValue]) -> list[HostValue]:
            if meter is None:
                return self.body(graph, inputs, bound)
            meter.tick(node)
            meter.bodies += 1
            outputs = self.body(graph, inputs, bound)
            meter.bodies -= 1
            meter.hold(outputs)
            meter.drop(carried)
            carried[:] = outputs[:first]
            if added := outputs[first:]:
                rounds.append(added)
                # Once more for the stack of all of them.
                meter.need(sum(map(limits.value_bytes, added)) * len(rounds), node)
            return outputs

        found = op.reference(*operands, **attrs, run=run)
        if meter is not None:
            meter.drop(rounds)
            meter.drop(carried)
        return found

    def body(self, graph: Graph, inputs: Sequence[HostValue], bound: Bindings) -> list[HostValue]:
        """Run a subgraph; it sees the symbols of the graph around it."""
        types = [v.type for v in graph.inputs if isinstance(v.type, TensorType)]
        own = {lone_symbol(dim) for type_ in types for dim in type_.shape}
        outer = {s: size for s, size in bound.items() if s not in own}
        if self._run_body is not None:
            return self._run_body(graph, inputs, outer)
        body = self._bodies.get(graph)
        if body is None:
            body = self._bodies[graph] = self.inside(graph)
        return body(inputs, outer)

    def work(self, value: HostValue, type_: Type | None) -> HostValue:
        """Bring an operand to the dtype in which the node computes."""
        if isinstance(type_, TensorType) and value is not None:
            return value.astype(self.computed(type_.dtype).numpy, copy=False)
        return value

    def attr(self, op: Op[Any], attr: Attr, bound: Bindings) -> Any:
        if isinstance(attr, Sym):
            # A size that this very node tells has no value yet; its reference does not read it.
            unknown = any(s not in bound for s in symbols(attr))
            return None if unknown else evaluate(attr, bound)
        if isinstance(attr, tuple):
            return tuple(self.attr(op, item, bound) for item in attr)
        if isinstance(attr, DType) and not op.is_(Trait.BITS):
            # Rounding to a small float is part of what the op computes, so it stays.
            return attr if attr.is_narrow else self.computed(attr)
        return attr


def interpret(
    graph: Graph,
    inputs: Sequence[HostValue],
    *,
    wide: bool = False,
    observe: Observe | None = None,
) -> list[HostValue]:
    """Run a graph once."""
    return Interpreter(graph, wide=wide, observe=observe)(inputs)


def run_op(op: Op[Any], operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Run one op on arrays: a tuple when it has several outputs."""
    graph, arrays = graph_of(op, operands, attrs)
    outputs = interpret(graph, arrays)
    return tuple(outputs) if op.is_multiple else outputs[0]


def graph_of(
    op: Op[Any], operands: Sequence[Any], attrs: Mapping[str, Any]
) -> tuple[Graph, list[HostValue]]:
    """Make the graph of one node, whose inputs are the operands that are present."""
    arrays = [x if x is None or isinstance(x, list) else np.asarray(x) for x in operands]
    values = [None if x is None else Value(type_of(x), f"operand{i}") for i, x in enumerate(arrays)]
    node = op.make(values, attrs)
    names = [f"output{i}" for i in range(len(node.outputs))]
    inputs = [v for v in values if v is not None]
    graph = Graph(inputs, node.outputs, [node], name=op.name, output_names=names)
    return graph, [x for x in arrays if x is not None]


def type_of(value: HostValue) -> Type:
    """Find the type of an array, or of a list of arrays of one type."""
    if isinstance(value, list):
        kinds = list(dict.fromkeys(type_of(item) for item in value))
        if len(kinds) == 1:
            return SequenceType(kinds[0])
        raise GraphError(f"A sequence needs elements of one type, found {kinds}.")
    return TensorType(dtypes.dtype(value.dtype), value.shape)


def bind(type_: TensorType, shape: tuple[int, ...], bound: Bindings, who: str) -> None:
    """Read the symbols of a type off a shape, and check the rest of it."""
    if shape == type_.shape:
        return
    if len(shape) != type_.rank:
        raise ShapeMismatchError(f"{who} is {type_}, found shape {list(shape)}.")
    bind_alone(type_.shape, shape, bound)
    for dim, actual in zip(type_.shape, shape, strict=True):
        known = isinstance(dim, int) or all(s in bound for s in symbols(dim))
        if known and evaluate(dim, bound) != actual:
            given = ", ".join(f"{s.key}={n}" for s, n in bound.items())
            raise ShapeMismatchError(
                f"{who} is {type_}{' with ' + given if given else ''}, found shape {list(shape)}."
            )


def _disallowed(node: Node, error: Exception) -> CheckError:
    """Say which node does not allow its values, and what NumPy says about them."""
    said = str(error).rstrip(".")
    return CheckError(f"{label_of(node)} does not allow these values: {said}. Check the inputs.")


def _rounded(value: HostValue, type_: Type | None) -> HostValue:
    if isinstance(type_, TensorType) and value is not None:
        return value.astype(type_.dtype.numpy, copy=False)
    return value


def _nothing(type_: Type, bound: Bindings) -> HostValue:
    """Make what a loop without a run gives: dims that nobody bound are 0."""
    if not isinstance(type_, TensorType):
        return None
    known = [all(s in bound for s in symbols(dim)) for dim in type_.shape]
    dims = zip(type_.shape, known, strict=True)
    shape = [evaluate(dim, bound) if told else 0 for dim, told in dims]
    return np.zeros(shape, type_.dtype.numpy)


def _told_shape(type_: Type, bound: Bindings) -> Sequence[int]:
    """Give the shape of a tensor where its type tells it; () where it does not."""
    if not isinstance(type_, TensorType):
        return ()
    is_known = type_.is_static or all(s in bound for dim in type_.shape for s in symbols(dim))
    return [evaluate(dim, bound) for dim in type_.shape] if is_known else ()


def _repeats(operand: Array, shapes: Sequence[Sequence[int]]) -> int:
    """Tell how often an output of these shapes may repeat each element of an operand."""
    return max([1, *(math.prod(shape) // max(operand.size, 1) for shape in shapes)])


def _last_uses(nodes: Sequence[Node], outputs: Sequence[Value]) -> dict[int, list[Value]]:
    """Map positions of nodes to the values that nobody uses after them."""
    kept = set(outputs)
    last: dict[Value, int] = {}
    for position, node in enumerate(nodes):
        for value in (*node.operands, *node.outputs):
            last[value] = position
    uses: dict[int, list[Value]] = {}
    for value, position in last.items():
        if value.constant is None and value not in kept:
            uses.setdefault(position, []).append(value)
    return uses
