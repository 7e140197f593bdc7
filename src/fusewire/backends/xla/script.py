"""Write a region as a script that needs only NumPy and jax: jax's export, and its text."""

from __future__ import annotations

import jax
from jax import export

from fusewire.backends.xla import portable
from fusewire.backends.xla.program import OPTIONS, program
from fusewire.contract.region import edge_slots
from fusewire.contract.script import Script
from fusewire.ir.graph import Graph
from fusewire.ir.types import TensorType

_SOURCE = """import jax
from jax import export


def load():
    with jax.enable_x64(True):
        program = export.deserialize(bytearray((HERE / "program.bin").read_bytes()))
        arguments = [jax.ShapeDtypeStruct(of.shape, of.dtype) for of in program.in_avals]
        lowered = jax.jit(program.call, keep_unused=True).lower(*arguments)
        compiled = lowered.compile(compiler_options={options})

    def run(inputs):
        with jax.enable_x64(True):
            return [np.array(x) for x in compiled(*inputs)]

    return run
"""


def script(region: Graph) -> Script | None:
    """Export the region with its weights; None for dtypes that cross the edge as bytes."""
    types = [value.type for value in (*region.inputs, *region.outputs)]
    if any(not isinstance(of, TensorType) or of.dtype.is_narrow for of in types):
        return None
    payload = portable.save(program(region, edge_slots(region)))
    with jax.enable_x64(True):
        text = export.deserialize(bytearray(payload)).mlir_module()
    files = {"program.bin": payload, "program.mlir": text.encode()}
    return Script(_SOURCE.format(options=OPTIONS), files)
