"""The statements of a kernel as lines of WGSL, one invocation after another.

A page is one kernel while it is printed. It knows scalars, memory, folds and loops; how points
are spread over invocations is told by whoever prints the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fusewire.backends.webgpu import folds, memories
from fusewire.backends.webgpu.scalars import (
    STEP,
    Numbers,
    Places,
    compute,
    literal,
    storage,
)
from fusewire.backends.webgpu.storage import Storage
from fusewire.dtypes import DType, int32
from fusewire.kernel.form import (
    Buffer,
    Compute,
    Fold,
    Guard,
    Holds,
    Kernel,
    Literal,
    Load,
    Loop,
    Place,
    Scalar,
    Statement,
    Store,
)
from fusewire.kernel.index import Axis

# Ops that Mesa computes with while it compiles, as if numbers were real, which WGSL lets it: of
# sqrt(x) * sqrt(x) it makes |x|, of x - x and 0 * x it makes 0, and x / 0 is anything.
_ALGEBRA = frozenset(("add", "subtract", "multiply", "divide", "square", "reciprocal", "sqrt",
                      "rsqrt", "floor_divide", "remainder", "fmod"))  # fmt: skip
_ZERO = "0"
_OPAQUE = {"f32": "opaque_f32", "f64": "opaque_f64", "vec2<f32>": "complex_opaque"}


def _made_by(statement: Scalar) -> str:
    """Tell the op that a scalar comes from, or that it is known to be 0, in a part at least."""
    if isinstance(statement, Literal):
        whole = complex(statement.value)
        parts = (whole.real, whole.imag) if statement.dtype.is_complex else (whole.real,)
        return _ZERO if 0 in parts else ""
    return statement.op if isinstance(statement, Compute) else ""


class Page:
    """Lines of one kernel, and the names in them."""

    def __init__(self, kernel: Kernel, features: frozenset[str], *, given: bool) -> None:
        """With ``given``, numbers of shapes are words of params."""
        self.kernel = kernel
        self.features = features
        self.lines: list[str] = []
        self.numbers = Numbers(given=given)
        self.places = Places(self.numbers, features)
        self.places.axes.update(dict.fromkeys(kernel.steps, STEP))
        self.buffers = tuple(dict.fromkeys((*kernel.reads, *kernel.writes)))
        self._made: dict[str, str] = {}
        self._count = 0
        self._deep = 1
        self.local = {b.name: f"l{place}" for place, b in enumerate(kernel.locals)}
        self.memory = {b.name: f"m{place}" for place, b in enumerate(self.buffers)}
        written = {b.name for b in kernel.writes}
        self.atomic = {b.name for b in self.buffers if b.name in written and self.of(b).lanes > 1}
        # Memories whose words one invocation makes whole.
        self.packed: set[str] = set()
        self.meeting: dict[str, str] = {}

    # -- lines and names

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append("  " * self._deep + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent what is added under a head, and close it."""
        self.line(f"{head} {{")
        self._deep += 1
        yield
        self._deep -= 1
        self.line("}")

    def fresh(self, stem: str = "x") -> str:
        """Give a name that is not in use."""
        self._count += 1
        return f"{stem}{self._count}"

    def of(self, buffer: Buffer) -> Storage:
        """Tell how a buffer's elements lie."""
        return storage(buffer.dtype, self.features)

    def register(self, of: DType) -> str:
        """Name the type that a dtype is computed in."""
        return storage(of, self.features).register

    def name(self, scalar: str, of: DType, printed: str, op: str = "") -> None:
        """Let a scalar of the kernel have a name here."""
        self.places.names[scalar], self.places.dtypes[scalar] = printed, of
        self._made[scalar] = op

    def value(self, scalar: str) -> str:
        """Give the name of a scalar."""
        return self.places.names[scalar]

    def unravel(self, flat: str, axes: Sequence[Axis]) -> None:
        """Name the axes of a flat number of a point, the last one the fastest."""
        for place, axis in enumerate(axes):
            inner = math.prod(a.extent for a in axes[place + 1 :])
            part = f"u32({flat})"
            if inner > 1:
                part = f"({part} / u32({self.numbers.number(inner)}))"
            if place:
                part = f"({part} % u32({self.numbers.number(axis.extent)}))"
            self.let_axis(axis, f"i32({part})")

    def let_axis(self, axis: Axis, code: str) -> None:
        """Name an axis whose number is computed."""
        name = self.fresh("a")
        self.line(f"let {name} = {code};")
        self.places.axes[axis] = name

    # -- statements

    def body(self, statements: Sequence[Statement]) -> None:
        """Add statements, each run by this invocation alone."""
        for statement in statements:
            if isinstance(statement, Fold):
                self.fold(statement)
            elif isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, Store):
                self.store(statement)
            else:
                self.scalar(statement)

    def scalar(self, statement: Scalar) -> None:
        """Add what computes a scalar."""
        if isinstance(statement, Load) and statement.guard:
            self._guarded(statement)
            return
        name = self.fresh()
        self.line(f"let {name} = {self._code(statement)};")
        self.name(statement.name, statement.dtype, name, _made_by(statement))

    def _code(self, statement: Scalar) -> str:
        match statement:
            case Load():
                return memories.read(self, statement.buffer, statement.index)
            case Literal(value=value, dtype=of):
                return literal(value, of, self.features)
            case Place(index=index, dtype=of):
                cast = Compute("", of, "cast", ("",), (("dtype", of), ("saturate", False)))
                code = compute(cast, (int32,), self.features)
                return code.replace("{0}", self.places.index(index))
            case Holds(guard=guard):
                return self.holds(guard)
            case Compute():
                return self._compute(statement)

    def _compute(self, statement: Compute) -> str:
        given = tuple(self.places.dtypes[name] for name in statement.operands)
        code = compute(statement, given, self.features)
        for place, name in enumerate(statement.operands):
            code = code.replace(f"{{{place}}}", self._operand(statement, place, name))
        return code

    def _operand(self, statement: Compute, place: int, name: str) -> str:
        """Give an operand, opaque where a compiler would see through it."""
        way = _OPAQUE.get(self.register(self.places.dtypes[name]))
        made = self._made[name]
        seen = made == _ZERO or made in _ALGEBRA
        if statement.op == "subtract":
            # One side is enough, and two that are equal would be equal still.
            seen = place == 1
        if way is None or statement.op not in _ALGEBRA or not seen:
            return self.value(name)
        return f"{way}({self.value(name)})"

    def holds(self, guard: Guard) -> str:
        """Print whether a guard holds."""
        tests = []
        for bound in guard:
            index = self.places.index(bound.index)
            low, high = bound.index.range
            if low < bound.low:
                tests.append(f"{index} >= {self.numbers.number(bound.low)}")
            if high >= bound.high:
                tests.append(f"{index} < {self.numbers.number(bound.high)}")
        return " && ".join(tests) or "true"

    # -- memory

    def _guarded(self, load: Load) -> None:
        name = self.fresh()
        self.line(f"var {name} = {self.register(load.dtype)}();")
        with self.block(f"if ({self.holds(load.guard)})"):
            self.line(f"{name} = {memories.read(self, load.buffer, load.index)};")
        self.name(load.name, load.dtype, name)

    def store(self, store: Store) -> None:
        """Add a store."""
        if not store.guard:
            memories.write(self, store)
            return
        with self.block(f"if ({self.holds(store.guard)})"):
            memories.write(self, store)

    def shared(self, register: str, width: int, place: int) -> str:
        """Name memory in which invocations of a workgroup meet; ``place`` tells it from others."""
        name = f"shared{place}_{register.replace('<', '_').replace('>', '')}"
        self.meeting[name] = f"var<workgroup> {name}: array<{register}, {width}>;"
        return name

    # -- loops

    @contextmanager
    def running(self, axes: Sequence[Axis]) -> Iterator[None]:
        """Nest loops over axes."""
        if not axes:
            yield
            return
        name = self.fresh("a")
        self.places.axes[axes[0]] = name
        extent = self.numbers.number(axes[0].extent)
        head = f"for (var {name} = 0; {name} < {extent}; {name}++)"
        with self.block(head), self.running(axes[1:]):
            yield

    def fold(self, fold: Fold) -> None:
        """Add a fold that this invocation makes alone."""
        names = folds.start(self, fold)
        if any(axis.extent == 0 for axis in fold.axes):
            folds.finish(self, fold, names)
            return
        with self.running(fold.axes):
            self.body(fold.body)
            folds.gather(self, fold, names, folds.values(self, fold))
        folds.finish(self, fold, names)

    def loop(self, loop: Loop) -> None:
        """Add a loop that this invocation runs alone, in order."""
        names = [self.fresh("s") for _ in loop.carries]
        for carry, name in zip(loop.carries, names, strict=True):
            self.line(f"var {name} = {self.value(carry.start)};")
            self.name(carry.name, carry.dtype, name)
        if any(axis.extent == 0 for axis in loop.axes):
            return
        with self.running(loop.axes):
            self.body(loop.body)
            kept = [self.fresh() for _ in names]
            for carry, temporary in zip(loop.carries, kept, strict=True):
                self.line(f"let {temporary} = {self.value(carry.next)};")
            for name, temporary in zip(names, kept, strict=True):
                self.line(f"{name} = {temporary};")
