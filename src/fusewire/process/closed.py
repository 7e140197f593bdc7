"""Close a child process: it reads the interpreter and its packages, and reaches nothing else.

``begin`` runs first of all in a child, before NumPy is imported, because NumPy starts threads and
Landlock restricts only the calling thread and what it starts. ``finish`` runs when the backend is
imported: from then on the whole process starts no program and opens no socket. The descriptors
that it holds, its pipes and shared memory, stay usable.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from fusewire.process.confinement import Closing
from fusewire.process.sandbox import (
    DEVICE,
    EXECUTE,
    NAME_ONLY,
    READ,
    READ_ANY_OWNERS,
    READ_DIR,
    READ_FILE,
    WRITE,
    WRITE_FILE,
    PathRule,
    confine_files,
    filter_calls,
    give_up_privileges,
    has_seccomp,
    landlock_version,
    machine,
)
from fusewire.system.processes import limit_for_good

FILE_BYTES = 4 << 30

# Libraries, drivers and their data. Nothing in them belongs to a user.
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/lib32",
    "/opt/rocm",
    "/opt/intel",
    "/nix/store",
    "/gnu/store",
)
_SETTINGS = (
    *(
        "/etc/ld.so.cache",
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d",
        "/etc/localtime",
        "/etc/timezone",
    ),
    *("/etc/vulkan", "/etc/OpenCL", "/etc/glvnd", "/etc/drirc", "/etc/alternatives"),
    *("/run/opengl-driver", "/etc/os-release", "/etc/nsswitch.conf"),
)
# Facts about the machine; of the processes it sees itself alone.
_FACTS = (
    *(
        "cpuinfo",
        "meminfo",
        "stat",
        "version",
        "filesystems",
        "loadavg",
        "sys",
        "driver",
        "devices",
    ),
)
_HARDWARE = ("devices", "class", "bus", "dev", "fs/cgroup", "kernel/mm", "module")
_PLAIN_DEVICES = ("null", "zero", "full", "random", "urandom")
# Drivers of GPUs and other accelerators are reached through these, where there are any.
_GPUS = ("dri", "nvidia*", "kfd", "mali*", "accel", "dxg", "udmabuf")
_PACKAGES = ("site-packages", "dist-packages")
_CODE = (".py", ".pyc", ".so", ".pth", ".egg", ".egg-link", ".dist-info", ".egg-info")
_MODULES = (".py", ".pyc", ".so")
_MANY, _DEEPEST = 1000, 1

_closing: Closing = "open"
_programs: tuple[str, ...] = ()
# Held so that the kernel's object for this folder, on which a rule stands, is not replaced.
_own_facts = -1


def begin(closing: Closing, scratch: str, programs: Sequence[str] = ()) -> None:
    """Restrict files, capabilities and limits; to be called while there is one thread."""
    global _closing, _own_facts, _programs
    limit_for_good("RLIMIT_CORE", 0)
    if closing == "open":
        return
    limit_for_good("RLIMIT_FSIZE", FILE_BYTES)
    sys.dont_write_bytecode = True
    if machine() is None:
        return
    _closing, _programs = closing, tuple(programs)
    with suppress(OSError):
        _own_facts = os.open("/proc/self", NAME_ONLY)
    # Found first: the rules name what this process can see now.
    rules = [*readable(), PathRule(scratch, READ | WRITE)]
    if closing == "compile":
        found = (shutil.which(program) or program for program in programs)
        rules += [PathRule(path, EXECUTE) for path in (*found, *loaders())]
    give_up_privileges(READ_ANY_OWNERS if _are_hidden(sys.path) else 0)
    # Before ``finish``, a child that runs may execute: its backend may start helpers of its own.
    confine_files(rules, ~0 if closing == "compile" else ~EXECUTE)


def _are_hidden(folders: Sequence[str]) -> bool:
    """Tell whether root reads modules only by its privileges: with sudo, from a user's home."""
    if sys.platform == "win32" or os.geteuid():
        return False
    for folder in folders:
        for place in (Path(folder).absolute(), *Path(folder).absolute().parents):
            with suppress(OSError):
                about = place.stat()
                if about.st_uid and not about.st_mode & 0o001:
                    return True
    return False


def missing_programs(declared: Sequence[str]) -> bool:
    """Tell whether this process is closed to programs that a backend declares."""
    return _closing != "open" and not set(declared) <= set(_programs)


