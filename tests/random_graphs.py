"""Random graphs from the op table, valid by construction, with inputs on which they run.

Every node is run as soon as it is made, so that what an op asks of values holds as well as what
it asks of types. Draws come from a ``Choose``: hypothesis in the suite, ``random`` in long runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeVar

import numpy as np
from hypothesis import strategies as st

from fusewire import dtypes
from fusewire.dtypes import DType
from fusewire.errors import FusewireError
from fusewire.ir.builder import bind_symbols, constant
from fusewire.ir.dims import Dim, Sym, Symbol, symbol, symbols, unbacked
from fusewire.ir.dims import substitute as substitute_dim
from fusewire.ir.graph import Attr, Graph, HostValue, Node, Value, order
from fusewire.ir.types import TensorType, substitute_type, type_symbols
from fusewire.ops.control import cond
from fusewire.ops.conversion import cast
from fusewire.ops.declare import Op, Trait
from fusewire.ops.dynamic import dynamic_broadcast_to, dynamic_reshape, dynamic_slice
from fusewire.ops.elementwise import add, floor_divide, multiply
from fusewire.ops.indexing import gather
from fusewire.ops.interpret import Interpreter, type_of
from fusewire.ops.movement import concat, reshape, tile
from fusewire.ops.sample import Draw, Sample
from fusewire.ops.shape import shape_of
from fusewire.ops.slicing import slice_axis
from fusewire.ops.subgraph import subgraph
from fusewire.ops.table import all_ops, untold
from fusewire.rewrite.pipeline import RULES

T = TypeVar("T")
MOST_ELEMENTS = 400
CASTABLE = (*dtypes.REAL, dtypes.bool_)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, float("inf"), float("nan"))


# Tells whether a node may be in a graph.
Takes = Callable[[Node], bool]


class Choose(Protocol):
    """Where draws come from."""

    def integer(self, low: int, high: int) -> int:
        """Draw from low to high, both included."""
        ...


class FromRandom:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)


class FromHypothesis:
    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def integer(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))


@dataclass(frozen=True)
class Generated:
    """A graph, inputs for it, and what its outputs are."""

    graph: Graph
    inputs: list[HostValue]
    outputs: list[HostValue]


def random_graph(choose: Choose, nodes: int = 12, takes: Takes | None = None) -> Generated:
    """Make a graph of about this many nodes; with ``takes``, of such nodes, their shapes known."""
    grower = _Grower(choose, takes)
    for _ in range(4 * nodes):
        if len(grower.nodes) >= nodes:
            break
        grower.step()
    return grower.finish()


@cache
def _samples(name: str) -> Sequence[Sample]:
    return all_ops()[name].samples()


@cache
def _ops_by_family() -> dict[str, list[Op[Any]]]:
    families: dict[str, list[Op[Any]]] = {}
    for op in all_ops().values():
        families.setdefault(op.family, []).append(op)
    return families


# What a graph grows by, with weights.
_STEPS: dict[str, int] = {
    "sampled": 8,
    "chained": 8,
    "ruled": 5,
    "shaped": 2,
    "branched": 1,
}


@dataclass
class _Grower:
    choose: Choose
    takes: Takes | None = None
    pool: list[Value] = field(default_factory=list)
    arrays: dict[Value, HostValue] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    bound: dict[Symbol, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._symbolic = self.chance(40) and self.takes is None
        self._rng = np.random.default_rng(self.choose.integer(0, 2**16))
        self._interpreter = Interpreter(Graph([], []))

    # -- draws

    def chance(self, percent: int) -> bool:
        return self.choose.integer(0, 99) < percent

    def one_of(self, items: Sequence[T]) -> T:
        return items[self.choose.integer(0, len(items) - 1)]

    # -- growth

    def step(self) -> None:
        """Try to grow by one op or motif; what does not fit is dropped."""
        kinds = [kind for kind, weight in _STEPS.items() for _ in range(weight)]
        make: Callable[[], Sequence[Value]] = getattr(self, self.one_of(kinds))
        inputs, pool, bound = list(self.inputs), list(self.pool), dict(self.bound)
        try:
            self.take(make())
        except (FusewireError, ValueError, ArithmeticError, LookupError, TypeError):
            # An adapted operand that the op does not take: another draw will do.
            self.inputs, self.pool, self.bound = inputs, pool, bound

    def take(self, outputs: Sequence[Value]) -> None:
        """Run the new nodes that values need, then keep them."""
        new = order(outputs, set(self.nodes))
        arrays, bound = dict(self.arrays), dict(self.bound)
        for node in new:
            named = {s for t in node.types for s in type_symbols(t) if not s.unbacked}
            if not named <= bound.keys() or untold(node):
                raise ValueError("a symbol that nothing binds")
            if self.takes is not None and not self.takes(node):
                raise ValueError("not taken")
            operands = [None if v is None else self.read(arrays, v) for v in node.inputs]
            with np.errstate(all="ignore"):
                found = self._interpreter.node(node, operands, bound)
            sizes = [np.size(x) for x in found if isinstance(x, np.ndarray)]
            if max(sizes, default=0) > MOST_ELEMENTS:
                raise ValueError("large")
            arrays.update(zip(node.outputs, found, strict=True))
        self.arrays, self.bound = arrays, bound
        self.nodes.extend(new)
        self.pool.extend(v for node in new for v in node.outputs)

    def read(self, arrays: dict[Value, HostValue], value: Value) -> HostValue:
        return arrays[value] if value.constant is None else value.constant.array

    def fresh(self, array: HostValue, fixed: bool | None = None) -> Value:
        """Make an input or a constant that holds an array."""
        is_tensor = isinstance(array, np.ndarray)
        if is_tensor and (self.chance(20) if fixed is None else fixed):
            return constant(array)
        type_ = type_of(array)
        if self._symbolic and isinstance(type_, TensorType):
            dims: list[Dim] = []
            for size in array.shape:
                named = self.chance(50)
                dims.append(symbol(f"d{size}") if named else size)
                if named:
                    self.bound[Symbol(f"d{size}")] = size
            type_ = type_.with_shape(tuple(dims))
        value = Value(type_, f"x{len(self.inputs)}")
        self.inputs.append(value)
        self.arrays[value] = array
        self.pool.append(value)
        return value

    def fitting(self, of: DType, shape: tuple[int, ...]) -> Value | None:
        """Find or adapt a value of the pool; None if there is nothing to adapt."""
        held = [
            v
            for v in self.pool
            if isinstance(v.type, TensorType) and (v.type.dtype is of or of in CASTABLE)
        ]
        exact = [v for v in held if v.tensor.dtype is of and self.arrays[v].shape == shape]
        if exact and self.chance(80):
            return self.one_of(exact[-8:])
        held = [v for v in held if v.tensor.dtype is of or v.tensor.dtype in CASTABLE]
        count = int(np.prod(shape))
        held = [v for v in held if self.arrays[v].size or not count]
        if not held:
            return None
        value = self.one_of(held[-8:])
        size, given = self.arrays[value].size, self.arrays[value].shape
        found = value if value.tensor.dtype is of else cast(value, dtype=of)
        if size != count:
            found = found if given == (size,) else reshape(found, shape=(size,))
            if size < count:
                found = tile(found, repeats=(-(-count // size),))
            found, given = slice_axis(found, 0, slice(0, count)), (count,)
        return found if given == shape else reshape(found, shape=shape)

    def operand(self, draw: Draw, op: Op[Any], name: str | None, tested: DType) -> Value:
        array = draw.make(tested, self._rng)
        particular = draw.values is not None or draw.sequence or name in op.index_operands
        whole = draw.dtype is not None and not draw.dtype.is_inexact
        if not particular and not whole and self.chance(60):
            found = self.fitting(draw.dtype or tested, draw.shape)
            if found is not None:
                return found
        if not particular and (draw.dtype or tested) in dtypes.FLOATS and self.chance(15):
            array = np.where(self._rng.random(array.shape) < 0.2, self.one_of(NUMBERS), array)
            array = array.astype((draw.dtype or tested).numpy)
        return self.fresh(array, self.chance(70) if particular else None)

    def sampled(self) -> Sequence[Value]:
        """Use an op as one of its samples does."""
        op = self.one_of(self.one_of(list(_ops_by_family().values())))
        case = self.one_of(_samples(op.name))
        tested = self.one_of(case.only or op.dtypes)
        names = [*op.parameters[0], *[None] * len(case.operands)]
        operands = [
            None if draw is None else self.operand(draw, op, name, tested)
            for draw, name in zip(case.operands, names, strict=False)
        ]
        # Samples name unbacked sizes, and another use of a sample is another size.
        renamed = {s: unbacked() for attr in case.attrs.values() for s in _unbacked(attr)}
        attrs = {key: _renamed(attr, renamed) for key, attr in case.attrs.items()}
        return op.make(operands, attrs).outputs

    def chained(self) -> Sequence[Value]:
        """Use an elementwise op on what is there."""
        op = self.one_of([o for o in all_ops().values() if o.is_(Trait.ELEMENTWISE)])
        held = [v for v in self.pool if isinstance(v.type, TensorType)]
        held = [v for v in held if v.tensor.dtype in op.dtypes]
        if not held:
            return self.sampled()
        x = self.one_of(held[-6:])
        of, shape = x.tensor.dtype, self.arrays[x].shape
        operands: list[Value | None] = [x]
        for _ in op.parameters[0][1:]:
            other = self.choose.integer(0, 3)
            found = x if other == 0 else self.fitting(of, shape) if other == 1 else None
            if found is None:
                number = self.one_of(NUMBERS)
                with np.errstate(all="ignore"):
                    scalar = np.array(str(number) if of is dtypes.string else number)
                    found = constant(scalar.astype(of.numpy))
            operands.append(found)
        attrs = self.one_of(_samples(op.name)).attrs
        return op.make(operands, attrs).outputs

    def ruled(self) -> Sequence[Value]:
        """Use what a rewrite rule is an example of."""
        example = self.one_of(RULES).example
        tested = self.one_of((dtypes.float32, dtypes.int32, *dtypes.REAL))
        operands = []
        for value in example(tested.name).inputs:
            shape = tuple(d if isinstance(d, int) else 2 for d in value.tensor.shape)
            found = self.fitting(value.tensor.dtype, shape)
            made = Draw(shape).make(value.tensor.dtype, self._rng)
            operands.append(self.fresh(made) if found is None else found)
        outputs = example.build(*operands)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def shaped(self) -> Sequence[Value]:
        """Compute a shape in the graph, and use it."""
        held = [v for v in self.pool if isinstance(v.type, TensorType) and v.type.rank]
        if not held:
            return self.chained()
        x = self.one_of(held[-6:])
        rank = x.tensor.rank
        sizes = shape_of(x)
        place = self.choose.integer(0, rank - 1)
        part = gather(sizes, constant(np.array([place])), axis=0)
        kind = self.choose.integer(0, 3)
        if kind == 0:
            wide = concat(multiply(part, 1), constant(np.array([-1])), axis=0)
            return (dynamic_reshape(x, wide, dims=(unbacked(), unbacked())),)
        if kind == 1:
            wide = concat(add(constant(np.array([1])), 1), sizes, axis=0)
            open_ = tuple(unbacked() for _ in range(rank + 1))
            return (dynamic_broadcast_to(x, wide, dims=open_),)
        if kind == 2:
            dims = tuple(unbacked() if i == place else d for i, d in enumerate(x.tensor.shape))
            half = floor_divide(part, 2)
            return (dynamic_slice(x, half, part, axes=(place,), dims=dims),)
        return (multiply(add(part, 3), constant(np.array([2]))),)

    def branched(self) -> Sequence[Value]:
        """Choose between two chains of ops that keep a type."""
        held = [v for v in self.pool if isinstance(v.type, TensorType) and v.type.dtype.is_float]
        if not held:
            return self.chained()
        x = self.one_of(held[-6:])
        named = TensorType(x.tensor.dtype, tuple(symbol(f"s{i}") for i in range(x.tensor.rank)))
        keeping = [o for o in all_ops().values() if o.family == "elementwise"]
        keeping = [o for o in keeping if o.parameters[0] == ("x",) and not o.parameters[2]]
        keeping = [o for o in keeping if {*dtypes.FLOATS} <= {*o.dtypes}]

        def body() -> Graph:
            ops = [self.one_of(keeping) for _ in range(self.choose.integer(1, 3))]

            def chain(value: Value) -> list[Value]:
                for op in ops:
                    value = op(value)
                return [value]

            return subgraph(chain, named if self.chance(50) else x.type)

        flag = self.fresh(np.array(self.chance(50)))
        return cond(flag, x, then=body(), otherwise=body())

    def finish(self) -> Generated:
        """Close the graph over some of its values."""
        made = [v for node in self.nodes for v in node.outputs]
        used = {v for node in self.nodes for v in node.operands}
        outputs = dict.fromkeys(v for v in made if v not in used and self.chance(70))
        for _ in range(self.choose.integer(0, 2)):
            if made:
                outputs[self.one_of(made)] = None
        chosen = list(outputs) or self.inputs[:1]
        names = [f"y{i}" for i in range(len(chosen))]
        graph = Graph(self.inputs, chosen, self.nodes, output_names=names)
        read = [self.read(self.arrays, v) for v in chosen]
        return Generated(graph, [self.arrays[v] for v in self.inputs], read)


def _unbacked(attr: Attr) -> set[Symbol]:
    if isinstance(attr, tuple):
        return {s for item in attr for s in _unbacked(item)}
    if isinstance(attr, Sym):
        return {s for s in symbols(attr) if s.unbacked}
    if isinstance(attr, TensorType):
        return {s for s in type_symbols(attr) if s.unbacked}
    return set()


def _renamed(attr: Attr, names: dict[Symbol, Sym]) -> Attr:
    if isinstance(attr, tuple):
        return tuple(_renamed(item, names) for item in attr)
    if isinstance(attr, Sym):
        return substitute_dim(attr, names)
    if isinstance(attr, TensorType):
        return substitute_type(attr, names)
    if isinstance(attr, Graph):
        return bind_symbols(attr, names)
    return attr
