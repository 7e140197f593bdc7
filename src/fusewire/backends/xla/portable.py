"""The public interface of jax, for versions of jaxlib that client.py does not know.

``jax.export`` gives bytes that any later jax reads and compiles again; results are copied to the
host, because the public interface gives them read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from fusewire.backends.xla.program import OPTIONS, Program, settings
from fusewire.contract.backend import Slot
from fusewire.ir.graph import Array


def _device() -> Any:
    return jax.local_devices(backend="cpu")[0]


def save(program: Program) -> bytes:
    """Lower a program and give it as bytes."""
    with settings(_device()):
        exported = export.export(jax.jit(program.function, keep_unused=True), platforms=["cpu"])
        return bytes(exported(*program.arguments).serialize())


def load(
    payload: bytes, weights: Sequence[Array], outputs: Sequence[Slot]
) -> Callable[..., list[Array]]:
    """Compile what ``save`` gave, and bind the weights."""
    device = _device()
    with settings(device):
        program = export.deserialize(bytearray(payload))
        arguments = [jax.ShapeDtypeStruct(of.shape, of.dtype) for of in program.in_avals]
        lowered = jax.jit(program.call, keep_unused=True).lower(*arguments)
        compiled = lowered.compile(compiler_options=OPTIONS)
        held = [jax.device_put(array, device) for array in weights]
    dtypes = [slot.dtype.numpy for slot in outputs]

    def call(*inputs: Array) -> list[Array]:
        with jax.enable_x64(True):
            found = compiled(*held, *inputs)
            return [np.array(x).view(of) for x, of in zip(found, dtypes, strict=True)]

    return call
