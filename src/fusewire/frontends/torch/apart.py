"""Read calls in a forked process: torch.export changes the process in which it runs.

It takes seconds in which the interpreter does little else, sets flags of PyTorch that all threads
see, loads some 150 MB of modules, and may crash. A forked process has the module as it was, without
a copy, and sends the graph back as text. Parameters stay here: the reply says which tensor a
constant is. The process waits a while for further questions, such as the same call with open sizes.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, final

import numpy as np
import torch

from fusewire.contract.frontend import Limits, Spec
from fusewire.errors import BudgetError, FusewireError, TraceError
from fusewire.frontends.torch.flat_call import FlatCall
from fusewire.frontends.torch.tensors import array_of, unwritten
from fusewire.ir.graph import Array, Constant, Graph
from fusewire.ir.parse import parse_graph
from fusewire.ir.text import INLINE_BYTES, constants_of, print_graph
from fusewire.ir.types import TensorType
from fusewire.process.codec import read_value, write_value
from fusewire.process.frames import Blobs, Frame, Incoming, Outgoing
from fusewire.system.processes import can_measure, is_asleep, processor_seconds

# Seconds of processor time that a question may take, and that the process waits for the next one.
_DEADLINE, _PATIENCE = 180.0, 30
# Seconds between looks at it, and after which it hangs if it used no time.
_LOOK, _HUNG = 1.0, 5.0
# How many processes may hang before that is the answer.
_ATTEMPTS = 3
Read: TypeAlias = Callable[[FlatCall, Sequence[TensorType], Limits], Graph]
_ERRORS: Mapping[str, type[FusewireError]] = {x.__name__: x for x in (BudgetError, TraceError)}
_LIMIT = 1 << 40


def can_read_apart() -> bool:
    """Tell whether calls can be read in a forked process, in which CUDA would not work."""
    # Without /proc nobody can tell one that hangs from one that works.
    can_fork = sys.platform == "linux" and hasattr(os, "fork") and can_measure()
    return can_fork and not torch.cuda.is_initialized()


@final
class ForkedReader:
    """A forked process that reads one call; ended when nobody has this any more.

    ``tensors`` are those of the module, in an order that both processes know. ``read_here`` reads a
    call in this process, if the main thread asks and others hang: they may wait for what a thread
    of this one held.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], read_here: Read) -> None:
        self._tensors = tensors
        self._read_here = read_here
        self._lock = threading.Lock()
        self._ends: tuple[int, int] | None = None
        self._close: weakref.finalize[..., ForkedReader] | None = None
        self._pid = 0
        self._unwritten: list[Callable[[], bool]] = []

    def graph(self, call: FlatCall, types: Sequence[TensorType], limits: Limits) -> Graph:
        """Read the graph for arguments of these types, as ``converted`` does."""
        header = {"types": [_written(type_) for type_ in types], "sizes": call.sizes}
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    return self._read(call, self._reply(call, Frame(header, []), limits))
                except _HungError:
                    # Another process begins when other threads hold other locks.
                    self._end()
                except (EOFError, OSError):
                    self._end()
                    raise TraceError(
                        f"The process that ran torch.export for {call.label} ended without an "
                        "answer: it crashed, or was killed."
                    ) from None
        if threading.current_thread() is threading.main_thread():
            return self._read_here(call, types, limits)
        # Tracing patches the calls of all modules, and other threads would be traced with it.
        raise TraceError(
            f"The process that ran torch.export for {call.label} waited for ever, {_ATTEMPTS} "
            "times. Compile it with an example, before other threads start."
        )

    def _reply(self, call: FlatCall, question: Frame, limits: Limits) -> Frame:
        """Ask the process that is there, or a new one."""
        if self._ends is not None:
            try:
                return self._asked(call.label, question)
            except (EOFError, OSError):
                # It had waited long enough for another question.
                self._end()
        self._start(call, limits)
        return self._asked(call.label, question)

    def _asked(self, label: str, question: Frame) -> Frame:
        assert self._ends is not None, "it was started"
        incoming = Incoming(self._ends[0], _LIMIT)
        Outgoing(self._ends[1], question).write()
        watch = _Watch(self._pid)
        while watch.used < _DEADLINE:
            if not select.select([self._ends[0]], [], [], _LOOK)[0]:
                watch.look()
            elif (reply := incoming.read()) is not None:
                return reply
        self._end()
        raise TraceError(f"torch.export took more than {_DEADLINE:.0f} s for {label}.")

    def _start(self, call: FlatCall, limits: Limits) -> None:
        # Imported by whoever reads first, after the program's first answer, and before the fork.
        from fusewire.frontends.torch.convert import converted

        # The other process reads what the tensors hold now.
        self._unwritten = [unwritten(tensor) for tensor in self._tensors]
        questions, replies = os.pipe(), os.pipe()
        pid = _fork()
        if pid == 0:
            answer = partial(_answer, converted, call, limits, self._tensors)
            _serve(answer, questions[0], replies[1])
        os.close(questions[0])
        os.close(replies[1])
        self._pid, self._ends = pid, (replies[0], questions[1])
        self._close = weakref.finalize(self, _end, pid, os.getpid(), self._ends)

    def _end(self) -> None:
        if self._close is not None:
            self._close()
        self._ends = self._close = None

    def _read(self, call: FlatCall, reply: Frame) -> Graph:
        header, blobs = reply.header, iter(reply.blobs)
        if "error" in header:
            raise _ERRORS.get(header["error"], TraceError)(header["message"])
        constants: dict[str, Constant] = {}
        for digest, place in header["shared"].items():
            array = array_of(self._tensors[place])
            type_ = TensorType(Spec(array.shape, array.dtype).dtype, array.shape)
            constants[digest] = Constant(
                type_,
                partial(_same, array),
                digest,
                is_held=True,
                is_current=self._unwritten[place],
            )
        for digest, value in header["constants"].items():
            constants[digest] = Constant.of(read_value(value, blobs))
        graph = parse_graph(header["graph"], constants)
        call.updated[:] = header["updated"]
        for node, source in zip(graph.nodes, header["sources"], strict=True):
            node.source = source
        return graph


