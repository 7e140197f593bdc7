"""Checks that type rules share: axes, broadcasting, and their error messages."""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.dtypes import DType
from fusewire.errors import DimError, TypeRuleError
from fusewire.ir.dims import Dim, Shape, broadcast_dim, is_at_most, is_equal
from fusewire.ir.types import TensorType


def require(holds: bool | None, sentence: str) -> None:
    """Refuse with a sentence unless it holds; what only the run can tell (None) is let through."""
    if holds is False:
        raise TypeRuleError(sentence)


def require_dims(left: Dim, right: Dim, what: str) -> None:
    """Refuse dims that are known to differ."""
    require(is_equal(left, right), f"{what} must be equal, found {left} and {right}.")


def same_dim(left: Dim, right: Dim, what: str) -> Dim:
    """Find the one size of two axes that must be equal, known or not."""
    require_dims(left, right, what)
    # Broadcasting keeps whichever is known, and stays right when symbols are bound one by one.
    return broadcast_dim(left, right)


def fits(type_: TensorType, *dims: Dim | None) -> bool:
    """Tell whether a shape may have this rank and these dims, where None is any size."""
    if type_.rank != len(dims):
        return False
    pairs = zip(type_.shape, dims, strict=True)
    return all(want is None or is_equal(dim, want) is not False for dim, want in pairs)


def within(left: Dim, right: Dim) -> bool | None:
    """Tell whether ``left <= right``: always (True), never (False), or it depends (None)."""
    if is_at_most(left, right):
        return True
    return False if is_at_most(right + 1, left) else None


def same_dtype(*types: TensorType | None) -> DType:
    """Find the one dtype of all operands."""
    found = list(dict.fromkeys(t.dtype for t in types if t is not None))
    if len(found) != 1:
        names = " and ".join(d.name for d in found)
        raise TypeRuleError(f"operands must have one dtype, found {names}. Cast one of them.")
    return found[0]


def axis_of(axis: int, rank: int) -> int:
    """Bring an axis to 0 <= axis < rank."""
    if not -rank <= axis < rank:
        raise TypeRuleError(f"axis {axis} is outside a tensor of rank {rank}.")
    return axis % rank


def axes_of(axes: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Bring axes to sorted 0 <= axis < rank; None means all."""
    if axes is None:
        return tuple(range(rank))
    found = sorted(axis_of(axis, rank) for axis in axes)
    require(len(set(found)) == len(found), f"axes {tuple(axes)} name an axis twice.")
    return tuple(found)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Broadcast as NumPy does."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for position, dim in enumerate(shape, rank - len(shape)):
            try:
                result[position] = broadcast_dim(result[position], dim)
            except DimError:
                listed = " and ".join(f"[{', '.join(map(str, s))}]" for s in shapes)
                raise TypeRuleError(
                    f"shapes {listed} do not broadcast: aligned at the end, "
                    "dims must be equal or 1."
                ) from None
    return tuple(result)


def broadcast_types(*types: TensorType | None) -> TensorType:
    """Broadcast operands of one dtype."""
    present = [t for t in types if t is not None]
    return TensorType(same_dtype(*present), broadcast_shapes(*(t.shape for t in present)))


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """Shape after combining axes away."""
    kept = [1 if i in axes else d for i, d in enumerate(shape) if keepdims or i not in axes]
    return tuple(kept)


def unary_type(x: TensorType) -> TensorType:
    """Keep the type."""
    return x


def binary_type(x: TensorType, y: TensorType) -> TensorType:
    """Broadcast two operands of one dtype."""
    return broadcast_types(x, y)
