"""Sessions of ONNX Runtime. The only file with private names of it.

Private, and why: ``InferenceSession._sess.run`` is ``run`` without checks of arguments that cost
as much as a small model does (1.2 of 6.8 us on an MLP 16-32-4, 1.31.1). ``OrtValue`` of the C
module is what it takes and gives for dtypes that NumPy lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from fusewire.backends.onnxruntime.copies import input_names, output_names
from fusewire.backends.onnxruntime.profiler import ProfiledSession, SessionProfiler
from fusewire.backends.onnxruntime.providers import ARENA, DISABLED, EXACT_CODES, SPINNING
from fusewire.contract.backend import (
    DEVICE_NODES,
    HOST_NODES,
    Artifact,
    Device,
    Executable,
    Fact,
    Held,
    Into,
    Slot,
)
from fusewire.dtypes import DType
from fusewire.errors import ShapeMismatchError
from fusewire.host_memory import address, lender
from fusewire.ir.dims import Symbol, bind_alone, evaluate, symbols
from fusewire.ir.graph import Array
from fusewire.onnx.elements import element_of

PROVIDERS = ["CPUExecutionProvider"]
# Errors are raised; what the engine would print about them is said there.
_FATAL = 4
_BITS = {1: np.uint8, 2: np.uint16}
# Tensors of at most so many bytes are copied in and out rather than bound anew: a call with one of
# 4 KiB in and out takes 6.9 us, not 9.8, with 16 KiB 8.3, not 10.2, and with 32 KiB 10.1, not 10.7.
SMALL = 1 << 14


def is_foreign(of: DType) -> bool:
    """Tell whether NumPy alone has no such dtype."""
    return of.numpy.kind == "V" or of.numpy.char not in np.typecodes["All"]


class Edges(NamedTuple):
    """The inputs and outputs of a session, each with its name in the model."""

    inputs: Sequence[tuple[str, Slot]]
    outputs: Sequence[tuple[str, Slot]]

    @staticmethod
    def of(artifact: Artifact) -> Edges:
        """Take the names from the artifact of a file; those of a region are places."""
        slots, launch = artifact.slots, artifact.launch
        taken = [slot for slot in slots if slot.role == "input"]
        made = [slot for slot in slots if slot.role == "output"]
        inputs: Any = launch.get("inputs", input_names(len(taken)))
        outputs: Any = launch.get("outputs", output_names(len(made)))
        return Edges([*zip(inputs, taken, strict=True)], [*zip(outputs, made, strict=True)])


# The most shapes of inputs for which a session keeps small tensors bound.
_KEPT_SHAPES = 64
_shape_of = attrgetter("shape")


@final
class PlainSession(ProfiledSession, Executable):
    """Takes and gives arrays of NumPy's own dtypes; outputs are memory the engine hands over.

    If its inputs tell the shapes of its outputs, small ones stay bound for shapes that come again.
    """

    def __init__(
        self, session: Any, edges: Edges, held: Sequence[Any], in_place: Sequence[int] = ()
    ) -> None:
        """``held`` is what the session reads where it lies: its weights.

        ``in_place`` has the place of the input that each output may be written over, or -1.
        """
        self._held = (session, held)
        self._run = session._sess.run
        self._inputs = [name for name, _ in edges.inputs]
        self._outputs = [name for name, _ in edges.outputs]
        self._in_place = in_place
        self._made = [slot for _, slot in edges.outputs]
        # With another provider, what is bound is copied when it is bound.
        self._may_bind = session.get_providers() == PROVIDERS
        self._bindings: list[_MemoryBinding] = []
        self._edges = edges
        self._sized: dict[tuple[tuple[int, ...], ...], SmallSession | None] = {}
        # The shapes of the last call that nothing was bound for.
        self._last: tuple[tuple[int, ...], ...] = ()
        self._is_told = _is_told(edges)
        self._may_keep = self._may_bind and self._is_told

    @property
    def metrics(self) -> Mapping[str, float]:
        """The nodes on the device and on the CPU."""
        return figures(self._held[0])

    @property
    def is_reentrant(self) -> bool:
        """Sessions may be run by several threads at once."""
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run with what stays bound for these shapes if it is small, or with what is given."""
        if into and (targets := self._targets(inputs, into)):
            return self._run_bound(inputs, targets)
        if not self._may_keep:
            return self._run_plain(inputs)
        shapes = tuple(map(_shape_of, inputs))
        session = self._sized.get(shapes)
        if session is not None:
            return session.run(inputs)
        outputs = self._run_plain(inputs)
        if shapes != self._last:
            self._last = shapes
        elif shapes not in self._sized:
            # They came twice in a row: to bind them takes as long as some small calls.
            if len(self._sized) >= _KEPT_SHAPES:
                self._sized.clear()
            self._sized[shapes] = self._bound_for(shapes, tuple(map(_shape_of, outputs)))
        return outputs

    def _run_plain(self, inputs: Sequence[Held]) -> list[Any]:
        feed = dict(zip(self._inputs, inputs, strict=True))
        outputs: list[Any] = self._run(self._outputs, feed, None)
        return outputs

    def _bound_for(self, taken: Sequence[Any], made: Sequence[Any]) -> SmallSession | None:
        """Bind small tensors of these shapes, unless outputs are not what their types say."""
        sizes = self._sizes(taken)
        inputs = [_sized(edge, sizes) for edge in self._edges.inputs]
        outputs = [_sized(edge, sizes) for edge in self._edges.outputs]
        slots = [slot for _, slot in (*inputs, *outputs)]
        if [slot.dims for slot in slots] != [*taken, *made] or not all(map(_is_small, slots)):
            return None
        return bound_session(self._held[0], Edges(inputs, outputs), self._held[1])

    def _targets(self, inputs: Sequence[Held], into: Into) -> Mapping[int, Any]:
        """Say which outputs go over inputs, or to memory whose shape is that of the output."""
        if not self._may_bind:
            return {}
        is_given = any(isinstance(wish, np.ndarray) for wish in into)
        made = self._made_for(inputs) if is_given else self._made
        targets: dict[int, Any] = {}
        for output, wish in enumerate(into):
            if isinstance(wish, int):
                if self._may_update(output, wish, inputs):
                    targets[output] = inputs[wish]
            elif _can_hold(wish, made[output]):
                targets[output] = wish
        return targets

    def _made_for(self, inputs: Sequence[Any]) -> Sequence[Slot]:
        """Say what the outputs are for such inputs, as far as that can be told."""
        if not self._is_told:
            return self._made
        sizes = self._sizes(map(_shape_of, inputs))
        return [_sized(edge, sizes)[1] for edge in self._edges.outputs]

    def _sizes(self, taken: Iterable[Any]) -> dict[Symbol, int]:
        """Bind the symbols of the inputs to the sizes of a call."""
        sizes: dict[Symbol, int] = {}
        for (_, slot), shape in zip(self._edges.inputs, taken, strict=True):
            bind_alone(slot.dims, shape, sizes)
        return sizes

    def _run_bound(self, inputs: Sequence[Held], targets: Mapping[int, Any]) -> list[Held]:
        try:
            binding = self._bindings.pop()
        except IndexError:
            binding = _MemoryBinding(self._held[0], self._inputs, self._outputs)
        outputs = binding.run(inputs, targets)
        self._bindings.append(binding)
        return outputs

    def _may_update(self, output: int, place: int, inputs: Sequence[Any]) -> bool:
        is_known = output < len(self._in_place) and self._in_place[output] == place
        return is_known and inputs[place].flags.writeable


