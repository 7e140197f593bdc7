"""What an op is to fusion: how its elements depend on those of its operands."""

from __future__ import annotations

import enum

from fusewire.ir.graph import Node, Value
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op


class Kind(enum.Enum):
    """How an element is computed."""

    FREE = "another index of the operand, or a number that the index gives"
    MAP = "of a few elements"
    FOLD = "of all elements along some axes, each of them once"
    WINDOW = "of the elements of a window, which windows beside it share"
    CONTRACT = "of products, each factor of which is used many times"
    WHOLE = "by kernels of its own"


_NAMED = {
    Kind.FREE: ("reshape", "transpose", "broadcast_to", "slice", "iota", "shape_of"),
    Kind.MAP: ("concat", "pad", "gather", "gather_elements", "gather_nd", "dynamic_update_slice"),
    Kind.FOLD: (
        "reduce_sum",
        "reduce_prod",
        "reduce_max",
        "reduce_min",
        "reduce_any",
        "reduce_all",
        "argmax",
        "argmin",
    ),
    Kind.WINDOW: (
        "max_pool",
        "sum_pool",
        "average_pool",
        "max_pool_with_indices",
        "searchsorted",
        "resize",
        "fft",
        "ifft",
        "rfft",
        "irfft",
    ),
    Kind.CONTRACT: ("matmul", "dot_general", "conv"),
}
_BY_NAME = {name: kind for kind, names in _NAMED.items() for name in names}
# So cheap that a product may compute them anew for each use of a factor.
LIGHT = frozenset((
    "cast", "add", "subtract", "multiply", "divide", "negative", "where", "pad", "logical_and",
))  # fmt: skip
# Kernels of these read each element of an operand once, so what makes it may be computed there.
READS_ONCE = frozenset(
    (
        "cumsum",
        "cumprod",
        "cummax",
        "cummin",
        "cumlogsumexp",
        "scatter_elements",
        "scatter_nd",
    )
)
# Ops that take many times as long as an addition.
SLOW = frozenset((
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
    "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma",
    "digamma", "sigmoid", "power", "cbrt", "remainder", "fmod", "floor_divide",
))  # fmt: skip


def kind_of(node: Node) -> Kind:
    """Tell the kind of a node; what nothing is known of has kernels of its own."""
    named = _BY_NAME.get(node.op)
    if named is not None:
        nearest = node.op == "resize" and node.attrs["mode"] == "nearest"
        return Kind.MAP if nearest else named
    op = get_op(node.op)
    return Kind.MAP if op.is_(Trait.ELEMENTWISE) and not op.is_composite else Kind.WHOLE


def unshaped(value: Value) -> Value:
    """Go back through reshapes to what has the same memory; not to an input or another view."""
    found = value
    while found.node is not None and found.node.op == "reshape":
        found = found.node.operands[0]
    made = found.node is not None and kind_of(found.node) is not Kind.FREE
    return found if made else value
