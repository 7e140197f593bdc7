"""The private interface of jaxlib; `quick_start` is the other file to change with it.

Why it is worth it. A CPU client of our own does not touch the user's: its programs run at once in
the calling thread (jax's way to that is a flag for the whole process), its pool has the threads
that are asked for, and no other platform is started for our sake. Its executables can be written to
bytes and read back without pickle. And calling one through the entry that jitted functions use
takes about half of what the public road takes. Other platforms have one client in a process, which
is jax's: a second would take the memory of the same GPU again.

Large outputs are written where earlier ones were. XLA cannot write into memory that is ours: what
it does not own it copies before it is donated. But it writes into its own that is donated to it, so
arrays of its own wait in the pool, each for a program with an output of that type. A program that
takes donations needs them, so one that takes none is there for when the pool has not enough.

An output that replaces elements of an input shares its memory: the input is donated. A state that
an earlier run returned is XLA's own, so that nothing is copied. For any other array, whose values
must stay, XLA or we copy it first, as XLA would do inside of the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, partial
from itertools import starmap
from typing import Any, TypeAlias, final

import jax
from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding

from fusewire.backends.xla.cpus import cpus, read_code
from fusewire.backends.xla.devices import Place, at, jax_device
from fusewire.backends.xla.executable import check_arrays, edge
from fusewire.backends.xla.program import OPTIONS, Program, argument, settings
from fusewire.contract.backend import Slot
from fusewire.host_memory import POOL, address, lend_again, lender, lent_thing
from fusewire.ir.graph import Array

# Places of outputs, and of what they are written over.
Pairs: TypeAlias = Sequence[tuple[int, int]]
# Runs an executable, and what chooses one, with the memory that it may have for its outputs.
Call: TypeAlias = Callable[..., list[Any]]
Choice: TypeAlias = Callable[[], tuple[Call, list[Any]]]


def output_order(count: int, pairs: Pairs) -> list[int]:
    """Put the outputs that are written over arguments first, in the order of those.

    Of arguments and outputs that have one type, jax pairs the first with the first.
    """
    first = [output for output, place in sorted(pairs, key=lambda pair: pair[1])]
    return [*first, *(place for place in range(count) if place not in first)]


class Client:
    """One device: its client, its sharding, and what jaxlib wants to be told again and again."""

    def __init__(self, device: Any) -> None:
        from jaxlib import xla_client

        self.client = device.client
        self.device = device
        self.sharding = SingleDeviceSharding(self.device)
        self._put = xla_client.batched_device_put

    def put(self, array: Array) -> Any:
        """Copy an array, or lend it where it is aligned: who gave it must not write to it."""
        of = ShapedArray(array.shape, array.dtype)
        put = self._put(of, self.sharding, [array], [self.device], enable_x64=True)
        return put.block_until_ready()

    def entered(self, value: Any) -> Any:
        """Put an array unless it is on the device."""
        return value if isinstance(value, jax.Array) else self.put(value)

    def owned(self, array: Array) -> Any | None:
        """Return the array of this client whose memory a host array is; None for any other."""
        thing = lent_thing(array)
        if not isinstance(thing, jax.Array) or thing.is_deleted():
            return None
        is_same = thing.shape == array.shape and thing.dtype == array.dtype
        return thing if is_same and thing.sharding == self.sharding else None

    def compile(
        self, program: Program, spares: Sequence[Slot] = (), pairs: Pairs = ()
    ) -> tuple[bytes, str]:
        """Compile, and give the bytes of the executable and the text it was compiled from.

        ``spares`` are outputs: for each, an argument is added whose memory the program may have.
        ``pairs`` are outputs and the arguments, weights among them, that they are written over.
        """
        lowered, compiled = self._compiled(program, spares, pairs)
        executable = compiled.runtime_executable()
        return self.client.serialize_executable(executable), lowered.as_text()

    def optimised_text(self, program: Program) -> str:
        """Compile, and give the program as XLA prints it after all passes."""
        return str(self._compiled(program)[1].as_text())

    def _compiled(
        self, program: Program, spares: Sequence[Slot] = (), pairs: Pairs = ()
    ) -> tuple[Any, Any]:
        from jax._src import config

        count = len(program.arguments)
        given = (*program.arguments, *map(argument, spares))
        donated = (*(place for _, place in pairs), *range(count, len(given)))

        def function(*arguments: Any) -> Any:
            results = program.function(*arguments[:count])
            return tuple(results[place] for place in output_order(len(results), pairs))

        # Constants stay in the program, and are not made arguments behind our back.
        with settings(self.device), config.use_simplified_jaxpr_constants(False):
            jitted = jax.jit(function, keep_unused=True, donate_argnums=donated)
            lowered = jitted.lower(*given)
            return lowered, lowered.compile(compiler_options=OPTIONS)

    def load(self, payload: bytes, uses_lapack: bool) -> Any:
        """Read an executable; never of bytes that somebody else could have written."""
        if uses_lapack:
            from jaxlib import lapack

            # Compiled code finds these by name, and nobody has lowered anything here yet.
            lapack._lapack.initialize()
        return read_code(self.device, payload)


@cache
def client(place: Place, threads: int | None = None) -> Client:
    """Return the client of a device; only CPUs have a number of threads."""
    if not place.is_host:
        return Client(jax_device(place))
    return Client(at(cpus(threads).local_devices(), place))


def bind(
    owner: Client,
    executables: Sequence[Any],
    weights: Sequence[Any],
    inputs: Sequence[Slot],
    outputs: Sequence[Slot],
    spares: Sequence[int],
    waits: bool,
) -> Callable[..., list[Array]]:
    """Give a function from host arrays to host arrays, with the weights bound.

    With ``spares``, places of outputs that are written where earlier ones were, there is a second
    executable, which takes those. ``waits``: a copy of an input may still be going on, and makes
    even this client go on later.
    """
    from jax._src import config

    donated = [outputs[place] for place in spares]
    choose = _choice(owner, executables, weights, inputs, outputs, donated)
    plain = None if donated else choose()[0]
    readers = [_reader(owner, x, i in spares, waits) for i, x in enumerate(outputs)]
    only = readers[0] if len(readers) == 1 else None
    wide = config.enable_x64

    def run(*arguments: Array) -> list[Array]:
        # Without this, jax would cut 64 bits to 32 on the way in. Only this thread sees it.
        before = wide.swap_local(True)
        try:
            if plain is not None:
                results = plain(*arguments)
            else:
                call, spare = choose()
                results = call(*arguments, *spare)
        finally:
            wide.set_local(before)
        if only is not None:
            return [only(results[0])]
        return [read(x) for read, x in zip(readers, results, strict=True)]

    return run


def _choice(
    owner: Client,
    executables: Sequence[Any],
    weights: Sequence[Any],
    inputs: Sequence[Slot],
    outputs: Sequence[Slot],
    donated: Sequence[Slot],
) -> Choice:
    """Give what chooses the first executable, or the second if there is memory for ``donated``."""
    plain = _entry(owner, executables[0], weights, inputs, outputs)
    if not donated:
        return lambda: (plain, [])
    again = _entry(owner, executables[1], weights, inputs, outputs, donated)
    kinds = [(_key(owner, slot), _size(slot)) for slot in donated]

    def choose() -> tuple[Call, list[Any]]:
        found = _spare_arrays(kinds)
        return (again, found) if found else (plain, [])

    return choose


@final
class UpdatingProgram:
    """A program that writes some outputs over inputs, or over copies of them: those of ``pairs``.

    Else it is what ``bind`` makes. Inputs that are written over are large, so that it always waits.
    """

    def __init__(
        self,
        owner: Client,
        executables: Sequence[Any],
        weights: Sequence[Any],
        inputs: Sequence[Slot],
        outputs: Sequence[Slot],
        spares: Sequence[int],
        pairs: Pairs,
    ) -> None:
        from jax._src import config

        self._order = output_order(len(outputs), pairs)
        placed = [outputs[place] for place in self._order]
        donated = [outputs[place] for place in spares]
        self._choose = _choice(owner, executables, weights, inputs, placed, donated)
        pooled = {*spares, *(output for output, _ in pairs)}
        self._readers = [
            _reader(owner, outputs[place], place in pooled, True) for place in self._order
        ]
        self._owner, self._pairs, self.executables = owner, pairs, executables
        # What ran before, so that jax knows it, and runs it without a step of Python's.
        self._known: set[Call] = set()
        self._keys = {place: _key(owner, inputs[place]) for _, place in pairs}
        self._wide = config.enable_x64

    def run(self, *arguments: Array) -> list[Array]:
        """Run, and leave all arguments as they are."""
        return self.update(arguments, ())[0]

    def update(
        self, arguments: Sequence[Array], updates: Pairs
    ) -> tuple[list[Array], list[tuple[int, int]]]:
        """Run, and write outputs over arguments that are XLA's own; returns also which were."""
        call, spare = self._choose()
        may_write = call in self._known
        taken: list[Any] = list(arguments)
        written = []
        for pair in self._pairs:
            place = pair[1]
            is_asked = may_write and pair in updates
            own = self._owner.owned(arguments[place]) if is_asked else None
            if own is not None:
                written.append(pair)
            taken[place] = self._copied(place, arguments[place]) if own is None else own
        results = self._results(call, (*taken, *spare), arguments, dict(written))
        self._known.add(call)
        over = dict(written)
        outputs: list[Any] = [None] * len(results)
        for place, read, result in zip(self._order, self._readers, results, strict=True):
            outputs[place] = arguments[over[place]] if place in over else read(result)
        return outputs, written

    def _results(
        self,
        call: Call,
        taken: Sequence[Any],
        arguments: Sequence[Array],
        over: Mapping[int, int],
    ) -> list[Any]:
        """Run, and have arguments that were written to keep their memory, whatever happens.

        Python raises an interrupt between two of its own steps. So there is none between the run
        and the list that has its results: they own the memory of states, and would free it.
        """
        made: list[list[Any]] = []
        # Without this, jax would cut 64 bits to 32 on the way in. Only this thread sees it.
        before = self._wide.swap_local(True)
        try:
            made.extend(starmap(call, (taken,)))
        finally:
            self._wide.set_local(before)
            for results in made:
                for place, result in zip(self._order, results, strict=True):
                    if place in over:
                        _keep(arguments[over[place]], result)
        return made[0]

    def _copied(self, place: int, array: Array) -> Any:
        """Copy an array to memory that may be written to; without any that is idle, XLA does.

        It is always an array of jax, as a state is later, so that jax has seen such a call.
        """
        spare = POOL.take(self._keys[place])
        if spare is None:
            return self._owner.put(array)
        lender(array.shape, array.dtype)(spare, spare.unsafe_buffer_pointer())[...] = array
        return spare


