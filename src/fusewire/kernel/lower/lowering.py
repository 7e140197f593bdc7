"""Collect the kernels of a region: buffers for what is stored, bodies for what is computed.

Every value that has a buffer is stored by one kernel; all else is computed where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fusewire.dtypes import DType
from fusewire.fusion.kinds import unshaped
from fusewire.ir.graph import Array, Constant, Graph, Node, Value
from fusewire.kernel.analysis import names_of, operands_of
from fusewire.kernel.collapse import collapsed
from fusewire.kernel.form import (
    BufferStore,
    Fold,
    Kernel,
    KernelBuffer,
    Loop,
    Lowered,
    OutsideCall,
    Repeat,
    Statement,
)
from fusewire.kernel.index import Axis, at
from fusewire.kernel.lower.body import Body, Element, Indices, Located
from fusewire.kernel.lower.shapes import Ints, shape_of


class Lowering:
    """The kernels of a region while they are made."""

    def __init__(
        self,
        graph: Graph,
        find: Callable[[str], Element],
        groups: Callable[[Lowering, Graph], None],
    ) -> None:
        self.graph = graph
        self._groups = groups
        self.steps: list[Kernel | Repeat] = []
        self.around: tuple[Axis, ...] = ()
        self._count = 0
        self._find = find
        self._buffers: dict[str, KernelBuffer] = {}
        self._held: dict[Value, Located] = {}
        self._constants: dict[str, Constant] = {}
        self._tables: dict[str, KernelBuffer] = {}
        self._inputs = [self._add(f"in{i}", v) for i, v in enumerate(graph.inputs)]
        self._outputs = [self._output(f"out{i}", v) for i, v in enumerate(graph.outputs)]
        self._targets: dict[Value, Located] = {}
        # Values whose reshapes are asked for somewhere.
        self._views: dict[Value, tuple[Value, Located]] = {}
        self.aim(graph.outputs, [Located(buffer) for buffer in self._outputs])

    # -- memory

    def _add(self, name: str, value: Value) -> KernelBuffer:
        buffer = self._output(name, value)
        self._held[value] = Located(buffer)
        return buffer

    def _output(self, name: str, value: Value) -> KernelBuffer:
        buffer = self._buffers[name] = KernelBuffer(name, value.tensor.dtype, shape_of(value))
        return buffer

    def find(self, value: Value) -> Located | None:
        """Tell where a value is that is an input, a constant of some size, or stored."""
        if value not in self._held and value.constant is not None and value.tensor.size != 1:
            self._held[value] = Located(self._constant(value.constant))
        return self._held.get(value)

    def _constant(self, constant: Constant) -> KernelBuffer:
        found = self._tables.get(constant.digest)
        if found is None:
            name = f"c{len(self._constants)}"
            of = constant.type
            found = KernelBuffer(name, of.dtype, tuple(d for d in of.shape if isinstance(d, int)))
            self._buffers[name] = self._tables[constant.digest] = found
            self._constants[name] = constant
        return found

    def table(self, array: Array) -> KernelBuffer:
        """Give a buffer with these elements."""
        return self._constant(Constant.of(array))

    def temporary(self, of: DType, shape: Ints) -> KernelBuffer:
        """Add memory that lasts as long as the region runs."""
        name = f"t{len(self._buffers)}"
        buffer = self._buffers[name] = KernelBuffer(name, of, shape)
        return buffer

    def target(self, value: Value) -> Located:
        """Give the memory that a value is to be stored in."""
        if value not in self._targets:
            of, shape = value.tensor.dtype, shape_of(value)
            self._targets[value] = Located(self.temporary(of, shape))
        return self._targets[value]

    def aim(self, values: Sequence[Value], targets: Sequence[Located]) -> None:
        """Let values be stored at these places, once they are; a value twice at the first.

        Of a reshape it is the operand that is stored there, in its own shape.
        """
        for value, target in zip(values, targets, strict=True):
            whole = unshaped(value)
            if whole is not value:
                self._views.setdefault(whole, (value, target))
                target = Located(target.buffer, target.part, shape_of(whole))
            self._targets.setdefault(whole, target)

    def settle(self, values: Sequence[Value], targets: Sequence[Located]) -> None:
        """Store values that are not at their places: not computed yet, or kept elsewhere."""
        for value, target in zip(values, targets, strict=True):
            if self._held.get(value) != target:
                self.store_in([value], [target])

    def keep(self, value: Value, where: Located) -> None:
        """Let a value be somewhere from here on."""
        self._held[value] = where
        view, target = self._views.get(value, (value, where))
        if target.buffer is where.buffer:
            self._held[view] = target

    def forget(self, body: Graph) -> None:
        """Let the values of a body be nowhere again: another scan may have the same body."""
        for value in (*body.inputs, *(v for node in body.nodes for v in node.outputs)):
            for table in (self._held, self._targets, self._views):
                table.pop(value, None)

    def stored(self, value: Value) -> Located:
        """Tell where a value is; it is stored if it is nowhere yet."""
        found = self.find(value)
        if found is None:
            found = self.target(value)
            self.store([value])
        return found

    # -- kernels

    def body(self, axes: Iterable[Axis]) -> Body:
        """Start the body of a kernel."""
        return Body((*self.around, *axes), self, self._find)

    def add(
        self, name: str, axes: Sequence[Axis], body: Body, writes: Iterable[KernelBuffer]
    ) -> None:
        """Add a kernel of what a body has at its root, unless it has no points."""
        if any(axis.extent == 0 for axis in axes):
            return
        statements = needed(body.root.statements)
        stored = tuple(dict.fromkeys(writes))
        own = {b.name for b in body.locals.values()}
        reads = tuple(b for b in body.loaded.values() if b.name not in own)
        self._count += 1
        label = f"{name}_{self._count}"
        kept = tuple(body.locals.values())
        kernel = Kernel(label, tuple(axes), statements, reads, stored, kept, self.around)
        self.steps.append(collapsed(kernel))

    def call(self, node: Node, digest: str) -> None:
        """Add the kernel that a package brings for a node; its operands are stored before."""
        if self.find(node.outputs[0]) is not None:
            return
        sources = [self.stored(v) for v in node.operands]
        targets = [self.target(v) for v in node.outputs]
        assert not any(where.part or where.rows for where in (*sources, *targets)), "a whole tensor"
        operands, results = (
            tuple(
                KernelBuffer(where.buffer.name, v.tensor.dtype, shape_of(v))
                for v, where in zip(values, places, strict=True)
            )
            for values, places in ((node.operands, sources), (node.outputs, targets))
        )
        attrs = tuple(sorted(node.attrs.items()))
        reads, writes = (
            tuple(dict.fromkeys(where.buffer for where in places)) for places in (sources, targets)
        )
        called = OutsideCall(node.op, digest, operands, results, attrs)
        self._count += 1
        label = f"{_word(node.op)}_{self._count}"
        self.steps.append(Kernel(label, (), (), reads, writes, call=called))
        for value, where in zip(node.outputs, targets, strict=True):
            self.keep(value, where)

    def store(self, values: Sequence[Value], kept: Sequence[Value] = ()) -> None:
        """Store values of one shape by one kernel; rows of those in ``kept`` are held in it."""
        targets = [self.target(value) for value in values]
        self.store_in(values, targets, kept)
        for value, where in zip(values, targets, strict=True):
            self.keep(value, where)

    def store_in(
        self, values: Sequence[Value], targets: Sequence[Located], kept: Sequence[Value] = ()
    ) -> None:
        """Store values of one shape at these places; of nothing there is nothing to store."""
        if 0 in shape_of(values[0]):
            return
        space = _Space.of(shape_of(values[0]))
        rows = self._rows(values, space) if not kept else space.axes[: _shared(values, kept)]
        inner = tuple(axis for axis in space.axes if axis not in rows)
        body = self.body(rows)
        self._keep_rows(body, space.index[: _shared(values, kept)], kept)
        scope = body.enter(inner) if inner else body.root
        found = [body.element(value, space.index) for value in values]
        scope.statements += [
            BufferStore(where.buffer.name, where.at(space.index), name)
            for where, name in zip(targets, found, strict=True)
        ]
        if inner:
            body.root.statements.append(Loop(inner, body.leave()))
        self.add(_label(values), rows, body, [where.buffer for where in targets])

    def _rows(self, values: Sequence[Value], space: _Space) -> tuple[Axis, ...]:
        """Find the axes that folds over rows depend on; all, where there are none such."""
        draft = self.body(space.axes)
        for value in values:
            draft.element(value, space.index)
        own = frozenset(space.axes)
        shared = [axes & own for axes in draft.folds if axes & own != own]
        if not shared:
            return space.axes
        kept = frozenset().union(*shared)
        return tuple(axis for axis in space.axes if axis in kept)

    def _keep_rows(self, body: Body, row: Indices, kept: Sequence[Value]) -> None:
        body.row = row
        for place, value in enumerate(kept):
            shape = shape_of(value)[len(row) :]
            axes = tuple(body.axis(extent) for extent in shape)
            index = tuple(at(axis) for axis in axes)
            buffer = KernelBuffer(f"l{place}", value.tensor.dtype, shape)
            scope = body.enter(axes)
            found = body.element(value, (*row, *index))
            scope.statements.append(BufferStore(buffer.name, index, found))
            body.root.statements.append(Loop(axes, body.leave()))
            body.locals[value] = buffer

    def run(self, graph: Graph) -> None:
        """Add the kernels of a graph: the region itself, or a body in it."""
        self._groups(self, graph)

    def finish(self) -> Lowered:
        """Store outputs that nothing stored yet, and close the region."""
        self.settle(self.graph.outputs, [Located(buffer) for buffer in self._outputs])
        inputs = tuple(b.name for b in self._inputs)
        outputs = tuple(b.name for b in self._outputs)
        buffers, constants = dict(self._buffers), dict(self._constants)
        return Lowered(self.graph.name, inputs, outputs, buffers, constants, tuple(self.steps))


# Adds the kernels of a node that has its own; its outputs are stored then.
Whole = Callable[[Lowering, Node], None]


@dataclass(frozen=True)
class _Space:
    """The axes of a shape but those of size 1, and the index of a point."""

    axes: tuple[Axis, ...]
    index: Indices

    @staticmethod
    def of(shape: Ints) -> _Space:
        axes = tuple(Axis(f"i{place}", extent) for place, extent in enumerate(shape))
        kept = tuple(axis for axis in axes if axis.extent != 1)
        return _Space(kept, tuple(at(axis) for axis in axes))


def _shared(values: Sequence[Value], kept: Sequence[Value]) -> int:
    """Count the leading dims that values and the rows they keep have in common."""
    shapes = [shape_of(value) for value in (*values, *kept)]
    count = 0
    while all(len(shape) - 1 > count and shape[count] == shapes[0][count] for shape in shapes):
        count += 1
    return count


def _label(values: Sequence[Value]) -> str:
    node = values[0].node
    return "copy" if node is None else _word(node.op)


def _word(op: str) -> str:
    """Name an op of a package as printers may: without its namespace."""
    return op.rpartition(".")[2].partition("@")[0]


def needed(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Drop scalars that nothing uses."""
    kept, _ = _needed(statements, set())
    return tuple(kept)


def _needed(statements: Sequence[Statement], wanted: set[str]) -> tuple[list[Statement], set[str]]:
    kept: list[Statement] = []
    for statement in reversed(statements):
        names = {*names_of(statement)}
        if isinstance(statement, Fold):
            if not names & wanted:
                continue
            body, wanted = _needed(statement.body, wanted | {*statement.values})
            statement = Fold(
                statement.names,
                statement.dtypes,
                statement.combine,
                statement.axes,
                tuple(body),
                statement.values,
            )
        elif isinstance(statement, Loop):
            wanted = wanted | {c.next for c in statement.carries}
            body, wanted = _needed(statement.body, wanted)
            statement = Loop(statement.axes, tuple(body), statement.ordered, statement.carries)
        elif not isinstance(statement, BufferStore) and not names & wanted:
            continue
        wanted = wanted | {*operands_of(statement)}
        kept.append(statement)
    return kept[::-1], wanted
