"""Operations on a region for backends and the core: claim it by table, list its slots, build it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from fusewire.contract.backend import (
    EXACT_NODES,
    Artifact,
    Backend,
    Config,
    Device,
    Executable,
    Offer,
    Refusal,
    Shapes,
    Slot,
    Unavailable,
)
from fusewire.contract.buffer import Buffer
from fusewire.contract.devices import answers_to
from fusewire.dtypes import float32
from fusewire.errors import OptionsError, RegistryError
from fusewire.ir.graph import Array, Constant, Graph, Node
from fusewire.ir.text import constants_of
from fusewire.ir.types import TensorType, tensor_of
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op


class CrossCompiler(abc.ABC):
    """A backend that can also compile for devices that are not present."""

    @abc.abstractmethod
    def device_for(self, target: str) -> Device | None:
        """Describe a kind of device to compile for; None if it cannot compile for it."""

    @abc.abstractmethod
    def files(self, artifact: Artifact) -> Mapping[str, bytes]:
        """Return an artifact as files by name, for people and other programs."""


def claim_by_table(
    graph: Graph,
    refuses: Callable[[Node], str | None],
    shapes: Shapes = "static",
) -> list[Offer | Refusal]:
    """Offer every node for which ``refuses`` returns None, and refuse the others with reasons."""
    kept: list[int] = []
    refused: list[Offer | Refusal] = []
    for place, node in enumerate(graph.nodes):
        reason = refuses(node)
        if reason is None:
            kept.append(place)
        else:
            refused.append(Refusal((place,), "unsupported", reason))
    offers: list[Offer | Refusal] = []
    if kept:
        offers.append(Offer(tuple(kept), shapes))
    return offers + refused


def has_contraction(graph: Graph) -> bool:
    """Tell whether a graph has sums of products of float32, which engines do faster in less."""
    return any(_contracts(node) for part in graph.walk() for node in part.nodes)


def _contracts(node: Node) -> bool:
    types = [v.type for v in node.operands]
    if not any(isinstance(x, TensorType) and x.dtype is float32 for x in types):
        return False
    op = get_op(node.op)
    if not op.is_composite:
        return op.is_(Trait.CONTRACTION)
    return any(map(_contracts, op.expansion(node).nodes))


def weight_slots(graph: Graph, threshold: int) -> Iterator[Slot]:
    """Yield a slot for every constant of at least ``least`` bytes, in subgraphs too."""
    seen: set[str] = set()
    for part in graph.walk():
        for value in part.constants:
            constant = value.constant
            assert constant is not None
            size = constant.type.size
            assert isinstance(size, int)
            if size * constant.type.dtype.itemsize < threshold or constant.digest in seen:
                continue
            seen.add(constant.digest)
            of = constant.type
            yield Slot("weight", value.name or "", of.dtype, of.shape, digest=constant.digest)


def written_places(places: Sequence[int], chosen: Collection[int]) -> str:
    """Write some of these places of nodes, in order; a range has all of them in between.

    >>> written_places([2, 5, 8, 9], {2, 8, 9})
    '2,8-9'
    """
    runs: list[list[int]] = []
    is_next = False
    for place in sorted(places):
        if place in chosen:
            runs = [*runs[:-1], [runs[-1][0], place]] if is_next else [*runs, [place, place]]
        is_next = place in chosen
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def nodes_at(region: Graph, text: str, places: Sequence[int]) -> set[Node]:
    """Read which of the nodes at these places are meant; OptionsError for any other place."""
    known = {str(place): place for place in places}
    chosen: set[Node] = set()
    for part in filter(None, text.split(",")):
        ends = [known.get(x) for x in part.split("-")]
        first, last = ends[0], ends[-1]
        if first is None or last is None or len(ends) > 2 or first > last:
            raise OptionsError(
                f"{EXACT_NODES}={text!r}: {part} names no node that is computed in less. Places of "
                f"such nodes in this region: {', '.join(known) or 'none'}."
            )
        chosen |= {region.nodes[place] for place in places if first <= place <= last}
    return chosen


def edge_slots(graph: Graph) -> list[Slot]:
    """List the inputs and outputs of a region as slots; a sequence has its elements' type."""
    found = []
    for value in graph.inputs:
        of = tensor_of(value.type)
        found.append(Slot("input", value.name or "", of.dtype, of.shape))
    for value, name in zip(graph.outputs, graph.output_names, strict=True):
        of = tensor_of(value.type)
        found.append(Slot("output", name, of.dtype, of.shape))
    return found


def first_device(backend: Backend, name: str | None = None) -> Device:
    """Return the first device of a backend, or the one that a name fits best.

    RegistryError says why there is none.
    """
    found = backend.probe()
    fitting = [x for x in found if isinstance(x, Device) and answers_to(x, name)]
    exact = (device for device in fitting if device.id == name)
    if (device := next(exact, fitting[0] if fitting else None)) is not None:
        return device
    missing = [x for x in found if isinstance(x, Unavailable)]
    reasons = " ".join(f"{x.reason} {x.fix}" for x in missing)
    if name is None:
        raise RegistryError(f"{backend.info.name} has no device here. {reasons}")
    have = ", ".join(x.id for x in found if isinstance(x, Device)) or "none"
    raise RegistryError(
        f"{backend.info.name} was asked for {name} and has {have}. {reasons}".rstrip()
    )


def build(backend: Backend, region: Graph, device: Device, config: Config = Config()) -> Executable:
    """Compile and load in this process."""
    artifact = backend.compile(region, device, config)
    return backend.load(artifact, device, weights_of(artifact, constants_of(region)))


def proven(backend: Backend, engine: str, device: Device, fix: str) -> Device | Unavailable:
    """Return a device that can add two numbers in this process; else say that it cannot."""
    try:
        found = doubled(backend, device)
    except RuntimeError as error:
        reason = f"{engine} could not add two numbers on {device.id}: {error}"
        return Unavailable("broken", reason, fix, device.id)
    if found == [2.0, 2.0]:
        return device
    reason = f"{engine} added 1 and 1 to {found} on {device.id}."
    return Unavailable("wrong", reason, fix, device.id)


def doubled(backend: Backend, device: Device) -> list[float]:
    """Have a device add two ones to themselves."""
    import numpy as np

    from fusewire.dtypes import float32
    from fusewire.ir.graph import Value
    from fusewire.ir.types import TensorType
    from fusewire.ops.elementwise import add

    x = Value(TensorType(float32, (2,)), "x")
    graph = Graph([x], [add(x, x)], name="probe")
    (sums,) = build(backend, graph, device).run([np.ones(2, np.float32)])
    host = sums.read() if isinstance(sums, Buffer) else np.asarray(sums)
    numbers: list[float] = host.tolist()
    return numbers


# More than this of what others hold is not put into artifacts: it would be in memory twice.
HELD_BYTES = 1 << 26


def held_bytes(region: Graph) -> int:
    """Return the size of the constants that whoever compiles a region has in memory in any case."""
    held = {id(v.constant): v.constant for v in region.constants if v.constant is not None}
    return sum(constant.array.nbytes for constant in held.values() if constant.is_held)


def weights_of(artifact: Artifact, held: Mapping[str, Constant]) -> dict[str, Array]:
    """Return the weights that an artifact needs, by digest."""
    wanted = {slot.digest for slot in artifact.slots if slot.digest is not None}
    return {digest: held[digest].array for digest in wanted if digest in held}
