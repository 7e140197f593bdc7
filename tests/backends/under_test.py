"""What the tests of several engines share: how a graph is run on one, and what is tried on all."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

import fusewire as fw
from fusewire.contract.backend import Backend, Config, Device, Executable, Refusal
from fusewire.contract.region import build, first_device
from fusewire.dtypes import NARROW, DType
from fusewire.ir.graph import Array, Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.table import all_ops, families
from fusewire.rewrite.expand import expand
from fusewire.testing.conformance import Case, cases, first_cases
from fusewire.testing.suite import is_tensor_op

# Elements that an engine could lose on the way.
ELEMENTS = [
    np.array([2**40 + 1, -(2**62) - 1]),
    np.array([2**64 - 1], np.uint64),
    np.array([2**32 - 1, 1], np.uint32),
    np.array([2**16 - 1, 1], np.uint16),
    np.array([1e300, -1e-300]),
    np.array([1e300 + 1j]),
    np.array([True, False]),
    np.array([1.5, np.inf, -0.0], np.float16),
    np.array([1.5, -3.0], ml_dtypes.bfloat16),
    np.array([-8, -1, 7], ml_dtypes.int4),
    np.array([15, 1], ml_dtypes.uint4),
    np.array([-2, 1], ml_dtypes.int2),
    np.array([0.25, -448.0], ml_dtypes.float8_e4m3fn),
    np.array([0.5, 6.0], ml_dtypes.float4_e2m1fn),
    np.array(3.0, np.float32),
    np.zeros((0, 3), np.float32),
]
SMALL_FLOATS = [of for of in NARROW if of.is_float]
# Families with an op that is about numbers.
NUMERIC = [
    name
    for name, family in families().items()
    if not all(op.is_(Trait.HOST) for op in family.ops.values())
]


@dataclass(frozen=True)
class EngineUnderTest:
    """A backend and its first device."""

    backend: Backend
    refuses: Callable[[Node], str | None]

    @cached_property
    def device(self) -> Device:
        return first_device(self.backend)

    def ready(self, graph: Graph, config: Config = Config()) -> Callable[..., list[Any]]:
        executable = build(self.backend, graph, self.device, config)
        return lambda *inputs: executable.run(inputs)

    def run(self, graph: Graph, *inputs: Array, config: Config = Config()) -> list[Any]:
        return self.ready(graph, config)(*inputs)

    def run_op(self, name: str, *arrays: Any, **attrs: Any) -> Any:
        return fw.run(name, *arrays, backend=self.backend.info.name, **attrs)

    def refused(self, graph: Graph) -> list[str]:
        answers = self.backend.claim(graph, self.device)
        return [x.reason for x in answers if isinstance(x, Refusal)]

    def share_of_ops(self) -> tuple[float, list[str]]:
        """Return the share of tensor ops that it takes, and the names of the others."""
        ops = {n: op for n, op in all_ops().items() if is_tensor_op(op)}
        others = [name for name, op in ops.items() if not self._takes(first_cases(op)[0])]
        return 1 - len(others) / len(ops), sorted(others)

    def _takes(self, case: Case) -> bool:
        return not self.refused(expand(case.make()[0], self.refuses).graph)

    def keeps(self, array: Array) -> bool:
        """Tell whether elements come through bit for bit."""
        found = self.run_op("transpose", array, perm=tuple(range(array.ndim)))
        is_same = (found.dtype, found.shape) == (array.dtype, array.shape)
        return is_same and found.tobytes() == array.tobytes()


def value(dtype: DType, *shape: Any, name: str = "x") -> Value:
    """Make an input of a graph."""
    return Value(TensorType(dtype, shape), name)


def numbers_to_round(of: DType) -> tuple[Array, Array]:
    """Return every value of a small float, what is between two, near to that, and beyond all.

    The second array has the codes that ml_dtypes rounds them to.
    """
    values = codes_of(of).view(of.numpy).astype(np.float64)
    finite = np.unique(values[np.isfinite(values)])
    middles = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(middles, to) for to in (-np.inf, np.inf)]
    x = np.concatenate([finite, middles, *near, [1e300, -1e300, np.inf, -np.inf, 0.0, -0.0]])
    with np.errstate(all="ignore"):
        return x, x.astype(of.numpy).view(np.uint8)


def codes_of(of: DType) -> Array:
    """Return every code of a small float."""
    return np.arange(2**of.bits, dtype=np.uint8)


def wrong_in_threads(squares: Executable) -> list[int]:
    """Run an executable that squares 1000 int64 in four threads; return what came out wrong."""
    wrong: list[int] = []

    def work_on(number: int) -> None:
        for _ in range(50):
            found: Any = squares.run([np.full(1000, number)])[0]
            if not np.all(found == number**2):
                wrong.append(number)

    threads = [threading.Thread(target=work_on, args=(2**20 + i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def eighth(name: str) -> list[Case]:
    """One sample of each op of a family, in float32 if it has it, and every eighth of the rest."""
    found: dict[str, Case] = {}
    for op in families()[name].ops.values():
        chosen = [next(iter(first_cases(op)), None), *list(cases([op]))[3::8]]
        found |= {case.id: case for case in chosen if case is not None}
    return list(found.values())
