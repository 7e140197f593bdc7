"""What the Linux kernel offers to confine a process: Landlock, seccomp, capabilities.

System calls through ctypes: their numbers and structures are the kernel's stable ABI, and no
library for them is as small. Landlock restricts the calling *thread* and what it starts, so it must
come before any other thread does (ABI 8 can reach all threads, and is asked to). seccomp reaches
all threads. A child process inherits both, and nothing takes them back.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fusewire.process.syscalls import CHECKED, MACHINES, OPEN, Numbers

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
READ = READ_FILE | READ_DIR
# Everything that creates, renames or removes, but no device files.
_CHANGE = sum(1 << bit for bit in (4, 5, 7, 8, 9, 10, 12))
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL
WRITE = WRITE_FILE | _CHANGE | _REFER | _TRUNCATE
DEVICE = READ | WRITE_FILE | _IOCTL
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ALL_TCP = 0b11
_ALL_SCOPES = 0b11
_RESTRICT_ALL_THREADS = 1 << 3

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_X32 = 0x40000000
_FILTER = 1
_TSYNC, _SPEC_ALLOW = 1 << 0, 1 << 2
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_EPERM, _ENOSYS = 1, 38
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

_NO_NEW_PRIVS, _CAPBSET_DROP, _CAP_AMBIENT, _CLEAR_ALL = 38, 24, 47, 4
_CAPABILITIES = 64
# Landlock still says what may be read.
READ_ANY_OWNERS = 1 << 2
_CAPABILITY_VERSION = 0x20080522

_CLONE_THREAD = 0x00010000
# The new namespaces, and CLONE_UNTRACED.
_CLONE_NEVER = 0x7E820000
# F_SETOWN, F_SETSIG, F_SETOWN_EX, F_NOTIFY: a descriptor that signals other processes. F_SETLEASE:
# whoever opens the file waits for up to 45 seconds.
_FCNTL_NEVER = (8, 10, 15, 1026, 1024)
# FIOSETOWN, SIOCSPGRP; TIOCSTI, TIOCSCTTY, TIOCLINUX; FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS,
# FS_IOC_FSSETXATTR, FS_IOC_SETVERSION, FS_IOC_ENABLE_VERITY.
_IOCTL_NEVER = (
    *(0x8901, 0x8902, 0x5412, 0x540E, 0x541C),
    *(0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40806685),
)

# Linux only: a descriptor that stands for a name, and reads nothing.
NAME_ONLY: int = getattr(os, "O_PATH", 0) | getattr(os, "O_CLOEXEC", 0)

Instruction = tuple[int, int, int, int]


class PathRule(NamedTuple):
    """Rights on a file, or on a folder and all that is in it."""

    path: str
    rights: int


def machine() -> str | None:
    """Return the machine's name if there is a table of system calls for it."""
    name = platform.machine() if sys.platform == "linux" else ""
    # A 32-bit interpreter on a 64-bit kernel has other numbers.
    is_known = name in MACHINES and sys.maxsize > 1 << 32
    return name if is_known and hasattr(_libc(), "syscall") else None


def landlock_version() -> int:
    """Return the kernel's version of Landlock; 0 if it has none."""
    return max(0, _call(_CREATE_RULESET, None, 0, 1)) if machine() else 0


def has_seccomp() -> bool:
    """Tell whether the kernel takes filters of system calls."""
    name = machine()
    action = ctypes.byref(ctypes.c_uint32(_ERRNO))
    return name is not None and _call(_SECCOMP[name], 2, 0, action) == 0


