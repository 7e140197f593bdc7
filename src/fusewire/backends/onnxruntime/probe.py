"""Something tiny for the engine to prove itself with."""

from __future__ import annotations

import platform
from functools import cache

import numpy as np

from fusewire.contract.backend import Backend, Device
from fusewire.contract.region import build
from fusewire.dtypes import float32
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.elementwise import add


@cache
def device() -> Device:
    """Name the processor."""
    return Device("cpu", platform.processor() or platform.machine())


def doubled(backend: Backend, on: Device) -> list[float]:
    """Have three ones added to themselves."""
    x = Value(TensorType(float32, (symbol("n"),)), "x")
    (found,) = build(backend, Graph([x], [add(x, x)]), on).run([np.ones(3, np.float32)]).wait()
    answer: list[float] = np.asarray(found).tolist()
    return answer
