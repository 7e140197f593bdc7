"""Compile a region ahead of time: its steps are exported, and Inductor makes C++ of them.

Private, and why: ``torch._inductor`` is where PyTorch documents ahead-of-time compilation. Its
``VecISA.check_build`` compiles a program for each extension of the processor and starts Python to
load it; a closed child starts no Python, and what they would add (AMX, bf16 dot products) is not
used by what is compiled here. ``codecache`` copies a file with its permissions, which a closed
child may not set.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import warnings
from collections.abc import Iterator
from typing import Any, final

import torch
import torch._inductor
from torch._inductor import codecache
from torch._inductor.cpu_vec_isa import VecISA

from fusewire.backends.inductor.library import Library, library_in
from fusewire.backends.torch.program import Program
from fusewire.backends.torch.storage import CARRIERS, quiet_about_read_only
from fusewire.errors import DimError
from fusewire.ir.graph import Graph
from fusewire.ir.types import TensorType

OPTIONS = {
    # Weights are lent when the library is loaded, so that no artifact holds them.
    "aot_inductor.package_constants_in_so": False,
    # A folder that ends with this process has no use for precompiled headers.
    "aot_inductor.precompile_headers": False,
    # The processor's features come from the system.
    "cpp.vec_isa_ok": True,
    "compile_threads": 1,
}


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


_PREFIX = "constant_"


def buffer_name(digest: str) -> str:
    """Name the buffer of a constant."""
    return f"{_PREFIX}{digest}"


def compile_region(region: Graph, threads: int | None) -> Library:
    """Export the steps of a region and compile them, for so many threads."""
    options = OPTIONS if threads is None else {**OPTIONS, "cpp.threads": threads}
    quiet_about_read_only()
    with torch.no_grad(), _quiet(), _as_a_child_may():
        program = Program(region)
        example = tuple(_example(value.tensor, str(value.name)) for value in region.inputs)
        exported = torch.export.export(_Exported(program), example, strict=False)
        package = io.BytesIO()
        torch._inductor.aoti_compile_and_package(
            exported, package_path=package, inductor_configs=dict(options)
        )
    small = {
        name: x.detach().contiguous().numpy()
        for name, x in exported.constants.items()
        if not name.startswith(_PREFIX)
    }
    return Library(library_in(package.getvalue()), small)


def _example(of: TensorType, name: str) -> Any:
    open_ = [str(dim) for dim in of.shape if not isinstance(dim, int)]
    if open_:
        raise DimError(
            f"Inductor compiles for known shapes, and the input {name} has the dims "
            f"{', '.join(open_)}. Specialise the region first."
        )
    return torch.zeros(of.shape, dtype=CARRIERS[of.dtype])


@final
class _PlainCopies:
    """The module shutil, except that a copy of a file does not get its permissions."""

    copy = staticmethod(shutil.copyfile)

    def __getattr__(self, name: str) -> Any:
        return getattr(shutil, name)


@contextlib.contextmanager
def _as_a_child_may() -> Iterator[None]:
    """Have no extension of the processor tried out, and no permissions copied."""
    tried = VecISA.check_build
    VecISA.check_build = lambda self, code: False
    codecache.shutil = _PlainCopies()
    try:
        yield
    finally:
        VecISA.check_build, codecache.shutil = tried, shutil


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what exporting says about itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
