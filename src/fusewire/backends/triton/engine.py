"""The Triton backend. Only child processes import Triton itself."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from typing import Literal, final

import numpy as np

from fusewire.backends.triton import estimate, launch
from fusewire.backends.triton.client import Client, Compiler
from fusewire.backends.triton.executable import Interpreted
from fusewire.backends.triton.gaps import GAPS
from fusewire.backends.triton.info import INFO
from fusewire.backends.triton.printer import Function, print_kernel
from fusewire.backends.triton.program import Program, Source, size_of
from fusewire.backends.triton.refusal import primitive_refusal, refusal
from fusewire.backends.triton.space import TritonSpace
from fusewire.backends.triton.targets import Target
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
    Unavailable,
)
from fusewire.contract.region import CrossCompiler, build, claim_by_table, edge_slots, weight_slots
from fusewire.contract.tuning import Estimate, Estimator, Piece, Tuner
from fusewire.dtypes import float32
from fusewire.errors import FusewireError
from fusewire.fusion.grouping import Fusion, fuse
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.kernel.form import Kernel
from fusewire.kernel.lower.region import lower_fusion
from fusewire.kernel.printed import PrintedKernel
from fusewire.kernel.program import WEIGHT_BYTES, ProgramWriter
from fusewire.ops.elementwise import add

INTERPRETER = "interpreter"
_NAME = "Triton's interpreter: kernels are run step by step in NumPy, on no GPU"


@final
class TritonBackend(Backend, CrossCompiler, Tuner, Estimator):
    """Runs regions with kernels of our own: on GPUs, or where there is none, interpreted."""

    def __init__(self) -> None:
        self._interpreter = Client("interpret")
        self._client = Client("compile")
        self.compiler = Compiler(self._client)
        self._found: list[Device | Unavailable] | None = None

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
        """Dense arrays of the host come in and go out."""
        return Exchange()

    def probe(self) -> list[Device | Unavailable]:
        """Find GPUs, each of which adds two tensors; the interpreter comes last.

        That takes a second to start and is not tried before it is used: it is NumPy in a child.
        """
        if self._found is None:
            self._found = self._look()
        return list(self._found)

    def _look(self) -> list[Device | Unavailable]:
        if importlib.util.find_spec("triton") is None:
            return [Unavailable.not_installed(INFO, "triton")]
        found: list[Device | Unavailable] = []
        for device in launch.find_devices():
            try:
                wrong = self._try(device)
            except FusewireError as error:
                wrong = str(error)
            advice = "Report it to the makers of Fusewire, with `fusewire doctor --json`."
            found.append(Unavailable("broken", wrong, advice) if wrong else device)
        facts: dict[str, Fact] = {"interprets": True}
        return [*found, Device(INTERPRETER, _NAME, is_software=True, facts=facts)]

    def _try(self, device: Device) -> str:
        """Run one kernel; say what was wrong with the answer."""
        x = Value(TensorType(float32, (3,)), "x")
        held = np.array([1.0, 2.5, -4.0], np.float32)
        (got,) = build(self, Graph([x], [add(x, x)]), device).run([held]).wait()
        assert isinstance(got, np.ndarray)
        return "" if np.array_equal(got, held + held) else f"{device.name}: x + x is {got}."

    def prepare(self, config: Config) -> None:
        """Start the child that runs need; a closed process starts none."""
        has_gpu = any(isinstance(x, Device) and x.id != INTERPRETER for x in self.probe())
        (self._client if has_gpu else self._interpreter).start()

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer what has kernels, and composites all parts of which have."""
        return claim_by_table(graph, refusal)

    def lower(self, region: Graph, config: Config) -> Program:
        """Fuse a region and print its kernels."""
        configured = TritonSpace().configured(config)
        weights = {slot.digest for slot in weight_slots(region, WEIGHT_BYTES) if slot.digest}
        lowered = lower_fusion(_fused(region))
        sources: dict[Function, Source] = {}

        def printed(kernel: Kernel) -> PrintedKernel[Function]:
            source = Source(kernel, configured.configuration(kernel))
            printed = print_kernel(source.kernel, source.configuration)
            sources.setdefault(printed.code, source)
            return printed

        functions, schedule = ProgramWriter(lowered, printed, size_of, weights).write()
        return Program([sources[function] for function in functions], schedule)

    def pieces(self, region: Graph, device: Device, config: Config) -> Sequence[Piece]:
        """List kernels that may have other tiles; the interpreter's time says nothing of any."""
        if device.id == INTERPRETER:
            return []
        return list(TritonSpace().pieces(_fused(region), _fused, config))

    def clock(self, device: Device) -> Mapping[str, Fact]:
        """None: a run is timed as a whole."""
        return {}

    def estimates(self, region: Graph, device: Device) -> tuple[str, Sequence[Estimate]]:
        """Choose for each kernel by what compiles, what it takes, and a rule that is told."""
        pieces = self.pieces(region, device, Config())
        target = Target.of(str(device.facts["target"]))
        return estimate.RULE, [
            estimate.choose(x, target, self.lower, self.compiler) for x in pieces
        ]

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Print the kernels; for a GPU, have Triton make its code of them."""
        start = time.perf_counter()
        program = self.lower(region, config)
        if device.id != INTERPRETER:
            target = Target.of(str(device.facts["target"]))
            # What a kernel takes of a device that nobody can run it on is all there is to see.
            measured = bool(device.facts.get("is_elsewhere"))
            program.binaries = self.compiler.compile(program, target.triton, measured)
        payload = program.to_bytes()
        counts: dict[str, Fact] = {
            "kernels": len(program.functions),
            "launches": len(program.turns()),
        }
        metrics = {"compile_seconds": time.perf_counter() - start, "bytes": float(len(payload))}
        slots = (*edge_slots(region), *weight_slots(region, WEIGHT_BYTES))
        kind: Literal["native", "rebuild"] = "native" if program.binaries else "rebuild"
        return Artifact(kind, payload, slots, sum(program.schedule.scratch), counts, metrics)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Hand the kernels to the interpreter, or to the driver of a GPU."""
        if device.id == INTERPRETER:
            return Interpreted(self._interpreter, artifact.payload, artifact.slots, weights)
        return launch.Launched(device.id, artifact.payload, artifact.slots, weights)

    def fingerprint(self, device: Device) -> Mapping[str, str]:
        """Name Triton, and the kind of GPU that its code is for."""
        return {"engine": INFO.version, "target": str(device.facts.get("target", INTERPRETER))}

    def device_for(self, target: str) -> Device | None:
        """Describe a GPU by its architecture: cuda:sm_90, hip:gfx942."""
        if target.partition(":")[0] not in ("cuda", "hip"):
            return None
        found = str(Target.of(target))
        facts: dict[str, Fact] = {"target": found, "is_elsewhere": True}
        return Device(found, f"{found}, whether one is here or not", facts=facts)

    def files(self, artifact: Artifact) -> Mapping[str, bytes]:
        """Give the module, the code of each kernel, how it is launched and what it takes."""
        return Program.from_bytes(artifact.payload).files()

    def close(self) -> None:
        """End the children."""
        self._interpreter.close()
        self._client.close()
        self._found = None


def _fused(region: Graph) -> Fusion:
    return fuse(region, primitive_refusal)
