"""A region as ``torch.export`` holds it: what Inductor compiles, and what scripts run."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, final

import torch

from fusewire.backends.torch.program import Program
from fusewire.backends.torch.storage import CARRIERS, quiet_about_read_only
from fusewire.errors import DimError
from fusewire.ir.graph import Graph
from fusewire.ir.types import TensorType

PREFIX = "constant_"


@final
class _Exported(torch.nn.Module):  # type: ignore[misc] # torch is untyped
    """A program as a module, its constants as buffers."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._program = program
        for digest in program.constants:
            self.register_buffer(buffer_name(digest), program.constant(digest))

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the steps on what stands for tensors."""
        held = {digest: getattr(self, buffer_name(digest)) for digest in self._program.constants}
        return tuple(self._program(inputs, held=held))


def buffer_name(digest: str) -> str:
    """Name the buffer of a constant."""
    return f"{PREFIX}{digest}"


def exported(region: Graph) -> Any:
    """Export the steps of a region, of known sizes."""
    quiet_about_read_only()
    with torch.no_grad(), quiet():
        program = Program(region)
        example = tuple(_example(value.tensor, str(value.name)) for value in region.inputs)
        return torch.export.export(_Exported(program), example, strict=False)


def _example(of: TensorType, name: str) -> Any:
    open_ = [str(dim) for dim in of.shape if not isinstance(dim, int)]
    if open_:
        raise DimError(
            f"PyTorch exports known shapes here, and the input {name} has the dims "
            f"{', '.join(open_)}. Specialise the region first."
        )
    return torch.zeros(of.shape, dtype=CARRIERS[of.dtype])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out what exporting says about itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
