"""Write a region as a script that needs only NumPy and PyTorch: an exported program."""

from __future__ import annotations

import io

import torch

from fusewire.backends.torch.exported import exported, quiet
from fusewire.contract.script import Script
from fusewire.ir.graph import Graph
from fusewire.ir.types import TensorType

FILE = "program.pt2"
_SOURCE = f"""import torch


def load():
    threads = {{threads}}
    if threads:
        torch.set_num_threads(threads)
    program = torch.export.load(str(HERE / "{FILE}")).module()

    def run(inputs):
        with torch.no_grad():
            return [x.numpy() for x in program(*map(torch.from_numpy, inputs))]

    return run
"""


def script(region: Graph, threads: int | None) -> Script | None:
    """Export the region with its weights; None for dtypes that NumPy alone does not have."""
    files = exported_file(region)
    return None if files is None else Script(_SOURCE.format(threads=threads), files)


def exported_file(region: Graph) -> dict[str, bytes] | None:
    """Return the exported program as a file of a script; None if its edges are not NumPy's."""
    types = [value.type for value in (*region.inputs, *region.outputs)]
    if not all(isinstance(of, TensorType) and of.dtype.numpy.isbuiltin == 1 for of in types):
        return None
    file = io.BytesIO()
    with quiet():
        torch.export.save(exported(region), file)
    return {FILE: file.getvalue()}
