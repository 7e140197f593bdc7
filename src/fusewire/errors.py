"""Every exception Fusewire raises on purpose.

FusewireError
├── DTypeError (TypeError)             an unknown dtype, or one that an op does not take
├── DimError (ValueError)              dims that cannot be computed, or a dim without a value
├── TypeRuleError (TypeError)          operands or attributes that an op's type rule rejects
├── UnknownOpError (LookupError)       no op has this name
├── GraphError (ValueError)            a graph that breaks an invariant of the IR
│   ├── VerifyError                    found by the verifier; carries the name of the check
│   └── ParseError                     text that is not a graph; carries line and column
├── TraceError (TypeError)             Python code that cannot become a graph
├── ShapeMismatchError (ValueError)    an argument that does not fit the signature of a program
├── CheckError (ValueError)            values that a program does not allow, found by a run
├── BudgetError (RuntimeError)         work that would exceed a stated limit
│   └── NoQuietError                   calls left no moment in which to measure beside them
├── RegistryError (LookupError)        no such backend or frontend, or a name taken twice
│   └── UnavailableError               a backend that is installed and cannot run here
├── RefusedError (RuntimeError)        nodes that no allowed backend runs
│   └── NoneRightError                 engines were compared, and none gives a right answer
├── SourceError (TypeError)            a source that no frontend reads
├── EngineError (RuntimeError)         what an engine did instead of answering
│   ├── BackendCrashed                 its process died of something that it did
│   ├── BackendKilled                  its process was killed from outside; not its fault
│   ├── BackendNotStarted              its process did not start in time; not its fault
│   ├── BackendHung (TimeoutError)     no answer before the deadline
│   │   └── CompileTimeout             the same, while it compiled
│   ├── EngineOutOfMemory (MemoryError)  more memory than the limit, or than there is
│   ├── EngineGarbage                  an answer that the contract does not allow
│   └── EngineRaised                   an exception of its own
├── IsolationError (RuntimeError)      no child process can be used here; not the engine's fault
├── FormatError (ValueError)           a graph that a file format cannot hold, or a broken file
│   └── SizesNeededError               a model that cannot be typed without the sizes of inputs
├── StoreError (ValueError)            an entry or folder of the cache that cannot be used
│   ├── SignatureError                 signed by nobody whom this user trusts, or not for this
│   │   └── UnknownSignerError         the signer is not on the list: it is only data
│   └── RemoteError                    a shared store that does not answer, or cannot be opened
├── JobError (ValueError)              a table, folder or cluster that a batch job cannot use
├── NotRecalledError (LookupError)     a plan that no earlier process has recorded
├── RequestError (ValueError)          a request that the server cannot read or answer
│   ├── UnknownModelError (LookupError)  the server has no such model or version
│   ├── NotJsonError                   an answer with NaN or infinity, asked for as JSON
│   ├── TokenError (PermissionError)   no token, or a wrong one, where the server asks for one
│   ├── RequestForbidden (PermissionError)  a host, web page or right that the server does not allow
│   ├── MediaTypeError (TypeError)     a content type that any web page may send
│   ├── RequestTooLarge                more bytes, elements or dims than the server allows
│   ├── RequestTimeout (TimeoutError)  a request that was not answered before its deadline
│   └── ServerBusy (RuntimeError)      more requests wait than the server allows
├── ReleasedError (ValueError)         a buffer that was used after its memory was released
├── ExportError (BufferError)          memory that cannot be shared with another library
└── OptionsError (ValueError)          an option outside its range

FallbackWarning (UserWarning)          part of a program runs on the reference
MiscompileWarning (UserWarning)        a program gave a wrong answer and no longer runs that plan
StoreWarning (UserWarning)             the cache cannot be used; everything works without it
BundleWarning (UserWarning)            a bundle that is not used as it is; a sentence says why
ExtensionWarning (UserWarning)         an extension did not start; its backend runs without it

A message says what was asked, what was found, and what can be done.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

# C0 without tab and line feed, DEL and C1, and marks that order or break lines.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)


def visible(text: str) -> str:
    """Escape what a terminal would obey instead of showing it.

    >>> visible("\\x1b[2J")
    '\\\\x1b[2J'
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class FusewireError(Exception):
    """Root of all errors raised on purpose; names of a model in it cannot steer a terminal."""

    def __str__(self) -> str:
        return visible(super().__str__())


