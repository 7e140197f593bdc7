"""One node of PyTorch's graph while it is converted: its arguments, its types, its refusals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import DType
from fusewire.errors import TraceError
from fusewire.frontends.torch.location import refusal
from fusewire.frontends.torch.tensors import our_dtype
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, Shape, Sym
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.conversion import cast
from fusewire.ops.movement import reshape

if TYPE_CHECKING:
    from fusewire.frontends.torch.scope import SizeScope


class AtenCall:
    """What a row is given beside the arguments.

    PyTorch has computed the types of the results, so dtypes need not be promoted a second time.
    """

    def __init__(self, node: Any, scope: SizeScope) -> None:
        self.node = node
        self._scope = scope

    @property
    def name(self) -> str:
        return str(self.node.target)

    @cached_property
    def types(self) -> tuple[TensorType | None, ...]:
        """The types of all results; None for one that is absent."""
        found = self.node.meta["val"]
        return tuple(
            self._type(x) for x in (found if isinstance(found, list | tuple) else (found,))
        )

    @property
    def type(self) -> TensorType:
        """The type of the result."""
        found = self.types[0]
        assert found is not None, f"{self.name} has no result"
        return found

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    def _type(self, fake: Any) -> TensorType | None:
        if fake is None:
            return None
        return TensorType(our_dtype(fake.dtype), self._scope.shape(fake))

    def uses(self, index: int) -> bool:
        """Tell whether a result is used: nobody needs to compute it if not."""
        return any(user.args[1] == index and user.users for user in self.node.users)

    def refusal(self, why: str) -> TraceError:
        """Make the error that refuses the op, at the user's line."""
        return refusal(f"{self.name} cannot be converted: {why}", self.node)

    def training_refusal(self, why: str) -> TraceError:
        """Make the error that refuses what only training asks for."""
        return self.refusal(f"{why} Call eval() on the module.")

    def value(self, x: Any, of: DType | None = None) -> Value:
        """Make a value of a dtype from a value, a number or a size."""
        of = self.dtype if of is None else of
        if isinstance(x, Sym):
            x = self._scope.measure(x)
        if isinstance(x, Value):
            return x if x.tensor.dtype is of else cast(x, dtype=of)
        return constant(_number(x, of))

    def values(self, *xs: Any) -> list[Value]:
        """Make values of the result's dtype."""
        return [self.value(x) for x in xs]

    def together(self, *xs: Any) -> list[Value]:
        """Make values of the dtype in which PyTorch compares the first arguments."""
        of = self.common_dtype(len(xs))
        return [self.value(x, of) for x in xs]

    def common_dtype(self, count: int = 2) -> DType:
        """Return the dtype that PyTorch's rules give the first arguments together."""
        from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

        metas = [getattr(x, "meta", {"val": x})["val"] for x in self.node.args[:count]]
        kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        return our_dtype(elementwise_dtypes(*metas, type_promotion_kind=kind)[1])

    def number(self, x: Any, what: str) -> int:
        """Return a size that must be a number."""
        if isinstance(x, int):
            return x
        raise self.refusal(f"{what} must be a number, found {x}. Compile for a fixed size.")

    def numbers(self, xs: Sequence[Any], what: str) -> tuple[int, ...]:
        return tuple(self.number(x, what) for x in xs)

    def measure(self, dim: Dim) -> Value:
        """Return a size as an int64 scalar of the graph."""
        return self._scope.measure(dim)


def _number(x: Any, of: DType) -> Any:
    """Convert a Python number as PyTorch does: integers wrap around."""
    if of.is_integer and isinstance(x, int):
        bits = of.bits
        x = (x + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) if of.is_signed else x % 2**bits
    return np.array(x).astype(of.numpy)


def axis_in(dim: int, rank: int) -> int:
    """Count an axis from the front; a scalar counts as having one."""
    return dim % max(rank, 1)


def axes_in(dims: Any, rank: int) -> tuple[int, ...]:
    """Count axes from the front; none given means all of them, and a scalar has none."""
    if rank == 0:
        return ()
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return tuple(range(rank))
    return tuple(dim % rank for dim in (dims if isinstance(dims, list | tuple) else (dims,)))


def at_least_1d(x: Value) -> Value:
    """Give a scalar an axis: PyTorch treats one as a row of one element."""
    return x if x.tensor.rank else reshape(x, shape=(1,))
