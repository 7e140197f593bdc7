"""A region as one function of jax arrays, with the types of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from fusewire.backends.xla.executable import as_bytes, edge
from fusewire.backends.xla.lowering import CONTROL, TABLE
from fusewire.backends.xla.storage import Traced, carrier, enter, leave, store, work
from fusewire.contract.backend import Slot
from fusewire.errors import DimError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.graph import Array, Constant, Graph, Node, Value
from fusewire.ir.types import TensorType, tensor_of
from fusewire.ops.declare import Trait
from fusewire.ops.subgraph import bound_by
from fusewire.ops.table import get_op

# Converts that look superfluous round, and rounding is what they are there for.
OPTIONS = {"xla_allow_excess_precision": False}
# Ops that see values as they are kept, not in the dtype that others compute in.
_AS_STORED = {Trait.MOVEMENT, Trait.CONTROL, Trait.BITS}
# Ops that round to the dtype of their output themselves.
_ROUNDS = {"cast"}


@contextmanager
def settings(device: Any) -> Iterator[None]:
    """Set what tracing depends on, for this thread and for now: the user's own stays as it is.

    64 bits are 64 bits, and nothing that the user finds helpful (strict promotion of dtypes or
    ranks, running without jit) changes what an op means.
    """
    with (
        jax.enable_x64(True),
        jax.default_device(device),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.disable_jit(False),
    ):
        yield


@dataclass(frozen=True)
class Program:
    """A function of the weights, then the inputs, and the types of both and of the outputs."""

    function: Callable[..., tuple[Traced, ...]]
    arguments: tuple[jax.ShapeDtypeStruct, ...]


def program(
    graph: Graph, slots: Sequence[Slot], labels: Mapping[Node, str] = MappingProxyType({})
) -> Program:
    """Make a function of a region whose dims are all known.

    What is traced for a node of ``labels`` is called after it in the program.
    """
    weights = [slot for slot in slots if slot.role == "weight"]
    inputs = [slot for slot in slots if slot.role == "input"]
    digests = [slot.digest for slot in weights]

    def function(*arguments: Traced) -> tuple[Traced, ...]:
        entered = [enter(x, s.dtype) for x, s in zip(arguments, (*weights, *inputs), strict=True)]
        held = dict(zip(digests, entered, strict=False))
        outputs = _Tracer(held, labels).graph(graph, entered[len(weights) :])
        types = [value.tensor.dtype for value in graph.outputs]
        return tuple(leave(x, of) for x, of in zip(outputs, types, strict=True))

    return Program(function, tuple(argument(slot) for slot in (*weights, *inputs)))


def argument(slot: Slot) -> jax.ShapeDtypeStruct:
    """Describe to jax what comes in over the edge."""
    open_ = [str(dim) for dim in slot.dims if not isinstance(dim, int)]
    if open_:
        raise DimError(
            f"XLA compiles for known shapes, and the {slot.role} {slot.name} has the dims "
            f"{', '.join(open_)}. Specialise the region first."
        )
    return jax.ShapeDtypeStruct(slot.dims, edge(slot.dtype))


class _Tracer:
    """Runs graphs on what stands for arrays; ``weights`` are those that are arguments."""

    def __init__(self, weights: Mapping[str | None, Traced], labels: Mapping[Node, str]) -> None:
        self._weights = weights
        self._labels = labels

    def graph(self, graph: Graph, inputs: Sequence[Traced]) -> tuple[Traced, ...]:
        values: dict[Value, Traced] = dict(zip(graph.inputs, inputs, strict=True))
        for node in graph.nodes:
            operands = [None if v is None else self._read(values, v) for v in node.inputs]
            with jax.named_scope(self._labels[node]) if node in self._labels else nullcontext():
                values.update(zip(node.outputs, self._node(node, operands), strict=True))
        return tuple(self._read(values, v) for v in graph.outputs)

    def body(self, graph: Graph, inputs: Sequence[Traced]) -> tuple[Traced, ...]:
        """Run a subgraph, whose dims are those of what it is given."""
        types = [
            TensorType(tensor_of(v.type).dtype, x.shape)
            for v, x in zip(graph.inputs, inputs, strict=True)
        ]
        return self.graph(bind_symbols(graph, bound_by(graph, types, "the subgraph")), inputs)

    def _read(self, values: Mapping[Value, Traced], value: Value) -> Traced:
        if value.constant is None:
            return values[value]
        held = self._weights.get(value.constant.digest) if self._weights else None
        return _literal(value.constant) if held is None else held

    def _node(self, node: Node, operands: Sequence[Traced | None]) -> Sequence[Traced]:
        if node.op in CONTROL:
            return CONTROL[node.op](self.body, node, *operands)
        op = get_op(node.op)
        if node.op not in TABLE:
            # Of a body: whoever expands what is refused does not look into nodes.
            return self.graph(op.expansion(node), [x for x in operands if x is not None])
        stored = bool(op.traits & _AS_STORED)
        if not stored:
            operands = [
                None if v is None else work(x, v.tensor.dtype)
                for x, v in zip(operands, node.inputs, strict=True)
            ]
        found = TABLE[node.op](node, *operands)
        outputs = found if isinstance(found, tuple) else (found,)
        if stored or node.op in _ROUNDS:
            return outputs
        return [store(x, v.tensor.dtype) for x, v in zip(outputs, node.outputs, strict=True)]


def _literal(constant: Constant) -> Traced:
    of = constant.type.dtype
    array: Array = constant.array
    if of.is_narrow and of.is_integer:
        return jnp.asarray(array.astype(carrier(of)))
    return jnp.asarray(as_bytes(array, of))
