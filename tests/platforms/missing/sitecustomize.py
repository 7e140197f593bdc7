"""Take from this process, and from every child, what other operating systems do not have.

Python imports this module at its start because a test puts its folder on PYTHONPATH. The variable
FUSEWIRE_TEST_SYSTEM says which system to resemble. "bare" hides from everybody what Linux alone
has, and fcntl, resource, sysconf and /proc besides. "windows" also hides from Fusewire's own
modules what Windows has not: the standard library goes on as it does on Linux, because it would
not start a process otherwise. ``sys.platform`` stays "linux": code that calls Windows itself is
not run here.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import io
import mmap
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_SYSTEM = os.environ.get("FUSEWIRE_TEST_SYSTEM", "")
_MODULES = ("fcntl", "resource")
_LINUX_ONLY = (
    *("sched_getaffinity", "sched_setaffinity", "sched_getscheduler", "sched_setscheduler"),
    *("sysconf", "memfd_create", "pidfd_open", "preadv", "process_cpu_count", "O_PATH"),
)
_CALLS = ("syscall", "prctl", "madvise")
_OPENING = ("open", "stat", "lstat", "listdir", "scandir", "readlink", "access")
_NOT_ON_WINDOWS: dict[ModuleType, tuple[str, ...]] = {
    os: (
        *("fork", "register_at_fork", "killpg", "setsid", "setpgid", "getpgid", "nice"),
        *("getuid", "geteuid", "getgid", "getegid", "getloadavg", "uname", "statvfs", "mkfifo"),
        *("readv", "writev", "pread", "pwrite", "waitid", "WNOHANG", "WEXITED", "WNOWAIT", "P_PID"),
        *("O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "O_ASYNC", "set_blocking"),
        *("fchmod", "fchown", "chown", "lchown", "getpriority", "setpriority", "sendfile"),
    ),
    select: ("poll", "epoll", "POLLIN", "POLLOUT", "POLLHUP"),
    signal: ("SIGKILL", "SIGHUP", "SIGQUIT", "SIGSTOP", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGURG"),
    mmap: ("PROT_READ", "PROT_WRITE", "MAP_PRIVATE", "MAP_SHARED", "MADV_REMOVE", "MADV_DONTNEED"),
}
_SUPPORTED = ("supports_dir_fd", "supports_fd", "supports_follow_symlinks")


def _without_proc(real: Callable[..., Any]) -> Callable[..., Any]:
    def refusing(path: Any = ".", *given: Any, **named: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return real(path, *given, **named)

    return refusing


class _PoorLibrary(ctypes.CDLL):
    """The C library without calls that Linux alone has."""

    def __getattr__(self, name: str) -> Any:
        if name in _CALLS:
            raise AttributeError(name)
        return super().__getattr__(name)


def _make_bare() -> None:
    for name in _MODULES:
        vars(sys)["modules"][name] = None
    for name in _LINUX_ONLY:
        vars(os).pop(name, None)
    for name in _OPENING:
        vars(os)[name] = _without_proc(vars(os)[name])
    # What os can do with a function is said of the function itself.
    for name in _SUPPORTED:
        for function in _OPENING:
            real = vars(os)[function].__closure__[0].cell_contents
            if real in vars(os)[name]:
                vars(os)[name].add(vars(os)[function])
    vars(builtins)["open"] = vars(io)["open"] = _without_proc(open)
    vars(ctypes)["CDLL"] = _PoorLibrary


def _make_windows() -> None:
    """Hand Fusewire's modules poorer copies of some modules."""
    poor = {}
    for module, names in _NOT_ON_WINDOWS.items():
        copy = ModuleType(module.__name__)
        vars(copy).update({x: y for x, y in vars(module).items() if x not in names})
        poor[module.__name__] = copy
    for name in _SUPPORTED:
        vars(poor["os"])[name] = set()
    real = builtins.__import__

    def importing(name: str, scope: Any = None, *given: Any, **named: Any) -> Any:
        is_ours = str((scope or {}).get("__name__", "")).split(".")[0] == "fusewire"
        return poor[name] if is_ours and name in poor else real(name, scope, *given, **named)

    vars(builtins)["__import__"] = importing


if _SYSTEM:
    _make_bare()
    if _SYSTEM == "windows":
        _make_windows()
    with Path(os.environ["FUSEWIRE_TEST_LOG"]).open("a") as _log:
        _log.write(f"{os.getpid()} {' '.join(sys.orig_argv).splitlines()[0]}\n")
