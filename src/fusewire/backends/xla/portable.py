"""The public interface of jax, for versions of jaxlib that client.py does not know.

``jax.export`` gives bytes that any later jax reads and compiles again; results are copied to the
host, because the public interface gives them read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import export

from fusewire.backends.xla.devices import Place, jax_device
from fusewire.backends.xla.program import OPTIONS, Program, settings
from fusewire.contract.backend import Slot
from fusewire.ir.graph import Array


def save(program: Program, place: Place = Place("cpu", 0)) -> bytes:
    """Lower a program for the platform of a device and give it as bytes."""
    with settings(jax_device(place)):
        jitted = jax.jit(program.function, keep_unused=True)
        exported = export.export(jitted, platforms=[place.jax_platform])
        return bytes(exported(*program.arguments).serialize())


def load(
    payload: bytes, weights: Sequence[Array], outputs: Sequence[Slot], place: Place
) -> Callable[..., list[Array]]:
    """Compile what ``save`` gave, and bind the weights."""
    device = jax_device(place)
    with settings(device):
        program = export.deserialize(bytearray(payload))
        arguments = [jax.ShapeDtypeStruct(of.shape, of.dtype) for of in program.in_avals]
        lowered = jax.jit(program.call, keep_unused=True).lower(*arguments)
        compiled = lowered.compile(compiler_options=OPTIONS)
        held = [jax.device_put(array, device) for array in weights]
    dtypes = [slot.dtype.numpy for slot in outputs]

    def call(*inputs: Array) -> list[Array]:
        with jax.enable_x64(True):
            found = compiled(*held, *(jax.device_put(x, device) for x in inputs))
            return [np.array(x).view(of) for x, of in zip(found, dtypes, strict=True)]

    return call
