"""Lower regions to kernels in WGSL: fuse, print, have the device check them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from fusewire.backends.webgpu.info import CLOCK, INFO, OPTIONS
from fusewire.backends.webgpu.program import Mode, Program, size_of
from fusewire.backends.webgpu.refusal import primitive_refusal
from fusewire.backends.webgpu.space import WebGpuSpace
from fusewire.contract.backend import Artifact, Config, Device, Fact
from fusewire.contract.inspection import EngineKernel
from fusewire.contract.region import edge_slots, weight_slots
from fusewire.contract.tuning import Piece
from fusewire.errors import EngineOutOfMemory, OptionsError
from fusewire.fusion.grouping import Fusion, fuse
from fusewire.ir.graph import Graph
from fusewire.kernel.described import described_kernel
from fusewire.kernel.lower.region import kernels_by_group, lower_fusion
from fusewire.kernel.outside import KernelTable, WgslKernel
from fusewire.kernel.program import WEIGHT_BYTES, ProgramWriter, is_launched
from fusewire.rewrite.specialize import infer_again

Kernels = KernelTable[WgslKernel]
# Bytes of the types of WGSL in memory that a workgroup shares; others take a word.
_WORDS = {"f16": 2, "f64": 8, "i64": 8, "u64": 8, "vec2<f32>": 8}


def lower(region: Graph, device: Device, config: Config, kernels: Kernels) -> Program:
    """Fuse a region and print its kernels; ``kernels`` are those that packages bring."""
    configured = WebGpuSpace(device, kernels).configured(config)
    # Tables that kernels need, and what was folded, are in no graph: the artifact holds them.
    weights = {slot.digest for slot in weight_slots(region, WEIGHT_BYTES) if slot.digest}
    lowered = lower_fusion(_fused(region, device, kernels), kernels.digests)
    writer = ProgramWriter(lowered, configured.print, size_of, weights, lends=True)
    return Program(*writer.write(), _mode(config, device))


def compiled(
    region: Graph,
    device: Device,
    config: Config,
    kernels: Kernels,
    open_device: Callable[[], Callable[[str], object]],
) -> Artifact:
    """Print the kernels, and have the device make a pipeline of each."""
    start = time.perf_counter()
    program = lower(region, device, config, kernels)
    schedule = program.schedule
    _check_memory(config, device, schedule.bytes)
    pipeline = open_device()
    for source in program.kernels:
        pipeline(source)
    payload = program.to_bytes()
    configured = WebGpuSpace(device, kernels).configured(config)
    launch: dict[str, Fact] = {
        "workgroup": configured.untuned.workgroup,
        "tuned": len(configured.tuned),
        "kernels": len(program.kernels),
        "dispatches": len(schedule.launches),
    }
    metrics = {"compile_seconds": time.perf_counter() - start, "bytes": float(len(payload))}
    slots = (*edge_slots(region), *weight_slots(region, WEIGHT_BYTES))
    # WGSL is compiled again by the driver wherever it is loaded.
    return Artifact("rebuild", payload, slots, sum(schedule.scratch), launch, metrics)


def printed_kernels(
    region: Graph, device: Device, config: Config, kernels: Kernels
) -> list[EngineKernel]:
    """List the kernels of a region with their dispatches; a kernel of no points has none."""
    configured = WebGpuSpace(device, kernels).configured(config)
    fusion, found = _fused(region, device, kernels), []
    for kernel, group in kernels_by_group(fusion, kernels.digests):
        printed = configured.print(kernel)
        if is_launched(kernel, printed):
            about = described_kernel(kernel, printed, group, fusion)
            block, shared = workgroup_of(printed.code)
            found.append(replace(about, block=block, shared_bytes=shared))
    return found


def workgroup_of(source: str) -> tuple[tuple[int, ...], int]:
    """Read from WGSL how large a workgroup is, and the bytes that it shares."""
    sizes = re.search(r"@workgroup_size\(([^)]*)\)", source)
    assert sizes is not None, "a kernel has a workgroup"
    block = tuple(int(size) for size in re.findall(r"\d+", sizes[1]))
    shared = re.findall(r"var<workgroup> \w+: array<(\w+(?:<\w+>)?), (\d+)>", source)
    return block, sum(_WORDS.get(of, 4) * int(count) for of, count in shared)


def pieces(region: Graph, device: Device, config: Config, kernels: Kernels) -> Sequence[Piece]:
    """List kernels that may have other tiles, rows, workgroups or configurations of their own."""

    def fused(graph: Graph) -> Fusion:
        return _fused(graph, device, kernels)

    return list(WebGpuSpace(device, kernels).pieces(fused(region), fused, config))


def _fused(region: Graph, device: Device, kernels: Kernels) -> Fusion:
    # Bodies of scans name sizes of their own: they are told those of the region.
    return fuse(infer_again(region), lambda node: primitive_refusal(node, device, kernels))


def _mode(config: Config, device: Device) -> Mode:
    chosen = config.checked(INFO.name, OPTIONS)
    if chosen["debug"]:
        return "debug"
    stamps = chosen["timestamps"]
    if stamps and not device.facts["has_timestamps"]:
        raise OptionsError(f"timestamps={stamps!r}: {device.name} has no timestamp-query.")
    return "clocked" if stamps == CLOCK else "timed" if stamps else "plain"


def _check_memory(config: Config, device: Device, needed: int) -> None:
    limit = config.checked(INFO.name, OPTIONS)["memory"]
    if not isinstance(limit, int) or limit < 0:
        raise OptionsError(f"memory={limit}: it is a number of bytes, or 0 for no limit.")
    if limit and needed > limit:
        raise EngineOutOfMemory(
            f"The region takes {needed:,} bytes on {device.name}, and memory={limit:,}.",
            "Raise the limit, or run it elsewhere.",
        )
