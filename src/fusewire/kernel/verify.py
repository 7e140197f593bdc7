"""Check a kernel: scalars are named before use and fit, and no access leaves its buffer.

Bounds are proved, not tried: of every load and store, each part of the index lies inside by the
extents of axes, or by a bound of its guard.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fusewire.dtypes import DType
from fusewire.errors import VerifyError
from fusewire.ir.types import TensorType
from fusewire.kernel.form import (
    BufferLoad,
    BufferStore,
    Compute,
    Fold,
    Guard,
    Holds,
    Kernel,
    KernelBuffer,
    Loop,
    Lowered,
    OutsideCall,
    Place,
    Repeat,
    Statement,
)
from fusewire.kernel.index import Axis, Held, Index, Quotient, atoms_of
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op


def verify_lowered(region: Lowered) -> None:
    """Check a region; VerifyError names the broken invariant."""
    stored = {*region.inputs, *region.constants}
    for name in (*region.inputs, *region.outputs, *region.constants):
        _require("buffers", name in region.buffers, f"{region.name} has no buffer {name}")
    for step in region.steps:
        kernels = step.kernels if isinstance(step, Repeat) else (step,)
        given = {step.step} if isinstance(step, Repeat) else set()
        # What a step of a repeat stores, the next step may read.
        stored |= {b.name for k in kernels for b in k.writes} if given else set()
        for kernel in kernels:
            for buffer in (*kernel.reads, *kernel.writes):
                known = region.buffers.get(buffer.name) == buffer
                _require("buffers", known, f"{kernel.name} names {buffer}, which is not there")
            unread = [b.name for b in kernel.reads if b.name not in stored and 0 not in b.shape]
            _require("order", not unread, f"{kernel.name} reads {unread} before it is stored")
            _require("steps", given >= {*kernel.steps}, f"{kernel.name} is in no such repeat")
            verify_kernel(kernel)
            stored |= {b.name for b in kernel.writes}
    full = [name for name in region.outputs if 0 not in region.buffers[name].shape]
    missing = [name for name in full if name not in stored]
    _require("outputs", not missing, f"nothing stores {missing}")


def verify_kernel(kernel: Kernel) -> None:
    """Check one kernel; VerifyError names the broken invariant."""
    names = [b.name for b in (*kernel.reads, *kernel.writes, *kernel.locals)]
    both = {b.name for b in kernel.reads} & {b.name for b in kernel.writes}
    unique = len(names) - len(both) == len(set(names))
    _require("buffers", unique, f"{kernel.name} names a buffer twice")
    if kernel.call is not None:
        _verify_call(kernel, kernel.call)
        return
    check = _Check(kernel)
    check.body(kernel.body, [*kernel.steps, *kernel.axes], {})


def _verify_call(kernel: Kernel, call: OutsideCall) -> None:
    """Check that a call names its buffers, each with as many elements as its tensor has."""
    for tensors, buffers in ((call.operands, kernel.reads), (call.results, kernel.writes)):
        held = {b.name: b for b in buffers}
        for tensor in tensors:
            found = held.get(tensor.name)
            fits = found is not None and found.dtype is tensor.dtype
            fits = fits and math.prod(found.shape) == math.prod(tensor.shape)  # type: ignore[union-attr] # not None if it fits
            _require("buffers", fits, f"{kernel.name} calls {call.op} on {tensor}, has {found}")
    _require("body", not kernel.body, f"{kernel.name} has a call and a body")


class _Check:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._readable = {b.name: b for b in (*kernel.reads, *kernel.locals)}
        self._writable = {b.name: b for b in (*kernel.writes, *kernel.locals)}
        # A store that combines reads what it writes.
        self._readable |= {b.name: b for b in kernel.writes if b in kernel.reads}
        self._named: set[str] = set()
        self._axes: set[str] = {a.name for a in (*kernel.axes, *kernel.steps)}
        self._ordered: set[Axis] = set()

    def body(
        self, statements: Sequence[Statement], axes: Sequence[Axis], outer: dict[str, DType]
    ) -> dict[str, DType]:
        known = dict(outer)
        for statement in statements:
            if isinstance(statement, Fold | Loop):
                self._nest(statement, axes, known)
            elif isinstance(statement, BufferStore):
                self._access(statement, self._writable, axes, known)
                found = known.get(statement.value)
                self._require(
                    "names", found is not None, f"{statement} stores what is unknown here"
                )
                buffer = self._writable[statement.buffer]
                self._require("dtypes", found is buffer.dtype, f"stores {found} in {buffer}")
            else:
                self._scalar(statement, axes, known)
                self._name(statement.name, statement.dtype, known)
        return known

    def _scalar(self, statement: Statement, axes: Sequence[Axis], known: dict[str, DType]) -> None:
        if isinstance(statement, BufferLoad):
            self._access(statement, self._readable, axes, known)
            buffer = self._readable[statement.buffer]
            same = statement.dtype is buffer.dtype
            self._require("dtypes", same, f"loads {statement.dtype} of {buffer}")
        elif isinstance(statement, Place | Holds):
            indices = (
                [statement.index]
                if isinstance(statement, Place)
                else [b.index for b in statement.guard]
            )
            self._indices(indices, axes, known)
        elif isinstance(statement, Compute):
            self._compute(statement, known)

    def _compute(self, statement: Compute, known: dict[str, DType]) -> None:
        for name in statement.operands:
            self._require("names", name in known, f"{statement.name} uses {name}, unknown here")
        op = get_op(statement.op)
        scalar = op.is_(Trait.ELEMENTWISE) and not op.is_composite
        self._require("ops", scalar, f"{statement.op} is no elementwise primitive")
        types = [TensorType(known[name], ()) for name in statement.operands]
        found = op.infer(types, dict(statement.attrs))
        right = found == (TensorType(statement.dtype, ()),)
        self._require("dtypes", right, f"{statement} is {found} by the rule of {statement.op}")

    def _nest(self, nest: Fold | Loop, axes: Sequence[Axis], known: dict[str, DType]) -> None:
        for axis in nest.axes:
            self._require("axes", axis.name not in self._axes, f"two axes are called {axis.name}")
            self._axes.add(axis.name)
        start = dict(known)
        if isinstance(nest, Loop):
            self._ordered |= {*nest.axes} if nest.ordered or nest.carries else set()
            for carry in nest.carries:
                self._require("names", known.get(carry.start) is carry.dtype, f"{carry} starts so")
                self._name(carry.name, carry.dtype, start)
        inside = self.body(nest.body, [*axes, *nest.axes], start)
        if isinstance(nest, Loop):
            for carry in nest.carries:
                self._require("names", inside.get(carry.next) is carry.dtype, f"{carry} goes on so")
                known[carry.name] = carry.dtype
            return
        pair = nest.combine in ("argmax", "argmin")
        counts = {len(nest.names), len(nest.values), len(nest.dtypes)} == {1 + pair}
        self._require("folds", counts, f"{nest.combine} gives {len(nest.names)} values")
        found = tuple(inside.get(name) for name in nest.values)
        self._require("dtypes", found == nest.dtypes, f"folds {found} to {nest.dtypes}")
        for name, of in zip(nest.names, nest.dtypes, strict=True):
            self._name(name, of, known)

    def _access(
        self,
        access: BufferLoad | BufferStore,
        buffers: dict[str, KernelBuffer],
        axes: Sequence[Axis],
        known: dict[str, DType],
    ) -> None:
        buffer = buffers.get(access.buffer)
        if buffer is None:
            raise VerifyError("buffers", f"{self._kernel.name} may not access {access.buffer}")
        rank = len(access.index) == len(buffer.shape)
        self._require("rank", rank, f"{len(access.index)} indices for {buffer}")
        self._indices([*access.index, *(b.index for b in access.guard)], axes, known)
        if isinstance(access, BufferStore):
            self._races(access, axes)
        for index, dim in zip(access.index, buffer.shape, strict=True):
            low, high = range_under(index, access.guard)
            empty = any(b.low >= b.high for b in access.guard) or _is_void(axes)
            inside = empty or (low >= 0 and high < dim)
            self._require("bounds", inside, f"{index} of {buffer} may be {low} to {high}")

    def _races(self, store: BufferStore, axes: Sequence[Axis]) -> None:
        """Refuse a store that two points make to one place, so far as the index shows it."""
        own = {b.name for b in self._kernel.locals}
        apart = [*self._kernel.steps, *(self._kernel.axes if store.buffer in own else ())]
        found = set(atoms_of(store.index))
        if any(isinstance(atom, Held) for atom in found):
            return
        many = [a for a in axes if a.extent > 1 and a not in {*apart, *self._ordered}]
        missing = [a.name for a in many if a not in found]
        self._require("races", not missing, f"points of {missing} store to one place")

    def _indices(
        self, indices: Iterable[Index], axes: Sequence[Axis], known: dict[str, DType]
    ) -> None:
        for atom in atoms_of(indices):
            if isinstance(atom, Held):
                of = known.get(atom.value)
                whole = of is not None and of.is_integer
                self._require("names", whole, f"{atom} needs an integer of that name")
            else:
                self._require("axes", atom in axes, f"the axis {atom.name} is not in scope")

    def _name(self, name: str, of: DType, known: dict[str, DType]) -> None:
        self._require("names", name not in self._named, f"{name} is named twice")
        self._named.add(name)
        known[name] = of

    def _require(self, check: str, holds: bool, message: str) -> None:
        _require(check, holds, f"{self._kernel.name}: {message}")


def _is_void(axes: Sequence[Axis]) -> bool:
    return any(axis.extent == 0 for axis in axes)


def range_under(index: Index, guard: Guard) -> tuple[int, int]:
    """Find the least and largest value of an index where a guard holds.

    A bound on b says as much of c * b + rest.
    """
    if not guard:
        return index.range
    low = high = index.constant
    for atom, factor in index.terms:
        least, most = atom.range
        if isinstance(atom, Quotient):
            least, most = (end // atom.by for end in range_under(atom.of, guard))
        ends = (least * factor, most * factor)
        low, high = low + min(ends), high + max(ends)
    for bound in guard:
        if not bound.index.terms:
            continue
        atom, factor = bound.index.terms[0]
        mine = dict(index.terms).get(atom, 0)
        if mine == 0 or mine % factor:
            continue
        times = mine // factor
        least, most = (index - bound.index * times).range
        ends = (bound.low * times, (bound.high - 1) * times)
        low, high = max(low, least + min(ends)), min(high, most + max(ends))
    return low, high


def _require(check: str, holds: bool, message: str) -> None:
    if not holds:
        raise VerifyError(check, message)