class _HungError(Exception):
    """The forked process waits for something that does not exist there."""


@final
class _Watch:
    """Tells a process that works from one that waits for ever: that one uses no time.

    On busy cores, work takes long that is not much.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._first = self._used = processor_seconds(pid)
        self._since = time.monotonic()

    @property
    def used(self) -> float:
        """The processor time that it used when it was last looked at, in seconds."""
        return self._used - self._first

    def look(self) -> None:
        """Raise _HungError if it slept for long without using any time."""
        used = processor_seconds(self._pid)
        if not is_asleep(self._pid) or used != self._used:
            self._used, self._since = used, time.monotonic()
        elif time.monotonic() - self._since > _HUNG:
            raise _HungError


def _fork() -> int:
    """Fork without what would collect garbage or warn in between.

    An engine that is garbage here must not be ended there: it would wait for its threads.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            # Python and JAX warn of forks in processes with threads.
            warnings.simplefilter("ignore")
            pid = _forked()
        if pid == 0:
            gc.freeze()
        return pid
    finally:
        if was_enabled:
            gc.enable()


def _forked() -> int:
    if sys.platform == "win32":
        raise OSError("Windows does not fork")
    return os.fork()


def _same(array: Array) -> Array:
    return array


def _end(pid: int, owner: int, ends: tuple[int, int]) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)
    # A fork of the owner must not end what its parent uses.
    if os.getpid() == owner:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
            os.waitpid(pid, 0)


def _written(type_: TensorType) -> list[Any]:
    return [type_.dtype.name, [x if isinstance(x, int) else str(x) for x in type_.shape]]


# In the forked process.


def _serve(answer: Callable[[Frame], Frame], questions: int, replies: int) -> NoReturn:
    """Answer questions until none comes for a while."""
    status = 1
    try:
        warnings.simplefilter("ignore")
        _let_go_of_files(questions, replies)
        # A thread of the parent may have held the lock of a stream: nobody would release it here.
        logging.disable()
        sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # until this process ends
        # The threads of the parent do not exist here, and OpenMP would wait for them.
        torch.set_num_threads(1)
        incoming = Incoming(questions, _LIMIT)
        while select.select([questions], [], [], _PATIENCE)[0]:
            question = incoming.read()
            if question is not None:
                Outgoing(replies, answer(question)).write()
        status = 0
    except (EOFError, OSError):
        status = 0
    finally:
        # Nothing of the parent may be ended or written here.
        os._exit(status)


def _let_go_of_files(*kept: int) -> None:
    """Close all files of the parent, such as connections that it may close; keep their numbers.

    What PyTorch prints about a refusal is in the reply.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for path in Path("/proc/self/fd").iterdir():
        if int(path.name) not in kept:
            with contextlib.suppress(OSError):
                os.dup2(nothing, int(path.name))


def _answer(
    read: Read, call: FlatCall, limits: Limits, tensors: Sequence[torch.Tensor], question: Frame
) -> Frame:
    types = [Spec(dims, dtype).type for dtype, dims in question.header["types"]]
    call.sizes[:] = map(tuple, question.header["sizes"])
    try:
        graph = read(call, types, limits)
    except FusewireError as error:
        return Frame({"error": type(error).__name__, "message": str(error)}, [])
    places = {_memory(array_of(tensor)): place for place, tensor in enumerate(tensors)}
    blobs: Blobs = []
    shared: dict[str, int] = {}
    constants: dict[str, Any] = {}
    for digest, constant in constants_of(graph).items():
        place = places.get(_memory(constant.array))
        if place is not None:
            shared[digest] = place
        elif constant.array.nbytes > INLINE_BYTES:
            constants[digest] = write_value(constant.array, blobs)
    header = {
        "graph": print_graph(graph),
        "sources": [node.source for node in graph.nodes],
        "shared": shared,
        "constants": constants,
        "updated": call.updated,
    }
    return Frame(header, blobs)


def _memory(array: Array) -> tuple[Any, ...]:
    """Return what two arrays share that are the same memory, seen in the same way."""
    return array.__array_interface__["data"][0], array.shape, array.strides, np.dtype(array.dtype)
