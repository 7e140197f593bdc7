"""The guard: the one place that catches whatever an engine throws, or a call made for others.

Engine calls go through ``guarded``, in the child and in the parent. The result is the answer, a
typed error, or the caller's own mistake, which is one of ``CALLERS``.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import Literal, TypeAlias, TypeVar

from fusewire.contract.backend import Held, Into, Refusal
from fusewire.contract.buffer import Buffer
from fusewire.errors import (
    BackendCrashed,
    BackendHung,
    BackendKilled,
    BackendNotStarted,
    BudgetError,
    CheckError,
    CompileTimeout,
    EngineError,
    EngineGarbage,
    EngineOutOfMemory,
    EngineRaised,
    FusewireError,
    OptionsError,
    ReleasedError,
    ShapeMismatchError,
)
from fusewire.ir.graph import Graph

Answer = TypeVar("Answer")
Phase = Literal["import", "probe", "claim", "compile", "load", "run"]
# What ``Executable.run`` is, and what counts or observes it.
Run: TypeAlias = Callable[[Sequence[Held], Into], list[Held]]

_ELSEWHERE = "Run it on another backend"
# What happened and what to do about it, by kind of error.
KINDS: dict[type[EngineError], tuple[str, str]] = {
    BackendCrashed: ("crashed", f"{_ELSEWHERE}, and report it to the engine's developers."),
    BackendKilled: (
        "was killed",
        "Run it again when the machine has more memory to spare, or on another backend.",
    ),
    BackendNotStarted: (
        "did not start",
        'Run it again when the machine is less busy, or pass isolate="never" to run engines in '
        "this process.",
    ),
    BackendHung: ("gave no answer in time", f"{_ELSEWHERE}, or give it more seconds."),
    CompileTimeout: ("did not finish in time", f"{_ELSEWHERE}, or give it more seconds."),
    EngineOutOfMemory: ("ran out of memory", f"{_ELSEWHERE}, or raise the memory limit."),
    EngineGarbage: (
        "broke the backend contract",
        f"{_ELSEWHERE}, and report it to the backend's authors.",
    ),
    EngineRaised: ("failed", f"{_ELSEWHERE}, or fix what the message names."),
}
# What starts and dies has mostly been installed badly, or was given a flag that it does not know.
_DAMAGED = (
    "Reinstall the packages of the engine (pip install --force-reinstall), and unset variables "
    "of its own that you set; or run it on another backend."
)
# Mistakes of the caller, reported as such by whichever process finds them.
CALLERS: tuple[type[FusewireError], ...] = (
    BudgetError,
    CheckError,
    OptionsError,
    ReleasedError,
    ShapeMismatchError,
)
# The guard lets these through.
_PASSED: tuple[type[BaseException], ...] = (EngineError, KeyboardInterrupt, *CALLERS)
BY_CODE = {kind.code: kind for kind in KINDS}
_DOING: dict[Phase, str] = {
    "import": "starting",
    "probe": "looking for devices",
    "claim": "answering for",
    "compile": "compiling",
    "load": "loading",
    "run": "running",
}
# How engines that raise plain errors say that memory ran out.
_NO_MEMORY = ("out of memory", "bad_alloc", "resource_exhausted", "allocate memory")
_MAX_SAID = 1000


# Whether this process ends: the threads that are left then begin no call any more.
_is_ending = False
# So long may calls that began before go on.
_LAST_SECONDS = 5.0


def guarded(
    name: str, phase: Phase, what: str, call: Callable[..., Answer], *arguments: object
) -> Answer:
    """Call into an engine; ``what`` names the subject of the phase, for the message."""
    if _is_ending:
        _stay_out()
    try:
        return call(*arguments)
    except _PASSED:
        raise
    except BaseException as error:
        raise _translated(name, phase, what, error) from error


def guarded_run(
    name: str, run: Run, inputs: Sequence[Held], into: Into = (), *, waits: bool = False
) -> list[Held]:
    """Run a region; nearly every call of a program goes through here.

    Buffers among its outputs may be pending unless ``waits``.
    """
    if _is_ending:
        _stay_out()
    try:
        outputs = run(inputs, into)
        return waited(outputs) if waits else outputs
    except _PASSED:
        raise
    except BaseException as error:
        raise _translated(name, "run", "a region", error) from error


def waited(outputs: list[Held]) -> list[Held]:
    """Block until a device has written the buffers that a run returned."""
    for value in outputs:
        if isinstance(value, Buffer):
            value.wait()
    return outputs


def _stay_out() -> None:
    """End a thread that does not end by itself, so that it gives back the locks of its callers."""
    if threading.current_thread() is not threading.main_thread():
        # Python prints nothing of it in a thread, but would of a subclass.
        raise SystemExit


def _end_calls() -> None:
    """Wait until no thread is inside an engine.

    Python ends a daemon thread when it returns to the interpreter: by unwinding its stack, which
    ends the process with SIGABRT if functions of C++ are on it (ONNX Runtime 1.31.1 alone, too).
    """
    global _is_ending
    _is_ending = True
    limit = time.monotonic() + _LAST_SECONDS
    while _calls_run() and time.monotonic() < limit:
        time.sleep(0.001)


def _calls_run() -> bool:
    """Tell whether another thread is in a call."""
    calls = {call.__code__ for call in (guarded, guarded_run)}
    mine = threading.get_ident()
    stacks = [frame for thread, frame in sys._current_frames().items() if thread != mine]
    for top in stacks:
        frame: FrameType | None = top
        codes = set()
        while frame is not None:
            codes.add(frame.f_code)
            frame = frame.f_back
        if calls & codes:
            return True
    return False


atexit.register(_end_calls)


def settle(future: Future[Answer], call: Callable[..., Answer], *arguments: object) -> None:
    """Make a call for somebody in another thread: the future gets its answer, or what it raised."""
    try:
        answer = call(*arguments)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(answer)


def _translated(name: str, phase: Phase, what: str, error: BaseException) -> EngineError:
    if _is_ending and isinstance(error, SystemExit):
        # A call inside of this one was not begun.
        _stay_out()
    # SystemExit and the panics of Rust libraries are not Exceptions, and not a reason to exit.
    said = _said(error)
    is_memory = isinstance(error, MemoryError) or any(x in said.lower() for x in _NO_MEMORY)
    return failure(EngineOutOfMemory if is_memory else EngineRaised, name, phase, what, said)


def failure(kind: type[EngineError], name: str, phase: Phase, what: str, found: str) -> EngineError:
    """Make the error that says what was asked, what happened, and what to do."""
    if kind is BackendHung and phase == "compile":
        kind = CompileTimeout
    happened, advice = KINDS[kind]
    # These phases are not about a region, even if a region was the reason for them.
    is_start = phase in ("import", "probe")
    about = "" if is_start else what
    if is_start and kind is BackendCrashed:
        advice = _DAMAGED
    asked = f"{_DOING[phase]} {about}".strip()
    said = f"{name} {happened} while {asked}: "
    # A child may have said it already.
    return kind(f"{said}{found.removeprefix(said).rstrip('.')}.", advice)


@contextlib.contextmanager
def blaming(name: str, phase: Phase, what: str) -> Iterator[None]:
    """Name the backend in errors about garbage that are raised inside."""
    try:
        yield
    except EngineGarbage as error:
        raise failure(EngineGarbage, name, phase, what, error.reason) from None


def refusal(error: EngineError, graph: Graph) -> Refusal:
    """Turn an error into the refusal of all of a graph."""
    return Refusal(tuple(range(len(graph.nodes))), error.code, error.reason, error.advice)


def described(graph: Graph) -> str:
    """Name a graph in a message."""
    count = len(graph.nodes)
    return f"{graph.name} ({count} node{'s' if count != 1 else ''})"


def _said(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as worse:
        text = f"a message that raises {type(worse).__name__}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text.strip()[:_MAX_SAID]}{where}"
