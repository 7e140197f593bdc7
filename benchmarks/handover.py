"""What does it take to hand a tensor from one engine to another, and is it copied?

    python -m benchmarks.handover

Prints JSON; ``overhead.py --pairs`` prints tables. Each engine doubles a tensor (bools: negates);
what it gives is handed over by runtime.transfer and taken by the next engine as a run of it would.
It is copied if the next engine then reads at another address.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import fusewire as fw
from fusewire.contract.backend import Backend, Exchange
from fusewire.contract.buffer import Buffer
from fusewire.contract.region import build, first_device
from fusewire.dtypes import dtype
from fusewire.plan.transfer import hand_over, to_host
from fusewire.registry import REGISTRY

ENGINES = ("reference", "xla", "onnxruntime", "openvino", "webgpu")
DTYPES = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "bool": np.bool_,
    "int64": np.int64,
}
SIZES = (4 << 10, 256 << 10, 4 << 20)
# Memory may be aligned by chance: several outputs of each engine are handed over.
OUTPUTS = 4


@dataclass(frozen=True)
class Intake:
    """How an engine takes a value, and where it then reads; both as its executable does it."""

    take: Callable[[Any, Any], Any]
    where: Callable[[Any], int]
    # Done after each, untimed: what a run would do next, so that nothing piles up.
    settle: Callable[[Any], None] = lambda executable: None


def _submit(executable: Any) -> None:
    context = executable._binding.context
    context.queue.submit([])
    context.wait()


def _xla(executable: Any, value: Any) -> Any:
    from fusewire.backends.xla.client import client
    from fusewire.backends.xla.devices import Place

    (shown,) = executable._shown([value])
    return client(Place("cpu", 0)).put(shown)


def _onnxruntime(executable: Any, value: Any) -> Any:
    from fusewire.backends.onnxruntime.executable import lent

    return lent(value, dtype(value.dtype))


def _openvino(executable: Any, value: Any) -> Any:
    (request,) = executable._free
    if type(request).__name__ == "_Bound":
        ((target, show),) = request._taken
        target[...] = value if show is None else show(value)
        return target
    (edge,) = executable._inputs
    shown = value if edge.show is None else edge.show(value)
    request._bind(0, edge, shown)
    return request._bound[0]


def _webgpu(executable: Any, value: Any) -> Any:
    return executable._accept(executable._binding.context, value, executable._inputs[0])


INTAKES = {
    "reference": Intake(lambda executable, value: value, lambda x: int(x.ctypes.data)),
    "xla": Intake(_xla, lambda x: int(x.unsafe_buffer_pointer())),
    "onnxruntime": Intake(_onnxruntime, lambda x: int(x.data_ptr())),
    "openvino": Intake(_openvino, lambda x: int(x.ctypes.data)),
    "webgpu": Intake(_webgpu, lambda x: id(x.gpu), _submit),
}


class Side:
    """An engine with a loaded function of one tensor."""

    def __init__(self, engine: str, of: Any, size: int) -> None:
        self.backend: Backend = REGISTRY.backends.get(engine)
        self.intake = INTAKES[engine]
        self.exchange: Exchange = self.backend.exchange
        x = np.ones(size // np.dtype(of).itemsize, of)
        graph = fw.trace((lambda x: ~x) if of is np.bool_ else (lambda x: x + x), x)
        self.executable = build(self.backend, graph, first_device(self.backend))
        self.outputs = [self.executable.run([x])[0] for _ in range(OUTPUTS)]

    def run(self, value: Any) -> Any:
        """Run on what another side gave."""
        return to_host(self.executable.run([hand_over(value, self.exchange)])[0])

    def take(self, value: Any) -> Any:
        """Only take it."""
        return self.intake.take(self.executable, hand_over(value, self.exchange))


def handed(source: Side, target: Side, times: int) -> dict[str, Any]:
    """Hand over what one side gave; microseconds, and how many of the outputs were copied."""
    copied = 0
    for value in source.outputs:
        # Buffers are known by what they hold, arrays by their address.
        kind = "webgpu" if isinstance(value, Buffer) else "reference"
        copied += target.intake.where(target.take(value)) != INTAKES[kind].where(value)
    seconds = []
    for turn in range(times):
        value = source.outputs[turn % OUTPUTS]
        begin = time.perf_counter()
        target.take(value)
        seconds.append(time.perf_counter() - begin)
        target.intake.settle(target.executable)
    low, middle, high = np.percentile(seconds, [10, 50, 90]) * 1e6
    return {"us": middle, "p10": low, "p90": high, "copied": copied, "of": OUTPUTS}


def measure(times: int = 40, sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """Hand over between every two engines, in every dtype and size."""
    rows = []
    for name, of in DTYPES.items():
        for size in sizes:
            sides = {engine: Side(engine, of, size) for engine in ENGINES}
            for source in ENGINES:
                for target in ENGINES:
                    found = handed(sides[source], sides[target], times)
                    about = {"from": source, "to": target, "dtype": name, "bytes": size}
                    rows.append(about | found)
    return rows


if __name__ == "__main__":
    print(json.dumps(measure()))
