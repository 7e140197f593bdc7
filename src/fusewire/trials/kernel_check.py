"""Judge kernels of packages at the sizes of a region, before the region gives an answer.

The samples of an op show little about other sizes. So each op of a package that a region holds, and
each of ours that an extension lowers, runs once as it is there, alone: with its types, attributes
and options, on elements that are drawn as its samples are, into memory that shows what is not
written (``process.trial``). If its engine takes any size, it runs at another size, too. Its answer
is compared with the meaning of the op. A right answer is remembered until the package, the kernel,
the engine or the device changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fusewire.contract.backend import Config, Device, Held, Refusal, label
from fusewire.errors import CheckError, EngineError, EngineRaised, FusewireError, note
from fusewire.ir.builder import bind_symbols
from fusewire.ir.dims import Dim, Symbol
from fusewire.ir.graph import Array, Graph, HostValue, Node, Value
from fusewire.ir.hash import exact_hash
from fusewire.ir.types import TensorType
from fusewire.numerics.judge import Alone
from fusewire.ops.declare import Op
from fusewire.ops.interpret import Interpreter, bind, graph_of
from fusewire.ops.operand_draws import operand_draws
from fusewire.ops.table import get_op
from fusewire.plan.regions import shape_of
from fusewire.plan.transfer import fetched
from fusewire.planning.target import Target
from fusewire.process.guard import guarded, refusal
from fusewire.process.isolate import first_contact
from fusewire.process.limits import ChildLimits
from fusewire.process.trial import attempt
from fusewire.records.entries import Records
from fusewire.store.code_state import meaning_state
from fusewire.store.key import Key

_NOT_DRAWN = "what it takes could not be drawn from the samples of the op. It runs as it is."


class KernelFault(NamedTuple):
    """Why a kernel is not used; ``code`` is "wrong", or that of the failure to run it."""

    code: str
    sentence: str


@dataclass(frozen=True, eq=False)
class KernelCheck:
    """Judges the kernels of packages of one target; ``fields`` are what its artifacts depend on."""

    target: Target
    device: Device
    config: Config
    fields: tuple[tuple[str, str], ...]
    limits: ChildLimits
    records: Records | None

    def fault(self, graph: Graph, inputs: Sequence[Held]) -> KernelFault | None:
        """Say which kernel of a region is wrong at the sizes of a call; None if all are right."""
        sizes = _sizes(graph, inputs)
        fault = self._fault(_sized(graph, sizes), inputs)
        if fault is not None or not sizes:
            return fault
        # What is built now serves all sizes.
        try:
            other = _sized(graph, _other(sizes))
        except FusewireError:
            # Sizes of this graph depend on each other.
            return None
        # It may refuse sizes: a call that has one is told so.
        return self._fault(other, (), may_raise=True)

    def _fault(
        self, graph: Graph, inputs: Sequence[Held], may_raise: bool = False
    ) -> KernelFault | None:
        added = self.target.backend.added_ops
        for part in graph.walk():
            for node in part.nodes:
                is_ours = "." not in node.op and node.op not in added
                if is_ours or not _has_elements(node):
                    continue
                given = inputs if part is graph else ()
                fault = self._node_fault(part, node, given)
                if fault is not None and may_raise and fault.code == EngineRaised.code:
                    note(fault.sentence)
                elif fault is not None:
                    return fault
        return None

    def _node_fault(self, graph: Graph, node: Node, inputs: Sequence[Held]) -> KernelFault | None:
        op = get_op(node.op)
        alone, _ = graph_of(op, [_zeros(value) for value in node.inputs], node.attrs)
        key = self._key(op, alone)
        if key is not None and self.records is not None and self.records.get(key) is not None:
            return None
        is_doubtful = False
        for operands, is_allowed in _operands(op, graph, node, inputs):
            try:
                fault = self._judged(*graph_of(op, operands, node.attrs))
            except (CheckError, EngineRaised):
                # The meaning does not allow what was drawn; the next are what the call has.
                continue
            if fault is None:
                if key is not None and self.records is not None and not is_doubtful:
                    self.records.put(key, b"right")
                return None
            if is_allowed:
                return fault._replace(sentence=self._sentence(op, alone, fault))
            is_doubtful = True
        note(f"{self._subject(op)} is not judged at {_shown(alone)}: {_NOT_DRAWN}")
        return None

    def _judged(self, graph: Graph, inputs: list[HostValue]) -> KernelFault | None:
        """Run one node, and compare it with its meaning; raises what the meaning raises."""
        expected = guarded(graph.name, "run", "its meaning", Alone, graph, inputs)
        answer = self._run(graph, inputs)
        if isinstance(answer, Refusal):
            return KernelFault(answer.code, f"it cannot be run. {answer.reason}")
        verdict = expected.judge(answer)
        return KernelFault("wrong", verdict.reason) if verdict.status == "wrong" else None

    def _run(self, graph: Graph, inputs: list[HostValue]) -> list[HostValue] | Refusal:
        """Compile and run one node, in a child if the engine of the region meets it there."""
        given = graph, self.device, self.config, inputs
        if self.target.reference is not None:
            contact = first_contact(self.target.reference, *given, self.limits)
            return contact if isinstance(contact, Refusal) else contact.outputs
        try:
            trial = attempt(self.target.backend, *given)
        except EngineError as error:
            return refusal(error, graph)
        trial.executable.close()
        return trial.outputs

    def _sentence(self, op: Op[Any], graph: Graph, fault: KernelFault) -> str:
        is_wrong = fault.code == "wrong"
        did = "differs from" if is_wrong else "could not be compared with"
        return (
            f"{self._subject(op)} {did} the meaning of the op at {_shown(graph)}: {fault.sentence}"
        )

    def _subject(self, op: Op[Any]) -> str:
        """Name a kernel, and whose it is if the op is ours."""
        where = f"{label(self.target.name, self.config.options)} on {self.device.id}"
        if "." in op.name:
            return f"The kernel of {op.name} for {where}"
        author = self.target.backend.added_ops[op.name]
        return f"The lowering of {op.name} for {where} that {author} brings"

    def _key(self, op: Op[Any], graph: Graph) -> Key | None:
        """Return where a right answer is remembered; None if its code cannot be told from other."""
        meaning = meaning_state(op)
        if meaning is None:
            return None
        own = (
            ("kernel", op.name),
            ("graph", exact_hash(graph)),
            ("meaning", meaning),
            ("backend", self.target.name),
            ("device", self.device.id),
        )
        return Key("stamp", (*own, *self.fields))


def _shown(graph: Graph) -> str:
    """Write a node as a call of its op."""
    (node,) = graph.nodes
    types = ", ".join(str(value.type) for value in node.operands)
    attrs = "".join(f", {name}={value}" for name, value in node.attrs.items())
    return f"{node.op}({types}{attrs})"


def _sizes(graph: Graph, inputs: Sequence[Held]) -> dict[Symbol, int]:
    """Find the sizes of a call; none if the graph has them already."""
    sizes: dict[Symbol, int] = {}
    for value, given in zip(graph.inputs, inputs, strict=True):
        if isinstance(value.type, TensorType):
            bind(value.type, shape_of(given), sizes, f"The input {value.name}")
    return sizes


def _other(sizes: Mapping[Symbol, int]) -> dict[Symbol, int]:
    """Choose other sizes: about half, and odd, so that no block of even size divides them."""
    return {symbol: size // 2 | 1 if size > 2 else size + 3 for symbol, size in sizes.items()}


def _sized(graph: Graph, sizes: Mapping[Symbol, int]) -> Graph:
    """Write sizes into a graph whose engine takes any."""
    known: dict[Symbol, Dim] = dict(sizes)
    return bind_symbols(graph, known) if known else graph


def _has_elements(node: Node) -> bool:
    """Tell whether there is something to compare: sizes that a run decides are not known."""
    types = [value.type for value in (*node.operands, *node.outputs)]
    is_sized = all(isinstance(x, TensorType) and x.is_static for x in types)
    return is_sized and any(value.tensor.size != 0 for value in node.outputs)


def _zeros(value: Value | None) -> Array | None:
    """Make an array that has the type of a value, and takes no memory."""
    if value is None:
        return None
    return np.broadcast_to(np.zeros((), value.tensor.dtype.numpy), _shape(value))


def _shape(value: Value) -> tuple[int, ...]:
    return tuple(dim for dim in value.tensor.shape if isinstance(dim, int))


def _operands(
    op: Op[Any], graph: Graph, node: Node, inputs: Sequence[Held]
) -> Iterator[tuple[list[HostValue], bool]]:
    """Yield operands for a node: drawn as samples are, then those that it has in a call.

    Drawn ones come first: a call may be made with zeros, which hide a wrong index. Each list comes
    with whether the op is sure to allow it.
    """
    rng = np.random.default_rng(0)
    draws = operand_draws(op, len(node.inputs))
    drawn = [
        None if value is None else own.make(_shape(value), value.tensor.dtype, rng)
        for own, value in zip(draws, node.inputs, strict=True)
    ]
    pairs = zip(draws, node.inputs, strict=True)
    yield drawn, all(own.is_known for own, value in pairs if value is not None)
    if len(inputs) == len(graph.inputs):
        before = Graph(graph.inputs, node.operands, name=graph.name)
        present = iter(Interpreter(before)([fetched(value) for value in inputs]))
        yield [None if value is None else next(present) for value in node.inputs], True