class DTypeError(FusewireError, TypeError):
    """An unknown dtype, or one that is not allowed here."""


class DimError(FusewireError, ValueError):
    """Dims that cannot be computed, or a dim without a value."""


class TypeRuleError(FusewireError, TypeError):
    """Operands or attributes that an op's type rule rejects."""


class UnknownOpError(FusewireError, LookupError):
    """No op has this name."""


class GraphError(FusewireError, ValueError):
    """A graph that breaks an invariant of the IR."""


class VerifyError(GraphError):
    """A broken invariant, found by the verifier."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"{check}: {message}")
        self.check = check


class ParseError(GraphError):
    """Text that is not a graph."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


class TraceError(FusewireError, TypeError):
    """Python code that cannot become a graph."""


class ShapeMismatchError(FusewireError, ValueError):
    """An argument that does not fit the signature of a program."""


class CheckError(FusewireError, ValueError):
    """Values that a program does not allow, found by a run."""


class BudgetError(FusewireError, RuntimeError):
    """Work that would exceed a stated limit."""


class NoQuietError(BudgetError):
    """Calls left no quiet moment in which to measure beside them."""


class RegistryError(FusewireError, LookupError):
    """No such backend or frontend, or a name taken twice."""


class UnavailableError(RegistryError):
    """A backend that is installed and cannot run here, or not at the moment."""

    def __init__(self, message: str, is_momentary: bool = False) -> None:
        super().__init__(message)
        self.is_momentary = is_momentary


class RefusedError(FusewireError, RuntimeError):
    """Nodes that no allowed backend runs."""


class NoneRightError(RefusedError):
    """Engines were compared, and none gives a right answer; ``tried`` says what each did."""

    def __init__(self, message: str, tried: Iterable[Any] = ()) -> None:
        super().__init__(message)
        self.tried = tuple(tried)


class SourceError(FusewireError, TypeError):
    """A source that no frontend reads."""


class FormatError(FusewireError, ValueError):
    """A graph that a file format cannot hold, or a malformed file."""


class SizesNeededError(FormatError):
    """A model that cannot be typed without the sizes of its inputs.

    ``names`` are the dims that are needed; empty if that is not known.
    """

    def __init__(self, message: str, names: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.names = frozenset(names)


class StoreError(FusewireError, ValueError):
    """An entry or folder of the cache that cannot be used."""


class SignatureError(StoreError):
    """A signature that is forged, expired, revoked, replayed, or for something else."""


class UnknownSignerError(SignatureError):
    """A signature of nobody on the list, or one that cannot be checked: it is only data."""


class JobError(FusewireError, ValueError):
    """A table, a folder or a cluster that a batch job cannot use."""


class RemoteError(StoreError):
    """A shared store that does not answer, refuses, is full, or cannot be opened.

    ``is_lasting``: asking again would not help.
    """

    def __init__(self, message: str, *, is_lasting: bool = False) -> None:
        super().__init__(message)
        self.is_lasting = is_lasting


class NotRecalledError(FusewireError, LookupError):
    """``level="recall"`` was asked for, and no earlier process recorded a plan."""


class RequestError(FusewireError, ValueError):
    """A request that the server cannot read or answer, with the HTTP status that says so."""

    status = 400


class UnknownModelError(RequestError, LookupError):
    """The server has no such model or version."""

    status = 404


class NotJsonError(RequestError):
    """An answer with NaN or infinity was asked for as JSON, which has no such numbers."""

    status = 406


class TokenError(RequestError, PermissionError):
    """A request without the token that the server asks for."""

    status = 401


class RequestForbidden(RequestError, PermissionError):
    """A request for another host, of a web page, or for what nobody may do here."""

    status = 403


class MediaTypeError(RequestError, TypeError):
    """A request of a content type that is not served, which any web page may send."""

    status = 415


class RequestTooLarge(RequestError):
    """A request of more bytes, elements or dims than the server allows."""

    status = 413


class RequestTimeout(RequestError, TimeoutError):
    """A request that was not answered before its deadline."""

    status = 504


class ServerBusy(RequestError, RuntimeError):
    """More requests wait than the server allows, or it is about to end."""

    status = 503

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ReleasedError(FusewireError, ValueError):
    """A buffer was used after its memory was released."""


class ExportError(FusewireError, BufferError):
    """Memory cannot be shared with another library, or not taken from one."""


class OptionsError(FusewireError, ValueError):
    """An option outside its range."""


class EngineError(FusewireError, RuntimeError):
    """What an engine did instead of answering; ``code`` is that of the refusal it becomes."""

    code = "failed"

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason} {advice}".strip())
        self.reason = reason
        self.advice = advice


