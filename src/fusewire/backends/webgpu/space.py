"""How kernels may be configured: options for all of them, and the space in which each is tuned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from fusewire.backends.webgpu.info import INFO, OPTIONS
from fusewire.backends.webgpu.outside import print_call
from fusewire.backends.webgpu.printer import Configuration, is_shared, print_kernel
from fusewire.backends.webgpu.refusal import features_of
from fusewire.contract.backend import Config, Device, Fact
from fusewire.errors import OptionsError
from fusewire.kernel.analysis import contraction_of, shape_of
from fusewire.kernel.form import Kernel
from fusewire.kernel.outside import MOST_CONFIGURATIONS, KernelTable, WgslKernel
from fusewire.kernel.printed import PrintedKernel
from fusewire.kernel.tuning import Choices, TuningSpace

TILES = (1, 2, 4, 8, 16)
POINTS = (1, 2, 4, 8, 16)
DEPTHS = (0, 4, 8, 16, 32)
# Invocations that share a row. A software device runs one vector of them at a time.
ROWS, SOFTWARE_ROWS = 64, 8

# What is timed at level 3, by how a kernel is spread; few of each, since each is compiled.
_WORKGROUPS: tuple[Fact, ...] = (32, 64, 128, 8)
SPACE: Choices = {
    "tiles": {
        "tile": ((8, 8), (8, 4), (4, 8), (2, 8), (8, 2), (1, 8)),
        "workgroup": _WORKGROUPS,
        "depth": (8, 16),
    },
    "rows": {"rows": (1, 4, 16, 32, 64, 128)},
    "points": {"points": (4, 16), "workgroup": _WORKGROUPS},
    # Of those that a kernel of a package has not, the last stands for all.
    "outside": {"variant": tuple(range(1, MOST_CONFIGURATIONS))},
}


@final
class WebGpuSpace(TuningSpace[Configuration, str]):
    """The tuning space of a device."""

    def __init__(self, device: Device, kernels: KernelTable[WgslKernel]) -> None:
        self._device = device
        self._kernels = kernels

    @property
    def outside(self) -> Mapping[str, str]:
        """Digests of the kernels that packages bring for their ops."""
        return self._kernels.digests

    @property
    def choices(self) -> Choices:
        """What is tried for each kind of kernel."""
        return SPACE

    def options(self, config: Config) -> Mapping[str, Fact]:
        """Complete options."""
        return config.checked(INFO.name, OPTIONS)

    def configuration(self, config: Config) -> Configuration:
        """Configure kernels for the device; OptionsError for options that cannot be."""
        device, chosen = self._device, self.options(config)
        rows = _invocations(device, "rows", chosen["rows"], 0)
        rows = rows or (SOFTWARE_ROWS if device.is_software else ROWS)
        workgroup = _invocations(device, "workgroup", chosen["workgroup"], 1)
        if rows & (rows - 1):
            raise OptionsError(f"rows={rows}: invocations meet by halves, so it is a power of two.")
        return Configuration(
            features_of(device),
            _fact(device, "max_workgroups"),
            workgroup,
            rows,
            _tile(chosen["tile"]),
            _one_of(POINTS, "points", chosen["points"]),
            _one_of(DEPTHS, "depth", chosen["depth"]),
            _one_of(tuple(range(MOST_CONFIGURATIONS)), "variant", chosen["variant"]),
        )

    def kind(self, kernel: Kernel, configuration: Configuration) -> str:
        """Tell how the points of a kernel are spread over invocations."""
        if kernel.call is not None:
            return "outside"
        if shape_of(kernel) not in ("map", "serial") and is_shared(kernel, configuration.rows):
            return "rows"
        return "points" if contraction_of(kernel) is None else "tiles"

    def print(self, kernel: Kernel, configuration: Configuration) -> PrintedKernel[str]:
        """Print a kernel as WGSL."""
        if kernel.call is not None:
            source, buffers = self._kernels.of(kernel.call), (*kernel.reads, *kernel.writes)
            held = {buffer.name: buffer for buffer in buffers}
            number, features = configuration.variant, configuration.features
            return print_call(kernel.call, source, number, features, held)
        return print_kernel(kernel, configuration)


def _invocations(device: Device, name: str, size: Fact, least: int) -> int:
    most = _fact(device, "max_invocations")
    if not isinstance(size, int) or not least <= size <= most:
        raise OptionsError(f"{name}={size}: {device.name} runs 1 to {most} invocations.")
    return size


def _one_of(known: tuple[int, ...], name: str, size: Fact) -> int:
    if type(size) is not int or size not in known:
        raise OptionsError(f"{name}={size}: it is one of {', '.join(map(str, known))}.")
    return size


def _tile(sizes: Fact) -> tuple[int, int]:
    match sizes:
        case (int(high), int(wide)) if high in TILES and wide in TILES:
            return high, wide
    raise OptionsError(f"tile={sizes}: it is two of {', '.join(map(str, TILES))}.")


def _fact(device: Device, name: str) -> int:
    value = device.facts[name]
    assert isinstance(value, int)
    return value
