"""The XLA backend. Importing this file imports no engine."""

from __future__ import annotations

import importlib.util
import os
import platform
import time
from collections.abc import Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, final

from fusewire.backends.xla.cpus import KNOWN, cpus, is_known
from fusewire.backends.xla.executable import XlaExecutable, bytes_of, is_large
from fusewire.backends.xla.gaps import GAPS
from fusewire.backends.xla.info import INFO
from fusewire.backends.xla.resident import XlaBuffer
from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Fact,
    Gap,
    Offer,
    Refusal,
    Slot,
    Unavailable,
)
from fusewire.contract.buffer import Buffer
from fusewire.contract.inspection import EngineKernel, Inspector
from fusewire.contract.script import Script, Scripted
from fusewire.errors import FormatError, OptionsError, RefusedError
from fusewire.ir.graph import Array, Graph
from fusewire.ir.types import TensorType
from fusewire.process.machine import processor
from fusewire.process.wheels import native_libraries

if TYPE_CHECKING:
    from fusewire.backends.xla.client import Client
    from fusewire.backends.xla.program import Program

# Constants of at least so many bytes are arguments: not in the program, bound when it is loaded.
# Smaller ones are in the program, because an argument costs a call 0.2 us.
WEIGHT_BYTES = 4096
# Outputs of so many bytes, where all such together have that many, are written where earlier ones
# were. It takes a second compilation, and less than that the C library keeps mapped by itself.
SPARE_BYTES = (4 << 20, 32 << 20)
_UPDATE = "Reinstall jax, and the plugin of the device if it is not a CPU."
# What machine code for a device depends on, beside its name.
_DRIVER = ("platform_version", "architecture")


