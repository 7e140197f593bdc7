"""Recurrent layers as ONNX defines them: order of gates, directions, lengths, clipping.

x is [time, batch, input]; weights have a leading axis of directions, and outputs are y [time,
directions, batch, hidden] and the last states. Layers are stacked by nodes. What every step needs
of x is one product before the scan over time; steps beyond a sequence's length keep its state and
give 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from fusewire.dtypes import FLOATS, int32, int64
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, Shape
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops import activation
from fusewire.ops.contraction import matmul
from fusewire.ops.control import scan
from fusewire.ops.creation import iota
from fusewire.ops.declare import Family
from fusewire.ops.elementwise import add, clip, multiply, subtract, tanh
from fusewire.ops.inference import require, require_dims, same_dtype
from fusewire.ops.logic import less, where
from fusewire.ops.movement import broadcast_to, concat, expand_dims, reshape, stack, transpose
from fusewire.ops.requires import up_to
from fusewire.ops.sample import Sample, bad, draw, given, sample
from fusewire.ops.slicing import slice_axis, split
from fusewire.ops.subgraph import subgraph

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
# A name, or a name with its one or two numbers: ("scaled_tanh", 1.7, 0.6).
Activation: TypeAlias = str | tuple[str | float, ...]
Activations: TypeAlias = tuple[Activation, ...]
# Makes new states of what x gives a step, the states, and what stays the same; h comes first.
Cell: TypeAlias = Callable[[Value, Sequence[Value], Sequence[Value]], list[Value]]
# A direction's bias, what stays the same over time, and its cell.
Prepared: TypeAlias = tuple[Value | None, list[Value], Cell]

ACTIVATIONS: dict[str, Callable[..., Value]] = {
    "tanh": tanh,
    "sigmoid": activation.sigmoid,
    "relu": activation.relu,
    "softsign": activation.softsign,
    "softplus": activation.softplus,
    "affine": lambda x, alpha=1.0, beta=0.0: add(multiply(x, alpha), beta),
    "scaled_tanh": lambda x, alpha=1.0, beta=1.0: multiply(tanh(multiply(x, beta)), alpha),
    "leaky_relu": lambda x, alpha=0.01: activation.leaky_relu(x, alpha=alpha),
    "thresholded_relu": lambda x, alpha=1.0: activation.thresholded_relu(x, alpha=alpha),
    "hard_sigmoid": lambda x, alpha=0.2, beta=0.5: activation.hard_sigmoid(
        x, alpha=alpha, beta=beta
    ),
    "elu": lambda x, alpha=1.0: activation.elu(x, alpha=alpha),
}


def functions(
    activations: Activations, count: int, index: int, limit: float | None
) -> list[Callable[[Value], Value]]:
    """Give the activations of a direction, which limit what they are given first."""

    def function(of: Activation) -> Callable[[Value], Value]:
        name, *numbers = (of,) if isinstance(of, str) else of

        def apply(x: Value) -> Value:
            limited = x if limit is None else clip(x, -limit, limit)
            return ACTIVATIONS[str(name)](limited, *numbers)

        return apply

    first = index * count if len(activations) > count else 0
    return [function(of) for of in activations[first : first + count]]


def require_shape(type_: TensorType | None, wanted: Shape, what: str) -> None:
    """Refuse an operand of another shape; an absent one will do."""
    if type_ is not None:
        fits = type_.rank == len(wanted)
        require(fits, f"{what} must be [{', '.join(map(str, wanted))}], found {type_}.")
        for found, dim in zip(type_.shape, wanted, strict=True):
            require_dims(found, dim, f"dims of {what}, {type_},")


def layer_type(
    x: TensorType,
    w: TensorType,
    r: TensorType,
    bias: TensorType | None,
    lengths: TensorType | None,
    states: Sequence[TensorType | None],
    kind: tuple[str, Activations],
    sizes: tuple[int, int],
) -> tuple[TensorType, ...]:
    """Check a layer of so many gates and activations; give the types of y and the last states."""
    (direction, activations), (gates, count) = kind, sizes
    known = direction in DIRECTIONS
    require(known, f"direction is one of {', '.join(DIRECTIONS)}, found {direction!r}.")
    directions = len(DIRECTIONS[direction])
    fits = len(activations) in (count, count * directions)
    require(fits, f"{count} activations for a direction are needed, found {activations}.")
    for name in (of if isinstance(of, str) else of[0] for of in activations):
        listed = ", ".join(ACTIVATIONS)
        require(name in ACTIVATIONS, f"activations are {listed}; found {name!r}.")
    same_dtype(x, w, r, bias, *states)
    require(x.rank == w.rank == r.rank == 3, f"x, w and r have three axes, found {x}, {w}, {r}.")
    (time, batch, size), hidden = x.shape, r.shape[2]
    require_shape(w, (directions, gates * hidden, size), "w")
    require_shape(r, (directions, gates * hidden, hidden), "r")
    require_shape(bias, (directions, 2 * gates * hidden), "bias")
    require_shape(lengths, (batch,), "lengths")
    ints = lengths is None or lengths.dtype in (int32, int64)
    require(ints, f"lengths are int32 or int64, found {lengths}.")
    for state in states:
        require_shape(state, (directions, batch, hidden), "an initial state")
    last = x.with_shape((directions, batch, hidden))
    return x.with_shape((time, directions, batch, hidden)), *([last] * len(states))


def part(x: Value, index: int, *shape: Dim) -> Value:
    """Take what belongs to a direction."""
    return reshape(slice_axis(x, 0, np.s_[index : index + 1]), shape=shape)


def run_layer(
    x: Value,
    w: Value,
    lengths: Value | None,
    states: Sequence[Value | None],
    gates: int,
    hidden: Dim,
    direction: str,
    prepare: Callable[[int], Prepared],
) -> tuple[Value, ...]:
    """Run each direction over time, as it is prepared; give y and the last states."""

    def rows(index: int) -> Value:
        weights = part(w, index, gates * hidden, x.tensor.shape[2])
        return matmul(x, transpose(weights, perm=(1, 0)))

    return run_rows(rows, lengths, states, hidden, direction, prepare)


def run_rows(
    rows_of: Callable[[int], Value],
    lengths: Value | None,
    states: Sequence[Value | None],
    hidden: Dim,
    direction: str,
    prepare: Callable[[int], Prepared],
) -> tuple[Value, ...]:
    """Run each direction over what x gives its steps."""
    found: list[tuple[Value, ...]] = []
    for index, reverse in enumerate(DIRECTIONS[direction]):
        bias, rest, cell = prepare(index)
        rows = rows_of(index)
        (time, batch, _), of = rows.tensor.shape, rows.tensor.dtype.numpy
        first = [
            broadcast_to(constant(np.zeros((), of)), shape=(batch, hidden))
            if state is None
            else part(state, index, batch, hidden)
            for state in states
        ]
        scanned = [rows if bias is None else add(rows, bias)]
        if lengths is not None:
            rest = [*rest, reshape(lengths, shape=(batch,))]
            counted = lengths.tensor.dtype
            scanned.append(iota.new(shape=(time,), axis=0, dtype=counted))
        taken = [
            *(v.type for v in first),
            *(v.tensor.with_shape(v.tensor.shape[1:]) for v in scanned),
            *(v.type for v in rest),
        ]
        body = subgraph(_step(cell, len(first), lengths is not None), *taken, name="step")
        attrs = {"body": body, "carries": len(first), "scans": len(scanned), "reverse": reverse}
        found.append(scan(*first, *scanned, *rest, **attrs))
    *last, ys = zip(*found, strict=True)
    return stack(*ys, axis=1), *(stack(*state, axis=0) for state in last)


def _step(cell: Cell, count: int, ends: bool) -> Callable[..., list[Value]]:
    """Make the body of the scan: states, a row, its place if sequences end, what stays the same."""

    def step(*values: Value) -> list[Value]:
        old, row, rest = values[:count], values[count], values[count + 1 :]
        new = cell(row, old, rest[1:-1] if ends else rest)
        if not ends:
            return [*new, new[0]]
        runs = expand_dims(less(rest[0], rest[-1]), axes=(1,))
        kept = [where(runs, now, before) for now, before in zip(new, old, strict=True)]
        return [*kept, where(runs, new[0], 0.0)]

    return step


def biases(bias: Value, index: int, rows: Dim) -> tuple[Value, Value]:
    """Take a direction's biases of w and of r."""
    both = part(bias, index, 2 * rows)
    first, second = split(both, axis=0, sizes=(rows, rows))
    return first, second