def finish() -> None:
    """Refuse system calls that an engine has no need of; in all threads, for good."""
    if _closing != "open":
        filter_calls(_closing == "compile")


def readable() -> Iterator[PathRule]:
    """List what a closed child may read, and which devices it may use."""
    paths = sysconfig.get_paths()
    whole = {
        sys.prefix,
        sys.base_prefix,
        paths["stdlib"],
        paths["platstdlib"],
        *_SYSTEM,
        *_SETTINGS,
    }
    whole |= {f"/proc/{name}" for name in ("self", *_FACTS)}
    whole |= {f"/sys/{name}" for name in _HARDWARE}
    private = _private_folders()
    listed = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    whole |= {entry for entry in listed if Path(entry).absolute() not in private}
    for path in sorted(whole):
        yield PathRule(path, READ)
    yield from _modules(whole)
    for name in _PLAIN_DEVICES:
        yield PathRule(f"/dev/{name}", READ_FILE | WRITE_FILE)
    for pattern in _GPUS:
        for found in Path("/dev").glob(pattern):
            yield PathRule(str(found), DEVICE)


def _private_folders() -> list[Path]:
    """List the user's home, and the folders above it."""
    home = Path(os.environ.get("HOME", "/")).absolute()
    return [home, *home.parents, Path("/")]


def _modules(known: set[str]) -> Iterator[PathRule]:
    """List the folders of modules; of those that users keep files in, only what is code."""
    home, *above = _private_folders()
    for entry in dict.fromkeys((*sys.path, *_editable())):
        path = Path(entry or ".").absolute()
        # The path may name folders that do not exist, or that this user may not see.
        with suppress(OSError):
            if path.name in _PACKAGES:
                yield PathRule(str(path), READ)
                yield from _linked(path)
            elif path.is_file():
                yield PathRule(str(path), READ)
            elif path not in above and not _is_in(path, known):
                yield from _code(path, 0 if path == home else _DEEPEST)


def _linked(packages: Path) -> Iterator[PathRule]:
    """List packages that are links to elsewhere: a rule is about files, not about their names."""
    with os.scandir(packages) as items:
        for item in items:
            if item.is_symlink():
                yield PathRule(os.path.realpath(item.path), READ)


def _is_in(path: Path, folders: Iterable[str]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _code(folder: Path, deepest: int) -> Iterator[PathRule]:
    """List modules, and folders with modules; other folders are searched for them."""
    # Names in it, at any depth, can be listed, as imports do.
    yield PathRule(str(folder), READ_DIR)
    with os.scandir(folder) as entries:
        items = list(itertools.islice(entries, _MANY))
    for item in items:
        if item.name.endswith(_CODE):
            yield PathRule(item.path, READ)
        elif item.name.isidentifier() and item.is_dir():
            with suppress(OSError):
                if _has_module(item.path):
                    yield PathRule(item.path, READ)
                elif deepest:
                    yield from _code(Path(item.path), deepest - 1)


def _has_module(folder: str) -> bool:
    with os.scandir(folder) as entries:
        return any(x.name.endswith(_MODULES) for x in itertools.islice(entries, _MANY))


def _editable() -> Iterator[str]:
    """List folders that editable installations import from, which are not on the path."""
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            for folder in getattr(module, "MAPPING", {}).values():
                yield str(Path(folder).parent)


def loaders() -> Iterator[str]:
    """List the loaders of programs, which the kernel executes before them."""
    for folder in ("/lib", "/lib64"):
        yield from (str(path) for path in Path(folder).glob("ld-*.so*"))
        yield from (str(path) for path in Path(folder).glob("*/ld-*.so*"))


def weaknesses() -> list[str]:
    """Say in sentences what a child is not closed against on this machine."""
    if os.environ.get("FUSEWIRE_CHILDREN") == "open":
        return ["FUSEWIRE_CHILDREN=open: engines in child processes may do all that you may."]
    if sys.platform != "linux":
        return [
            f"Child processes are closed on Linux only, and this is {sys.platform}: engines may "
            "do all that you may."
        ]
    if machine() is None:
        return [
            "Child processes are closed on x86_64 and aarch64 only: engines may do all you may."
        ]
    found = []
    version = landlock_version()
    if not version:
        found.append("This kernel has no Landlock: engines may read and write all your files.")
    elif version < 3:
        found.append(f"Landlock {version} does not stop engines from truncating files (Linux 6.2).")
    if not has_seccomp():
        found.append(
            "This kernel has no seccomp filters: engines may open sockets and run programs."
        )
    return found
