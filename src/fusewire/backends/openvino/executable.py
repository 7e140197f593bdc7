"""A compiled model and its requests: the shortest way from arrays to arrays.

Small tensors are copied into memory that stays bound (binding costs more than copying); large
ones are bound where they lie, and large outputs are written where the caller will have them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import openvino
from openvino import opset16 as ops

from fusewire import dtypes
from fusewire.backend import Done, Event, Executable, Held
from fusewire.backends.openvino.holding import Holding, index_operands
from fusewire.backends.openvino.memory import type_of
from fusewire.backends.openvino.scope import Scope
from fusewire.backends.openvino.storage import LONG, Storage
from fusewire.errors import ShapeMismatchError
from fusewire.ir.graph import Array, Value

# Up to this many bytes a copy is cheaper than binding a tensor (about 5 us).
SMALL = 1 << 15
SETTINGS = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}


def proves(core: Any) -> bool:
    """Run something tiny."""
    x = ops.parameter([2], openvino.Type.f32)
    model = openvino.Model([ops.result(ops.add(x, x))], [x])
    request = core.compile_model(model, "CPU", SETTINGS).create_infer_request()
    (found,) = request.infer([np.array([1.0, 2.0], np.float32)]).values()
    return list(found) == [2.0, 4.0]


@dataclass(frozen=True)
class _Edge:
    """An input or an output: its storage, and how arrays are shown to and read from the engine."""

    storage: Storage
    dtype: np.dtype[Any]
    show: Callable[[Array], Array] | None
    shape: tuple[int, ...] | None


@final
class OpenvinoExecutable(Executable):
    """A compiled model; every thread that runs it has a request of its own."""

    def __init__(self, core: Any, holding: Holding, threads: int | None) -> None:
        graph = holding.graph
        scope = Scope(holding)
        results = [ops.result(x) for x in scope.run(graph)]
        model = openvino.Model(results, scope.parameters, graph.name)
        settings: dict[str, Any] = dict(SETTINGS)
        if threads is not None:
            settings["INFERENCE_NUM_THREADS"] = threads
        # The engine reads these where they lie.
        self._kept = scope.kept
        self._compiled = core.compile_model(model, "CPU", settings)
        self._inputs = [_input_edge(holding, v) for v in graph.inputs]
        self._outputs = [_output_edge(holding, v) for v in graph.outputs]
        self._free: list[_Request] = [self._request()]

    @property
    def is_reentrant(self) -> bool:
        """A request is taken from a list, or made, and put back."""
        return True

    def _request(self) -> _Request:
        return _Request(self._compiled.create_infer_request(), self._inputs, self._outputs)

    def run(
        self,
        inputs: Sequence[Held],
        outputs: Sequence[Held] | None = None,
        stream: object | None = None,
    ) -> Event:
        """Run to the end."""
        try:
            request = self._free.pop()
        except IndexError:
            request = self._request()
        found = request.run(inputs)
        self._free.append(request)
        if outputs is None:
            return Done(found)
        for target, value in zip(outputs, found, strict=True):
            assert isinstance(target, np.ndarray), "outputs are written into host arrays"
            target[...] = value
        return Done(list(outputs))

    def close(self) -> None:
        """Let go of the requests."""
        self._free.clear()


class _Request:
    """One request of the engine, and the arrays that are bound to it."""

    def __init__(self, request: Any, inputs: Sequence[_Edge], outputs: Sequence[_Edge]) -> None:
        self._request = request
        self._inputs = inputs
        self._outputs = outputs
        self._bound: list[Any] = [None] * len(inputs)
        sizes = [_bytes(edge) for edge in outputs]
        # Which outputs are large, as far as is known: those get memory of their own.
        self._large = [size is not None and size > SMALL for size in sizes]

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Bind what is new, infer, and take the outputs."""
        bound = self._bound
        for place, edge in enumerate(self._inputs):
            x = inputs[place]
            if edge.show is not None:
                x = edge.show(x)
            held = bound[place]
            if held is not None and held.shape == x.shape and held.nbytes <= SMALL:
                held[...] = x
            elif held is not x:
                self._bind(place, edge, x)
        fresh = self._fresh() if True in self._large else {}
        values = self._request.infer(share_outputs=True).values()
        return [self._taken(place, value, fresh.get(place)) for place, value in enumerate(values)]

    def _bind(self, place: int, edge: _Edge, x: Array) -> None:
        if x.nbytes <= SMALL or not x.flags.c_contiguous or not x.flags.writeable:
            x = np.array(x, order="C")
        self._request.set_input_tensor(place, _tensor(edge.storage, x))
        self._bound[place] = x

    def _fresh(self) -> dict[int, Any]:
        """Bind memory that will be the caller's."""
        found: dict[int, Any] = {}
        for place, edge in enumerate(self._outputs):
            if not self._large[place]:
                continue
            if edge.shape is None:
                tensor = openvino.Tensor(type_of(edge.storage.edge), openvino.Shape())
            else:
                found[place] = np.empty(edge.shape, edge.storage.carrier)
                tensor = _tensor(edge.storage, found[place])
            self._request.set_output_tensor(place, tensor)
            found.setdefault(place, tensor)
        return found

    def _taken(self, place: int, value: Array, fresh: Any) -> Array:
        edge = self._outputs[place]
        if isinstance(fresh, np.ndarray):
            value = fresh
        elif fresh is not None:
            value = fresh.data
        else:
            value = value.copy()
            self._large[place] = value.nbytes > SMALL
        return value if edge.show is None else edge.show(value)


