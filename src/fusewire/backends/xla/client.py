"""The private interface of jaxlib: the one file to change with it; ``is_known`` checks versions.

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
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import Any

import jax
from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding

from fusewire.backends.xla.devices import Place, assigned, at, jax_device
from fusewire.backends.xla.program import OPTIONS, Program, argument, settings
from fusewire.backends.xla.storage import edge
from fusewire.contract.backend import RUN_BYTES, Slot
from fusewire.errors import ShapeMismatchError
from fusewire.host_memory import POOL, lender
from fusewire.ir.graph import Array
from fusewire.process.wheels import installed

# The series of jaxlib on which everything here was tried.
KNOWN = ("0.10.",)
_LOCK = threading.Lock()


def is_known() -> bool:
    """Tell whether this jaxlib is one that this file was written for."""
    return installed("jaxlib").startswith(KNOWN)


class Client:
    """One device: its client, its sharding, and what jaxlib wants to be told again and again."""

    def __init__(self, device: Any) -> None:
        from jaxlib import xla_client

        self.client = device.client
        self.device = device
        self.sharding = SingleDeviceSharding(self.device)
        self.devices = xla_client.DeviceList((self.device,))
        self._put = xla_client.batched_device_put

    def put(self, array: Array) -> Any:
        """Copy an array, or lend it where it is aligned: who gave it must not write to it."""
        of = ShapedArray(array.shape, array.dtype)
        put = self._put(of, self.sharding, [array], [self.device], enable_x64=True)
        return put.block_until_ready()

    def compile(self, program: Program, spares: Sequence[Slot] = ()) -> tuple[bytes, str]:
        """Compile, and give the bytes of the executable and the text it was compiled from.

        ``spares`` are outputs: for each, an argument is added whose memory the program may have.
        """
        lowered, compiled = self._compiled(program, spares)
        executable = compiled.runtime_executable()
        return self.client.serialize_executable(executable), lowered.as_text()

    def optimised_text(self, program: Program) -> str:
        """Compile, and give the program as XLA prints it after all passes."""
        return str(self._compiled(program)[1].as_text())

    def _compiled(self, program: Program, spares: Sequence[Slot] = ()) -> tuple[Any, Any]:
        from jax._src import config

        count = len(program.arguments)
        given = (*program.arguments, *map(argument, spares))

        def function(*arguments: Any) -> Any:
            return program.function(*arguments[:count])

        # Constants stay in the program, and are not made arguments behind our back.
        with settings(self.device), config.use_simplified_jaxpr_constants(False):
            jitted = jax.jit(function, keep_unused=True, donate_argnums=range(count, len(given)))
            lowered = jitted.lower(*given)
            return lowered, lowered.compile(compiler_options=OPTIONS)

    def load(self, payload: bytes, uses_lapack: bool) -> Any:
        """Read an executable; never of bytes that somebody else could have written."""
        if uses_lapack:
            from jaxlib import lapack

            # Compiled code finds these by name, and nobody has lowered anything here yet.
            lapack._lapack.initialize()
        return self.client.deserialize_executable(payload, self.devices)


@cache
def _cpus(threads: int | None) -> Any:
    """Start a client with so many threads; it lives as long as the process."""
    from jaxlib import xla_client

    count = jax.config.jax_num_cpu_devices
    # jaxlib asks the environment for the size of the pools that it is about to make.
    pools = {} if threads is None else {"NPROC": str(threads)}
    with _LOCK, assigned(pools):
        # Without a count, it is what XLA_FLAGS says, or 1.
        return xla_client.make_cpu_client(
            asynchronous=False, num_devices=count if count >= 0 else None
        )


@cache
def client(place: Place, threads: int | None = None) -> Client:
    """Return the client of a device; only CPUs have a number of threads."""
    if not place.is_host:
        return Client(jax_device(place))
    return Client(at(_cpus(threads).local_devices(), place))


def count_cpus() -> int:
    """Count the CPU devices of our client."""
    return len(_cpus(None).local_devices())


def planned_memory(executable: Any) -> dict[str, float]:
    """Say what a run takes besides its arguments: temporary memory, and what it returns."""
    stats = executable.get_compiled_memory_stats()
    return {RUN_BYTES: float(stats.temp_size_in_bytes + stats.output_size_in_bytes)}


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

    call = _entry(owner, executables[0], weights, inputs, outputs)
    if spares:
        donated = [outputs[place] for place in spares]
        again = _entry(owner, executables[1], weights, inputs, outputs, donated)
        call = _sparing(call, again, [(_key(owner, slot), _size(slot)) for slot in donated])
    readers = [_reader(owner, x, i in spares, waits) for i, x in enumerate(outputs)]
    only = readers[0] if len(readers) == 1 else None
    wide = config.enable_x64

    def run(*arguments: Array) -> list[Array]:
        # Without this, jax would cut 64 bits to 32 on the way in. Only this thread sees it.
        before = wide.swap_local(True)
        try:
            results = call(*arguments)
        finally:
            wide.set_local(before)
        if only is not None:
            return [only(results[0])]
        return [read(x) for read, x in zip(readers, results, strict=True)]

    return run


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


def _sparing(
    plain: Callable[..., list[Any]],
    again: Callable[..., list[Any]],
    kinds: Sequence[tuple[Hashable, int]],
) -> Callable[..., list[Any]]:
    """Call one or the other: whether the pool has an array of every kind decides."""

    def call(*arguments: Array) -> list[Any]:
        found: list[Any] = []
        for key, _ in kinds:
            spare = POOL.take(key)
            if spare is None:
                for kind, taken in zip(kinds, found, strict=False):
                    POOL.give(*kind, taken)
                return plain(*arguments)
            found.append(spare)
        return again(*arguments, *found)

    return call


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
        _check(inputs, taken)
        given = [*weights, *(owner.put(x) for x in taken), *donated]
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


def _check(slots: Sequence[Slot], arguments: Sequence[Array]) -> None:
    for slot, array in zip(slots, arguments, strict=True):
        if array.shape != slot.dims or array.dtype != edge(slot.dtype):
            raise ShapeMismatchError(
                f"The input {slot.name} is {slot.dtype.name}{list(slot.dims)}, "
                f"found {array.dtype}{list(array.shape)}."
            )


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