def _keep(array: Array, result: Any) -> None:
    """Have an array that XLA wrote to keep the result alive, which has its memory now."""
    pointer = result.block_until_ready().unsafe_buffer_pointer()
    assert pointer == address(array), "the program was compiled to write there"
    lend_again(array, result)


def bind_resident(
    owner: Client,
    executable: Any,
    weights: Sequence[Any],
    inputs: Sequence[Slot],
    outputs: Sequence[Slot],
) -> Callable[..., list[Any]]:
    """Give a function from arrays, of the host or the device, to jax arrays on the device."""
    from jax._src import config

    call, wide = _entry(owner, executable, weights, inputs, outputs), config.enable_x64

    def run(*arguments: Any) -> list[Any]:
        before = wide.swap_local(True)
        try:
            return call(*arguments)
        finally:
            wide.set_local(before)

    return run


def _spare_arrays(kinds: Sequence[tuple[Hashable, int]]) -> list[Any]:
    """Take an array of every kind from the pool; none if it has not enough."""
    found: list[Any] = []
    for key, _ in kinds:
        spare = POOL.take(key)
        if spare is None:
            for kind, taken in zip(kinds, found, strict=False):
                POOL.give(*kind, taken)
            return []
        found.append(spare)
    return found


def _fast_path(
    owner: Client,
    executable: Any,
    weights: Sequence[Any],
    count: int,
    outputs: Sequence[Slot],
    structure: Any,
) -> Any:
    """Describe an executable of ``count`` arguments to jax's dispatch in C++."""
    from jax._src.interpreters import pxla

    return pxla.MeshExecutableFastpathData(
        executable,
        structure,
        [owner.sharding] * count,
        [owner.sharding] * len(outputs),
        [ShapedArray(slot.dims, edge(slot.dtype)) for slot in outputs],
        [True] * len(outputs),
        [True] * count,
        [None] * count,
        tuple(weights),
    )