class BackendCrashed(EngineError):
    """The process of an engine died of something that it did: a signal, an exit."""

    code = "crashed"


class BackendKilled(EngineError):
    """The process of an engine was killed from outside; this is not the engine's fault."""

    code = "killed"


class BackendNotStarted(EngineError):
    """The process of an engine did not start in time; this is not the engine's fault."""

    code = "not-started"


class BackendHung(EngineError, TimeoutError):
    """No answer before the deadline."""

    code = "hung"


class CompileTimeout(BackendHung):
    """No answer before the deadline while compiling."""

    code = "compile-timeout"


class EngineOutOfMemory(EngineError, MemoryError):
    """More memory than the limit, or than there is."""

    code = "out-of-memory"


class EngineGarbage(EngineError):
    """An answer that the contract does not allow."""

    code = "garbage"


class EngineRaised(EngineError):
    """An exception of the engine's own."""

    code = "raised"


class IsolationError(FusewireError, RuntimeError):
    """No child process can be used here; this is not the engine's fault."""


class FallbackWarning(UserWarning):
    """Part of a program runs on the reference."""


class ExtensionWarning(UserWarning):
    """An extension did not start; its backend runs without it."""


class MiscompileWarning(UserWarning):
    """A program gave a wrong answer and no longer runs that plan."""


class StoreWarning(UserWarning):
    """The cache cannot be used; everything works without it."""


class BundleWarning(UserWarning):
    """A bundle is not used as it is: it does not fit this machine, or nobody vouches for it."""


_PACKAGE = str(Path(__file__).parent)
_LIBRARY = str(Path(warnings.__file__).parent)


# Set in work that no line of the user's code led to: it logs, and warns nobody.
IS_IN_BACKGROUND = ContextVar("IS_IN_BACKGROUND", default=False)


def warn_outside(message: str, category: type[Warning] = FallbackWarning) -> None:
    """Log a warning, and warn at the line of the user's code that led to it, if any did."""
    is_heard = not IS_IN_BACKGROUND.get()
    # Without a handler, logging would print it beside what `warnings` prints.
    if not is_heard or _has_log():
        note(message, is_warning=True)
    if not is_heard:
        return
    depth, frame = 2, sys._getframe(0).f_back
    while frame is not None and _is_ours(frame.f_code.co_filename):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, category, stacklevel=depth)


def _has_log() -> bool:
    """Tell whether somebody has set up a handler for the logs of this package."""
    logging = sys.modules.get("logging")
    return logging is not None and bool(logging.getLogger("fusewire").hasHandlers())


def _is_ours(filename: str) -> bool:
    """Tell whether code is of this package, or of the standard library between parts of it."""
    if filename.startswith((_PACKAGE, "<frozen")):
        return True
    return filename.startswith(_LIBRARY) and "-packages" not in filename


def install_advice(extra: str) -> str:
    """Write the command that installs the packages of an extra.

    It names them as the metadata of what is installed does, and not the extra: a checkout, a wheel
    and a release need the same ones, and nobody asks an index for Fusewire, or gets another one.
    """
    from importlib import metadata

    try:
        lines = metadata.requires("fusewire") or []
    except metadata.PackageNotFoundError:
        lines = []
    named = re.compile(rf"""\s*(?:;|\sand)\s+extra\s*==\s*["']{re.escape(extra)}["']$""")
    packages = [named.sub("", line) for line in lines if named.search(line)]
    if not packages:
        return f'Run: pip install ".[{extra}]" in a checkout of Fusewire'
    return " ".join(["Run: pip install", *map('"{}"'.format, packages)])


def note(message: str, *, is_warning: bool = False) -> None:
    """Log what happens, to the logger "fusewire": long work, fallbacks, refusals, quarantine."""
    # Most programs have nothing to say, and importing it takes a millisecond.
    import logging

    level = logging.WARNING if is_warning else logging.INFO
    logging.getLogger("fusewire").log(level, "%s", visible(message))
