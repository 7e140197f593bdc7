"""A region as a list of steps: functions of torch over numbered places for tensors.

Eager runs call the steps one after the other; Inductor exports the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from fusewire.backends.torch.lowering import CONTROL, TABLE
from fusewire.backends.torch.lowering.signature import Function, Sized
from fusewire.backends.torch.refusal import refuses
from fusewire.backends.torch.storage import HALVES, Tensor, entrance, is_small, store, work
from fusewire.dtypes import DType, float16
from fusewire.ir.dims import (
    FUNCTIONS,
    Apply,
    Dim,
    Shape,
    Symbol,
    bind_alone,
    lone_symbol,
    symbols,
)
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import tensor_of, type_symbols
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op
from fusewire.rewrite.expand import simpler

# Ops that see values as they are kept, not in the dtype that others compute in.
_AS_STORED = {Trait.MOVEMENT, Trait.CONTROL, Trait.BITS}
# Ops that round to the dtype of their output themselves.
_ROUNDS = {"cast", "check"}
# Ops whose kernels take 16-bit floats and compute in float32 inside.
_HALF_NAMES = """
    add subtract multiply divide maximum minimum negative abs square sqrt rsqrt exp log tanh
    sigmoid relu gelu silu leaky_relu clip where equal not_equal less less_equal greater
    greater_equal isnan matmul linear gemm dot_general conv softmax log_softmax layer_norm
    attention reduce_sum reduce_max reduce_min argmax argmin max_pool isinf isfinite signbit floor
    ceil round trunc sort argsort top_k