def _entry(
    owner: Client,
    executable: Any,
    weights: Sequence[Any],
    inputs: Sequence[Slot],
    outputs: Sequence[Slot],
    spares: Sequence[Slot] = (),
) -> Callable[..., list[Any]]:
    """Make what a jitted function is inside: a call from host arrays to jax arrays, in C++."""
    from jax._src import tree_util
    from jax._src.interpreters import pxla
    from jaxlib import _jax

    registry = tree_util.dispatch_registry
    structure = registry.flatten([0] * len(outputs), None)[1]
    count = len(weights) + len(inputs) + len(spares)
    fast = _fast_path(owner, executable, weights, count, outputs, structure)

    def slowly(*arguments: Any) -> list[Any]:
        """Run a signature that was not seen yet, or under ``jax.disable_jit``."""
        taken, donated = arguments[: len(inputs)], arguments[len(inputs) :]
        check_arrays(inputs, taken)
        given = [*weights, *map(owner.entered, taken), *donated]
        results = executable.execute_sharded(given).disassemble_into_single_device_arrays()
        return [arrays[0] for arrays in results]

    call: Callable[..., list[Any]] = _jax.pjit(
        "fusewire",
        slowly,
        lambda *arguments: (slowly(*arguments), fast, False),
        [],
        [],
        pxla.JitGlobalCppCacheKeys(),
        registry,
        pxla.cc_shard_arg,
    )
    return call


def _reader(owner: Client, slot: Slot, is_spare: bool, waits: bool) -> Callable[[Any], Array]:
    """Give a function from a jax array to a host array of the caller's, over the same memory.

    It may be written to, because jax, which counts on arrays that never change, has no other
    reference to this one.
    """
    shape, of = _shape(slot), slot.dtype.numpy
    lend = partial(POOL.lend, shape, of, _key(owner, slot)) if is_spare else lender(shape, of)
    if waits:
        return lambda array: lend(array, array.block_until_ready().unsafe_buffer_pointer())
    return lambda array: lend(array, array.unsafe_buffer_pointer())


def _key(owner: Client, slot: Slot) -> Hashable:
    return (owner, _shape(slot), edge(slot.dtype))


def _shape(slot: Slot) -> tuple[int, ...]:
    return tuple(int(dim) for dim in slot.dims)  # type: ignore[arg-type] # static here


def _size(slot: Slot) -> int:
    return math.prod(_shape(slot)) * slot.dtype.itemsize
