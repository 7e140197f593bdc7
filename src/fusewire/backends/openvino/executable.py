"""A compiled model and its infer requests: the shortest path from arrays to arrays.

Small tensors are copied into memory that stays bound (binding costs more than copying); large
ones are bound where they lie, and large outputs are written where the caller will have them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeAlias, final

import numpy as np

from fusewire.backends.openvino.api import openvino
from fusewire.backends.openvino.edges import Border, Edge, SizeCheck, input_edge, output_edge
from fusewire.backends.openvino.storage import Storage
from fusewire.contract.backend import Executable, Held, Into, Role, Slot
from fusewire.contract.profiling import KernelTime, Profiled
from fusewire.errors import ShapeMismatchError
from fusewire.host_memory import aligned_empty, maker
from fusewire.ir.dims import Symbol, bind_alone, evaluate, symbols
from fusewire.ir.graph import Array

# Up to this many bytes a copy is cheaper than binding a tensor, which takes about 4 us.
SMALL = 1 << 15
# Memory of the caller's, by the place of the output that goes there.
Given: TypeAlias = Mapping[int, Array]
_NOTHING: Given = {}
# Raises if the engine must not run at the sizes of what it is given.
Check: TypeAlias = Callable[[Sequence[Array]], None]
# Where an output starts that is bound anew at every call.
_OWN = -1


@final
class OpenvinoExecutable(Executable, Profiled):
    """A compiled model; every thread that runs it has a request of its own.

    The engine counts only in a model that was compiled for it: a profile has ``compile_counting``
    make a second one, and drops it at its end.
    """

    compile_counting: Callable[[], OpenvinoExecutable] | None = None

    def __init__(self, compiled: Any, slots: Sequence[Slot], border: Border, kept: Any) -> None:
        """``kept`` is what the engine reads where it lies."""
        self._kept = kept
        self._compiled = compiled
        edges: dict[Role, list[Slot]] = {"input": [], "output": []}
        for slot in slots:
            if slot.role in edges:
                edges[slot.role].append(slot)
        self._inputs = list(map(input_edge, edges["input"], border.inputs))
        self._outputs = list(map(output_edge, edges["output"], border.outputs))
        self._check = SizeCheck(self._inputs, border.sizes).check if border.sizes else None
        self._kind: type[_Bound | _Request] = _Request
        if all(map(_is_small, (*self._inputs, *self._outputs))):
            self._kind = _Bound
        elif all(map(_is_placed, self._outputs)):
            self._kind = _Placed
        self._free: list[_Bound | _Request] = [self._request()]
        self._counting: OpenvinoExecutable | None = None
        self._lock = threading.Lock()

    @property
    def is_reentrant(self) -> bool:
        """A request is taken from a list, or made, and put back."""
        return True

    def _request(self) -> _Bound | _Request:
        request = self._compiled.create_infer_request()
        return self._kind(request, self._inputs, self._outputs, self._check)

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run to the end; large outputs go to memory of the caller's that can hold them."""
        given = self._given(into) if into else _NOTHING
        try:
            request = self._free.pop()
        except IndexError:
            request = self._request()
        outputs = request.run(inputs, given)
        self._free.append(request)
        return outputs

    def _given(self, into: Into) -> Given:
        pairs: Any = enumerate(zip(self._outputs, into, strict=True))
        return {place: wish for place, (edge, wish) in pairs if _can_hold(edge, wish)}

    def begin_profile(self) -> None:
        """Compile the second model, unless it is there."""
        with self._lock:
            if self._counting is None and self.compile_counting is not None:
                self._counting = self.compile_counting()

    def run_profiled(
        self, inputs: Sequence[Held], into: Into = ()
    ) -> tuple[list[Held], Sequence[KernelTime]]:
        """Run the second model, and read its counters."""
        self.begin_profile()
        counting = self._counting
        if counting is None:
            return self.run(inputs, into), ()
        request = counting._free.pop() if counting._free else counting._request()
        start = perf_counter()
        outputs = request.run(inputs, counting._given(into) if into else _NOTHING)
        kernels = _placed(request.native.profiling_info, start, perf_counter())
        counting._free.append(request)
        return outputs, kernels

    def end_profile(self) -> Sequence[KernelTime]:
        """Let go of the second model."""
        with self._lock:
            self._counting = None
        return ()

    def close(self) -> None:
        """Let go of the requests."""
        self._free.clear()


