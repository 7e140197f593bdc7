"""The devices that OpenVINO lists, what it tells about them, and how models are compiled for each.

Full precision is asked for on every device unless the user accepts less, and a device that computes
in less all the same is not used. Of these only the CPU was run by us.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fusewire.backends.openvino.api import openvino, ops
from fusewire.backends.openvino.info import BLOCKS
from fusewire.contract.backend import Device, Fact, Unavailable

CPU = "CPU"
# Float32 is computed as such: beside int8 weights the engine would round it to int8 (2026.4.1).
SETTINGS = {
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
}
_BLOCK = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
_PRECISION = "INFERENCE_PRECISION_HINT"
# Precisions by the ability that a device lists for each.
NARROW = {"BF16": "bf16", "FP16": "f16", "INT8": "int8"}
# Facts by the engine's own properties, where a device has them.
_FACTS: Mapping[str, str] = {
    "DEVICE_ARCHITECTURE": "architecture",
    "DEVICE_UUID": "uuid",
    "DEVICE_LUID": "luid",
    "DEVICE_PCI_INFO": "pci_bus_id",
    "GPU_DEVICE_TOTAL_MEM_SIZE": "memory_bytes",
    "GPU_EXECUTION_UNITS_COUNT": "compute_units",
    "NPU_DEVICE_TOTAL_MEM_SIZE": "memory_bytes",
    "NPU_DRIVER_VERSION": "driver",
}
# Kinds of devices that may be here without the engine listing them: where Linux shows them, and
# what they need.
UNLISTED: Mapping[str, tuple[Path, str, str]] = {
    "GPU": (
        Path("/sys/class/drm"),
        "renderD*/device/vendor",
        "Install Intel's compute runtime: apt install intel-opencl-icd ocl-icd-libopencl1.",
    ),
    "NPU": (
        Path("/sys/class/accel"),
        "accel*/device/vendor",
        "Install the driver of Intel's NPU: github.com/intel/linux-npu-driver.",
    ),
}
_INTEL = "0x8086"
_REINSTALL = "Reinstall openvino."


def id_of(plugin: str) -> str:
    """Name a device: the engine's CPU, GPU, GPU.1 and NPU are cpu, gpu:0, gpu:1 and npu:0."""
    kind, _, number = plugin.lower().partition(".")
    return kind if kind == "cpu" and not number else f"{kind}:{number or 0}"


def plugin_of(device: Device) -> str:
    """Return the engine's own name of a device."""
    return str(device.facts.get("plugin", CPU))


def settings(core: Any, plugin: str, launch: Mapping[str, Fact]) -> dict[str, Any]:
    """Give the properties under which an artifact is compiled and run."""
    precision = launch.get("precision", SETTINGS[_PRECISION])
    # What is not rounded to int8 is computed in float32.
    narrow = {_BLOCK: block_of(launch)} if precision == "int8" else {_PRECISION: precision}
    own = {**SETTINGS, **narrow}
    if plugin != CPU:
        supported = core.get_property(plugin, "SUPPORTED_PROPERTIES")
        # What it does not know is an error; without the precision it is not used at all.
        return {name: value for name, value in own.items() if name in supported}
    threads = launch.get("threads")
    return {**own, **({} if threads is None else {"INFERENCE_NUM_THREADS": threads})}


def counting(counts: bool) -> dict[str, Any]:
    """Give the property under which requests tell how long each node takes."""
    return {"PERF_COUNT": True} if counts else {}


def block_of(launch: Mapping[str, Fact]) -> int:
    """Return how many elements of a sum share a scale, if they are rounded to int8."""
    block = launch.get("block", BLOCKS[0])
    assert isinstance(block, int), "options are checked"
    return block


def precisions(device: Device) -> list[str]:
    """List the precisions below float32 that a device has instructions for, as it tells.

    Without them the CPU takes 40 times as long in bf16 as in f32, and ignores f16 (2026.4.1).
    """
    abilities = device.facts.get("abilities")
    known = abilities if isinstance(abilities, tuple) else ()
    return [ours for theirs, ours in NARROW.items() if theirs in known]