FAMILY = Family("recurrent")
LACKS = {"scalar": "x has three axes"}


def _samples(gates: int, states: int, **other: Any) -> Callable[[], list[Sample]]:
    """Draw layers of 3 inputs and 2 hidden; ``other`` are attributes to show."""

    def make() -> list[Sample]:
        def operands(directions: int, *, time: int = 2, batch: int = 2) -> list[Any]:
            shapes = (gates * 2, 3), (gates * 2, 2), (gates * 4,)
            weights = [draw(directions, *shape, low=-1.0, high=1.0) for shape in shapes]
            return [draw(time, batch, 3), *weights]

        both = [*operands(2, time=3), given([3, 1], int32), *([draw(2, 2, 2)] * states)]
        return [
            sample(*operands(1)[:3]),
            sample(*operands(1), direction="reverse", clip=0.7),
            sample(*both, direction="bidirectional"),
            sample(*operands(1, batch=0)),
            sample(*operands(1, time=0)),
            Sample(tuple(operands(1)), other),
        ]

    return make


def _rnn_type(
    x: TensorType,
    w: TensorType,
    r: TensorType,
    bias: TensorType | None = None,
    lengths: TensorType | None = None,
    h0: TensorType | None = None,
    *,
    direction: str = "forward",
    activations: Activations = ("tanh",),
    clip: float | None = None,
) -> tuple[TensorType, ...]:
    return layer_type(x, w, r, bias, lengths, [h0], (direction, activations), (1, 1))