def _tensor(storage: Storage, array: Array) -> Any:
    if storage.edge == "bf16":
        return openvino.Tensor(array, openvino.Shape(array.shape), openvino.Type.bf16)
    return openvino.Tensor(array, shared_memory=True)


def _bytes(edge: _Edge) -> int | None:
    if edge.shape is None:
        return None
    return int(np.prod(edge.shape, dtype=np.int64)) * edge.storage.carrier.itemsize


def _input_edge(holding: Holding, value: Value) -> _Edge:
    storage, of = holding.storage(value), value.tensor.dtype
    show: Callable[[Array], Array] | None
    if of in LONG and storage.parts == 1:
        show = _narrowing(value.name or "", _is_direct(holding, value))
    elif storage.parts > 1:
        show = _splitting(storage)
    else:
        show = _showing(of.numpy, storage.carrier)
    return _Edge(storage, of.numpy, show, None)


def _output_edge(holding: Holding, value: Value) -> _Edge:
    storage, of = holding.storage(value), value.tensor.dtype
    parts = (storage.parts,) if storage.parts > 1 else ()
    shape = None
    if value.tensor.is_static:
        shape = (*(int(dim) for dim in value.tensor.shape), *parts)  # type: ignore[arg-type] # static
    if of in LONG and storage.parts == 1:
        storage = Storage("i64", "i64", np.dtype(np.int64))
    if storage.parts > 1:
        return _Edge(storage, of.numpy, _joining(of.numpy), shape)
    return _Edge(storage, of.numpy, _showing(storage.carrier, of.numpy), shape)


def _showing(of: np.dtype[Any], to: np.dtype[Any]) -> Callable[[Array], Array] | None:
    """Show the bits of one dtype as another; ints of less than a byte leave the rest of it open."""
    if of == to:
        return None
    small = dtypes.dtype(to if to.kind == "V" else of)
    if small.is_integer and small.bits < 8:
        return lambda x: x.astype(to)
    return lambda x: x.view(to)


def _splitting(storage: Storage) -> Callable[[Array], Array]:
    def show(x: Array) -> Array:
        whole = x if x.flags.c_contiguous else x.copy()
        return whole.reshape(-1).view(storage.carrier).reshape(*x.shape, storage.parts)

    return show


def _joining(dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    return lambda x: x.reshape(-1).view(dtype).reshape(x.shape[:-1])


def _narrowing(name: str, is_direct: bool) -> Callable[[Array], Array]:
    """Convert to int32; what does not fit is clipped where only its being out of reach counts."""

    def show(x: Array) -> Array:
        found = x.astype(np.int32)
        if not np.array_equal(found, x):
            if not is_direct:
                raise ShapeMismatchError(
                    f"The input {name} has {x.min()} to {x.max()}, and OpenVINO keeps 32 bits of "
                    "it. Run it on another backend."
                )
            found = np.clip(x, -(2**31), 2**31 - 1).astype(np.int32)
        return found

    return show


def _is_direct(holding: Holding, value: Value) -> bool:
    """Tell whether all that uses an input uses it as an index."""
    users = holding.graph.users.get(value, ())
    return all(is_index for node in users for v, is_index in index_operands(node) if v is value)
