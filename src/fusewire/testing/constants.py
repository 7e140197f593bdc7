"""Constants of every dtype and of many sizes: none is lost on its way to an engine.

Where elements lie depends on how many they are: in the text of a model, beside it, or in memory
that an engine is lent. Packed elements, booleans and strings lie otherwise than arrays do.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fusewire.contract.backend import Backend, Device
from fusewire.dtypes import ALL, DType, float32, string
from fusewire.ir.builder import constant
from fusewire.ir.graph import Array, Graph, HostValue, Value
from fusewire.ir.types import TensorType
from fusewire.ops.conversion import cast
from fusewire.ops.logic import equal, where
from fusewire.ops.movement import concat, reshape
from fusewire.ops.quantization import dequantize
from fusewire.ops.sample import draw
from fusewire.ops.table import get_op
from fusewire.testing.suite import CaseResult, run_cases

SIZES = (0, 1, 1_000, 1_025, 100_000)


# How a graph uses a constant, by op: with an input of the dtype that is given, or of its own.
READERS: Mapping[str, tuple[DType | None, Callable[[Value, Value], Value]]] = {
    "concat": (None, lambda held, x: concat(held, x, axis=0)),
    "equal": (None, equal),
    "where": (None, lambda held, x: where(equal(x, x), held, x)),
    "cast": (None, lambda held, x: cast(concat(held, x, axis=0), dtype="float32")),
    "dequantize": (float32, lambda held, x: dequantize(held, reshape(x, shape=()))),
}


@dataclass(frozen=True)
class ConstantCase:
    """A constant of so many elements, used by an op."""

    reader: str
    dtype: DType
    size: int

    @property
    def id(self) -> str:
        return f"{self.reader}-{self.dtype.name}-{self.size}"

    def make(self) -> tuple[Graph, list[HostValue]]:
        """Make the graph of the use, and its inputs."""
        elements = self._elements()
        of, use = READERS[self.reader]
        last = draw(1, dtype_=of or self.dtype, low=1).make(float32, np.random.default_rng(0))
        x = Value(TensorType(of or self.dtype, np.shape(last)), "x")
        return Graph([x], [use(constant(elements), x)], name=self.reader), [last]

    def _elements(self) -> Array:
        """Draw from all that the dtype holds, of integers also what 32 bits do not."""
        rng, of = np.random.default_rng(zlib.crc32(self.id.encode())), self.dtype
        if not of.is_integer:
            made: Array = np.asarray(draw(self.size).make(of, rng))
            return made
        # Every code, those of dtypes under a byte in its lowest bits.
        codes = np.frombuffer(rng.bytes(self.size * of.itemsize), np.dtype(f"u{of.itemsize}"))
        mask = codes.dtype.type(2**of.bits - 1)
        drawn: Array = (codes & mask).astype(of.numpy)
        return drawn


def constant_cases(dtypes: Sequence[DType] = ALL) -> Iterator[ConstantCase]:
    """List every use of a constant that type rules allow."""
    for reader in READERS:
        for of in dtypes:
            # No text is a number, and `where` is declared by the dtype of its condition.
            is_number = of is not string or reader != "cast"
            if reader == "where" or (is_number and of in get_op(reader).dtypes):
                yield from (ConstantCase(reader, of, size) for size in SIZES)


def constant_outcomes(
    backend: Backend, device: Device, found: Iterable[ConstantCase] | None = None
) -> dict[ConstantCase, CaseResult]:
    """Run uses of a constant without fallback; every use if none are given."""
    return run_cases(backend, device, constant_cases() if found is None else found)


def constant_problems(
    backend: Backend, device: Device, results: Mapping[ConstantCase, CaseResult]
) -> list[str]:
    """Say which constants a backend loses; known gaps of the op that uses them are none."""
    gaps = {(x.op, x.dtype) for x in backend.gaps if x.device in (None, device.id)}
    return [
        f"{backend.info.name} on the constant {case.id}: {result.reason}"
        for case, result in results.items()
        if result.status == "failed"
        and gaps.isdisjoint(((case.reader, None), (case.reader, case.dtype.name)))
    ]
