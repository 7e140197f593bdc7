"""Prove that the rows of a batch do not influence each other, as far as the graph tells it.

A batch is one symbol among the dims of the inputs. The proof follows the axis along which rows lie
from the inputs to the outputs: an op keeps rows apart if its declaration says so (elementwise ops,
composites by their expansion) or by a rule for its name. An op without a rule that is given rows
is taken to mix them. So requests may share a batch, and rows may be added to fill one up, only
where every answer is the same without the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fusewire.errors import DimError, TypeRuleError
from fusewire.facts.known import Facts
from fusewire.ir.dims import (
    Apply,
    Dim,
    Sym,
    Symbol,
    floordiv,
    lone_symbol,
    size,
    substitute,
    symbol,
    symbols,
)
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.inference import axes_of, axis_of
from fusewire.ops.table import get_op

# The axis along which the rows of a value lie; None if the value is the same for every batch.
Axis: TypeAlias = "int | None"
# What a node makes of the axes of its operands: that of each output, or a reason against it.
Rule: TypeAlias = "Callable[[Node, Sequence[Axis]], Sequence[Axis] | str]"

# Expansions contain composites again; no declared op nests this deeply.
_DEPTH = 16
# No batch has more rows: a file that slices "to the end" writes a larger number.
MOST_ROWS = 2**16
# Stands for the axis of small ints that follow from shapes, among them the number of rows.
_COUNTS = -1


@dataclass(frozen=True)
class RowProof:
    """The axis of rows of each input and output, or the reason why there is none.

    An input without such an axis is shared: requests with equal elements of it may be batched.
    """

    inputs: tuple[Axis, ...] = ()
    outputs: tuple[int, ...] = ()
    refusal: str | None = None

    @property
    def is_proven(self) -> bool:
        """Whether rows are independent, so that requests can share a batch."""
        return self.refusal is None


def prove_rows(graph: Graph, axes: Sequence[Axis] | None = None) -> RowProof:
    """Find the axis along which the rows of a batch lie, and prove that no op mixes them.

    ``axes`` says where the rows of the inputs lie, if not along the first axis.
    """
    chosen = _input_axes(graph) if axes is None else axes
    if isinstance(chosen, str):
        return RowProof(refusal=chosen)
    pairs = zip(graph.inputs, chosen, strict=True)
    lone = [lone_symbol(value.tensor.shape[axis]) for value, axis in pairs if axis is not None]
    batch = {found: _ROWS for found in lone if found is not None}
    try:
        found = _Proof(batch).follow(graph, chosen)
    except _MixedRows as mixed:
        return RowProof(refusal=str(mixed))
    outputs: list[int] = []
    for name, value, axis in zip(graph.output_names, graph.outputs, found, strict=True):
        if axis is None or axis == _COUNTS:
            return RowProof(refusal=f"the output {name} has no row for each row of the inputs")
        if _sizes(value, batch)[axis] != _ROWS:
            return RowProof(refusal=f"the output {name} is {value.type}: not one row each")
        outputs.append(axis)
    return RowProof(tuple(chosen), tuple(outputs))


# The number of rows, by a name that no file gives to a dim.
_ROWS = symbol("rows of the batch")
_ROW_SYMBOL = next(symbols(_ROWS))


def _input_axes(graph: Graph) -> Sequence[Axis] | str:
    """Choose the axis of each input: the first that is named like a first axis."""
    shapes = [v.type.shape if isinstance(v.type, TensorType) else () for v in graph.inputs]
    batch = {lone_symbol(shape[0]) for shape in shapes if shape} - {None}
    axes = [
        next((axis for axis, dim in enumerate(shape) if lone_symbol(dim) in batch), None)
        for shape in shapes
    ]
    if batch:
        return axes
    fixed = [
        f"the input {value.name} ({value.type}) has a fixed batch size of {shape[0]}"
        for value, shape in zip(graph.inputs, shapes, strict=True)
        if shape
    ]
    return fixed[0] if fixed else "no input has a batch axis"


class _MixedRows(Exception):
    """A node that keeps rows apart in no way that is known."""


def _size(dim: Dim, batch: Mapping[Symbol, Dim]) -> Dim:
    """Write a size with one name for the number of rows, which is at most MOST_ROWS."""
    return substitute(dim, batch, dict(_limits(dim, batch)))


def _limits(dim: Dim, batch: Mapping[Symbol, Dim]) -> Iterator[tuple[Apply, Dim]]:
    """Yield the parts of a size that limit the number of rows where no batch reaches."""
    for monomial, _ in dim.terms if isinstance(dim, Sym) else ():
        for atom, _ in monomial:
            if not isinstance(atom, Apply):
                continue
            for limit, rows in ((atom.left, atom.right), (atom.right, atom.left)):
                yield from _limits(limit, batch)
                is_unreached = isinstance(limit, int) and limit >= MOST_ROWS
                if atom.function == "min" and is_unreached and lone_symbol(rows) in batch:
                    yield atom, _ROWS


def _sizes(value: Value, batch: Mapping[Symbol, Dim]) -> Sequence[Dim]:
    return tuple(_size(dim, batch) for dim in value.tensor.shape)


def _counts_rows(dim: Dim) -> bool:
    return _ROW_SYMBOL in symbols(dim)


class _Proof:
    """Follows rows through a graph and the graphs inside it."""

    def __init__(self, batch: Mapping[Symbol, Dim], depth: int = 0) -> None:
        self._batch = batch
        self._depth = depth

    def follow(self, graph: Graph, inputs: Sequence[Axis]) -> list[Axis]:
        """Return the axis of each output of a graph for those of its inputs."""
        axes: dict[Value, Axis] = dict(zip(graph.inputs, inputs, strict=True))
        for value in graph.inputs:
            self._check(value, axes[value], f"the input {value.name}")
        facts = Facts(graph)
        for node in graph.nodes:
            facts.learn(node)
            given = [None if v is None else axes.get(v) for v in node.inputs]
            axes |= zip(node.outputs, self._pass(node, given, facts), strict=True)
        return [axes.get(value) for value in graph.outputs]

    def _pass(self, node: Node, given: Sequence[Axis], facts: Facts) -> Sequence[Axis]:
        if node.op == "shape_of" or _COUNTS in given:
            return self._count(node, facts)
        is_counting = any(self._mentions(value) for value in node.outputs)
        if all(axis is None for axis in given) and not is_counting and not _is_random(node):
            return [None] * len(node.outputs)
        found = self._apply(node, given)
        if isinstance(found, str):
            raise _MixedRows(f"{_shown(node)} {found}")
        for value, axis in zip(node.outputs, found, strict=True):
            self._check(value, axis, _shown(node))
        return found

    def _count(self, node: Node, facts: Facts) -> Sequence[Axis]:
        """Tell which ints that follow from shapes are the same for every number of rows."""
        axes: list[Axis] = []
        for value in node.outputs:
            elements = facts.elements(value)
            if elements is None:
                raise _MixedRows(f"{_shown(node)} computes with the number of rows")
            is_same = not any(_counts_rows(self._size(dim)) for dim in elements.flat)
            axes.append(None if is_same else _COUNTS)
        return axes

    def _apply(self, node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
        op = get_op(node.op)
        is_made = all(axis is None for axis in given)
        if is_made and not op.is_composite and node.op not in _MAKING:
            return "depends on the number of rows"
        if node.op == "scan":
            return self._scan(node, given)
        if (rule := _RULES.get(node.op)) is not None:
            return rule(self._sized(node), given)
        if op.is_(Trait.ELEMENTWISE) and not _is_random(node):
            return _aligned(node, given)
        if op.is_composite and self._depth < _DEPTH and not _is_random(node):
            present = [a for v, a in zip(node.inputs, given, strict=True) if v is not None]
            try:
                return _Proof(self._batch, self._depth + 1).follow(op.expansion(node), present)
            except _MixedRows as mixed:
                return f"mixes rows: inside, {mixed}"
            except (TypeRuleError, DimError):
                return "has rows where its expansion does not allow them"
        return "may mix rows: no rule says how it treats them"

    def _scan(self, node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
        """Follow the rows through the body, which takes slices along the first axis."""
        carries, scans = node.attrs["carries"], node.attrs["scans"]
        body = node.attrs["body"]
        assert isinstance(carries, int)
        assert isinstance(scans, int)
        assert isinstance(body, Graph)
        scanned = given[carries : carries + scans]
        if 0 in scanned:
            return "runs along the axis of rows"
        taken = [
            *given[:carries],
            *(None if axis is None else axis - 1 for axis in scanned),
            *given[carries + scans :],
        ]
        inner = _Proof(self._inside(node, body), self._depth + 1)
        found = inner.follow(body, taken)
        if found[:carries] != list(given[:carries]):
            return "carries rows along another axis from step to step"
        return [*found[:carries], *(None if axis is None else axis + 1 for axis in found[carries:])]

    def _inside(self, node: Node, body: Graph) -> Mapping[Symbol, Dim]:
        """Name the symbols of a body that stand for the number of rows."""
        batch = dict(self._batch)
        carries, scans = node.attrs["carries"], node.attrs["scans"]
        assert isinstance(carries, int)
        assert isinstance(scans, int)
        for place, (outer, inner) in enumerate(zip(node.operands, body.inputs, strict=True)):
            sizes = _sizes(outer, self._batch)
            skipped = 1 if carries <= place < carries + scans else 0
            for dim, seen in zip(inner.tensor.shape, sizes[skipped:], strict=True):
                alone = lone_symbol(dim)
                if alone is not None and seen == _ROWS:
                    batch[alone] = _ROWS
        return batch

    def _sized(self, node: Node) -> Node:
        """Copy a node with one name for the number of rows in all shapes that it mentions."""
        inputs = [None if v is None else Value(self._type(v), v.name) for v in node.inputs]
        return node.copy(inputs, self._attrs(node), [self._type(v) for v in node.outputs])

    def _attrs(self, node: Node) -> Mapping[str, Any]:
        return {key: self._attr(attr) for key, attr in node.attrs.items()}

    def _attr(self, attr: Any) -> Any:
        if isinstance(attr, tuple):
            return tuple(self._attr(part) for part in attr)
        return self._size(attr) if isinstance(attr, Sym) else attr

    def _size(self, dim: Dim) -> Dim:
        return _size(dim, self._batch)

    def _type(self, value: Value) -> Any:
        if not isinstance(value.type, TensorType):
            return value.type
        return value.type.with_shape(tuple(_sizes(value, self._batch)))

    def _mentions(self, value: Value) -> bool:
        is_tensor = isinstance(value.type, TensorType)
        return is_tensor and any(map(_counts_rows, _sizes(value, self._batch)))

    def _check(self, value: Value, axis: Axis, shown: str) -> None:
        """Check that rows lie along this axis in equal blocks, and along no other."""
        if axis == _COUNTS:
            return
        if not isinstance(value.type, TensorType):
            if axis is not None:
                raise _MixedRows(f"{shown} makes {value.type} of rows")
            return
        sizes = _sizes(value, self._batch)
        if axis is not None and _block(sizes[axis]) is None:
            raise _MixedRows(
                f"{shown} makes {value.type}, which has no row for each row it is given"
            )
        if any(_counts_rows(dim) for place, dim in enumerate(sizes) if place != axis):
            raise _MixedRows(
                f"{shown} makes {value.type}, whose sizes depend on the number of rows"
            )


def _shown(node: Node) -> str:
    name = node.name or node.outputs[0].name
    return f"{node.op} ({name})" if name else node.op


def _is_random(node: Node) -> bool:
    return get_op(node.op).is_(Trait.RANDOM)


def _block(dim: Dim) -> Dim | None:
    """Return how many places along an axis belong to each row; None if they are not equal."""
    try:
        block = floordiv(dim, _ROWS)
    except DimError:
        return None
    return block if not _counts_rows(block) and block * _ROWS == dim else None


def _aligned(node: Node, given: Sequence[Axis], matrix: int = 0) -> Sequence[Axis] | str:
    """Broadcast from the right: rows of all operands meet if they lie along the same axis."""
    rank = node.outputs[0].tensor.rank
    # Counted from the right, as broadcasting does.
    places = {
        axis - value.tensor.rank
        for value, axis in zip(node.inputs, given, strict=True)
        if value is not None and axis is not None
    }
    if len(places) != 1:
        return "combines rows with other rows" if places else "depends on the number of rows"
    (place,) = places
    if -place <= matrix:
        return "combines the rows of a matrix"
    return [rank + place] * len(node.outputs)


def _on(axis: Axis, count: int = 1) -> list[Axis]:
    return [axis] * count


def _reduce(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    (axis,) = given
    (source,) = node.operands
    assert axis is not None
    attr: Any = node.attrs["axes"] if "axes" in node.attrs else (node.attrs["axis"],)
    axes = axes_of(attr, source.tensor.rank)
    if axis in axes:
        return "combines the elements of all rows"
    kept = bool(node.attrs["keepdims"])
    return _on(axis if kept else axis - sum(other < axis for other in axes))


def _along(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    """Ops that work along one axis and keep the others."""
    along: Any = node.attrs["axis"]
    (axis, *others) = given
    if along is None or any(other is not None for other in others) or axis is None:
        return "combines the elements of all rows"
    rank = node.operands[0].tensor.rank
    if axis_of(along, rank) == axis:
        return "works along the axis of rows"
    return _on(axis, len(node.outputs))


def _matmul(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    (left, right), (a, b) = node.operands, given
    rank = node.outputs[0].tensor.rank
    if min(left.tensor.rank, right.tensor.rank) < 2:
        vector = left.tensor.rank == 1 or a is None or b is not None
        if vector or a == left.tensor.rank - 1:
            return "sums over the axis of rows"
        return _on(a)
    if b is None and a is not None and a == left.tensor.rank - 2:
        # Rows of the left matrix: each gives a row of the product.
        is_shared = right.tensor.rank == 2 or a == left.tensor.rank - 2
        return _on(rank - 2) if is_shared else "combines rows"
    if a is None and b is not None and b == right.tensor.rank - 1:
        return _on(rank - 1)
    return _aligned(node, given, matrix=2)


def _dot_general(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    contract: Any = node.attrs["contract"]
    batch: Any = node.attrs["batch"]
    ranks = [value.tensor.rank for value in node.operands]
    shared = [[axis_of(x, ranks[side]) for x in batch[side]] for side in (0, 1)]
    summed = [[axis_of(x, ranks[side]) for x in contract[side]] for side in (0, 1)]
    free = [
        [x for x in range(ranks[side]) if x not in (*shared[side], *summed[side])]
        for side in (0, 1)
    ]
    a, b = given
    if a is not None and b is not None:
        together = a in shared[0] and b in shared[1]
        if together and shared[0].index(a) == shared[1].index(b):
            return _on(shared[0].index(a))
        return "combines rows with other rows"
    side = 0 if a is not None else 1
    axis = a if a is not None else b
    if axis not in free[side]:
        return "sums over the axis of rows"
    skipped = len(shared[0]) + (len(free[0]) if side else 0)
    return _on(skipped + free[side].index(axis))


def _first_axis_only(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    """Convolutions and windows: the first axis of the first operand is the batch."""
    if given[0] != 0 or any(axis is not None for axis in given[1:]):
        return "combines rows: they must lie along its first axis"
    return _on(0, len(node.outputs))


def _reshape(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    (axis,), (source,) = given, node.operands
    assert axis is not None
    before = size(source.tensor.shape[:axis])
    shape = node.outputs[0].tensor.shape
    for place, dim in enumerate(shape):
        # In front of the rows are as many places as before: so blocks of rows stay whole.
        if _counts_rows(dim):
            return _on(place) if size(shape[:place]) == before else "splits rows into parts"
    return "folds rows into axes of fixed sizes"


def _transpose(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    perm: Any = node.attrs["perm"]
    axis = given[0]
    assert axis is not None
    return _on([axis_of(place, len(perm)) for place in perm].index(axis))


def _broadcast_to(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    (axis,), (source,) = given, node.operands
    shape = node.outputs[0].tensor.shape
    added = len(shape) - source.tensor.rank
    if axis is not None:
        return _on(axis + added)
    rows = [place for place, dim in enumerate(shape) if _counts_rows(dim)]
    is_repeated = len(rows) == 1 and (rows[0] < added or source.tensor.shape[rows[0] - added] == 1)
    # The same row again and again.
    return _on(rows[0]) if is_repeated else "depends on the number of rows"


def _concat(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    along: Any = node.attrs["axis"]
    axes = set(given)
    (axis,) = axes if len(axes) == 1 else (None,)
    if axis is None:
        return "joins rows with what is not one"
    if axis_of(along, node.outputs[0].tensor.rank) == axis:
        return "joins along the axis of rows"
    return _on(axis)


def _slice(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    axis = given[0]
    assert axis is not None
    starts: Any = node.attrs["starts"]
    strides: Any = node.attrs["strides"]
    whole = node.outputs[0].tensor.shape[axis] == node.operands[0].tensor.shape[axis]
    step = 1 if strides is None else strides[axis]
    if not whole or starts[axis] != 0 or step != 1:
        return "takes a part of the rows"
    return _on(axis)


def _pad(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    axis = given[0]
    padding: Any = node.attrs["padding"]
    if axis is None or any(other is not None for other in given[1:]):
        return "pads with values of rows"
    if tuple(padding[axis]) != (0, 0):
        return "pads the axis of rows"
    return _on(axis)


def _iota(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    along: Any = node.attrs["axis"]
    shape = node.outputs[0].tensor.shape
    rows = [place for place, dim in enumerate(shape) if _counts_rows(dim)]
    if len(rows) != 1 or axis_of(along, len(shape)) == rows[0]:
        return "numbers the rows"
    return _on(rows[0])


def _gather(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    along: Any = node.attrs["axis"]
    (source, indices), (axis, picked) = node.operands, given
    along = axis_of(along, source.tensor.rank)
    if axis is None and picked is not None:
        return _on(along + picked)
    if axis is None or picked is not None or axis == along:
        return "picks by place along the axis of rows"
    return _on(axis if axis < along else axis - 1 + indices.tensor.rank)


def _gather_nd(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    (_, indices), (axis, picked) = node.operands, given
    shared: Any = node.attrs["batch_dims"]
    if axis is None and picked is not None and shared <= picked < indices.tensor.rank - 1:
        return _on(picked)
    if axis is not None and axis == picked and axis < shared:
        return _on(axis)
    return "picks by place along the axis of rows"


def _elements(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    """Gather and scatter elements along one axis, place by place along the others."""
    along: Any = node.attrs["axis"]
    axes = set(given)
    (axis,) = axes if len(axes) == 1 else (None,)
    if axis is None or axis_of(along, node.operands[0].tensor.rank) == axis:
        return "picks by place along the axis of rows"
    return _on(axis)


def _linalg(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    """Ops on the last two axes; those before are batches."""
    if len({value.tensor.rank for value in node.operands}) > 1 or None in given:
        return "combines the rows of a matrix"
    axes = set(given)
    (axis,) = axes if len(axes) == 1 else (None,)
    if axis is None or axis >= node.operands[0].tensor.rank - 2:
        return "combines the rows of a matrix"
    return _on(axis, len(node.outputs))


def _resize(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    axis = given[0]
    scales: Any = node.attrs["scales"]
    is_other = len(node.operands) > 1 or (scales is not None and scales[axis] != 1)
    if axis is None or is_other:
        return "resamples the axis of rows"
    return _on(axis)


def _searchsorted(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    return "searches in rows" if given[0] is not None else _on(given[1])


def _grid_sample(node: Node, given: Sequence[Axis]) -> Sequence[Axis] | str:
    return _on(0) if tuple(given) == (0, 0) else "combines rows with what is not one"


# What makes rows of nothing but their number.
_MAKING = ("broadcast_to", "iota")
_REDUCTIONS = (
    "reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_any", "reduce_all",
    "argmax", "argmin",
)  # fmt: skip
_ALONG = (
    "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort", "argsort",
    "fft", "ifft", "rfft", "irfft",
)  # fmt: skip
# What keeps rows apart and is neither elementwise nor a composite.
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(_ALONG, _along),
    **dict.fromkeys(("conv", "max_pool", "sum_pool", "average_pool"), _first_axis_only),
    **dict.fromkeys(("gather_elements", "scatter_elements"), _elements),
    **dict.fromkeys(("det", "inverse", "cholesky", "qr", "svd", "eigh"), _linalg),
    **dict.fromkeys(("solve", "triangular_solve"), _linalg),
    "matmul": _matmul,
    "dot_general": _dot_general,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "slice": _slice,
    "pad": _pad,
    "iota": _iota,
    "gather": _gather,
    "gather_nd": _gather_nd,
    "resize": _resize,
    "searchsorted": _searchsorted,
    "grid_sample": _grid_sample,
}