def _placed(infos: Sequence[Any], begin: float, end: float) -> list[KernelTime]:
    """Place nodes one after the other, the last at the end: the engine tells only how long.

    It rounds to microseconds, so that all together may take a little longer than the run.
    """
    ran = [info for info in infos if info.status.name == "EXECUTED"]
    start = max(end - sum(info.real_time.total_seconds() for info in ran), begin)
    kernels = []
    for info in ran:
        seconds = info.real_time.total_seconds()
        kernels.append(KernelTime(f"{info.node_type} {info.node_name}", start, seconds))
        start += seconds
    return kernels


def _is_small(edge: Edge) -> bool:
    return edge.is_static and 0 < edge.bytes <= SMALL


def _is_placed(edge: Edge) -> bool:
    return edge.is_static and edge.bytes > SMALL and edge.show is None


def _can_hold(edge: Edge, array: Any) -> bool:
    """Tell whether an output may be written to an array, if it has the right shape."""
    if edge.show is not None or not isinstance(array, np.ndarray) or array.nbytes <= SMALL:
        return False
    flags = array.flags
    is_plain = flags.c_contiguous and flags.writeable and flags.aligned
    return is_plain and array.dtype == edge.storage.carrier


class _Bound:
    """One request for small tensors of known shapes: all that it reads and writes stays bound."""

    def __init__(
        self, request: Any, inputs: Sequence[Edge], outputs: Sequence[Edge], check: Check | None
    ) -> None:
        self.native = request
        self._infer = request.infer
        self._taken = []
        for place, edge in enumerate(inputs):
            array: Array = np.zeros(edge.shape, edge.storage.carrier)
            request.set_input_tensor(place, _tensor(edge.storage, array))
            self._taken.append((array, edge.show))
        self._made = []
        for place, edge in enumerate(outputs):
            array = np.zeros(edge.shape, edge.storage.carrier)
            request.set_output_tensor(place, _tensor(edge.storage, array))
            self._made.append((array, edge.show))

    def run(self, inputs: Sequence[Any], given: Given = _NOTHING) -> list[Any]:
        """Copy in, infer, copy out: small outputs are not written to memory that is given."""
        for place, (target, show) in enumerate(self._taken):
            x = inputs[place] if show is None else show(inputs[place])
            # An assignment would broadcast.
            if x.shape != target.shape:
                raise ShapeMismatchError(f"Input {place} is {target.shape}, found {x.shape}.")
            target[...] = x
        self._infer(share_outputs=True)
        return [x.copy() if show is None else show(x.copy()) for x, show in self._made]