@final
class XlaBackend(Backend, Scripted, Inspector):
    """Compiles regions ahead of time, for static shapes."""

    def __init__(self) -> None:
        self._probed: list[Device | Unavailable] | None = None

    @property
    def info(self) -> BackendInfo:
        """Who this is."""
        return INFO

    @property
    def gaps(self) -> Sequence[Gap]:
        """What it is known to get wrong."""
        return GAPS

    @property
    def exchange(self) -> Exchange:
        """Contiguous arrays of the host; copied, by XLA or by us, if not aligned to 64 bytes."""
        return Exchange()

    @property
    def lowerings(self) -> MutableMapping[str, Any]:
        """The table itself."""
        from fusewire.backends.xla.lowering import TABLE

        return TABLE

    def exchange_on(self, device: Device) -> Exchange:
        """CPUs share the memory of the host; outputs stay on any other device."""
        return self.exchange if device.kind == "cpu" else Exchange(memory=device.id)

    def probe(self) -> list[Device | Unavailable]:
        """Run something tiny on every CPU, and on every device of jax's other platforms, once."""
        if self._probed is None:
            missing = _missing()
            self._probed = [missing] if missing else self._found()
        return list(self._probed)

    def _found(self) -> list[Device | Unavailable]:
        from fusewire.backends.xla.devices import asked_apart, plugins

        installed = plugins()
        # Nothing of jax's own is started where there is only the CPU.
        if not installed:
            return self._cpus()
        with ThreadPoolExecutor(1) as apart:
            others = apart.submit(asked_apart, installed)
            return [*self._cpus(), *others.result()]

    def _cpus(self) -> list[Device | Unavailable]:
        from fusewire.backends.xla.devices import Place

        name = platform.processor() or platform.machine()
        count = len(cpus(None).local_devices()) if is_known() else 1
        places = (Place("cpu", number) for number in range(count))
        return [self._tried(Device(place.id, name)) for place in places]

    def tried_platforms(self) -> list[Device | Unavailable]:
        """Start jax's other platforms, and run something tiny on each device of theirs."""
        from fusewire.backends.xla import devices

        found = devices.others(devices.plugins())
        rows: list[Device | Unavailable] = []
        for x in found:
            if isinstance(x, Unavailable):
                rows.append(x)
                continue
            place, device = x
            facts = devices.facts_of(device)
            rows.append(self._tried(Device(place.id, str(device.device_kind), facts=facts)))
        return rows

    def _tried(self, device: Device) -> Device | Unavailable:
        from fusewire.contract.region import proven

        return proven(self, "XLA", device, _UPDATE)

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer what is in the lowering table."""
        from fusewire.backends.xla.refusal import refuses
        from fusewire.contract.region import claim_by_table

        return claim_by_table(graph, refuses)

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Trace the region as one function and compile it."""
        from fusewire.backends.xla import client, portable
        from fusewire.backends.xla.devices import Place
        from fusewire.backends.xla.program import program
        from fusewire.contract.region import edge_slots, weight_slots

        config.checked(INFO.name, ())
        threads = _threads(config)
        slots = (*edge_slots(region), *weight_slots(region, WEIGHT_BYTES))
        start = time.perf_counter()
        made, place = program(region, slots), Place.of(device)
        key = {"jaxlib": INFO.metadata["jaxlib"], "device": device.id}
        if not is_known():
            if threads:
                raise OptionsError(
                    f"threads={threads}: jaxlib {key['jaxlib']} takes its threads from the "
                    f"process. Leave threads out, or install a jaxlib {KNOWN[0]}x."
                )
            return Artifact("rebuild", portable.save(made, place), slots, key=key)
        owner = client.client(place, threads)
        payload, launch = _compiled(owner, made, region, slots, place.is_host)
        launch["threads"] = threads or 0
        metrics = {"compile_seconds": time.perf_counter() - start}
        return Artifact("native", payload, slots, launch=launch, metrics=metrics, key=key)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Read the executable and put the weights where it runs."""
        from fusewire.backends.xla.loading import NativeProgram

        program = NativeProgram(artifact, device, weights)
        if artifact.kind == "rebuild":
            from fusewire.backends.xla import portable

            given = program.held(), program.slots("output"), program.place
            call = portable.load(artifact.payload, *given)
            return XlaExecutable(call, program.slots("input"))
        found = artifact.key.get("jaxlib")
        if found != INFO.metadata["jaxlib"] or not is_known():
            raise FormatError(
                f"This program was compiled with jaxlib {found}, and jaxlib "
                f"{INFO.metadata['jaxlib']} is installed. Compile it again."
            )
        return program.loaded()

    def allocate(self, type_: TensorType, device: Device) -> Buffer | None:
        """Make an array on a device that is no CPU: those share the memory of the host."""
        from fusewire.backends.xla import client
        from fusewire.backends.xla.devices import Place

        place = Place.of(device)
        if place.is_host or not is_known():
            return None
        return XlaBuffer.zeros(device.id, type_, client.client(place).put)

    def kernels(self, region: Graph, device: Device, config: Config) -> Sequence[EngineKernel]:
        """Read the optimised HLO, whose instructions keep the names of what they were made of."""
        from fusewire.backends.xla import client
        from fusewire.backends.xla.devices import Place
        from fusewire.backends.xla.inspection import hlo_kernels
        from fusewire.contract.region import edge_slots, weight_slots

        if not is_known():
            raise RefusedError(f"jaxlib {INFO.metadata['jaxlib']} is not one that we can look at.")
        slots = (*edge_slots(region), *weight_slots(region, WEIGHT_BYTES))
        owner = client.client(Place.of(device), _threads(config))
        return hlo_kernels(region, slots, owner.optimised_text)

    def fingerprint(self, device: Device) -> Mapping[str, str]:
        """Machine code depends on the processor and on flags, beside the versions."""
        flags = os.environ.get("XLA_FLAGS", "")
        library = native_libraries("jaxlib")
        versions = {"engine": INFO.version, **INFO.metadata, "library": library}
        chip = {
            "chip": device.name,
            **{x: str(device.facts[x]) for x in _DRIVER if x in device.facts},
        }
        own = {} if device.kind == "cpu" else chip
        return {**versions, "cpu": processor(), "flags": flags, "device": device.id, **own}

    def script(self, region: Graph, device: Device, config: Config) -> Script | None:
        """Give what jax exports, and what runs it."""
        from fusewire.backends.xla.script import script

        return script(region)


def _compiled(
    owner: Client, made: Program, region: Graph, slots: Sequence[Slot], is_host: bool
) -> tuple[bytes, dict[str, Fact]]:
    """Compile, perhaps twice; returns the bytes, and what whoever loads them has to know."""
    pairs = _pairs(region, slots) if is_host else ()
    # The weights come before the inputs.
    weights = sum(slot.role == "weight" for slot in slots)
    donated = [(output, weights + place) for output, place in pairs]
    payload, text = owner.compile(made, (), donated)
    if pairs and "lapack_" in text:
        # Such a run can fail when a state is gone already.
        pairs, donated = (), []
        payload, text = owner.compile(made)
    spares, first = _spares(slots, pairs) if is_host else (), len(payload)
    if spares:
        outputs = [slot for slot in slots if slot.role == "output"]
        payload += owner.compile(made, [outputs[place] for place in spares], donated)[0]
    flat = tuple(x for pair in pairs for x in pair)
    launch: dict[str, Fact] = {"lapack": "lapack_" in text, "spares": spares, "first": first}
    return payload, {**launch, "pairs": flat}


def _pairs(region: Graph, slots: Sequence[Slot]) -> tuple[tuple[int, int], ...]:
    """Pair outputs with the inputs, large ones, of which they replace elements."""
    from fusewire.ops.replacing import replaced_input

    inputs = [slot for slot in slots if slot.role == "input"]
    places = ((output, replaced_input(region, output)) for output in range(len(region.outputs)))
    return tuple((i, place) for i, place in places if place is not None and is_large(inputs[place]))


def _spares(slots: Sequence[Slot], pairs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """List the places of outputs that are written into spare memory."""
    each, together = SPARE_BYTES
    sizes = [bytes_of(slot) for slot in slots if slot.role == "output"]
    paired = {output for output, _ in pairs}
    found = tuple(i for i, size in enumerate(sizes) if size >= each and i not in paired)
    return found if sum(sizes[place] for place in found) >= together else ()


def _threads(config: Config) -> int | None:
    if config.threads is not None and config.threads < 1:
        raise OptionsError(f"threads={config.threads}: at least 1 is needed, or none given.")
    return config.threads


@cache
def _missing() -> Unavailable | None:
    for package in ("jax", "jaxlib"):
        if importlib.util.find_spec(package) is None:
            return Unavailable.not_installed(INFO, package)
    return None


def tell() -> None:
    """Say what the platforms of jax list, proven; a process of its own runs this."""
    from fusewire.process.apart import say_devices, say_ready

    importlib.import_module("fusewire.backends.xla.client")
    say_ready()
    say_devices(XlaBackend().tried_platforms())
