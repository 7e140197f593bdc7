"""Compare what an extension brings with the meaning of the ops, ours and those of packages.

What it lowers is used only after it gave right answers on the samples of its op, in a child. A
right answer is remembered until the package, the engine or the device changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fusewire.contract.backend import Backend, Config, Device, Offer, Refusal
from fusewire.contract.extension import Extension
from fusewire.dtypes import float32
from fusewire.errors import EngineError
from fusewire.ir.builder import inline
from fusewire.ir.graph import Graph, HostValue, Value
from fusewire.ir.types import TensorType
from fusewire.numerics.judge import judge_op
from fusewire.ops.declare import Op
from fusewire.ops.interpret import graph_of
from fusewire.ops.table import get_op
from fusewire.process.guard import refusal
from fusewire.process.isolate import claim, first_contact
from fusewire.process.limits import ChildLimits
from fusewire.process.trial import attempt
from fusewire.store.code_state import meaning_state, module_state
from fusewire.store.disk import shared_store
from fusewire.store.key import Key


@dataclass(frozen=True)
class ExtendedBackend:
    """A backend with an extension: the reference of both for a child, and where they run.

    Unless it is isolated, the extension is attached to the backend already.
    """

    reference: str
    backend: Backend
    device: Device
    limits: ChildLimits
    isolate: bool


@dataclass(frozen=True)
class _Case:
    """One sample of an op as a graph, and the arrays it is given."""

    number: int
    graph: Graph
    inputs: list[HostValue]


def wrong_lowering(place: ExtendedBackend, extension: Extension) -> str | None:
    """Say what an extension computes wrongly; None if all that it takes is right."""
    store = shared_store()
    for name in sorted(extension.lowerings):
        op = get_op(name)
        key = _key(place, extension, op)
        if store is not None and key is not None and store.get(key) is not None:
            continue
        if (problem := _problem(place, op)) is not None:
            return problem
        if store is not None and key is not None:
            store.put(key, b"right")
    return None


def _problem(place: ExtendedBackend, op: Op[Any]) -> str | None:
    cases = _offered(place, _cases(op))
    if not cases:
        return None
    inputs = [x for case in cases for x in case.inputs]
    outputs = _outputs(place, _merged(cases), inputs)
    if isinstance(outputs, Refusal):
        return f"Its {op.name} cannot be run on the samples of the op. {outputs.reason}"
    answers = iter(outputs)
    for case in cases:
        got = list(islice(answers, len(case.graph.outputs)))
        verdict = judge_op(case.graph, case.inputs, got)
        if verdict.status == "wrong":
            return (
                f"Its {op.name} differs from the meaning of the op on sample {case.number}: "
                f"{verdict.reason} Correct it, or the meaning."
            )
    return None


def _outputs(
    place: ExtendedBackend, graph: Graph, inputs: list[HostValue]
) -> list[HostValue] | Refusal:
    given = graph, place.device, Config(), inputs
    if place.isolate:
        contact = first_contact(place.reference, *given, place.limits)
        return contact if isinstance(contact, Refusal) else contact.outputs
    try:
        trial = attempt(place.backend, *given)
    except EngineError as error:
        return refusal(error, graph)
    trial.executable.close()
    return trial.outputs


def _cases(op: Op[Any]) -> list[_Case]:
    """Make the samples that have elements, in one dtype."""
    of = float32 if float32 in op.dtypes else op.dtypes[0]
    found = []
    for number, drawn in enumerate(op.samples()):
        if drawn.only is not None and of not in drawn.only:
            continue
        graph, inputs = graph_of(op, drawn.make(of), drawn.attrs)
        if all(isinstance(x, TensorType) and x.size != 0 for x in graph.nodes[0].types):
            found.append(_Case(number, graph, inputs))
    return found


def _offered(place: ExtendedBackend, cases: Sequence[_Case]) -> list[_Case]:
    """Keep the samples that are taken: a kernel need not take all dtypes and sizes."""
    if not cases:
        return []
    graph = _merged(cases)
    if place.isolate:
        answers = claim(place.reference, graph, place.device, place.limits)
    else:
        answers = place.backend.claim(graph, place.device)
    taken = {at for x in answers if isinstance(x, Offer) for at in x.nodes}
    return [case for at, case in enumerate(cases) if at in taken]


def _merged(cases: Sequence[_Case]) -> Graph:
    """Make one graph of all samples, so that an engine compiles once."""
    inputs: list[Value] = []
    outputs: list[Value] = []
    for case in cases:
        own = [Value(v.type, f"sample{case.number}_{v.name}") for v in case.graph.inputs]
        inputs += own
        outputs += inline(case.graph, own)
    names = [f"output{at}" for at in range(len(outputs))]
    return Graph(inputs, outputs, name="samples", output_names=names)


def _key(place: ExtendedBackend, extension: Extension, op: Op[Any]) -> Key | None:
    """Return where a right answer is remembered; None if its code cannot be told from other."""
    states = [module_state(type(extension).__module__), meaning_state(op)]
    if None in states:
        return None
    return Key.of(
        "stamp",
        lowering=op.name,
        reference=place.reference,
        code=" ".join(map(str, states)),
        device=place.device.id,
        **{f"its_{name}": x for name, x in place.backend.fingerprint(place.device).items()},
    )
