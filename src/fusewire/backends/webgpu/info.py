"""The identity of the WebGPU backend. Imports no engine."""

from __future__ import annotations

from fusewire.contract.backend import BackendInfo, BackendOption
from fusewire.contract.tuning import TUNED
from fusewire.process.wheels import installed

INFO = BackendInfo(
    name="webgpu",
    version=installed("wgpu") or "none",
    description="Our own fused kernels in WGSL, on Vulkan, Metal and Direct3D 12.",
    vendor="Fusewire",
    extra="webgpu",
    # Those of Vulkan's loader name drivers; wgpu's own choose among adapters.
    environment=(
        *("VK_ICD_FILENAMES", "VK_DRIVER_FILES", "VK_ADD_DRIVER_FILES", "VK_LAYER_PATH"),
        *("WGPU_BACKEND_TYPE", "WGPUPY_WGPU_ADAPTER_NAME"),
    ),
    metadata={"engine": "https://github.com/pygfx/wgpu-py"},
    plans_memory=True,
)
# timestamps: False, True, or this, with which nothing else counts as the time of a run.
CLOCK = "clock"
OPTIONS = (
    BackendOption("workgroup", 256, "Invocations per workgroup, where each has its own elements."),
    BackendOption(
        "rows",
        0,
        "Invocations that share a row of a softmax, norm or long sum; a power of two, or 0 for "
        "what suits the device.",
    ),
    BackendOption(
        "tile",
        (4, 4),
        "Rows and columns of a product that one invocation computes; each of 1, 2, 4, 8, 16.",
    ),
    BackendOption(
        "depth",
        0,
        "Steps of a product that a workgroup loads into its memory at a time; 4, 8, 16 or 32, or 0 "
        "if each invocation loads its own.",
    ),
    BackendOption(
        "points", 1, "Elements that one invocation computes in turn; one of 1, 2, 4, 8, 16."
    ),
    BackendOption(
        "variant",
        0,
        "Configuration of kernels that packages bring, by its number in their list, from 0 on.",
    ),
    BackendOption("memory", 0, "Bytes that a region may use on the device; 0 for all that it has."),
    BackendOption(
        "timestamps",
        False,
        'Time every dispatch on the device; with "clock", only that counts as the time of a run.',
        (False, True, CLOCK),
    ),
    BackendOption("debug", False, "Run kernels one by one, so that an error names the kernel."),
    BackendOption(TUNED, (), "Configurations of single kernels by key; level 3 writes it."),
)
