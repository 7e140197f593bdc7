"""Lower regions to kernels of Triton: fuse, print, compile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from fusewire.backends.triton.outside import Kernels, printed_calls
from fusewire.backends.triton.printer import Function
from fusewire.backends.triton.program import Program, Source, size_of
from fusewire.backends.triton.refusal import primitive_refusal
from fusewire.backends.triton.space import TritonSpace
from fusewire.contract.backend import Artifact, Config, Fact
from fusewire.contract.inspection import EngineKernel
from fusewire.contract.region import edge_slots, weight_slots
from fusewire.contract.tuning import Piece
from fusewire.fusion.grouping import Fusion, fuse
from fusewire.ir.graph import Graph
from fusewire.kernel.described import described_kernel
from fusewire.kernel.form import Kernel
from fusewire.kernel.lower.region import kernels_by_group, lower_fusion
from fusewire.kernel.printed import PrintedKernel
from fusewire.kernel.program import WEIGHT_BYTES, ProgramWriter, Schedule, is_launched


def lower(region: Graph, config: Config, kernels: Kernels) -> Program:
    """Fuse a region and print its kernels; ``kernels`` are those that packages bring."""
    space = TritonSpace(kernels)
    configured = space.configured(config)
    weights = {slot.digest for slot in weight_slots(region, WEIGHT_BYTES) if slot.digest}
    lowered = lower_fusion(_fused(region, kernels), kernels.digests)
    sources: dict[Function, Source] = {}

    def printed(kernel: Kernel) -> PrintedKernel[Function]:
        source = Source(kernel, configured.configuration(kernel))
        printed = space.print(source.kernel, source.configuration)
        sources.setdefault(printed.code, source)
        return printed

    functions, schedule = ProgramWriter(lowered, printed, size_of, weights).write()
    listed = [sources[function] for function in functions]
    return Program(listed, schedule, brought=printed_calls(listed, kernels))


def pieces(region: Graph, config: Config, kernels: Kernels) -> Sequence[Piece]:
    """List kernels that may have other tiles, or configurations of their own."""

    def fused(graph: Graph) -> Fusion:
        return _fused(graph, kernels)

    return list(TritonSpace(kernels).pieces(fused(region), fused, config))


def printed_kernels(
    region: Graph,
    config: Config,
    brought: Kernels,
    compile_program: Callable[[Program], list[dict[str, Any]]] | None,
) -> list[EngineKernel]:
    """List the kernels of a region; with a compiler, with the threads and memory that they take."""
    space = TritonSpace(brought)
    configured, fusion = space.configured(config), _fused(region, brought)
    kernels, sources = list[EngineKernel](), list[Source]()
    for kernel, group in kernels_by_group(fusion, brought.digests):
        source = Source(kernel, configured.configuration(kernel))
        printed = space.print(kernel, source.configuration)
        if is_launched(kernel, printed):
            sources.append(source)
            kernels.append(described_kernel(kernel, printed, group, fusion))
    if compile_program is None:
        return kernels
    program = Program(sources, Schedule(), brought=printed_calls(sources, brought))
    binaries = compile_program(program)
    return [
        replace(
            kernel,
            block=(about["warps"] * about["threads"],),
            shared_bytes=about["shared"],
            registers=about.get("registers"),
        )
        for kernel, about in zip(kernels, binaries, strict=True)
    ]


def compiled(
    region: Graph,
    config: Config,
    kernels: Kernels,
    compile_program: Callable[[Program], list[dict[str, Any]]] | None,
) -> Artifact:
    """Print the kernels; with a compiler, have it make the code of a GPU of them."""
    start = time.perf_counter()
    program = lower(region, config, kernels)
    if compile_program is not None:
        program.binaries = compile_program(program)
    payload = program.to_bytes()
    counts: dict[str, Fact] = {
        "kernels": len(program.functions),
        "launches": len(program.turns()),
    }
    metrics = {"compile_seconds": time.perf_counter() - start, "bytes": float(len(payload))}
    slots = (*edge_slots(region), *weight_slots(region, WEIGHT_BYTES))
    kind: Literal["native", "rebuild"] = "native" if program.binaries else "rebuild"
    return Artifact(kind, payload, slots, sum(program.schedule.scratch), counts, metrics)


def _fused(region: Graph, kernels: Kernels) -> Fusion:
    return fuse(region, lambda node: primitive_refusal(node, kernels))
