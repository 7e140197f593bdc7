"""What recurrent layers share: their activations, their shapes, and the loop over time.

What every step needs of x is one product before the scan; steps beyond a sequence's length keep
its state and give 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from fusewire.dtypes import int32, int64
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, Shape
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops import activation
from fusewire.ops.contraction import matmul
from fusewire.ops.creation import iota
from fusewire.ops.elementwise import add, multiply, tanh
from fusewire.ops.inference import require, require_dims, same_dtype
from fusewire.ops.iteration import scan
from fusewire.ops.logic import clip, less, where
from fusewire.ops.movement import broadcast_to, expand_dims, reshape, stack, transpose
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