def listed(core: Any) -> list[Device | Unavailable]:
    """List the engine's devices, each proven by a sum, and what is here and not among them."""
    plugins = [str(name) for name in core.available_devices]
    found = [_tried(core, plugin) for plugin in plugins]
    kinds = {plugin.partition(".")[0] for plugin in plugins}
    absent = [_unlisted(core, kind) for kind in UNLISTED if kind not in kinds]
    return found + [x for x in absent if x is not None]


def _tried(core: Any, plugin: str) -> Device | Unavailable:
    try:
        name = str(core.get_property(plugin, "FULL_DEVICE_NAME"))
        device = Device(id_of(plugin), name, facts=facts_of(core, plugin))
        return _problem(core, plugin) or device
    except RuntimeError as error:
        reason = f"OpenVINO lists {plugin}, and fails: {error}"
        return Unavailable("broken", reason, _REINSTALL, id_of(plugin))


def _problem(core: Any, plugin: str) -> Unavailable | None:
    """Run something tiny, and see in which precision it is computed."""
    x = ops.parameter([2], openvino.Type.f32)
    model = openvino.Model([ops.result(ops.add(x, x))], [x])
    compiled = core.compile_model(model, plugin, settings(core, plugin, {}))
    used = precision(compiled)
    if used != "f32":
        reason = (
            f"OpenVINO's {plugin} was asked to compute in f32, and computes in {used}: its answers "
            "would be those of another precision."
        )
        fix = 'Run on another device, such as device="cpu".'
        return Unavailable("precision", reason, fix, id_of(plugin))
    (sums,) = compiled.create_infer_request().infer([np.array([1.0, 2.0], np.float32)]).values()
    if list(sums) == [2.0, 4.0]:
        return None
    reason = f"OpenVINO's {plugin} gave the sums {list(sums)}."
    return Unavailable("wrong", reason, _REINSTALL, id_of(plugin))


def precision(compiled: Any) -> str:
    """Name the precision that a compiled model is computed in, as the engine tells it."""
    try:
        used = compiled.get_property(_PRECISION)
    except RuntimeError:
        return "a precision of its own"
    return str(used.get_type_name() if isinstance(used, openvino.Type) else used)


def facts_of(core: Any, plugin: str) -> dict[str, Fact]:
    """Ask the engine what it tells about a device; properties differ by kind."""
    facts: dict[str, Fact] = {
        "plugin": plugin,
        "engine": str(openvino.get_version()),
        "abilities": tuple(str(x) for x in core.get_property(plugin, "OPTIMIZATION_CAPABILITIES")),
    }
    supported = core.get_property(plugin, "SUPPORTED_PROPERTIES")
    for theirs, ours in _FACTS.items():
        value = _property(core, plugin, theirs) if theirs in supported else None
        if ours == "pci_bus_id":
            value = _bus(str(value))
        if value is not None:
            facts[ours] = value if isinstance(value, int) else str(value)
    return facts


def _property(core: Any, plugin: str, name: str) -> Any:
    """Ask for a property; None for one that the engine's bindings have no type for (2026.4.1)."""
    try:
        return core.get_property(plugin, name)
    except (RuntimeError, TypeError):
        return None


def _bus(text: str) -> str | None:
    """Write the address of a device as Linux does; the engine prints its parts with their names."""
    parts = re.search(r"domain: (\d+) bus: (\d+) device: 0x([0-9a-f]+) function: (\d+)", text)
    if parts is None:
        return None
    domain, bus, slot, function = parts.groups()
    return f"{int(domain):04x}:{int(bus):02x}:{int(slot, 16):02x}.{function}"


def _unlisted(core: Any, kind: str) -> Unavailable | None:
    """Say why a device of Intel's that the machine has is not listed; None if it has none."""
    folder, pattern, fix = UNLISTED[kind]
    here = [path for path in folder.glob(pattern) if path.read_text().strip() == _INTEL]
    if not here:
        return None
    reason = f"There is {here[0].parents[1]}, and OpenVINO lists no {kind}."
    try:
        core.get_property(kind, "FULL_DEVICE_NAME")
    except RuntimeError as error:
        last = [line for line in str(error).splitlines() if line.strip()][-1]
        reason += f" It says: {last.strip()}"
    return Unavailable("no-device", reason, fix, id_of(kind))
