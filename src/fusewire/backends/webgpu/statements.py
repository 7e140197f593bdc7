"""The statements of a kernel as lines of WGSL, one invocation after another.

A page is one kernel while it is printed: its scalars, indices, memory, folds and loops. How points
are spread over invocations is decided by whoever prints the kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

from fusewire.backends.webgpu.expressions import combine, compute, narrowed
from fusewire.backends.webgpu.storage import Storage, computes, lacking, literal, storage_of
from fusewire.dtypes import DType, bool_, int32
from fusewire.errors import RefusedError
from fusewire.kernel.form import (
    BufferLoad,
    BufferStore,
    Compute,
    Fold,
    Guard,
    Holds,
    Kernel,
    KernelBuffer,
    Literal,
    Loop,
    Place,
    Scalar,
    Statement,
    identity,
)
from fusewire.kernel.index import Axis, Held, Index, Quotient, Remainder, flatten
from fusewire.kernel.printed import IndexPrinter, row_major, strides

# Words of params that every kernel has: how many points, a zero that no compiler knows, the step.
HEAD = 4
_STEP = "i32(params[0].z)"
# Ops that Mesa computes with while it compiles, as if numbers were real, which WGSL lets it: of
# sqrt(x) * sqrt(x) it makes |x|, of x - x and 0 * x it makes 0, and x / 0 is anything.
_ALGEBRA = frozenset(("add", "subtract", "multiply", "divide", "square", "reciprocal", "sqrt",
                      "rsqrt", "floor_divide", "remainder", "fmod"))  # fmt: skip
_ZERO = "0"
_OPAQUE = {"f32": "opaque_f32", "f64": "opaque_f64", "vec2<f32>": "complex_opaque"}
_MEMORY = re.compile(r"\bm\d+\b")


@final
class Indices(IndexPrinter):
    """Indices as i32, by the names of axes and of scalars.

    Integers that come of shapes are words of ``params`` where a page asks for that, so that one
    text serves many shapes; else they are literals, which compilers divide by faster.
    """

    def __init__(self, features: frozenset[str], *, in_params: bool) -> None:
        self._features = features
        self._in_params = in_params
        self.words: list[int] = []
        self.axes: dict[Axis, str] = {}
        self.names: dict[str, str] = {}
        self.dtypes: dict[str, DType] = {}

    def number(self, value: int) -> str:
        """Print an integer as i32."""
        if not self._in_params or -1 <= value <= 1:
            return str(value) if value >= 0 else f"({value})"
        place = HEAD + len(self.words)
        self.words.append(value % 2**32)
        return f"i32(params[{place // 4}].{'xyzw'[place % 4]})"

    def total(self, terms: Sequence[str]) -> str:
        """Print a sum, in brackets."""
        return terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"

    def axis(self, axis: Axis) -> str:
        """Give the name of an axis."""
        return self.axes[axis]

    def held(self, atom: Held) -> str:
        """Print an integer of the body, clamped; RefusedError where it is wider than shaders."""
        name, of = self.names[atom.value], self.dtypes[atom.value]
        if not computes(of, self._features):
            raise RefusedError(lacking(of, self._features))
        register = storage_of(of, self._features).register
        most = f"{register}({self.number(atom.extent - 1)})"
        low = f"max({name}, {register}(0))" if of.kind == "int" else name
        return f"i32(min({low}, {most}))"

    def divided(self, atom: Quotient | Remainder, inner: str) -> str:
        """Divide unsigned where nothing is negative, else by functions of ours."""
        by, is_quotient = self.number(atom.by), isinstance(atom, Quotient)
        if atom.of.range[0] >= 0:
            return f"i32(u32({inner}) {'/' if is_quotient else '%'} u32({by}))"
        return f"floor_{'quotient' if is_quotient else 'rest'}_i32({inner}, {by})"


def _made_by(statement: Scalar) -> str:
    """Name the op that a scalar comes from, or ``_ZERO`` where a part of it is known to be 0."""
    if isinstance(statement, Literal):
        whole = complex(statement.value)
        parts = (whole.real, whole.imag) if statement.dtype.is_complex else (whole.real,)
        return _ZERO if 0 in parts else ""
    return statement.op if isinstance(statement, Compute) else ""


@final
class Page:
    """Lines of one kernel, and the names in them."""

    def __init__(self, kernel: Kernel, features: frozenset[str], *, in_params: bool) -> None:
        """With ``in_params``, numbers that come of shapes are words of params."""
        self.kernel = kernel
        self.features = features
        self.lines: list[str] = []
        self.indices = Indices(features, in_params=in_params)
        self.indices.axes.update(dict.fromkeys(kernel.steps, _STEP))
        self.buffers = tuple(dict.fromkeys((*kernel.reads, *kernel.writes)))
        self._made: dict[str, str] = {}
        self._count = 0
        self._deep = 1
        self._local = {b.name: f"l{place}" for place, b in enumerate(kernel.locals)}
        self._memory = {b.name: f"m{place}" for place, b in enumerate(self.buffers)}
        written = {b.name for b in kernel.writes}
        self._atomic = {b.name for b in self.buffers if b.name in written and self.of(b).lanes > 1}
        # Memories whose words one invocation makes whole.
        self.packed: set[str] = set()
        self._meeting: dict[str, str] = {}

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

    def of(self, buffer: KernelBuffer) -> Storage:
        """Tell how a buffer's elements lie."""
        return storage_of(buffer.dtype, self.features)

    def register(self, of: DType) -> str:
        """Name the type that a dtype is computed in."""
        return storage_of(of, self.features).register

    def name(self, scalar: str, of: DType, printed: str, op: str = "") -> None:
        """Let a scalar of the kernel have a name here."""
        self.indices.names[scalar], self.indices.dtypes[scalar] = printed, of
        self._made[scalar] = op

    def value(self, scalar: str) -> str:
        """Give the name of a scalar."""
        return self.indices.names[scalar]

    def unravel(self, flat: str, axes: Sequence[Axis]) -> None:
        """Name the axes of a flat number of a point, the last one the fastest."""
        for place, (axis, step) in enumerate(strides(axes)):
            part = f"u32({flat})"
            if step > 1:
                part = f"({part} / u32({self.indices.number(step)}))"
            if place:
                part = f"({part} % u32({self.indices.number(axis.extent)}))"
            name = self.fresh("a")
            self.line(f"let {name} = i32({part});")
            self.indices.axes[axis] = name

    # -- statements

    def body(self, statements: Sequence[Statement]) -> None:
        """Add statements, each run by this invocation alone."""
        for statement in statements:
            if isinstance(statement, Fold):
                self.fold(statement)
            elif isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, BufferStore):
                self.store(statement)
            else:
                self.scalar(statement)

    def scalar(self, statement: Scalar) -> None:
        """Add what computes a scalar."""
        if isinstance(statement, BufferLoad) and statement.guard:
            self._guarded(statement)
            return
        name = self.fresh()
        self.line(f"let {name} = {self._code(statement)};")
        self.name(statement.name, statement.dtype, name, _made_by(statement))

    def _code(self, statement: Scalar) -> str:
        match statement:
            case BufferLoad():
                return self._read(statement.buffer, statement.index)
            case Literal(value=value, dtype=of):
                return literal(value, of, self.features)
            case Place(index=index, dtype=of):
                cast = Compute("", of, "cast", ("",), (("dtype", of), ("saturate", False)))
                code = compute(cast, (int32,), self.features)
                return code.replace("{0}", self.indices.index(index))
            case Holds(guard=guard):
                return self.holds(guard)
            case Compute():
                return self._compute(statement)

    def _compute(self, statement: Compute) -> str:
        dtypes = tuple(self.indices.dtypes[name] for name in statement.operands)
        code = compute(statement, dtypes, self.features)
        for place, name in enumerate(statement.operands):
            code = code.replace(f"{{{place}}}", self._operand(statement, place, name))
        return code

    def _operand(self, statement: Compute, place: int, name: str) -> str:
        """Give an operand, opaque where a compiler would see through it."""
        opaque = _OPAQUE.get(self.register(self.indices.dtypes[name]))
        made = self._made[name]
        seen = made == _ZERO or made in _ALGEBRA
        if statement.op == "subtract":
            # One side is enough, and two that are equal would be equal still.
            seen = place == 1
        if opaque is None or statement.op not in _ALGEBRA or not seen:
            return self.value(name)
        return f"{opaque}({self.value(name)})"

    def holds(self, guard: Guard) -> str:
        """Print whether a guard holds."""
        return " && ".join(self.indices.bounds(guard)) or "true"

    # -- memory

    def _place(self, buffer: str, index: Sequence[Index]) -> str:
        return self.indices.index(flatten(index, self.kernel.buffer(buffer).shape))

    def _read(self, buffer: str, index: Sequence[Index]) -> str:
        """Print what reads an element."""
        place = self._place(buffer, index)
        if buffer in self._local:
            return f"{self._local[buffer]}[{place}]"
        stored, memory = self.of(self.kernel.buffer(buffer)), self._memory[buffer]
        if stored.lanes == 1:
            return stored.load.replace("{0}", f"{memory}[{place}]")
        read = stored.read(memory, f"u32({place})")
        if buffer in self._atomic:
            word = f"{memory}[u32({place}) >> {stored.lanes // 2}u]"
            return read.replace(word, f"atomicLoad(&{word})")
        return read

    def _guarded(self, load: BufferLoad) -> None:
        name = self.fresh()
        self.line(f"var {name} = {self.register(load.dtype)}();")
        with self.block(f"if ({self.holds(load.guard)})"):
            self.line(f"{name} = {self._read(load.buffer, load.index)};")
        self.name(load.name, load.dtype, name)

    def store(self, store: BufferStore) -> None:
        """Add a store."""
        if not store.guard:
            self._write(store)
            return
        with self.block(f"if ({self.holds(store.guard)})"):
            self._write(store)

    def _write(self, store: BufferStore) -> None:
        """Add what writes an element, whatever a guard says.

        Elements smaller than a word are written by atomics, because others of the word may be
        another invocation's; where one invocation makes whole words it needs none.
        """
        value, of = self.value(store.value), self.kernel.buffer(store.buffer).dtype
        if store.combine is not None:
            code = combine(store.combine, of, self.features).replace("{1}", value)
            code = narrowed(code.replace("{0}", self._read(store.buffer, store.index)), of)
            value = self.fresh()
            self.line(f"let {value} = {code};")
        place = self._place(store.buffer, store.index)
        if store.buffer in self._local:
            self.line(f"{self._local[store.buffer]}[{place}] = {value};")
            return
        stored, memory = storage_of(of, self.features), self._memory[store.buffer]
        bits = stored.store.replace("{0}", value)
        if stored.lanes == 1:
            self.line(f"{memory}[{place}] = {bits};")
        elif store.buffer in self.packed:
            self.line(f"w{memory} |= {bits} << (part * {stored.bits}u);")
        else:
            at, shift = self.fresh("p"), self.fresh("p")
            self.line(f"let {at} = u32({place});")
            self.line(f"let {shift} = ({at} & {stored.lanes - 1}u) * {stored.bits}u;")
            word = f"&{memory}[{at} >> {stored.lanes // 2}u]"
            mask = f"{(1 << stored.bits) - 1}u << {shift}"
            self.line(f"atomicAnd({word}, ~({mask}));")
            self.line(f"atomicOr({word}, {bits} << {shift});")

    def shared(self, register: str, width: int, place: int) -> str:
        """Name memory in which invocations of a workgroup meet; ``place`` tells it from others."""
        name = f"shared{place}_{register.replace('<', '_').replace('>', '')}"
        self._meeting[name] = f"var<workgroup> {name}: array<{register}, {width}>;"
        return name

    def used(self) -> list[KernelBuffer]:
        """List the memories that lines name: a device knows of no others."""
        words = set(_MEMORY.findall("\n".join(self.lines)))
        return [buffer for buffer in self.buffers if self._memory[buffer.name] in words]

    def declared(self) -> list[str]:
        """Print the bindings: memories in use, in order, then params."""
        written = {b.name for b in self.kernel.writes}
        lines = []
        for place, buffer in enumerate(self.used()):
            word = self.of(buffer).word
            if buffer.name in self._atomic - self.packed:
                word = f"atomic<{word}>"
            mode = "read_write" if buffer.name in written else "read"
            name = self._memory[buffer.name]
            lines.append(f"@group(0) @binding({place}) var<storage, {mode}> {name}: array<{word}>;")
        count = -(-(HEAD + len(self.indices.words)) // 4)
        lines.append(
            f"@group(0) @binding({len(lines)}) var<uniform> params: array<vec4<u32>, {count}>;"
        )
        for buffer in self.kernel.locals:
            size = max(math.prod(buffer.shape), 1)
            register = self.register(buffer.dtype)
            lines.append(f"var<workgroup> {self._local[buffer.name]}: array<{register}, {size}>;")
        return [*lines, *self._meeting.values()]

    # -- folds

    def fold(self, fold: Fold) -> None:
        """Add a fold that this invocation makes alone."""
        names = self.start_fold(fold)
        if all(axis.extent for axis in fold.axes):
            with self.running(fold.axes):
                self.body(fold.body)
                self.gather(fold, names, self.fold_values(fold))
        self.finish_fold(fold, names)

    def start_fold(self, fold: Fold) -> list[str]:
        """Declare what a fold gathers in.

        A pair (argmax, argmin) also has the place of the best so far, because invocations that
        share a fold meet its points in another order; -1 stands for no point yet.
        """
        names = [self.fresh("s") for _ in fold.names]
        if len(names) == 2:
            self.line(f"var {names[0]} = {self.register(fold.dtypes[0])}();")
            self.line(f"var {names[1]} = {self.register(fold.dtypes[1])}();")
            names.append(self.fresh("s"))
            self.line(f"var {names[2]} = -1;")
        else:
            first = literal(identity(fold.combine, fold.dtypes[0]), fold.dtypes[0], self.features)
            self.line(f"var {names[0]} = {first};")
        return names

    def fold_values(self, fold: Fold) -> list[str]:
        """Give the values of a fold's body; those of a pair with the place of their point."""
        values = [self.value(name) for name in fold.values]
        if len(values) == 1:
            return values
        return [*values, self.indices.index(row_major(fold.axes))]

    def gather(self, fold: Fold, names: Sequence[str], values: Sequence[str]) -> None:
        """Combine values into what a fold gathers in; ``values`` of a pair have its place last."""
        if len(names) == 1:
            code = combine(fold.combine, fold.dtypes[0], self.features)
            self.line(f"{names[0]} = {code.replace('{0}', names[0]).replace('{1}', values[0])};")
            return
        with self.block(f"if ({self._is_better(fold, names, values)})"):
            for name, value in zip(names, values, strict=True):
                self.line(f"{name} = {value};")

    def _is_better(self, fold: Fold, old: Sequence[str], new: Sequence[str]) -> str:
        """Print whether a pair comes before the one that is best so far; NaN before all."""
        of = fold.dtypes[0]
        sides = (new[0], old[0]) if fold.combine == "argmin" else (old[0], new[0])
        better, same = (
            self._compared("less", of, *sides),
            self._compared("equal", of, new[0], old[0]),
        )
        if of.is_float:
            left, right = (f"is_nan_{self.register(of)}({x[0]})" for x in (new, old))
            better = f"(!{right} && ({left} || {better}))"
            same = f"({same} || ({left} && {right}))"
        earlier = f"({same} && {new[2]} < {old[2]})"
        return f"{new[2]} >= 0 && ({old[2]} < 0 || {better} || {earlier})"

    def _compared(self, op: str, of: DType, left: str, right: str) -> str:
        code = compute(Compute("", bool_, op, ()), (of, of), self.features)
        return f"({code.replace('{0}', left).replace('{1}', right)})"

    def finish_fold(self, fold: Fold, names: Sequence[str]) -> None:
        """Name what a fold gives."""
        for scalar, of, name in zip(fold.names, fold.dtypes, names, strict=False):
            if of.is_integer and of.bits < 32:
                self.line(f"{name} = {narrowed(name, of)};")
            self.name(scalar, of, name, fold.combine)

    # -- loops

    @contextmanager
    def running(self, axes: Sequence[Axis]) -> Iterator[None]:
        """Nest loops over axes."""
        if not axes:
            yield
            return
        name = self.fresh("a")
        self.indices.axes[axes[0]] = name
        extent = self.indices.number(axes[0].extent)
        head = f"for (var {name} = 0; {name} < {extent}; {name}++)"
        with self.block(head), self.running(axes[1:]):
            yield

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
