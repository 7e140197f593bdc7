"""Facts about this machine, from the kernel and the processor; unknown ones are left out."""

from __future__ import annotations

import contextlib
import hashlib
import math
import mmap
import platform
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np

from fusewire.contract.backend import Fact
from fusewire.system.hardware import available_memory, total_memory, usable_cores

# The processor features by which libraries choose kernels.
_VECTORS = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "asimdhp", "sve", "sve2", "i8mm", "bf16",
)  # fmt: skip
# The name of the feature list in /proc, by architecture.
_CAN_DO = ("flags", "Features")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_BUS = Path("/sys/bus/pci/devices")
_BUS_NAMES = ("vendor", "device")
# The classes of display controllers and processing accelerators on a PCI bus.
_COMPUTES = ("0x03", "0x12")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def machine() -> dict[str, Fact]:
    """Describe the host: processor, cores, caches, memory."""
    free = available_memory()
    return {**_fixed(), **({} if free is None else {"memory_free_bytes": free})}


@cache
def processor() -> str:
    """Identify the processor, as far as compiled code depends on it: name and features."""
    said = _processor()
    told = [platform.machine(), *(said.get(key, "") for key in ("model name", *_CAN_DO))]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


@cache
def memory_latency(steps: int = 50_000) -> float:
    """Measure how much slower a far access is than a near one, in nanoseconds."""
    small, large = 1 << 8, 1 << 24
    return round((_walk(large, steps) - _walk(small, steps)) * 1e9, 1)


def _walk(count: int, steps: int) -> float:
    """Return the seconds per step of a pointer chase."""
    # An odd multiplier visits every place of a power of two, in an order no prefetcher predicts.
    following = ((np.arange(count, dtype=np.int64) * 6364136223846793005 + 1) % count).data
    best = math.inf
    for _ in range(3):
        place = 0
        start = time.perf_counter()
        for _ in range(steps):
            place = following[place]
        best = min(best, time.perf_counter() - start)
    return best / steps


@cache
def kernels_for() -> dict[str, Fact]:
    """Identify what kernels are chosen by: the processor, its cores and its features."""
    said = _processor()
    return {
        # The last resort: on Linux ``platform.processor`` starts a process.
        "processor": said.get("model name") or platform.processor() or platform.machine(),
        "compute_units": usable_cores(),
        "features": features(),
    }


@cache
def features() -> tuple[str, ...]:
    """List the features by which libraries choose kernels."""
    said = _processor()
    flags = {flag for key in _CAN_DO for flag in said.get(key, "").split()}
    return tuple(name for name in _VECTORS if name in flags)


@cache
def accelerators() -> tuple[str, ...]:
    """List the kinds of display and compute devices on the bus: vendor and device, once each."""
    found = set()
    folders: list[Path] = []
    with contextlib.suppress(OSError):
        folders = [*_BUS.iterdir()]
    for folder in folders:
        with contextlib.suppress(OSError):
            if (folder / "class").read_text().startswith(_COMPUTES):
                names = ((folder / name).read_text().strip() for name in _BUS_NAMES)
                found.add(":".join(name.removeprefix("0x") for name in names))
    return tuple(sorted(found))


@cache
def _fixed() -> dict[str, Fact]:
    memory = total_memory()
    known = {} if memory is None else {"memory_bytes": memory}
    return {**kernels_for(), **_caches(), **known, "page_bytes": mmap.PAGESIZE}


def _processor() -> dict[str, str]:
    """Read what /proc, or sysctl, says about the first processor."""
    if sys.platform == "darwin":
        from fusewire.system.hardware import darwin_text

        names = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
        listed = " ".join(map(darwin_text, names)).lower().replace(".", "_")
        return {"model name": darwin_text("machdep.cpu.brand_string"), "flags": listed}
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _caches() -> dict[str, Fact]:
    found: dict[str, Fact] = {}
    for folder in sorted(_CACHES.glob("index*")):
        try:
            level, kind, size, line = (
                (folder / name).read_text().strip()
                for name in ("level", "type", "size", "coherency_line_size")
            )
        except OSError:
            continue
        name = f"l{level}{'' if kind == 'Unified' else kind[0].lower()}_bytes"
        found[name] = int(size.rstrip("KMG")) * _UNITS.get(size[-1], 1)
        found["line_bytes"] = int(line)
    return found
