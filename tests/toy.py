"""A backend that runs graphs as the reference does, but for what its switches say.

Names at the end are references to register: ``tests.toy:mesa``. Backends that fail when they are
told to are in ``tests.flaky`` and ``fusewire.testing.chaos``, those whose answers to the core are
odd in ``tests.odd``.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np

from fusewire.backends.reference.engine import ReferenceBackend
from fusewire.contract.backend import (
    CALIBRATED,
    EXACT_NODES,
    Artifact,
    Backend,
    BackendInfo,
    BackendOption,
    Config,
    Device,
    Exchange,
    Executable,
    Fact,
    Gap,
    Held,
    Into,
    Offer,
    Refusal,
    Shapes,
    Unavailable,
)
from fusewire.contract.region import claim_by_table, edge_slots, nodes_at
from fusewire.dtypes import bfloat16, float32
from fusewire.ir.builder import Rebuild
from fusewire.ir.graph import Array, Graph, Node, Value
from fusewire.ir.text import print_graph
from fusewire.ops.conversion import cast
from fusewire.ops.elementwise import cos
from fusewire.ops.logic import greater, where
from fusewire.rewrite.static_int8 import with_static_int8
from fusewire.testing.wrong import Spoiler

ANY_ARRAY = Exchange(needs_contiguous=False)
Settings: TypeAlias = Mapping[str, Any]
Answers: TypeAlias = Callable[[Graph, Device], list[Offer | Refusal]]
Spoils: TypeAlias = Callable[[Sequence[Any], Sequence[Any], Settings], Sequence[Any]]


@final
@dataclass(eq=False)
class ToyBackend(Backend):
    """Keeps what it was asked about, what it compiled, and the devices that it loaded for."""

    name: str
    # Ops that it does not take, also within bodies; ``answers`` replaces the whole claim.
    refused: Sequence[str] = ()
    shapes: Shapes = "dynamic"
    answers: Answers | None = None
    # What a probe lists; a device called "cpu" if it is empty.
    devices: Sequence[Device | Unavailable] = ()
    # Further fields of its BackendInfo.
    about: Mapping[str, Any] = field(default_factory=dict)
    gaps: Sequence[Gap] = ()
    exchange: Exchange = ANY_ARRAY
    options: Sequence[BackendOption] = ()
    # Options that are tried too, and that are tried where an error is accepted.
    variants: Sequence[Mapping[str, Fact]] = ()
    reductions: Sequence[Mapping[str, Fact]] = ()
    # Ops that reductions concern; any if it is empty.
    reduced_ops: Sequence[str] = ()
    # Seconds that compiling takes, and that a run of a region takes besides computing.
    compile_seconds: float = 0.0
    run_seconds: Callable[[Graph, Settings], float] = lambda region, settings: 0.0
    # What is computed in place of a region, and returned in place of outputs.
    rewrites: Callable[[Graph, Settings], Graph] | None = None
    spoils: Spoils | None = None

    def __post_init__(self) -> None:
        self._inner = ReferenceBackend()
        self.asked: list[Graph] = []
        self.compiled: list[tuple[Graph, Device]] = []
        self.loaded: list[Device] = []

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(self.name, "1", "A toy.", "tests", **self.about)

    def probe(self) -> list[Device | Unavailable]:
        return [*self.devices] or [Device("cpu", self.name)]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        self.asked.append(graph)
        if self.answers is not None:
            return self.answers(graph, device)
        return claim_by_table(graph, self._refuses, self.shapes)

    def _refuses(self, node: Node) -> str | None:
        inner = [n for _, body in node.graphs() for g in body.walk() for n in g.nodes]
        bad = next((n.op for n in [node, *inner] if n.op in self.refused), None)
        return f"{self.name} does not run {bad}." if bad else None

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        settings = config.checked(self.name, self.options)
        self.compiled.append((region, device))
        time.sleep(self.compile_seconds)
        artifact = self._inner.compile(region, device, replace(config, options={}))
        if self.rewrites is not None:
            # It has constants of its own, which no slot brings.
            text = print_graph(self.rewrites(region, settings), inline_bytes=1 << 20)
            slots = tuple(edge_slots(region))
            artifact = replace(artifact, payload=text.encode(), slots=slots)
        seconds = self.run_seconds(region, settings)
        return replace(artifact, launch={**settings, "run_seconds": seconds})

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        self.loaded.append(device)
        return ToyExecutable(
            self._inner.load(artifact, device, weights), artifact.launch, self.spoils
        )

    def configs(self, region: Graph, device: Device) -> Sequence[Mapping[str, Fact]]:
        return self.variants

    def reduced(self, region: Graph, device: Device) -> Sequence[Mapping[str, Fact]]:
        return self.reductions if not self.reduced_ops or self._reduced_places(region) else ()

    def reduced_nodes(
        self, region: Graph, device: Device, options: Mapping[str, Fact]
    ) -> Sequence[int]:
        leaves_nodes = any(option.name == EXACT_NODES for option in self.options)
        return self._reduced_places(region) if leaves_nodes else ()

    def _reduced_places(self, region: Graph) -> Sequence[int]:
        return places_of(region, self.reduced_ops)

    def calibrates(self, device: Device) -> bool:
        return any(option.name == CALIBRATED for option in self.options)


@final
class ToyExecutable(Executable):
    """Takes its time, and spoils what another answers."""

    def __init__(self, inner: Executable, settings: Settings, spoils: Spoils | None) -> None:
        self._inner, self._settings, self._spoils = inner, settings, spoils

    @property
    def is_reentrant(self) -> bool:
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        time.sleep(self._settings["run_seconds"])
        if self._spoils is None:
            return self._inner.run(inputs)
        return [*self._spoils(inputs, self._inner.run(inputs), self._settings)]

    def close(self) -> None:
        self._inner.close()


def picky_backend(name: str, refused: Sequence[str], shapes: Shapes = "dynamic") -> ToyBackend:
    """Make a backend that does not take every array as it is."""
    exchange = Exchange(alignment=64, needs_writable=True)
    return ToyBackend(name, refused, shapes, exchange=exchange)


# -- some take no cos, and err, or lack what they need

split = partial(ToyBackend, "split", ["cos"])
wrong = partial(split, spoils=lambda inputs, outputs, settings: Spoiler("element")(outputs, inputs))
absent = partial(
    split,
    devices=[Unavailable("not-installed", "It needs the package split.", "Run: pip install split")],
)
blind = partial(split, devices=[Unavailable("no-device", "No eyes.", "Get some.")])


# -- one compiles for long, and says that it takes half a minute

LONG: Mapping[str, Any] = {"compile_seconds": 30.0}
SLOW_COMPILE_SECONDS = 2.0
slow = partial(
    ToyBackend, "slow", ["sin"], "static", about=LONG, compile_seconds=SLOW_COMPILE_SECONDS
)


# -- one is slow at tanh, and refuses sin

SLOW_SECONDS = 0.02


def slow_at_tanh(region: Graph, settings: Settings) -> float:
    return SLOW_SECONDS * sum(node.op == "tanh" for node in region.nodes)


mesa = partial(ToyBackend, "mesa", ["sin"], run_seconds=slow_at_tanh)


# -- some are faster where they may compute in less: with fewer digits, in int8, in bfloat16

# ``OUTLIER`` as the first element of an input has outputs of fewer digits scaled by a tenth, which
# generated inputs do not show.
OUTLIER = 77.0
# With 24 digits, float32 keeps all of them; that takes as long as without the option.
DIGITS_SECONDS = {24: 0.03, 12: 0.01, 4: 0.004}


def starts_with(inputs: Sequence[Any], mark: float) -> bool:
    """Tell whether a mark is the first element of the first input."""
    return isinstance(inputs[0], np.ndarray) and bool(inputs[0].flat[0] == mark)


def with_digits(inputs: Sequence[Any], outputs: Sequence[Any], settings: Settings) -> list[Any]:
    """Round to so many binary digits."""
    if settings["digits"] == 24:
        return list(outputs)
    scale = np.float32(0.1 if starts_with(inputs, OUTLIER) else 1.0)
    return [
        _rounded(x, settings["digits"]) * scale if isinstance(x, np.ndarray) else x for x in outputs
    ]


def _rounded(x: Array, digits: int) -> Array:
    mantissa, exponent = np.frexp(x)
    value = np.ldexp(np.round(np.ldexp(mantissa, digits)), exponent - digits)
    return np.asarray(value, x.dtype)


narrow = partial(
    ToyBackend,
    "narrow",
    options=[BackendOption("digits", 24, "Digits to round to.")],
    reductions=[{"digits": digits} for digits in DIGITS_SECONDS],
    run_seconds=lambda region, settings: DIGITS_SECONDS[settings["digits"]],
    spoils=with_digits,
)


def in_int8(region: Graph, settings: Settings) -> Graph:
    """Compute in int8 with ranges that were measured."""
    lines = settings[CALIBRATED]
    return with_static_int8(region, lines) if lines else region


calibrated = partial(
    ToyBackend,
    "calibrated",
    options=[BackendOption(CALIBRATED, (), "Ranges of layers.")],
    run_seconds=lambda region, settings: 0.004 if settings[CALIBRATED] else 0.03,
    rewrites=in_int8,
)


def places_of(graph: Graph, ops: Sequence[str]) -> list[int]:
    """List the places of nodes of some ops."""
    return [place for place, node in enumerate(graph.nodes) if node.op in ops]


def rewritten(graph: Graph, output: Callable[[Node, Node], Value | None]) -> Graph:
    """Replace the one output of nodes: ``output(node, copy)``, or None for that of the copy."""
    rebuild = Rebuild(graph)
    for node in graph.nodes:
        copy = rebuild.copied(node)
        value = output(node, copy)
        rebuild.replace(node, copy.outputs if value is None else [value])
    return rebuild.finish()


def _grains_of(region: Graph, settings: Settings) -> list[Node]:
    places = places_of(region, ["cos"])
    exact = nodes_at(region, str(settings.get(EXACT_NODES, "")), places)
    nodes = [region.nodes[place] for place in places if settings["coarse"]]
    return [node for node in nodes if node not in exact]


def in_grains(region: Graph, settings: Settings) -> Graph:
    """Round what comes out of cosines to bfloat16."""
    grains = _grains_of(region, settings)

    def output(node: Node, copy: Node) -> Value | None:
        value = copy.outputs[0]
        return cast(cast(value, dtype=bfloat16), dtype=float32) if node in grains else None

    return rewritten(region, output)


def grain_seconds(region: Graph, settings: Settings) -> float:
    """Take a tenth of the time for each cosine that is rounded."""
    grains, places = _grains_of(region, settings), places_of(region, ["cos"])
    return SLOW_SECONDS * (len(places) - 0.9 * len(grains))


COARSE = BackendOption("coarse", False, "Whether it rounds.")
EXACT = BackendOption(EXACT_NODES, "", "Nodes that stay exact.")
_grainy = partial(
    ToyBackend,
    reductions=[{"coarse": True}],
    reduced_ops=["cos"],
    run_seconds=grain_seconds,
    rewrites=in_grains,
)

# Rounds all of a region.
grains = partial(_grainy, "grains", options=[COARSE])
# Leaves the nodes exact that it is told to.
sieve = partial(_grainy, "sieve", options=[COARSE, EXACT])


# -- some are wrong in one thing

# As the first element of an input it has "slight" be off by a few tolerances: a doubtful case.
MARK = -2.0
OFF = np.float32(1 + 1e-5)


def slightly_off(inputs: Sequence[Any], outputs: Sequence[Any], settings: Settings) -> list[Any]:
    """Scale what comes out, if the inputs ask for it."""
    is_off = starts_with(inputs, MARK)
    return [x * OFF if is_off and isinstance(x, np.ndarray) else x for x in outputs]


slight = partial(ToyBackend, "slight", spoils=slightly_off)


def with_wrong_sine(region: Graph, settings: Settings) -> Graph:
    """Compute a cosine for a sine; of two elements that cannot be compared, take the second."""

    def output(node: Node, copy: Node) -> Value | None:
        if node.op == "maximum":
            return where(greater(*copy.operands), *copy.operands)
        return cos(*copy.operands) if node.op == "sin" else None

    return rewritten(region, output)


wrong_sine = partial(
    ToyBackend,
    "wrong-sine",
    ["softmax", "sort"],
    "static",
    about={"trusted": True},
    rewrites=with_wrong_sine,
)


def without_flags(inputs: Sequence[Any], outputs: Sequence[Any], settings: Settings) -> list[Any]:
    """Forget what is true in large arrays."""
    return [
        np.zeros_like(x) if isinstance(x, np.ndarray) and x.dtype == np.bool_ and x.size > 99 else x
        for x in outputs
    ]


forgetful = partial(ToyBackend, "forgetful", about={"trusted": True}, spoils=without_flags)