def _rnn(
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None,
    lengths: Value | None,
    h0: Value | None,
    *,
    direction: str,
    activations: Activations,
    clip: float | None,
) -> tuple[Value, ...]:
    hidden = r.tensor.shape[2]

    def prepare(index: int) -> Prepared:
        (f,) = functions(activations, 1, index, clip)
        total = None if bias is None else add(*biases(bias, index, hidden))
        weights = transpose(part(r, index, hidden, hidden), perm=(1, 0))
        return total, [weights], lambda row, old, rest: [f(add(row, matmul(old[0], rest[0])))]

    return run_layer(x, w, lengths, [h0], 1, hidden, direction, prepare)


rnn = FAMILY.declare(
    "rnn",
    _rnn_type,
    doc="Run a simple recurrent layer over time; returns y and the last h.",
    expand=_rnn,
    dtypes=FLOATS,
    index_operands=("lengths",),
    requires=(up_to("lengths", of="x", axis=0),),
    lacks=LACKS,
    samples=_samples(1, 1, activations=(("leaky_relu", 0.1),)),
)


def _lstm_type(
    x: TensorType,
    w: TensorType,
    r: TensorType,
    bias: TensorType | None = None,
    lengths: TensorType | None = None,
    h0: TensorType | None = None,
    c0: TensorType | None = None,
    peepholes: TensorType | None = None,
    *,
    direction: str = "forward",
    activations: Activations = ("sigmoid", "tanh", "tanh"),
    clip: float | None = None,
    input_forget: bool = False,
) -> tuple[TensorType, ...]:
    same_dtype(x, peepholes)
    found = layer_type(x, w, r, bias, lengths, [h0, c0], (direction, activations), (4, 3))
    require_shape(peepholes, (found[0].shape[1], 3 * r.shape[2]), "peepholes")
    return found


def _lstm(
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None,
    lengths: Value | None,
    h0: Value | None,
    c0: Value | None,
    peepholes: Value | None,
    *,
    direction: str,
    activations: Activations,
    clip: float | None,
    input_forget: bool,
) -> tuple[Value, ...]:
    hidden = r.tensor.shape[2]

    def prepare(index: int) -> Prepared:
        total = None if bias is None else add(*biases(bias, index, 4 * hidden))
        fixed = [transpose(part(r, index, 4 * hidden, hidden), perm=(1, 0))]
        if peepholes is not None:
            fixed += split(part(peepholes, index, 3 * hidden), axis=0, sizes=(hidden,) * 3)
        uses = lstm_functions(activations, index, clip)
        is_peeping = peepholes is not None
        cell = lstm_cell(uses, hidden, lambda h, rest: matmul(h, rest[0]), input_forget, is_peeping)
        return total, fixed, cell

    return run_layer(x, w, lengths, [h0, c0], 4, hidden, direction, prepare)


