"""A backend that returns zeros and computes nothing, to measure the cost of everything else.

A reference names the ops that it claims, so that a child process needs nothing else:
``fusewire.testing.null:NullBackend`` claims all ops, and
``fusewire.testing.null:only__add__reduce_sum`` claims those two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Gap,
    Held,
    Into,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.region import claim_by_table, edge_slots, weight_slots
from fusewire.errors import UnknownOpError
from fusewire.ir.dims import evaluate, symbols
from fusewire.ir.graph import Array, Constant, Graph, Node
from fusewire.ir.text import INLINE_BYTES, parse_graph, print_graph
from fusewire.ir.types import SequenceType, TensorType, Type, type_symbols
from fusewire.ops.interpret import Bindings, bind
from fusewire.ops.table import all_ops, get_op


@final
class NullExecutable(Executable):
    """Allocates outputs of the right types."""

    def __init__(self, graph: Graph) -> None:
        self._inputs = [value.type for value in graph.inputs]
        self._outputs = [value.type for value in graph.outputs]
        known = all(not any(True for _ in type_symbols(t)) for t in self._outputs)
        self._makers: list[Callable[[], Any]] | None = (
            [_maker(t, {}) for t in self._outputs] if known else None
        )

    @property
    def is_reentrant(self) -> bool:
        """Always: there is no state."""
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Return zeros; a size that no input determines is 0."""
        if self._makers is not None:
            return [make() for make in self._makers]
        bound: Bindings = {}
        for type_, given in zip(self._inputs, inputs, strict=True):
            if isinstance(type_, TensorType) and isinstance(given, np.ndarray):
                bind(type_, given.shape, bound, "an input")
        return [_maker(type_, bound)() for type_ in self._outputs]


def _maker(type_: Type, bound: Bindings) -> Callable[[], Any]:
    if not isinstance(type_, TensorType):
        return list if isinstance(type_, SequenceType) else lambda: None
    told = {s: bound.get(s, 0) for dim in type_.shape for s in symbols(dim)}
    shape = tuple(evaluate(dim, told) for dim in type_.shape)
    return functools.partial(np.zeros, shape, type_.dtype.numpy)


@final
class NullBackend(Backend):
    """Claims the given ops, or all."""

    def __init__(self, ops: Sequence[str] | None = None) -> None:
        self._ops = None if ops is None else frozenset(get_op(name).name for name in ops)

    @property
    def info(self) -> BackendInfo:
        """The identity of this backend; it is never chosen unless named."""
        return BackendInfo(
            "null",
            "1",
            "Returns zeros and computes nothing.",
            "Fusewire",
            trusted=True,
            priority=-1000,
        )

    @property
    def gaps(self) -> Sequence[Gap]:
        """None: its answers do not count."""
        return ()

    @property
    def exchange(self) -> Exchange:
        """Any array of the host."""
        return Exchange(needs_contiguous=False)

    def probe(self) -> list[Device | Unavailable]:
        """One device, on which nothing runs."""
        return [Device("cpu", "nothing")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer the given ops."""
        return claim_by_table(graph, self._refuses, shapes="dynamic")

    def _refuses(self, node: Node) -> str | None:
        if self._ops is None or node.op in self._ops:
            return None
        return f"null claims only {', '.join(sorted(self._ops))}."

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Print the graph: only its types are needed."""
        config.checked("null", ())
        slots = (*edge_slots(region), *weight_slots(region, INLINE_BYTES + 1))
        return Artifact("rebuild", print_graph(region).encode(), slots)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Parse the graph for its types."""
        held = {digest: Constant.of(array) for digest, array in weights.items()}
        return NullExecutable(parse_graph(artifact.payload.decode(), held))


def __getattr__(name: str) -> Callable[[], NullBackend]:
    """Make ``only__add__exp`` a backend that claims those ops."""
    first, *ops = name.split("__")
    if first != "only" or not ops:
        raise AttributeError(f"null has no {name}. It has NullBackend, and only__OP__OP of ops.")
    if unknown := [op for op in ops if op not in all_ops()]:
        raise UnknownOpError(f"Unknown op: {', '.join(unknown)}. `fusewire ops` lists all ops.")
    return functools.partial(NullBackend, ops)