class _Request:
    """One request of the engine, and the arrays that are bound to it."""

    def __init__(
        self, request: Any, inputs: Sequence[Edge], outputs: Sequence[Edge], check: Check | None
    ) -> None:
        self._request = self.native = request
        self._check = check
        self._inputs = inputs
        self._outputs = outputs
        # The arrays, and the shapes with which they were bound: an array can be given another.
        self._bound: list[Any] = [None] * len(inputs)
        self._shapes: list[tuple[int, ...]] = [()] * len(inputs)
        # Which outputs are large, as far as is known: those get memory of their own.
        self._large = [edge.bytes > SMALL for edge in outputs]

    def run(self, inputs: Sequence[Any], given: Given = _NOTHING) -> list[Any]:
        """Bind what is new, infer, and take the outputs; some may go to memory that is given."""
        self._take(inputs)
        fresh = self._fresh(inputs, given) if True in self._large else {}
        values = self._request.infer(share_outputs=True).values()
        found = [self._taken(place, value, fresh.get(place)) for place, value in enumerate(values)]
        for place, value in enumerate(found):
            if value.size == 0:
                found[place] = self._emptied(place, value, inputs)
        return found

    def _take(self, inputs: Sequence[Any]) -> None:
        if self._check is not None:
            self._check(inputs)
        bound, shapes = self._bound, self._shapes
        for place, edge in enumerate(self._inputs):
            x = inputs[place]
            if edge.show is not None:
                x = edge.show(x)
            held = bound[place]
            if held is not None and held.shape == x.shape and held.nbytes <= SMALL:
                held[...] = x
            elif held is not x or shapes[place] != x.shape:
                self._bind(place, edge, x)

    def _bind(self, place: int, edge: Edge, x: Array) -> None:
        if x.nbytes <= SMALL or not x.flags.c_contiguous or not x.flags.writeable:
            x = np.array(x, order="C")
        self._request.set_input_tensor(place, _tensor(edge.storage, x))
        self._bound[place], self._shapes[place] = x, x.shape

    def _fresh(self, inputs: Sequence[Any], given: Given) -> dict[int, Any]:
        """Bind memory that will be the caller's: an array, or a tensor where the run sizes it.

        The engine holds it until the next run: what it writes to is in no other hand.
        """
        found: dict[int, Any] = {}
        for place, edge in enumerate(self._outputs):
            if not self._large[place]:
                continue
            shape = edge.shape if edge.is_static else self._sized(edge, inputs)
            if shape is None:
                shape = openvino.Shape(edge.shape)
                found[place] = tensor = openvino.Tensor(
                    getattr(openvino.Type, edge.storage.edge), shape
                )
            else:
                own = given.get(place)
                fits = own is not None and own.shape == shape
                found[place] = own if fits else aligned_empty(shape, edge.storage.carrier)
                tensor = _tensor(edge.storage, found[place])
            self._request.set_output_tensor(place, tensor)
        return found

    def _taken(self, place: int, value: Array, fresh: Any) -> Array:
        edge = self._outputs[place]
        if fresh is None:
            value = value.copy()
            self._large[place] = value.nbytes > SMALL
        elif isinstance(fresh, openvino.Tensor):
            value = fresh.data
        else:
            value = fresh if fresh.shape == value.shape else value.copy()
        return value if edge.show is None else edge.show(value)

    def _sized(self, edge: Edge, inputs: Sequence[Array]) -> tuple[int, ...] | None:
        """Tell the shape of an output before the run, where the inputs tell all of it."""
        bound = self._bound_symbols(inputs)
        if not all(s in bound for dim in edge.dims for s in symbols(dim)):
            return None
        shape = tuple(evaluate(dim, bound) for dim in edge.dims)
        return (*shape, edge.storage.parts) if edge.storage.parts > 1 else shape

    def _emptied(self, place: int, value: Array, inputs: Sequence[Array]) -> Array:
        """Give an empty output its other dims: a Loop without a run has forgotten them."""
        bound = self._bound_symbols(inputs)
        dims = self._outputs[place].dims
        shape = [
            evaluate(dim, bound) if all(s in bound for s in symbols(dim)) else found
            for dim, found in zip(dims, value.shape, strict=True)
        ]
        return value.reshape(shape) if 0 in shape else value

    def _bound_symbols(self, inputs: Sequence[Array]) -> dict[Symbol, int]:
        bound: dict[Symbol, int] = {}
        for edge, x in zip(self._inputs, inputs, strict=True):
            bind_alone(edge.dims, x.shape, bound)
        return bound


@final
class _Placed(_Request):
    """One request whose outputs are all large, and of known shapes."""

    def __init__(
        self, request: Any, inputs: Sequence[Edge], outputs: Sequence[Edge], check: Check | None
    ) -> None:
        super().__init__(request, inputs, outputs, check)
        self._infer = request.infer
        self._makers = [maker(edge.shape, edge.storage.carrier) for edge in outputs]
        # Where the last run wrote: mostly that is free again, and bound already.
        self._starts = [0] * len(outputs)

    def run(self, inputs: Sequence[Any], given: Given = _NOTHING) -> list[Any]:
        """Bind what is new, and infer."""
        starts = self._starts
        self._take(inputs)
        found = []
        for place, make in enumerate(self._makers):
            own = given.get(place)
            if own is not None and own.shape == self._outputs[place].shape:
                array, start = own, _OWN
            else:
                array, start = make()
            if starts[place] != start or start == _OWN:
                tensor = _tensor(self._outputs[place].storage, array)
                self._request.set_output_tensor(place, tensor)
                starts[place] = start
            found.append(array)
        self._infer(share_outputs=True)
        return found


def _tensor(storage: Storage, array: Array) -> Any:
    if storage.edge == "bf16":
        return openvino.Tensor(array, openvino.Shape(array.shape), openvino.Type.bf16)
    return openvino.Tensor(array, shared_memory=True)