def lstm_functions(
    activations: Activations, index: int, clip: float | None
) -> list[Callable[[Value], Value]]:
    """Give the activations of a direction; engines limit what gates are given, not the cells."""
    return [*functions(activations, 3, index, clip)[:2], functions(activations, 3, index, None)[2]]


def lstm_cell(
    uses: Sequence[Callable[[Value], Value]],
    hidden: Dim,
    product: Callable[[Value, Sequence[Value]], Value],
    input_forget: bool,
    is_peeping: bool,
) -> Cell:
    """Make the cell of an lstm; its product takes h and what stays the same, peepholes last."""
    f, g, h = uses

    def cell(row: Value, old: Sequence[Value], rest: Sequence[Value]) -> list[Value]:
        def peeped(gate: Value, at: int, cells: Value) -> Value:
            return add(gate, multiply(rest[at - 3], cells)) if is_peeping else gate

        gates = add(row, product(old[0], rest))
        i, o, forget, c = split(gates, axis=1, sizes=(hidden,) * 4)
        taken = f(peeped(i, 0, old[1]))
        kept = subtract(1.0, taken) if input_forget else f(peeped(forget, 2, old[1]))
        cells = add(multiply(kept, old[1]), multiply(taken, g(c)))
        return [multiply(f(peeped(o, 1, cells)), h(cells)), cells]

    return cell


lstm = FAMILY.declare(
    "lstm",
    _lstm_type,
    doc="Run a layer with cells over time; returns y, the last h and the last c.",
    expand=_lstm,
    dtypes=FLOATS,
    index_operands=("lengths",),
    requires=(up_to("lengths", of="x", axis=0),),
    lacks=LACKS,
    samples=lambda: [
        *_samples(4, 2, input_forget=True)(),
        sample(
            draw(2, 2, 3), draw(1, 8, 3), draw(1, 8, 2), None, None, None, draw(1, 2, 2), clip=0.3
        ),
        sample(
            draw(2, 2, 3),
            draw(1, 8, 3),
            draw(1, 8, 2),
            None,
            None,
            None,
            None,
            draw(1, 6),
            activations=("hard_sigmoid", ("scaled_tanh", 1.5, 0.5), "softsign"),
        ),
    ],
    refuses=lambda: [
        bad(
            "operands must have one dtype, found float32 and int32",
            "[3, 2, 3]",
            "[2, 8, 3]",
            "[2, 8, 2]",
            "[2, 16]",
            "int32[2]",
            "[2, 2, 2]",
            "[2, 2, 2]",
            "int32[2]",
            direction="bidirectional",
        ),
        bad(
            "peepholes must be [1, 6], found float32[]",
            "[2, 2, 3]",
            "[1, 8, 3]",
            "[1, 8, 2]",
            None,
            None,
            None,
            None,
            "[]",
        ),
    ],
)


def _gru_type(
    x: TensorType,
    w: TensorType,
    r: TensorType,
    bias: TensorType | None = None,
    lengths: TensorType | None = None,
    h0: TensorType | None = None,
    *,
    direction: str = "forward",
    activations: Activations = ("sigmoid", "tanh"),
    clip: float | None = None,
    linear_before_reset: bool = False,
) -> tuple[TensorType, ...]:
    return layer_type(x, w, r, bias, lengths, [h0], (direction, activations), (3, 2))


def _gru_bias(
    vectors: Iterable[Value], sizes: tuple[Dim, Dim], linear_before_reset: bool
) -> tuple[Value, list[Value]]:
    """Add up what every step adds; what the reset gate scales is added inside the step."""
    (gates, own), (more, inner) = (split(vector, axis=0, sizes=sizes) for vector in vectors)
    own = own if linear_before_reset else add(own, inner)
    return concat(add(gates, more), own, axis=0), [inner] if linear_before_reset else []