def _is_told(edges: Edges) -> bool:
    """Tell whether the shapes of the inputs tell those of the outputs."""
    dims = [dim for _, slot in edges.outputs for dim in slot.dims]
    told = {symbol for _, slot in edges.inputs for dim in slot.dims for symbol in symbols(dim)}
    return bool(told) and all(symbol in told for dim in dims for symbol in symbols(dim))


def _sized(edge: tuple[str, Slot], sizes: Mapping[Symbol, int]) -> tuple[str, Slot]:
    """Put sizes in the place of symbols; dims of symbols that are not known stay as they are."""
    name, slot = edge
    dims = [
        evaluate(dim, sizes) if all(s in sizes for s in symbols(dim)) else dim for dim in slot.dims
    ]
    return name, replace(slot, dims=tuple(dims))


@final
class _MemoryBinding:
    """What one call at a time is bound to; memory that stays where it is stays bound."""

    def __init__(self, session: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._session = session
        self._names = inputs, outputs
        self._binding = session.io_binding()
        # By name: the pointer and the shape that it is bound to.
        self._bound: dict[str, Any] = {}

    def run(self, inputs: Sequence[Any], targets: Mapping[int, Any]) -> list[Any]:
        """Run to the end; some outputs are written to memory that is given."""
        binding, names = self._binding, self._names
        for name, array in zip(names[0], inputs, strict=True):
            self._bind(binding.bind_input, name, array)
        for place, name in enumerate(names[1]):
            if place in targets:
                self._bind(binding.bind_output, name, targets[place])
            else:
                # Bound anew at every call, so that the engine makes new memory.
                binding.bind_output(name, "cpu")
                self._bound.pop(name, None)
        self._session._sess.run_with_iobinding(binding._iobinding, None)
        # Not the binding's own get_outputs: that wraps each output, also those that were given.
        made = binding._iobinding.get_outputs()
        return [
            targets[place] if place in targets else made[place].numpy()
            for place in range(len(names[1]))
        ]

    def _bind(self, bind: Callable[..., None], name: str, array: Any) -> None:
        spot = address(array), array.shape
        if self._bound.get(name) != spot:
            bind(name, "cpu", 0, array.dtype, array.shape, spot[0])
            self._bound[name] = spot


def _can_hold(array: Any, slot: Slot) -> bool:
    """Tell whether the engine may write an output of known shape to an array."""
    if not isinstance(array, np.ndarray) or array.shape != slot.dims or not array.size:
        return False
    return array.dtype == slot.dtype.numpy and array.flags.c_contiguous and array.flags.writeable


# A binding of the engine, and the arrays that are bound as its inputs and outputs.
Binding: TypeAlias = tuple[Any, list[Array], list[Array]]


def bound_small(session: Any, edges: Edges) -> Binding:
    """Bind new arrays of known shapes to all inputs and outputs."""
    binding = session.io_binding()
    taken: list[Array] = []
    for name, slot in edges.inputs:
        taken.append(array := _zeros(slot))
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    made: list[Array] = []
    for name, slot in edges.outputs:
        made.append(array := _zeros(slot))
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    return binding._iobinding, taken, made


class SmallSession(ProfiledSession, Executable):
    """Takes and gives small arrays of known shapes; a call copies to and from what stays bound."""

    takes_any_strides = True

    def __init__(self, session: Any, edges: Edges, held: Sequence[Any]) -> None:
        self._held = (session, held)
        self._run = session._sess.run_with_iobinding
        self._edges = edges
        self._free = [self._bound()]

    @property
    def metrics(self) -> Mapping[str, float]:
        """The nodes on the device and on the CPU."""
        return figures(self._held[0])

    @property
    def is_reentrant(self) -> bool:
        """A binding is taken from a list, or made, and put back."""
        return True

    def _bound(self) -> Binding:
        return bound_small(self._held[0], self._edges)


@final
class BoundSession(SmallSession):
    """A session of several inputs or outputs."""

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run to the end."""
        try:
            bound = self._free.pop()
        except IndexError:
            bound = self._bound()
        try:
            binding, taken, made = bound
            for place, target in enumerate(taken):
                x: Any = inputs[place]
                # An assignment would broadcast.
                if x.shape != target.shape:
                    raise ShapeMismatchError(f"Input {place} is {target.shape}, found {x.shape}.")
                target[...] = x
            self._run(binding, None)
            return [x.copy() for x in made]
        finally:
            # Also after an error: to make another binding takes longer than a small call.
            self._free.append(bound)


@final
class SingleSession(SmallSession):
    """A session of one input and one output, as most small models are.

    What takes longest around a tiny model are loops: 2.4 of 15 us were those of BoundSession.
    """

    def __init__(self, session: Any, edges: Edges, held: Sequence[Any]) -> None:
        super().__init__(session, edges, held)
        ((_, slot),) = edges.inputs
        self._shape = slot.dims

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run to the end."""
        x: Any
        (x,) = inputs
        # An assignment would broadcast.
        if x.shape != self._shape:
            raise ShapeMismatchError(f"The input is {self._shape}, found {x.shape}.")
        try:
            bound = self._free.pop()
        except IndexError:
            bound = self._bound()
        try:
            binding, taken, made = bound
            taken[0][...] = x
            self._run(binding, None)
            return [made[0].copy()]
        finally:
            # Also after an error: to make another binding takes longer than a small call.
            self._free.append(bound)


def bound_session(session: Any, edges: Edges, held: Sequence[Any]) -> SmallSession:
    """Make what runs a session of small tensors of known shapes."""
    is_single = len(edges.inputs) == len(edges.outputs) == 1
    return (SingleSession if is_single else BoundSession)(session, edges, held)


def _zeros(slot: Slot) -> Array:
    dims: Any = slot.dims
    zeros: Array = np.zeros(dims, slot.dtype.numpy)
    return zeros


@final
class TypedSession(ProfiledSession, Executable):
    """Takes and gives arrays of any dtype, by their bits."""

    def __init__(self, session: Any, edges: Edges, held: Sequence[Any]) -> None:
        self._held = (session, held)
        self._run = session._sess.run_with_ort_values
        self._inputs = [(name, slot.dtype) for name, slot in edges.inputs]
        self._made = [slot.dtype for _, slot in edges.outputs]
        self._outputs = [name for name, _ in edges.outputs]

    @property
    def metrics(self) -> Mapping[str, float]:
        """The nodes on the device and on the CPU."""
        return figures(self._held[0])

    @property
    def is_reentrant(self) -> bool:
        """Sessions may be run by several threads at once."""
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run to the end."""
        feed = {name: lent(x, of) for (name, of), x in zip(self._inputs, inputs, strict=True)}
        values = self._run(feed, self._outputs, None)
        return [_taken(x, of) for x, of in zip(values, self._made, strict=True)]


ProfilableSession: TypeAlias = PlainSession | SmallSession | TypedSession


def figures(session: Any) -> dict[str, float]:
    """Count the nodes that a provider runs and those that it leaves to the CPU.

    Nothing is counted where all runs on the CPU.
    """
    if session.get_providers() == PROVIDERS:
        return {}
    from fusewire.backends.onnxruntime.discovery import assigned

    counts = assigned(session)
    host = counts.pop(PROVIDERS[0], 0)
    return {DEVICE_NODES: sum(counts.values()), HOST_NODES: host}


def lent(array: Any, of: DType) -> Any:
    """Show an array to the engine without copying; whoever does so keeps it alive."""
    if is_foreign(of):
        array = array.view(_BITS[of.itemsize])
    return native.OrtValue.ortvalue_from_numpy_with_onnx_type(array, element_of(of))


def initializer(array: Array, element: int) -> Any:
    """Show a weight to the engine, of an element type of ONNX's, in the form that options take."""
    return onnxruntime.OrtValue(native.OrtValue.ortvalue_from_numpy_with_onnx_type(array, element))


def _taken(value: Any, of: DType) -> Array:
    """Take an output; for a dtype that NumPy lacks, look at the engine's memory."""
    if not is_foreign(of):
        found: Array = value.numpy()
        return found
    return lender(tuple(value.shape()), of.numpy)(value, value.data_ptr())


def open_session(
    artifact: Artifact,
    weights: Mapping[str, Array],
    device: Device | None = None,
    measures: str = "",
) -> tuple[ProfilableSession, Any]:
    """Make a session of a model that is not optimised yet; weights are read where they lie.

    Without a ``device`` it is the engine's own on the CPU. With ``measures``, the engine writes
    what its kernels take to a file whose name begins so.
    """
    options = settings(artifact.launch, measures)
    slots = [slot for slot in artifact.slots if slot.role == "weight"]
    held = bound(options, [(slot, weights[slot.digest or ""]) for slot in slots])
    if device is None:
        session = session_of(artifact.payload, options)
    else:
        from fusewire.backends.onnxruntime.discovery import session_on

        session = session_on(artifact.payload, options, device, artifact.launch)
    return wrapped(session, artifact, held), session


def profilable(open_it: Callable[[str], tuple[ProfilableSession, Any]]) -> Executable:
    """Open a session that a profile can open a second time; ``open_it`` takes ``measures``."""
    executable, _ = open_it("")
    executable.profiler = SessionProfiler(open_it)
    return executable


def settings(launch: Mapping[str, Fact], measures: str = "") -> Any:
    """Give the options under which an artifact is optimised and run."""
    options = onnxruntime.SessionOptions()
    if measures:
        options.enable_profiling, options.profile_file_prefix = True, measures
    options.log_severity_level = _FATAL
    options.use_deterministic_compute = bool(launch.get("deterministic", False))
    if not launch.get(SPINNING, True):
        for pool in ("intra", "inter"):
            options.add_session_config_entry(f"session.{pool}_op.allow_spinning", "0")
    if not launch.get(ARENA, True):
        # A pattern is one block for all of a call, which is kept, too.
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    if launch.get(EXACT_CODES):
        # Without instructions for int8, products of unsigned and signed codes saturate.
        options.add_session_config_entry("session.x64quantprecision", "1")
    threads = launch.get("threads")
    if isinstance(threads, int):
        options.intra_op_num_threads = options.inter_op_num_threads = threads
    return options


def session_of(model: bytes, options: Any) -> Any:
    """Have the engine read a model."""
    return onnxruntime.InferenceSession(
        model, options, providers=PROVIDERS, disabled_optimizers=DISABLED
    )


def wrapped(session: Any, artifact: Artifact, held: Sequence[Any]) -> ProfilableSession:
    """Choose the way to call a session; ``held`` is what it reads where it lies."""
    edges = Edges.of(artifact)
    slots = [slot for _, slot in (*edges.inputs, *edges.outputs)]
    if any(is_foreign(slot.dtype) for slot in slots):
        return TypedSession(session, edges, held)
    # With another provider, what is bound is copied when it is bound, not when the session runs.
    may_bind = session.get_providers() == PROVIDERS
    in_place: Any = artifact.launch.get("in_place", ()) if may_bind else ()
    # What may be written over an input is not copied, however small.
    if may_bind and not in_place and all(map(_is_small, slots)):
        return bound_session(session, edges, held)
    return PlainSession(session, edges, held, in_place)


def _is_small(slot: Slot) -> bool:
    """Tell whether a tensor is of known shape, has elements, and is cheaper copied than bound."""
    size = slot.dtype.itemsize
    for dim in slot.dims:
        if not isinstance(dim, int):
            return False
        size *= dim
    return 0 < size <= SMALL and slot.dtype.numpy.kind in "biuf"


def bound(options: Any, weights: Sequence[tuple[Slot, Array]]) -> list[Any]:
    """Show weights to a session as files in memory, and give what must stay alive.

    Never by add_initializer, which would not copy them: the optimizer of 1.31.1 transposes a
    weight under its old name, and kernels then get the one that was lent, in the old order.
    """
    if not weights:
        return []
    files = [array.reshape(-1).view(np.uint8).data for _, array in weights]
    names = [slot.digest for slot, _ in weights]
    options.add_external_initializers_from_files_in_memory(names, files, [len(x) for x in files])
    return [weights, files]