"""
_HALF = frozenset(_HALF_NAMES.split())
# Ops that may return an operand, or look into one, though they are not movement.
_VIEWS = {"cast", "bitcast", "real", "imag", "conj", "clip", "check", "reduce_max", "reduce_min"}
_VIEWS |= {"resize", "dynamic_resize", "lstm", "gru", "rnn", "cumsum"}
# Movement that always makes new elements.
_MOVES = {"concat", "stack", "gather", "embedding", "gather_elements", "boolean_mask", "shape_of"}
_MOVES |= {"dynamic_update_slice", "iota"}


# The function, the place of its only operand or 0, what picks the operands, the place of its only
# output or 0, those of several outputs, and what is spent.
_Call: TypeAlias = tuple[
    Function, int, Callable[[list[Any]], tuple[Any, ...]], int, tuple[int, ...], tuple[int, ...]
]


class Step(NamedTuple):
    """A function of the tensors at places; its outputs go to the target, and what is spent goes.

    ``dims`` are sizes that the function takes behind the operands. ``node`` is a node with bodies.
    ``learned`` are places of outputs whose shapes tell sizes.
    """

    function: Function
    places: tuple[int, ...]
    target: int | tuple[int, ...]
    spent: tuple[int, ...] = ()
    dims: tuple[Dim, ...] | None = None
    node: Node | None = None
    learned: tuple[tuple[int, Shape], ...] = ()

    @property
    def needs_sizes(self) -> bool:
        """Whether it is more than a call of the function on the operands."""
        return self.dims is not None or self.node is not None or bool(self.learned)


class Sizes:
    """The sizes that a run knows; the same dims are asked for again and again."""

    def __init__(self, around: Mapping[Symbol, int]) -> None:
        self.symbols = dict(around)
        self._known: dict[Dim, int] = {}

    def of(self, dims: Sequence[Dim]) -> tuple[int, ...]:
        """Compute dims."""
        known = self._known
        for dim in dims:
            if dim not in known:
                known[dim] = computed_size(dim, self.symbols)
        return tuple([known[dim] for dim in dims])


def computed_size(dim: Dim, sizes: Mapping[Symbol, Any]) -> Any:
    """Compute a size by plain arithmetic, which also works on what PyTorch has for open sizes."""
    if isinstance(dim, int):
        return dim
    total: Any = 0
    for monomial, factor in dim.terms:
        term: Any = factor
        for atom, power in monomial:
            value = sizes[atom] if isinstance(atom, Symbol) else _applied(atom, sizes)
            for _ in range(power):
                term = term * value
        total = total + term
    return total


def _applied(atom: Apply, sizes: Mapping[Symbol, Any]) -> Any:
    left, right = computed_size(atom.left, sizes), computed_size(atom.right, sizes)
    return FUNCTIONS[atom.function](left, right)


class Program:
    """Runs a graph on tensors. Calls share nothing but constants, so threads may call at once.

    ``place`` is the device of PyTorch that all tensors are on; None for the CPU.
    """

    def __init__(self, graph: Graph, place: Any = None) -> None:
        builder = _Builder(graph, place)
        self.graph = graph
        self._place = place
        self.steps = builder.steps
        self._start = builder.start
        # The place of every constant, by digest.
        self.constants = builder.constants
        self._outputs = tuple(builder.place(v) for v in graph.outputs)
        self._bodies = {body: Program(body, place) for body in builder.bodies}
        self._needs_sizes = any(step.needs_sizes for step in self.steps)
        self._calls = tuple(map(_call_of, self.steps))

    def constant(self, digest: str) -> Tensor:
        """Return a constant as it is held."""
        return self._start[self.constants[digest]]

    def __call__(
        self,
        inputs: Sequence[Tensor],
        around: Mapping[Symbol, int] | None = None,
        held: Mapping[str, Tensor] | None = None,
    ) -> list[Tensor]:
        """Run the steps.

        ``around`` are the sizes of the graph that this is a body of. ``held`` are constants to use
        instead of its own, by digest.
        """
        values = self._start.copy()
        values[1 : 1 + len(inputs)] = inputs
        for digest, tensor in (held or {}).items():
            values[self.constants[digest]] = tensor
        if self._needs_sizes:
            self._run_sized(values, self._bound(inputs, around or {}))
        else:
            for function, place, operands, target, targets, spent in self._calls:
                # Half of the nodes have one operand, and nearly all one output.
                found = function(values[place]) if place else function(*operands(values))
                if target:
                    values[target] = found
                else:
                    for at, output in zip(targets, found, strict=True):
                        values[at] = output
                for at in spent:
                    values[at] = None
        return [values[place] for place in self._outputs]

    def _run_sized(self, values: list[Any], sizes: Sizes) -> None:
        for step in self.steps:
            operands = [values[place] for place in step.places]
            if step.dims is not None:
                outputs = step.function(*operands, sizes.of(step.dims))
            elif step.node is not None:
                outputs = step.function(
                    _Bodies(self._bodies, sizes, self._place), step.node, *operands
                )
                outputs = outputs if isinstance(step.target, tuple) else outputs[0]
            else:
                outputs = step.function(*operands)
            _put(values, step.target, outputs)
            for place, dims in step.learned:
                bind_alone(dims, values[place].shape, sizes.symbols)
            for place in step.spent:
                values[place] = None

    def _bound(self, inputs: Sequence[Tensor], around: Mapping[Symbol, int]) -> Sizes:
        types = [tensor_of(value.type) for value in self.graph.inputs]
        own = {lone_symbol(dim) for of in types for dim in of.shape}
        sizes = Sizes({symbol: size for symbol, size in around.items() if symbol not in own})
        for of, x in zip(types, inputs, strict=True):
            bind_alone(of.shape, x.shape, sizes.symbols)
        return sizes


def _call_of(step: Step) -> _Call:
    """Arrange a step for the loop that runs it: place 0 is never read, and never written."""
    places, target = step.places, step.target
    only = places[0] if len(places) == 1 else 0
    operands = itemgetter(*places) if len(places) > 1 else _operand(places)
    one, many = (target, ()) if isinstance(target, int) else (0, target)
    return step.function, only, operands, one, many, step.spent


def _operand(places: tuple[int, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    return lambda values: tuple(values[place] for place in places)


def _put(values: list[Any], target: int | tuple[int, ...], outputs: Any) -> None:
    if isinstance(target, int):
        values[target] = outputs
        return
    for place, output in zip(target, outputs, strict=True):
        values[place] = output


class _Bodies:
    """Runs the subgraphs of a node, which see the sizes around them."""

    def __init__(self, programs: Mapping[Graph, Program], sizes: Sizes, place: Any) -> None:
        self._programs = programs
        self._sizes = sizes
        self.place = place

    def __call__(self, graph: Graph, operands: Sequence[Tensor]) -> list[Tensor]:
        return self._programs[graph](operands, self._sizes.symbols)

    def size(self, dim: Dim) -> int:
        """Compute a size; 0 for one that a body would have told."""
        known = all(symbol in self._sizes.symbols for symbol in symbols(dim))
        return int(computed_size(dim, self._sizes.symbols)) if known else 0


class _Builder:
    """Numbers the values of a graph and makes its steps; place 0 is that of absent operands."""

    def __init__(self, graph: Graph, place: Any) -> None:
        self._on = place
        self.start: list[Any] = [None]
        self.bodies: list[Graph] = []
        self._places: dict[Value, int] = {}
        self.constants: dict[str, int] = {}
        steps: list[Step] = []
        for value in graph.inputs:
            self._places[value] = self._room()
        self._add(graph, steps)
        kept = {0, *range(1 + len(graph.inputs)), *map(self.place, graph.outputs)}
        self.steps = _spending(steps, kept | set(self.constants.values()))

    def _room(self, held: Any = None) -> int:
        self.start.append(held)
        return len(self.start) - 1

    def place(self, value: Value | None) -> int:
        """Tell where a value is; constants are put there now."""
        if value is None:
            return 0
        if value.constant is None:
            return self._places[value]
        digest = value.constant.digest
        if digest not in self.constants:
            tensor = entrance(value.tensor.dtype)(value.constant.array)
            self.constants[digest] = self._room(tensor if self._on is None else tensor.to(self._on))
        return self.constants[digest]

    def _add(self, graph: Graph, steps: list[Step]) -> None:
        for node in graph.nodes:
            parts = None if refuses(node) is None else simpler(node, refuses)
            if parts is None:
                steps.append(self._step(node))
                continue
            # Of a body: whoever expands what is refused does not look into nodes.
            for value, operand in zip(parts.inputs, node.operands, strict=True):
                self._places[value] = self.place(operand)
            self._add(parts, steps)
            for value, output in zip(node.outputs, parts.outputs, strict=True):
                self._places[value] = self.place(output)

    def _step(self, node: Node) -> Step:
        places = tuple(self.place(value) for value in node.inputs)
        for value in node.outputs:
            self._places[value] = self._room()
        made = [self._places[value] for value in node.outputs]
        learned = tuple(
            (place, value.tensor.shape)
            for place, value in zip(made, node.outputs, strict=True)
            if any(symbol.unbacked for symbol in type_symbols(value.type))
        )
        if node.op in CONTROL:
            self.bodies += [body for _, body in node.graphs()]
            target = tuple(made) if len(made) != 1 else made[0]
            return Step(CONTROL[node.op], places, target, node=node, learned=learned)
        lowered = TABLE[node.op](node)
        dims = lowered.dims if isinstance(lowered, Sized) else None
        function = lowered.function if isinstance(lowered, Sized) else lowered
        if self._on is not None and not node.inputs:
            function = _moved(function, self._on)
        target = tuple(made) if is_multiple(node) else made[0]
        return Step(_rounded(node, function), places, target, dims=dims, learned=learned)


def _moved(function: Function, place: Any) -> Function:
    """Bring what is made of sizes alone to a device."""
    return lambda *sizes: function(*sizes).to(place)


def is_multiple(node: Node) -> bool:
    """Tell whether a lowering of a node returns a tuple."""
    return len(node.outputs) != 1 or node.op == "split"


def _spending(steps: Sequence[Step], kept: set[int]) -> tuple[Step, ...]:
    """Have each step let go of what no later one uses."""
    used, found = set(kept), []
    for step in reversed(steps):
        made = (step.target,) if isinstance(step.target, int) else step.target
        spent = tuple(dict.fromkeys(p for p in (*step.places, *made) if p not in used))
        used.update(spent)
        found.append(step._replace(spent=spent))
    return tuple(reversed(found))


def _rounded(node: Node, function: Function) -> Function:
    """Have a node compute in the dtype it computes in, and its results rounded."""
    op = get_op(node.op)
    if op.traits & _AS_STORED:
        return function
    types = [None if v is None else v.tensor.dtype for v in node.inputs]
    # Few processors multiply float16, and products that are rounded twice are off.
    keeps_half = node.op in _HALF and not (float16 in types and op.is_(Trait.CONTRACTION))
    works = [None if of is None or (keeps_half and of in HALVES) else work(of) for of in types]
    stores = [_store(node, v.tensor.dtype, keeps_half) for v in node.outputs]
    if not any(works) and not any(stores):
        return function
    multiple = is_multiple(node)

    def computed(*operands: Any) -> Any:
        # Sizes stand behind the operands.
        pairs = zip(works, operands, strict=False)
        taken = [x if bring is None or x is None else bring(x) for bring, x in pairs]
        found = function(*taken, *operands[len(works) :])
        outputs = found if multiple else (found,)
        kept = [x if put is None else put(x) for put, x in zip(stores, outputs, strict=True)]
        return kept if multiple else kept[0]

    return computed


def _store(node: Node, of: DType, keeps_half: bool) -> Callable[[Tensor], Tensor] | None:
    if node.op in _ROUNDS:
        return None
    if of in HALVES:
        return None if keeps_half else store(of)
    needs = is_small(of) or of.is_narrow or of.name in ("uint16", "uint32")
    return store(of) if needs else None


def copied_outputs(graph: Graph) -> list[bool]:
    """Tell which outputs must be copied: an input, a weight or another output may be there."""
    taken: set[Value] = set()
    found = []
    for value in graph.outputs:
        roots = _roots(value)
        lent = any(root.node is None for root in roots)
        found.append(lent or bool(roots & taken))
        taken |= roots
    return found


def _roots(value: Value) -> frozenset[Value]:
    """List the values whose memory a value may be in."""
    order, seen = [value], {value}
    roots: set[Value] = set()
    while order:
        current = order.pop()
        node = current.node
        if node is None or not _may_view(node):
            roots.add(current)
            continue
        for operand in node.operands:
            if operand not in seen:
                seen.add(operand)
                order.append(operand)
    return frozenset(roots)


def _may_view(node: Node) -> bool:
    op = get_op(node.op)
    if node.op in _MOVES:
        return False
    return node.op in _VIEWS or op.is_(Trait.MOVEMENT) or op.is_(Trait.CONTROL)
