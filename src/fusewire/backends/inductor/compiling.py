"""Compile a region ahead of time: its steps are exported, and Inductor makes C++ of them.

Private, and why: ``torch._inductor`` is where PyTorch documents ahead-of-time compilation. Its
``VecISA.check_build`` compiles a program for each extension of the processor and starts Python to
load it; a closed child starts no Python, and what they would add (AMX, bf16 dot products) is not
used by what is compiled here. ``codecache`` copies a file with its permissions, which a closed
child may not set; and only what its ``AotCodeCompiler`` is given knows the constants by their last
names.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Iterator
from typing import Any, final

import torch
import torch._inductor
from torch._inductor import codecache
from torch._inductor.cpu_vec_isa import VecISA

from fusewire.backends.inductor.library import Library, library_in
from fusewire.backends.torch.exported import PREFIX, exported, quiet
from fusewire.ir.graph import Array, Graph

OPTIONS = {
    # Weights are lent when the library is loaded, so that no artifact holds them.
    "aot_inductor.package_constants_in_so": False,
    # A folder that ends with this process has no use for precompiled headers.
    "aot_inductor.precompile_headers": False,
    # The processor's features come from the system.
    "cpp.vec_isa_ok": True,
    "compile_threads": 1,
}


def compile_region(region: Graph, threads: int | None) -> Library:
    """Export the steps of a region and compile them, for so many threads."""
    options = OPTIONS if threads is None else {**OPTIONS, "cpp.threads": threads}
    with torch.no_grad(), quiet(), _as_a_child_may(), _noting_constants() as small:
        program = exported(region)
        package = io.BytesIO()
        torch._inductor.aoti_compile_and_package(
            program, package_path=package, inductor_configs=dict(options)
        )
    return Library(library_in(package.getvalue()), small)


@final
class _PlainCopies:
    """The module shutil, except that a copy of a file does not get its permissions."""

    copy = staticmethod(shutil.copyfile)

    def __getattr__(self, name: str) -> Any:
        return getattr(shutil, name)


@contextlib.contextmanager
def _noting_constants() -> Iterator[dict[str, Array]]:
    """Note the constants that PyTorch made, under the names that the library has for them.

    An index that a step makes is renamed on the way, and two that are equal become one.
    """
    noted: dict[str, Array] = {}
    compiling = codecache.AotCodeCompiler.__dict__["compile"]

    def noting(kind: Any, graph: Any, *rest: Any, **options: Any) -> Any:
        for name in graph.constants:
            known = graph.dynamo_flat_name_to_original_fqn.get(name)
            fqn = known or graph.allocated_constant_name[name]
            if not fqn.startswith(PREFIX):
                value = graph.get_original_value_of_constant(name)
                noted[fqn] = value.detach().contiguous().numpy()
        return compiling.__func__(kind, graph, *rest, **options)

    codecache.AotCodeCompiler.compile = classmethod(noting)
    try:
        yield noted
    finally:
        codecache.AotCodeCompiler.compile = compiling


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
