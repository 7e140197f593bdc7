"""Recurrent layers as ONNX defines them: order of gates, directions, lengths, clipping.

x is [time, batch, input]; weights have a leading axis of directions, and outputs are y [time,
directions, batch, hidden] and the last states. Layers are stacked by nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fusewire.dtypes import FLOATS, int32
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.contraction import matmul
from fusewire.ops.declare import Family
from fusewire.ops.elementwise import add, multiply, subtract
from fusewire.ops.inference import same_dtype
from fusewire.ops.movement import concat, transpose
from fusewire.ops.sample import Sample, draw, given, sample
from fusewire.ops.slicing import split
from fusewire.ops.time_loop import (
    Activations,
    Cell,
    Prepared,
    biases,
    functions,
    layer_type,
    part,
    require_shape,
    run_layer,
)

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
    doc="Run a simple recurrent layer over time; give y and last h.",
    expand=_rnn,
    dtypes=FLOATS,
    index_operands=("lengths",),
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
    doc="Run a layer with cells over time; give y, last h and last c.",
    expand=_lstm,
    dtypes=FLOATS,
    index_operands=("lengths",),
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
    doc="Run a layer with update and reset gates over time; give y and last h.",
    expand=_gru,
    dtypes=FLOATS,
    index_operands=("lengths",),
    lacks=LACKS,
    samples=_samples(3, 1, linear_before_reset=True),
)
