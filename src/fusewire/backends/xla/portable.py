"""The public road, for versions of jaxlib that client.py does not know.

``jax.export`` gives bytes that any later jax reads and compiles again; results are copied to the
host, because the public interface gives them read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import export

from fusewire.backend import Slot
from fusewire.backends.xla.program import Program
from fusewire.ir.graph import Array

# Converts that look superfluous round, and rounding is what they are there for.
OPTIONS = {"xla_allow_excess_precision": False}


def save(program: Program) -> bytes:
    """Lower a program and give it as bytes."""
    with jax.enable_x64(True):
        exported = export.export(jax.jit(program.function, keep_unused=True), platforms=["cpu"])
        return bytes(exported(*program.arguments).serialize())


def load(
    payload: bytes, weights: Sequence[Array], outputs: Sequence[Slot]
) -> Callable[..., list[Array]]:
    """Compile what ``save`` gave, and bind the weights."""
    device = jax.local_devices(backend="cpu")[0]
    with jax.enable_x64(True):
        program = export.deserialize(bytearray(payload))
        arguments = [jax.ShapeDtypeStruct(of.shape, of.dtype) for of in program.in_avals]
        with jax.default_device(device):
            lowered = jax.jit(program.call, keep_unused=True).lower(*arguments)
        compiled = lowered.compile(compiler_options=OPTIONS)
        held = [jax.device_put(array, device) for array in weights]
    dtypes = [slot.dtype.numpy for slot in outputs]

    def call(*inputs: Array) -> list[Array]:
        with jax.enable_x64(True):
            found = compiled(*held, *inputs)
            return [np.array(x).view(of) for x, of in zip(found, dtypes, strict=True)]

    return call
