"""What Dynamo has found out about the nodes of a graph: fake tensors, without values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def tensors_of(node: Any) -> list[Any]:
    """List the fake tensors that a node returns."""
    from torch import Tensor

    found = node.meta.get("example_value") if hasattr(node, "meta") else None
    several = found if isinstance(found, list | tuple) else [found]
    return [x for x in several if isinstance(x, Tensor)]


def storages_of(node: Any) -> Iterator[int]:
    """Yield what tells the memory of a node's tensors from others'."""
    for tensor in tensors_of(node):
        try:
            yield tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):
            # It is sparse, or of another kind without a storage: it has no views.
            continue


def requires_gradients(node: Any) -> bool:
    """Tell whether a node returns a tensor that requires gradients."""
    return any(tensor.requires_grad for tensor in tensors_of(node))


def may_be_written(place: Any) -> bool:
    """Tell whether a graph writes to an argument, as far as Dynamo knows."""
    try:
        return any(tensor._version > 0 for tensor in tensors_of(place))
    except RuntimeError:
        # Tensors made in inference mode have no versions.
        return True


def is_recorded(node: Any) -> bool:
    """Tell whether a node returns a tensor that PyTorch records how to differentiate."""
    try:
        return any(tensor.grad_fn is not None for tensor in tensors_of(node))
    except RuntimeError:
        # PyTorch refuses the question for a view made without gradients, if it was written to.
        return False
