"""One call of PyTorch code as a function from flat tensors to flat tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusewire.contract.frontend import Limits
from fusewire.ir.graph import Graph
from fusewire.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class FlatCall:
    """PyTorch code, for one structure of arguments: flat tensors in, flat tensors out.

    Whoever makes one has taken the arguments apart: nested containers, dataclasses and plain values
    are inside ``function``, which takes one tensor for each of ``names``, by position, and returns
    a list or tuple that holds tensors only. Each conversion calls it once with tensors that have no
    elements (``torch.export``).

    ``module`` is the nn.Module whose parameters and buffers ``function`` uses; they become
    constants that share the tensors' memory. None: it uses its arguments only.
    ``output_names`` name the results, ``label`` the graph.

    ``sizes`` are those of the latest conversion with numbers for all dims. A conversion with open
    sizes starts from them: code may not allow just any size. ``updated`` are the places of the
    arguments that the code was found to write to when it was read: their new values are the last
    outputs of the graph.

    ``exported`` is what torch.export made of it, if that was done before. ``run`` is the code as a
    function of arrays, as people have it; None makes one of ``function``. ``burden`` does what a
    call that an engine answers takes besides the engine. ``read`` reads the graph for arguments of
    some types; None does it in this process.
    """

    function: Callable[..., Sequence[Any]]
    module: Any
    names: tuple[str, ...]
    output_names: tuple[str, ...] | None = None
    label: str = "module"
    sizes: list[tuple[int, ...]] = field(default_factory=list)
    updated: list[int] = field(default_factory=list)
    exported: Any = None
    run: Callable[..., Any] | None = None
    burden: Callable[[Sequence[Any]], object] | None = None
    read: Callable[[FlatCall, Sequence[TensorType], Limits], Graph] | None = None

    @property
    def __name__(self) -> str:
        return self.label