def give_up_privileges(kept: int = 0) -> None:
    """Drop all capabilities but ``kept`` for good, and gain none from a set-uid program."""
    libc = _libc()
    _checked(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    for capability in range(_CAPABILITIES):
        # Needs a capability itself, which an ordinary user does not have; nor those to drop.
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    name = machine()
    if name is not None:
        _checked(_call(_CAPSET[name], header, struct.pack("=6I", kept, kept, *[0] * 4)), "capset")


def confine_files(rules: Iterable[PathRule], handled: int = ~0) -> int:
    """Allow the calling thread these files alone, no TCP, and no signals to other processes.

    Returns the version of Landlock, 0 if there is none. ``handled`` limits which rights are
    restricted. Paths that do not exist are passed over.
    """
    version = landlock_version()
    if not version:
        return 0
    known = (1 << 13) - 1
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL)):
        known |= right if version >= since else 0
    handled &= known
    attributes = struct.pack(
        "=QQQ",
        handled,
        _ALL_TCP if version >= 4 else 0,
        _ALL_SCOPES if version >= 6 else 0,
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _checked(_call(_CREATE_RULESET, attributes, size, 0), "landlock_create_ruleset")
    try:
        for rule in rules:
            with suppress(FileNotFoundError, PermissionError, NotADirectoryError):
                _add(ruleset, rule, handled)
        flags = _RESTRICT_ALL_THREADS if version >= 8 else 0
        _checked(_call(_RESTRICT_SELF, ruleset, flags), "landlock_restrict_self")
    finally:
        os.close(ruleset)
    return version


def _add(ruleset: int, rule: PathRule, handled: int) -> None:
    place = os.open(rule.path, NAME_ONLY)
    try:
        rights = rule.rights & handled
        if not Path(rule.path).is_dir():
            rights &= _FILE_RIGHTS
        if rights:
            about = struct.pack("=Qi", rights, place)
            _checked(_call(_ADD_RULE, ruleset, 1, about, 0), f"landlock_add_rule {rule.path}")
    finally:
        os.close(place)


def filter_calls(starts_programs: bool = False) -> bool:
    """Refuse all threads of this process the system calls that are not listed.

    With ``starts_programs`` it may fork and execute; Landlock decides what. Returns False where
    the kernel has no filters.
    """
    name = machine()
    if name is None or not has_seccomp():
        return False
    program = b"".join(struct.pack("=HBBI", *x) for x in instructions(name, starts_programs))
    kept = ctypes.create_string_buffer(program, len(program))
    about = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(kept))
    # SPEC_ALLOW: older kernels otherwise slow speculation down, and timings would mislead.
    _checked(_call(_SECCOMP[name], _FILTER, _TSYNC | _SPEC_ALLOW, about), "seccomp")
    return True


def instructions(name: str, starts_programs: bool) -> list[Instruction]:
    """Write the filter as classic BPF; the tables say which calls it allows."""
    column = MACHINES.index(name)
    program: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _AUDIT[name]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    for checked, block in _checks(os.getpid(), starts_programs).items():
        if (number := _number(CHECKED, checked, column)) is not None:
            program += [(_EQUAL, 0, len(block), number), *block]
    for call in OPEN:
        if (number := _number(OPEN, call, column)) is not None:
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    return [*program, (_RETURN, 0, 0, _ERRNO | _EPERM)]


def _number(table: Numbers, call: str, column: int) -> int | None:
    return table[call][column]


def _checks(pid: int, starts_programs: bool) -> dict[str, list[Instruction]]:
    """Give for each checked call the instructions that decide it."""
    deny: Instruction = (_RETURN, 0, 0, _ERRNO | _EPERM)
    allow: Instruction = (_RETURN, 0, 0, _ALLOW)
    own = _if_low_word(0, [pid], allow, deny)
    # Threads of this process come after it; the parent came before.
    ours = [(_LOAD, 0, 0, _low(0)), (_EQUAL, 1, 0, 0), (_AT_LEAST, 0, 1, pid), allow, deny]
    # glibc uses clone where clone3 does not exist, and clone's flags can be read here.
    checks = {
        "clone3": [(_RETURN, 0, 0, _ERRNO | _ENOSYS)],
        "clone": _clone(allow, deny, starts_programs),
        "kill": own,
        "tgkill": own,
        "rt_sigqueueinfo": own,
        "rt_tgsigqueueinfo": own,
        "prlimit64": _if_low_word(0, [0, pid], allow, deny),
        "fcntl": _if_low_word(1, _FCNTL_NEVER, deny, allow),
        "ioctl": _if_low_word(1, _IOCTL_NEVER, deny, allow),
        # Of this thread alone: 0 is PRIO_PROCESS, and then the caller.
        "setpriority": [
            (_LOAD, 0, 0, _low(0)),
            (_EQUAL, 1, 0, 0),
            deny,
            *_if_low_word(1, [0], allow, deny),
        ],
        "sched_setaffinity": ours,
        "sched_setscheduler": ours,
        "sched_setparam": ours,
        "sched_setattr": ours,
    }
    if starts_programs:
        checks |= {name: [allow] for name in ("fork", "vfork", "execve")}
    return checks


def _clone(allow: Instruction, deny: Instruction, starts_programs: bool) -> list[Instruction]:
    block: list[Instruction] = [(_LOAD, 0, 0, _low(0)), (_ANY_BIT, 0, 1, _CLONE_NEVER), deny]
    return (
        [*block, allow]
        if starts_programs
        else [*block, (_ANY_BIT, 0, 1, _CLONE_THREAD), allow, deny]
    )


def _if_low_word(
    argument: int, words: Sequence[int], then: Instruction, otherwise: Instruction
) -> list[Instruction]:
    """Compare the low 32 bits of an argument, which is all that these calls read of it."""
    block: list[Instruction] = [(_LOAD, 0, 0, _low(argument))]
    for word in words:
        block += [(_EQUAL, 0, 1, word), then]
    return [*block, otherwise]


def _low(argument: int) -> int:
    # Both machines are little-endian.
    return 16 + 8 * argument


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    given = [ctypes.c_long(x) if isinstance(x, int) else x for x in arguments]
    return int(_libc().syscall(ctypes.c_long(number), *given))


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
