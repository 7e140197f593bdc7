"""One trace: it creates arrays and sizes, records source lines, and enforces limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from fusewire.contract.frontend import Limits, Structure
from fusewire.dtypes import DType, dtype, string
from fusewire.errors import BudgetError, DTypeError, FusewireError, TraceError
from fusewire.frontends.trace import calls, control, ufuncs
from fusewire.frontends.trace.location import here, refusal
from fusewire.frontends.trace.memory import Cell, Lens
from fusewire.frontends.trace.rebinding import Rebinder
from fusewire.frontends.trace.sizes import Size, dim_of
from fusewire.frontends.trace.tracer import Tracer
from fusewire.ir.builder import constant
from fusewire.ir.dims import Apply, Dim, Sym, Symbol, lone_symbol
from fusewire.ir.graph import Array, Node, Value
from fusewire.ir.types import TensorType, Type
from fusewire.ops.conversion import cast
from fusewire.ops.declare import Op
from fusewire.ops.elementwise import add, floor_divide, maximum, minimum, multiply
from fusewire.ops.logic import equal, where
from fusewire.ops.movement import broadcast_to
from fusewire.ops.shape import dim_of as read_dim

Result = TypeVar("Result")
WEAK = (int, float, complex)
_FUNCTIONS: dict[str, Callable[[Value, Value], Value]] = {
    "floordiv": floor_divide,
    "max": maximum,
    "min": minimum,
    "broadcast": lambda left, right: where(equal(left, 1), right, left),
}
# From this size on, the graph broadcasts known arrays that repeat one element.
_UNIFORM = 32


class TraceScope:
    """A graph being traced: the main one, or the body of a branch or a loop."""

    def __init__(self, parent: TraceScope | None = None) -> None:
        self.parent = parent
        self.nodes: set[Node] = set()
        # Values whose shape determines a symbol.
        self.sources: dict[Symbol, tuple[Value, int]] = {}
        # The places of masks.
        self.places: dict[Value, Value] = {}

    def source(self, symbol: Symbol) -> tuple[Value, int]:
        """Return a value and the axis whose size is a symbol."""
        scope: TraceScope | None = self
        while scope is not None and symbol not in scope.sources:
            scope = scope.parent
        assert scope is not None, f"no value has the size {symbol.key}"
        return scope.sources[symbol]


class Recording:
    """One trace. Not shared between threads; it has no global state."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.scope = TraceScope()
        self.rebinder = Rebinder(self)
        self._count = self._bytes = 0

    @contextmanager
    def inside(self) -> Iterator[TraceScope]:
        """Trace the body of a branch or a loop."""
        outer = self.scope
        self.scope = TraceScope(outer)
        try:
            yield self.scope
        finally:
            self.scope = outer

    def input(self, type_: Type, name: str, is_scalar: bool = False) -> Tracer:
        """Add an input to the graph being traced."""
        return self.wrap(Value(type_, name), is_scalar=is_scalar)

    def wrap(self, value: Value, *, is_scalar: bool | None = None, weak: Any = None) -> Tracer:
        """Make the traced array for a value; at rank 0 a scalar by default."""
        self.stamp(value)
        # Sequences and optionals have no shape; only ops take them.
        type_ = value.type if isinstance(value.type, TensorType) else TensorType(string, ())
        scalar = type_.rank == 0 if is_scalar is None else is_scalar
        lens = Lens(Cell(type_, value, None, self.scope))
        return Tracer(self, lens, is_scalar=scalar, weak=weak)

    def stamp(self, value: Value) -> None:
        """Set the source line of new nodes, and record the sizes that they determine."""
        if value.node is None:
            self._note(value)
            return
        stack = [value.node] if value.node.source is None else []
        source = found.short if stack and (found := here()) else "?"
        while stack:
            node = stack.pop()
            if node.source is not None:
                continue
            node.source = source
            self.scope.nodes.add(node)
            self._count += 1
            for output in node.outputs:
                self._note(output)
            stack.extend(v.node for v in node.operands if v.node is not None)
        if self._count > self.limits.nodes:
            raise BudgetError(
                f"The trace has more than {self.limits.nodes} nodes, at {source}. Python loops "
                "are unrolled: use fusewire.ops.scan or while_, or raise Limits(nodes=...)."
            )

    def _note(self, value: Value) -> None:
        shape = value.type.shape if isinstance(value.type, TensorType) else ()
        for axis, dim in enumerate(shape):
            symbol = lone_symbol(dim)
            if symbol is not None:
                self.scope.sources.setdefault(symbol, (value, axis))

    def known(self, array: Array, weak: Any = None) -> Tracer:
        """Make an array with known elements; they are copied before they change."""
        type_ = TensorType(_dtype(array.dtype), array.shape)
        return Tracer(self, Lens(Cell(type_, None, array, self.scope)), weak=weak)

    def like(self, made: Tracer, *sources: Tracer) -> Tracer:
        """Give a new array the axis order of its operands, as NumPy does.

        Whether reshaping it is a view or a copy depends on that. At open sizes it counts as C
        order.
        """
        layouts = [source.lens.layout for source in sources]
        known = [layout for layout in layouts if layout is not None]
        if len(known) == len(layouts) and made.type.is_static:
            made.lens.cell.lie_like(known)
        return made

    def lift(self, found: Any) -> Any:
        """Replace real arrays by known traced ones; scalars stay as they are."""
        if isinstance(found, np.ndarray):
            return self.known(found)
        structure, leaves = Structure.of(found, np.ndarray)
        return structure.restore([self.known(leaf) for leaf in leaves]) if leaves else found

    def constant(self, array: Array) -> Value:
        """Make a constant value; the graph broadcasts a single repeated element."""
        if array.size >= _UNIFORM and array.dtype != object:
            rows = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
            # Most arrays differ in the first elements.
            if (rows[:_UNIFORM] == rows[0]).all() and (rows == rows[0]).all():
                one = constant(array.reshape(-1)[:1].reshape(()))
                return broadcast_to(one, shape=array.shape)
        self._bytes += array.nbytes
        if self._bytes > self.limits.constant_bytes:
            raise BudgetError(
                f"The constants of the trace take more than {self.limits.constant_bytes} bytes. "
                "Pass arrays as arguments, or raise Limits(constant_bytes=...)."
            )
        return constant(array)

    def array(self, x: Any, of: Any = None) -> Tracer:
        """Convert what NumPy accepts as an array; Python numbers stay weak without a dtype."""
        if isinstance(x, Tracer):
            return x
        if isinstance(x, Size):
            return self.wrap(self.measure(x.dim), weak=int)
        if type(x) in WEAK and of is None:
            return self.known(np.array(x), weak=type(x))
        return calls.nested(self, x, of)

    def value(self, x: Any, of: DType | None = None) -> Value:
        """Convert what NumPy accepts as an array to a value, cast to a dtype."""
        found = self.array(x)
        if found.known is not None and of is not None and found.type.dtype is not of:
            if found.weak is int and of.is_integer:
                # Python ints must fit; NumPy raises OverflowError otherwise.
                return constant(np.array(int(found.known), of.numpy))
            return constant(found.known.astype(of.numpy))
        value = found.value
        return value if of is None or value.tensor.dtype is of else cast(value, dtype=of)

    def op(self, op: Any, *operands: Any, **attrs: Any) -> Any:
        """Add a node with arrays, values, real arrays and None as operands; returns arrays."""
        values = [x if x is None or isinstance(x, Value) else self.value(x) for x in operands]
        found = self.checked(op, *values, **attrs)
        return tuple(map(self.wrap, found)) if isinstance(found, tuple) else self.wrap(found)

    def checked(self, function: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call a function that may refuse, and show the user's line if it does."""
        try:
            return function(*args, **options)
        except TraceError:
            raise
        except FusewireError as error:
            raise refusal(str(error)) from error

    def size(self, dim: Dim) -> Any:
        """Return a dim as the user sees it."""
        return Size(self, dim) if isinstance(dim, Sym) else dim

    def dim(self, x: Any) -> Dim:
        """Read a dim that the user gave: an int, a size, or a known scalar."""
        found = dim_of(x)
        if found is not None:
            return found
        if isinstance(x, Tracer) and x.known is None:
            raise refusal(
                "A size must be known while tracing, but the program computes this one. "
                "Take it from a shape (x.shape[0]) or give a number."
            )
        return int(np.asarray(x.known if isinstance(x, Tracer) else x).__index__())

    def shape(self, x: Any) -> tuple[Dim, ...]:
        """Read a shape that the user gave."""
        if (isinstance(x, Tracer) and x.ndim) or isinstance(x, Sequence):
            return tuple(self.dim(item) for item in x)
        return (self.dim(x),)

    def measure(self, dim: Dim) -> Value:
        """Return a size as an int64 scalar of the graph."""
        if isinstance(dim, int):
            return constant(np.array(dim, np.int64))
        total: Value | None = None
        for monomial, factor in dim.terms:
            term = constant(np.array(factor, np.int64))
            for atom, power in monomial:
                for _ in range(power):
                    term = multiply(term, self._atom(atom))
            total = term if total is None else add(total, term)
        assert total is not None
        return total

    def _atom(self, atom: Symbol | Apply) -> Value:
        if isinstance(atom, Symbol):
            return read_dim(*self.scope.source(atom))
        left, right = self.measure(atom.left), self.measure(atom.right)
        return _FUNCTIONS[atom.function](left, right)

    def call_ufunc(self, ufunc: np.ufunc, method: str, inputs: Any, options: Any) -> Any:
        """Apply a NumPy ufunc, or one of its methods."""
        return ufuncs.call(self, ufunc, method, inputs, options)

    def call_op(self, op: Op[Any], *operands: Any, **attrs: Any) -> Any:
        """Apply an op that the user's code names."""
        return control.call(self, op, operands, attrs)

    def call(self, function: Any, args: Any, options: Any) -> Any:
        """Apply a NumPy function."""
        return calls.call(self, function, args, options)


def _dtype(of: np.dtype[Any]) -> DType:
    try:
        return dtype(of)
    except DTypeError as error:
        raise refusal(f"{error}") from None
