"""How ONNX says that a window slides: kernel_shape, strides, dilations, pads and auto_pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fusewire.ir.dims import Dim, ceildiv, dim_max, floordiv
from fusewire.ir.graph import Value
from fusewire.onnx.read.call import OnnxCall
from fusewire.ops import slicing

Sides = tuple[tuple[Dim, Dim], ...]


class WindowAttrs(NamedTuple):
    """Attributes of a window over spatial axes; a side of the padding may be a size."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: Sides

    @property
    def is_fixed(self) -> bool:
        """Whether the padding is the same whatever the sizes are."""
        return all(isinstance(n, int) for side in self.padding for n in side)

    @property
    def attrs(self) -> dict[str, Any]:
        """Give the attributes of an op; padding that is no number was put around x before."""
        none = ((0, 0),) * len(self.padding)
        padding = self.padding if self.is_fixed else none
        return {"strides": self.strides, "dilations": self.dilations, "padding": padding}

    def around(self, x: Value, fill: Value | None = None) -> Value:
        """Pad x where the padding follows from sizes that are not known yet."""
        if self.is_fixed:
            return x
        return slicing.pad(x, fill, padding=((0, 0), (0, 0), *self.padding))


def listed(call: OnnxCall, name: str, rank: int, default: int) -> tuple[int, ...]:
    """Read an attribute that has one number an axis."""
    found = tuple(call.attr(name) or (default,) * rank)
    if len(found) != rank:
        call.refuse(f"{name} has {len(found)} numbers, and there are {rank} spatial axes.")
    return found


def pairs(call: OnnxCall, rank: int) -> tuple[tuple[int, int], ...]:
    """Read ``pads``: all that is put before the axes, then all that is put after them."""
    pads = listed(call, "pads", 2 * rank, 0)
    return tuple(zip(pads[:rank], pads[rank:], strict=True))


def sliding(call: OnnxCall, spatial: Sequence[Dim], sizes: Sequence[Dim]) -> WindowAttrs:
    """Read how a window of these sizes slides over these axes."""
    rank = len(sizes)
    strides = listed(call, "strides", rank, 1)
    dilations = listed(call, "dilations", rank, 1)
    mode = call.attr("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return WindowAttrs(strides, dilations, pairs(call, rank))
    if mode == "VALID":
        return WindowAttrs(strides, dilations, ((0, 0),) * rank)
    require_same(call, mode)
    padding: list[tuple[Dim, Dim]] = []
    for dim, size, stride, dilation in zip(spatial, sizes, strides, dilations, strict=True):
        # As many places as strides fit, so that with stride 1 the size stays.
        missing = (ceildiv(dim, stride) - 1) * stride + (size - 1) * dilation + 1 - dim
        padding.append(shared(dim_max(missing, 0), mode))
    return WindowAttrs(strides, dilations, tuple(padding))


def require_same(call: OnnxCall, mode: str) -> None:
    """Refuse an auto_pad that ONNX does not have."""
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        call.refuse(f"auto_pad is NOTSET, VALID, SAME_UPPER or SAME_LOWER, found {mode!r}.")


def shared(total: Dim, mode: str) -> tuple[Dim, Dim]:
    """Share padding between both sides; the odd one goes to the end with SAME_UPPER."""
    less = floordiv(total, 2)
    return (less, total - less) if mode == "SAME_UPPER" else (total - less, less)


def kernel(call: OnnxCall, w: Value) -> tuple[Dim, ...]:
    """Give the size of a window, which filters tell."""
    found, sizes = call.attr("kernel_shape"), w.tensor.shape[2:]
    if found is not None and len(found) != len(sizes):
        call.refuse(f"kernel_shape is {list(found)}, and the filters are {w.type}.")
    return sizes
