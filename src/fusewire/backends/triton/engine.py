"""The Triton backend. Only child processes import Triton itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from fusewire.backends.triton.gaps import GAPS
from fusewire.backends.triton.info import INFO, OPTIONS
from fusewire.contract.backend import (
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
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.inspection import EngineKernel, Inspector
from fusewire.contract.region import CrossCompiler, build, claim_by_table
from fusewire.contract.tuning import Estimate, Estimator, Piece, Tuner
from fusewire.dtypes import float32
from fusewire.errors import FusewireError
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType

# Kernels are imported where they are made: every process asks who this is, and few run it.
if TYPE_CHECKING:
    from fusewire.backends.triton.client import Client, Compiler
    from fusewire.backends.triton.program import Program
    from fusewire.kernel.outside import KernelTable, TritonKernel

INTERPRETER = "interpreter"
_NAME = "Triton's interpreter: kernels are run step by step in NumPy, on no GPU"


@final
class TritonBackend(Backend, CrossCompiler, Tuner, Estimator, Inspector):
    """Runs regions with kernels of our own: on GPUs, or where there is none, interpreted."""

    def __init__(self) -> None:
        self._found: list[Device | Unavailable] | None = None

    @cached_property
    def _interpreter(self) -> Client:
        from fusewire.backends.triton.client import Client

        return Client("interpret")

    @cached_property
    def _client(self) -> Client:
        from fusewire.backends.triton.client import Client

        return Client("compile")

    @cached_property
    def compiler(self) -> Compiler:
        """What has Triton compile for GPUs, in a child."""
        from fusewire.backends.triton.client import Compiler

        return Compiler(self._client)

    @property
    def info(self) -> BackendInfo:
        """Who this is."""
        return INFO

    @property
    def gaps(self) -> Sequence[Gap]:
        """What it is known to get wrong."""
        return GAPS

    @property
    def options(self) -> Sequence[BackendOption]:
        """How kernels are configured."""
        return OPTIONS

    @property
    def exchange(self) -> Exchange:
        """Dense arrays of the host come in and go out."""
        return Exchange()

    @cached_property
    def lowerings(self) -> KernelTable[TritonKernel]:
        """The kernels in Triton that extensions bring for ops of packages."""
        from fusewire.kernel.outside import KernelTable, TritonKernel

        return KernelTable(TritonKernel)

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
        from fusewire.backends.triton import launch

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
        from fusewire.ops.elementwise import add

        x = Value(TensorType(float32, (3,)), "x")
        held = np.array([1.0, 2.5, -4.0], np.float32)
        (got,) = build(self, Graph([x], [add(x, x)]), device).run([held])
        assert isinstance(got, np.ndarray)
        return "" if np.array_equal(got, held + held) else f"{device.name}: x + x is {got}."

    def prepare(self, config: Config) -> None:
        """Start the child that runs need; a closed process starts none."""
        has_gpu = any(isinstance(x, Device) and x.id != INTERPRETER for x in self.probe())
        (self._client if has_gpu else self._interpreter).start()

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer what has kernels, and composites all parts of which have."""
        from fusewire.backends.triton.refusal import refusal

        return claim_by_table(graph, lambda node: refusal(node, self.lowerings))

    def lower(self, region: Graph, config: Config) -> Program:
        """Fuse a region and print its kernels."""
        from fusewire.backends.triton.lowering import lower

        return lower(region, config, self.lowerings)

    def pieces(self, region: Graph, device: Device, config: Config) -> Sequence[Piece]:
        """List kernels that may have other tiles; the interpreter's time says nothing of any."""
        if device.id == INTERPRETER:
            return []
        from fusewire.backends.triton.lowering import pieces

        return pieces(region, config, self.lowerings)

    def kernels(self, region: Graph, device: Device, config: Config) -> Sequence[EngineKernel]:
        """List the kernels that are printed; for a GPU, with what Triton's code takes."""
        from fusewire.backends.triton.lowering import printed_kernels

        compile_program = self._compile_for(device, is_measured=True)
        return printed_kernels(region, config, self.lowerings, compile_program)

    def clock(self, device: Device) -> Mapping[str, Fact]:
        """None: a run is timed as a whole."""
        return {}

    def estimates(self, region: Graph, device: Device) -> tuple[str, Sequence[Estimate]]:
        """Choose for each kernel by what compiles, what it takes, and a rule that is told."""
        from fusewire.backends.triton import estimate
        from fusewire.backends.triton.targets import Target

        pieces = self.pieces(region, device, Config())
        target = Target.of(str(device.facts["target"]))
        return estimate.RULE, [
            estimate.choose(x, target, self.lower, self.compiler) for x in pieces
        ]

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Print the kernels; for a GPU, have Triton make its code of them."""
        from fusewire.backends.triton.lowering import compiled

        # What a kernel takes of a device that nobody can run it on is all there is to see.
        is_measured = bool(device.facts.get("is_elsewhere"))
        compile_program = self._compile_for(device, is_measured=is_measured)
        return compiled(region, config, self.lowerings, compile_program)

    def _compile_for(
        self, device: Device, *, is_measured: bool
    ) -> Callable[[Program], list[dict[str, Any]]] | None:
        """Give what compiles programs for a device; None for the interpreter."""
        from fusewire.backends.triton.outside import given_binaries
        from fusewire.backends.triton.targets import Target

        if device.id == INTERPRETER:
            return None
        target = Target.of(str(device.facts["target"]))

        def compile_program(program: Program) -> list[dict[str, Any]]:
            given = given_binaries(program, self.lowerings, str(target))
            return self.compiler.compile(program, target.triton, is_measured, given)

        return compile_program

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Hand the kernels to the interpreter, or to the driver of a GPU."""
        from fusewire.backends.triton import launch
        from fusewire.backends.triton.executable import Interpreted

        if device.id == INTERPRETER:
            # The child reads it in any case; kernels of packages are printed where those are.
            brought = self._program(artifact).brought if self.lowerings else {}
            held = artifact.payload, brought
            return Interpreted(self._interpreter, *held, artifact.slots, weights)
        return launch.Launched(device.id, self._program(artifact), artifact.slots, weights)

    def _program(self, artifact: Artifact) -> Program:
        """Read an artifact; kernels of packages are printed anew."""
        from fusewire.backends.triton.outside import printed_calls
        from fusewire.backends.triton.program import Program

        return Program.from_bytes(
            artifact.payload, lambda sources: printed_calls(sources, self.lowerings)
        )

    def fingerprint(self, device: Device) -> Mapping[str, str]:
        """Name Triton, the kind of GPU that its code is for, and kernels that packages bring."""
        target = str(device.facts.get("target", INTERPRETER))
        # Without extensions, whoever asks does not import kernels.
        brought = self.lowerings.digests if "lowerings" in vars(self) else {}
        kernels = {f"kernel_{op}": digest for op, digest in brought.items()}
        return {"engine": INFO.version, "target": target, **kernels}

    def device_for(self, target: str) -> Device | None:
        """Describe a GPU by its architecture: cuda:sm_90, hip:gfx942."""
        from fusewire.backends.triton.targets import Target

        if target.partition(":")[0] not in ("cuda", "hip"):
            return None
        found = str(Target.of(target))
        facts: dict[str, Fact] = {"target": found, "is_elsewhere": True}
        return Device(found, f"{found}, whether one is here or not", facts=facts)

    def files(self, artifact: Artifact) -> Mapping[str, bytes]:
        """Give the module, the code of each kernel, how it is launched and what it takes."""
        return self._program(artifact).files()

    def close(self) -> None:
        """End the children."""
        for made in ("_interpreter", "_client"):
            if made in vars(self):
                getattr(self, made).close()
        self._found = None