def _gru(
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None,
    lengths: Value | None,
    h0: Value | None,
    *,
    direction: str,
    activations: Activations,
    clip: float | None,
    linear_before_reset: bool,
) -> tuple[Value, ...]:
    hidden = r.tensor.shape[2]
    sizes = (2 * hidden, hidden)

    def prepare(index: int) -> Prepared:
        f, g = functions(activations, 2, index, clip)
        weights = transpose(part(r, index, 3 * hidden, hidden), perm=(1, 0))
        fixed = [*split(weights, axis=1, sizes=sizes)]
        total = None
        if bias is not None:
            total, inner = _gru_bias(biases(bias, index, 3 * hidden), sizes, linear_before_reset)
            fixed += inner

        def cell(row: Value, old: Sequence[Value], rest: Sequence[Value]) -> list[Value]:
            gates, own = split(row, axis=1, sizes=sizes)
            both = f(add(gates, matmul(old[0], rest[0])))
            update, reset = split(both, axis=1, sizes=(hidden, hidden))
            if linear_before_reset:
                product = matmul(old[0], rest[1])
                added = multiply(reset, product if bias is None else add(product, rest[2]))
            else:
                added = matmul(multiply(reset, old[0]), rest[1])
            new = g(add(own, added))
            return [add(multiply(subtract(1.0, update), new), multiply(update, old[0]))]

        return total, fixed, cell

    return run_layer(x, w, lengths, [h0], 3, hidden, direction, prepare)


gru = FAMILY.declare(
    "gru",
    _gru_type,
    doc="Run a layer with update and reset gates over time; returns y and the last h.",
    expand=_gru,
    dtypes=FLOATS,
    index_operands=("lengths",),
    requires=(up_to("lengths", of="x", axis=0),),
    lacks=LACKS,
    samples=_samples(3, 1, linear_before_reset=True),
    refuses=lambda: [
        bad(
            "dims of w, float32[1, 6, 3], must be equal, found 3 and 4",
            "[2, 2, 4]",
            "[1, 6, 3]",
            "[1, 6, 2]",
        ),
        bad(
            "direction is one of forward, reverse, bidirectional, found",
            "[2, 2, 3]",
            "[1, 6, 3]",
            "[1, 6, 2]",
            direction="odd",
        ),
        bad(
            "2 activations for a direction are needed, found ('sigmoid',)",
            "[2, 2, 3]",
            "[1, 6, 3]",
            "[1, 6, 2]",
            activations=("sigmoid",),
        ),
        bad(
            "operands must have one dtype, found float32 and bool",
            "[2, 2, 3]",
            "bool[1, 6, 3]",
            "[1, 6, 2]",
        ),
        bad(
            "x, w and r have three axes, found float32[], float32[1, 6",
            "[]",
            "[1, 6, 3]",
            "[1, 6, 2]",
        ),
        bad(
            "dims of r, float32[2, 6, 2], must be equal, found 2 and 1",
            "[2, 2, 3]",
            "[1, 6, 3]",
            "[2, 6, 2]",
        ),
        bad("bias must be [1, 12], found float32[]", "[2, 2, 3]", "[1, 6, 3]", "[1, 6, 2]", "[]"),
        bad(
            "lengths must be [2], found float32[]",
            "[2, 2, 3]",
            "[1, 6, 3]",
            "[1, 6, 2]",
            None,
            "[]",
        ),
        bad(
            "lengths are int32 or int64, found bool[2]",
            "[3, 2, 3]",
            "[2, 6, 3]",
            "[2, 6, 2]",
            "[2, 12]",
            "bool[2]",
            "[2, 2, 2]",
            direction="bidirectional",
        ),
        bad(
            "activations are tanh, sigmoid, relu, softsign, softplus",
            "[2, 2, 3]",
            "[1, 6, 3]",
            "[1, 6, 2]",
            activations=("bogus", "tanh"),
        ),
        bad(
            "an initial state must be [1, 2, 2], found float32[]",
            "[2, 2, 3]",
            "[1, 6, 3]",
            "[1, 6, 2]",
            None,
            None,
            "[]",
        ),
    ],
)
