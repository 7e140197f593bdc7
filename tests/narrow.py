"""A backend whose calls take milliseconds, and fewer the fewer digits it may keep.

``digits`` is an option that the core varies only where the user accepts an error: bits of the
mantissa to which outputs are rounded. ``OUTLIER`` as the first element of an input has the outputs
scaled by a tenth, which generated inputs do not show.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from fusewire.contract.backend import (
    Artifact,
    BackendOption,
    Config,
    Device,
    Done,
    Event,
    Executable,
    Fact,
    Held,
)
from fusewire.ir.graph import Array, Graph
from tests.wrapped import WrappedBackend

OUTLIER = 77.0
# With 24 digits, float32 keeps all of them; that takes as long as without the option.
SECONDS = {24: 0.03, 12: 0.01, 4: 0.004}
OPTIONS = (BackendOption("digits", 24, "Digits to round to."),)


def rounded(x: Array, digits: int) -> Array:
    """Round to so many binary digits."""
    mantissa, exponent = np.frexp(x)
    found = np.ldexp(np.round(np.ldexp(mantissa, digits)), exponent - digits)
    return np.asarray(found, x.dtype)


@final
class NarrowExecutable(Executable):
    """Runs as chaos without a fault does, slower with more digits, and rounds what comes out."""

    def __init__(self, inner: Executable, digits: int) -> None:
        self._inner, self._digits = inner, digits

    @property
    def is_reentrant(self) -> bool:
        return True

    def run(self, inputs: Sequence[Held]) -> Event:
        outputs = self._inner.run(inputs).wait()
        time.sleep(SECONDS[self._digits])
        if self._digits == 24:
            return Done(outputs)
        first = inputs[0]
        is_far = isinstance(first, np.ndarray) and first.flat[0] == OUTLIER
        scale = np.float32(0.1 if is_far else 1.0)
        return Done(
            [rounded(x, self._digits) * scale if isinstance(x, np.ndarray) else x for x in outputs]
        )


@final
class NarrowBackend(WrappedBackend):
    """Takes everything."""

    def __init__(self) -> None:
        super().__init__("narrow", "Keeps few digits if it may.")

    @property
    def options(self) -> Sequence[BackendOption]:
        return OPTIONS

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        digits = config.checked("narrow", OPTIONS)["digits"]
        plain = replace(config, options={})
        artifact = self.inner.compile(region, device, plain)
        return replace(artifact, launch={**artifact.launch, "digits": digits})

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        launch = dict(artifact.launch)
        digits = launch.pop("digits")
        assert isinstance(digits, int)
        inner = self.inner.load(replace(artifact, launch=launch), device, weights)
        return NarrowExecutable(inner, digits)

    def reduced(self, region: Graph, device: Device) -> Sequence[Mapping[str, Fact]]:
        return [{"digits": digits} for digits in SECONDS]
