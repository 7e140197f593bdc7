"""Write a region as a script that needs only NumPy and PyTorch, which compiles it by itself."""

from __future__ import annotations

from fusewire.backends.torch.script import FILE, exported_file
from fusewire.contract.script import Script
from fusewire.ir.graph import Graph

_SOURCE = f"""import torch
import torch._inductor


def load():
    threads = {{threads}}
    if threads:
        torch.set_num_threads(threads)
    program = torch.export.load(str(HERE / "{FILE}"))
    compiled = torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(program))

    def run(inputs):
        found = compiled(*map(torch.from_numpy, inputs))
        return [x.numpy() for x in (found if isinstance(found, (tuple, list)) else [found])]

    return run
"""


def script(region: Graph, threads: int | None) -> Script | None:
    """Export the region with its weights; None for dtypes that NumPy alone does not have."""
    files = exported_file(region)
    return None if files is None else Script(_SOURCE.format(threads=threads), files)
