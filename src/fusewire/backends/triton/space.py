"""How kernels may be configured: options for all of them, and the space in which each is tuned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from fusewire.backends.triton.info import INFO, OPTIONS
from fusewire.backends.triton.outside import Kernels, print_call
from fusewire.backends.triton.printer import (
    Configuration,
    Function,
    dot_of,
    print_kernel,
    widest_of,
)
from fusewire.contract.backend import Config, Fact
from fusewire.contract.tuning import TUNED
from fusewire.errors import OptionsError
from fusewire.kernel.form import Kernel
from fusewire.kernel.outside import MOST_CONFIGURATIONS
from fusewire.kernel.printed import PrintedKernel
from fusewire.kernel.tuning import Choices, TuningSpace

_MOST_STAGES = 5
_WARPS: tuple[Fact, ...] = (8, 2)
# What is tried, by what a program takes; what it has untuned comes before.
SPACE: Choices = {
    "product": {
        "rows": (64, 128, 16),
        "columns": (64, 128, 16),
        "depth": (64, 16),
        "warps": _WARPS,
        "stages": (2, 3, 4),
    },
    "rows": {"tile": (1024, 4096, 8192), "warps": _WARPS},
    "points": {"block": (256, 1024, 2048), "warps": _WARPS},
    # Of those that a kernel of a package has not, the last stands for all.
    "outside": {"variant": tuple(range(1, MOST_CONFIGURATIONS))},
}


@final
class TritonSpace(TuningSpace[Configuration, Function]):
    """The tuning space of every GPU."""

    def __init__(self, kernels: Kernels) -> None:
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
        """Configure kernels; OptionsError for options that cannot be."""
        options = {name: value for name, value in self.options(config).items() if name != TUNED}
        stages = options["stages"]
        if type(stages) is not int or not 0 <= stages <= _MOST_STAGES:
            raise OptionsError(
                f"stages={stages}: there are 1 to {_MOST_STAGES}, 0 for Triton's own."
            )
        variant = options["variant"]
        if type(variant) is not int or not 0 <= variant < MOST_CONFIGURATIONS:
            raise OptionsError(f"variant={variant}: there are 0 to {MOST_CONFIGURATIONS - 1}.")
        for name, value in options.items():
            is_power = type(value) is int and value > 0 and not value & (value - 1)
            if not is_power and name not in ("stages", "variant"):
                raise OptionsError(f"{name}={value}: tiles are powers of two, as 32 is.")
        numbers: dict[str, Any] = options
        return Configuration(**numbers)

    def kind(self, kernel: Kernel, configuration: Configuration) -> str:
        """Tell what a program takes of a kernel."""
        if kernel.call is not None:
            return "outside"
        return "product" if dot_of(kernel) else "rows" if widest_of(kernel) > 1 else "points"

    def print(self, kernel: Kernel, configuration: Configuration) -> PrintedKernel[Function]:
        """Print a kernel as a function of Triton."""
        if kernel.call is not None:
            return print_call(kernel, kernel.call, self._kernels, configuration)
        return print_kernel(kernel, configuration)
