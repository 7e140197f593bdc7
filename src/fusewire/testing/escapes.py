"""A backend that tries to get out of its process: attempts by raw system call, all when it runs.

Each attempt is harmless where it succeeds, and works for any user in a process that is not closed.
The run's output has a number for each attempt, in the order of ``ATTEMPTS``: negative if the kernel
refused, as system calls answer. The configuration names the targets; ``outside`` makes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np

from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Fact,
    Gap,
    Held,
    Into,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.region import claim_by_table, edge_slots
from fusewire.dtypes import int64
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.elementwise import add
from fusewire.process.confinement import Closing
from fusewire.process.isolate import first_contact
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import ChildPool

assert sys.platform == "linux", "children are closed on Linux only"

REFERENCE = "fusewire.testing.escapes:EscapeBackend"
_COLUMN = 1 if platform.machine() == "aarch64" else 0
# x86_64, aarch64.
_NUMBERS = {
    "openat": (257, 56),
    "openat2": (437, 437),
    "truncate": (76, 45),
    "unlinkat": (263, 35),
    "renameat2": (316, 276),
    "mkdirat": (258, 34),
    "symlinkat": (266, 36),
    "linkat": (265, 37),
    "fchmodat": (268, 53),
    "fchownat": (260, 54),
    "utimensat": (280, 88),
    "mknodat": (259, 33),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "pidfd_open": (434, 434),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "fcntl": (72, 25),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    "wait4": (61, 260),
    "socket": (41, 198),
    "connect": (42, 203),
    "sendto": (44, 206),
    "bind": (49, 200),
    "unshare": (272, 97),
    "io_uring_setup": (425, 425),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "shmget": (29, 194),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "memfd_create": (319, 279),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "name_to_handle_at": (303, 264),
    "personality": (135, 92),
    "pwrite64": (18, 68),
    "mmap": (9, 222),
}
_HERE = -100
_REMOVE_FOLDER = 0x200
_EMPTY_PATH = 0x1000
_NEW_USER = 0x10000000
_FORKS = 64
_FAR = 16 << 30
_PIECE, _ENOUGH = 1 << 26, 3 << 30
_MOST_MEMORY = 1 << 30
ALLOCATE = "allocate without end"
TOKEN = "ESCAPES_TOKEN"
Targets = Mapping[str, Fact]


def raw(name: str, *arguments: object) -> int:
    """Make a system call; a failure is the negative error number."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    given = [ctypes.c_long(x) if isinstance(x, int) else x for x in arguments]
    result = int(call(ctypes.c_long(_NUMBERS[name][_COLUMN]), *given))
    return result if result >= 0 else -ctypes.get_errno()


def _closed(descriptor: int) -> int:
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor


def _open(path: str, flags: int) -> int:
    return _closed(raw("openat", _HERE, path.encode(), flags, 0o600))


def _path(targets: Targets, name: str) -> bytes:
    return os.fsencode(Path(str(targets["folder"]), name))


def _parent_file(name: str) -> Callable[[Targets], int]:
    return lambda targets: _open(f"/proc/{targets['parent']}/{name}", os.O_RDONLY)


def _file(name: str, flags: int) -> Callable[[Targets], int]:
    return lambda targets: _open(os.fsdecode(_path(targets, name)), flags)


def _openat2(targets: Targets) -> int:
    how = struct.pack("=QQQ", os.O_RDONLY, 0, 0)
    return _closed(raw("openat2", _HERE, _path(targets, "secret"), how, len(how)))


def _chown(targets: Targets) -> int:
    return raw("fchownat", _HERE, _path(targets, "secret"), os.getuid(), os.getgid(), 0)


def _memory_of(call: str) -> Callable[[Targets], int]:
    """Read or write 8 bytes of the parent, where it has a buffer for it."""

    def attempt(targets: Targets) -> int:
        kept = ctypes.create_string_buffer(8)
        own = struct.pack("=QQ", ctypes.addressof(kept), 8)
        theirs = struct.pack("=QQ", int(str(targets["address"])), 8)
        return raw(call, int(str(targets["parent"])), own, 1, theirs, 1, 0)

    return attempt


def _trace(targets: Targets) -> int:
    seize = 0x4206
    return raw("ptrace", seize, int(str(targets["sleeper"])), 0, 0)


def _signal(call: str) -> Callable[[Targets], int]:
    def attempt(targets: Targets) -> int:
        parent = int(str(targets["parent"]))
        if call == "kill":
            return raw(call, parent, signal.SIGURG)
        if call == "tgkill":
            return raw(call, parent, parent, signal.SIGURG)
        info = struct.pack("=iiii", signal.SIGURG, 0, -1, 0) + bytes(112)
        return raw(call, parent, signal.SIGURG, info)

    return attempt


def _signal_by_pipe(targets: Targets) -> int:
    """Have the kernel signal the parent when a pipe of ours changes."""
    reading, writing = os.pipe()
    try:
        set_owner = 8
        return raw("fcntl", reading, set_owner, int(str(targets["parent"])))
    finally:
        os.close(reading)
        os.close(writing)


def _limit(targets: Targets) -> int:
    core = 4
    kept = struct.pack("=QQ", 0, 0)
    return raw("prlimit64", int(str(targets["sleeper"])), core, kept, 0)


def _pin(targets: Targets) -> int:
    mask = struct.pack("=Q", 1)
    return raw("sched_setaffinity", int(str(targets["sleeper"])), 8, mask)


def _schedule(targets: Targets) -> int:
    batch = 3
    return raw("sched_setscheduler", int(str(targets["sleeper"])), batch, bytes(4))


def _fork() -> int:
    pid = raw("clone", signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid


def _reaped(pid: int) -> int:
    if pid > 0:
        raw("wait4", pid, None, 0, None)
    return pid


def _fork_bomb(targets: Targets) -> int:
    """Count the processes that could be started."""
    started = [pid for _ in range(_FORKS) if (pid := _fork()) > 0]
    for pid in started:
        _reaped(pid)
    return len(started) or -1


def _clone3(targets: Targets) -> int:
    about = struct.pack("=QQQQQQQQ", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    pid = raw("clone3", about, len(about))
    if pid == 0:
        os._exit(0)
    return _reaped(pid)


def _executed(execute: Callable[[], int]) -> int:
    """Execute in a fork, or where there is no forking, at once: success then ends this process."""
    pid = raw("clone", signal.SIGCHLD, 0, 0, 0, 0)
    if pid < 0:
        return execute()
    if pid == 0:
        execute()
        os._exit(1)
    status = ctypes.c_int()
    raw("wait4", pid, ctypes.byref(status), 0, None)
    return -1 if status.value else 0


def _strings(*texts: bytes) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(texts) + 1))(*texts, None)


def _execute(targets: Targets) -> int:
    program = str(targets["program"]).encode()
    return _executed(lambda: raw("execve", program, _strings(program), _strings()))


def _execute_memory(targets: Targets) -> int:
    """Execute a program that is nowhere on the disk."""
    descriptor = raw("memfd_create", b"program", 0)
    if descriptor < 0:
        return descriptor
    os.write(descriptor, Path(str(targets["program"])).read_bytes())
    arguments = _strings(b"program")

    def execute() -> int:
        return raw("execveat", descriptor, b"", arguments, _strings(), _EMPTY_PATH)

    try:
        return _executed(execute)
    finally:
        os.close(descriptor)


def _address(kind: str, targets: Targets) -> bytes:
    if kind == "unix":
        return struct.pack("=H", socket.AF_UNIX) + _path(targets, "socket") + b"\0"
    if kind == "abstract":
        return struct.pack("=H", socket.AF_UNIX) + b"\0" + str(targets["abstract"]).encode()
    port = 0 if kind == "any" else int(str(targets["port"]))
    return (
        struct.pack("=H", socket.AF_INET)
        + struct.pack("!H", port)
        + bytes((127, 0, 0, 1))
        + bytes(8)
    )


def _socket(family: int, kind: int, call: str, address: str) -> Callable[[Targets], int]:
    def attempt(targets: Targets) -> int:
        descriptor = raw("socket", family, kind, 0)
        if descriptor < 0:
            return descriptor
        try:
            where = _address(address, targets)
            if call == "sendto":
                return raw(call, descriptor, b"secret", 6, 0, where, len(where))
            return raw(call, descriptor, where, len(where))
        finally:
            os.close(descriptor)

    return attempt


def _namespace(targets: Targets) -> int:
    """Become root of a namespace of our own; in a fork, because a process with threads cannot."""
    pid = raw("clone", _NEW_USER | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return _reaped(pid)


def _segment(targets: Targets) -> int:
    """Make shared memory that outlives this process."""
    create, remove = 0o1600, 0
    made = raw("shmget", 0, 4096, create)
    if made >= 0:
        raw("shmctl", made, remove, None)
    return made


def _queue(targets: Targets) -> int:
    create, remove = 0o1600, 0
    made = raw("msgget", 0, create)
    if made >= 0:
        raw("msgctl", made, remove, None)
    return made


def _watch(targets: Targets) -> int:
    descriptor = raw("inotify_init1", 0)
    if descriptor < 0:
        return descriptor
    try:
        every = 0xFFF
        return raw("inotify_add_watch", descriptor, _path(targets, "."), every)
    finally:
        os.close(descriptor)


def _handle(targets: Targets) -> int:
    about = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    return raw("name_to_handle_at", _HERE, _path(targets, "secret"), about, ctypes.byref(mount), 0)


def _secret(targets: Targets) -> int:
    """Look for a variable that the parent has."""
    descriptor = raw("openat", _HERE, b"/proc/self/environ", os.O_RDONLY, 0)
    with os.fdopen(descriptor, "rb") as file:
        return 0 if TOKEN.encode() in file.read() else -1


def _allocate() -> int:
    """Take memory without end; where nothing stops it, some GiB are enough to show that."""
    pieces = 0
    while pieces * _PIECE < _ENOUGH:
        # Readable and writable, private and anonymous.
        address = raw("mmap", 0, _PIECE, 3, 0x22, -1, 0)
        if address < 0:
            return address
        ctypes.memset(address, 1, _PIECE)
        pieces += 1
    return pieces


def _huge_file(targets: Targets) -> int:
    """Make a file beyond all limits, in the folder that we may write to."""
    with tempfile.TemporaryFile() as file:
        return raw("pwrite64", file.fileno(), b"x", 1, _FAR)


ATTEMPTS: dict[str, Callable[[Targets], int]] = {
    "read a file": _file("secret", os.O_RDONLY),
    "read a file by openat2": _openat2,
    "read the key of the cache": _file("cache/key", os.O_RDONLY),
    "read a private key in the home folder": _file("home/.ssh/id", os.O_RDONLY),
    "list a folder": _file("home", os.O_RDONLY | os.O_DIRECTORY),
    "write to the cache": _file("cache/entry", os.O_WRONLY | os.O_CREAT),
    "append to a file": _file("home/.profile", os.O_WRONLY | os.O_APPEND),
    "truncate a file": lambda t: raw("truncate", _path(t, "truncated"), 0),
    "remove a file": lambda t: raw("unlinkat", _HERE, _path(t, "removed"), 0),
    "remove a folder": lambda t: raw("unlinkat", _HERE, _path(t, "empty"), _REMOVE_FOLDER),
    "rename a file": lambda t: raw(
        "renameat2", _HERE, _path(t, "renamed"), _HERE, _path(t, "other"), 0
    ),
    "make a folder": lambda t: raw("mkdirat", _HERE, _path(t, "made"), 0o700),
    "make a symbolic link": lambda t: raw("symlinkat", b"/etc", _HERE, _path(t, "symbolic")),
    "make a hard link": lambda t: raw(
        "linkat", _HERE, _path(t, "secret"), _HERE, _path(t, "hard"), 0
    ),
    "make a named pipe": lambda t: raw("mknodat", _HERE, _path(t, "pipe"), 0o010600, 0),
    "change the mode of a file": lambda t: raw("fchmodat", _HERE, _path(t, "secret"), 0o644),
    "change the owner of a file": _chown,
    "change the times of a file": lambda t: raw("utimensat", _HERE, _path(t, "secret"), None, 0),
    "get a handle of a file": _handle,
    "watch a folder": _watch,
    "write shared memory by name": lambda t: _open(str(t["shared"]), os.O_RDWR | os.O_CREAT),
    "write 16 GiB to its own folder": _huge_file,
    "open the parent's memory": _parent_file("mem"),
    "open the parent's environment": _parent_file("environ"),
    "open a file through the parent's root": lambda t: _open(
        f"/proc/{t['parent']}/root{t['folder']}/secret", os.O_RDONLY
    ),
    "read the parent's memory": _memory_of("process_vm_readv"),
    "write the parent's memory": _memory_of("process_vm_writev"),
    "get a descriptor of the parent": lambda t: _closed(
        raw("pidfd_open", int(str(t["parent"])), 0)
    ),
    "signal the parent": _signal("kill"),
    "signal a thread of the parent": _signal("tgkill"),
    "queue a signal for the parent": _signal("rt_sigqueueinfo"),
    "signal the parent through a pipe": _signal_by_pipe,
    "trace another process": _trace,
    "limit another process": _limit,
    "pin another process to a core": _pin,
    "schedule another process": _schedule,
    "slow another process": lambda t: raw("setpriority", 0, int(str(t["sleeper"])), 19),
    "slow the disk of another process": lambda t: raw(
        "ioprio_set", 1, int(str(t["sleeper"])), 3 << 13
    ),
    "fork": lambda t: _reaped(_fork()),
    "fork by clone3": _clone3,
    "fork 64 times": _fork_bomb,
    "become root of a namespace": _namespace,
    "execute a program": _execute,
    "execute a program from memory": _execute_memory,
    "connect by TCP": _socket(socket.AF_INET, socket.SOCK_STREAM, "connect", "port"),
    "listen by TCP": _socket(socket.AF_INET, socket.SOCK_STREAM, "bind", "any"),
    "send by UDP": _socket(socket.AF_INET, socket.SOCK_DGRAM, "sendto", "port"),
    "connect to a Unix socket": _socket(socket.AF_UNIX, socket.SOCK_STREAM, "connect", "unix"),
    "connect to an abstract socket": _socket(
        socket.AF_UNIX, socket.SOCK_STREAM, "connect", "abstract"
    ),
    "ask the kernel by netlink": lambda t: _closed(raw("socket", socket.AF_NETLINK, 3, 0)),
    "use io_uring": lambda t: _closed(raw("io_uring_setup", 1, bytes(120))),
    "handle page faults": lambda t: _closed(raw("userfaultfd", 1)),
    "add a key to the kernel": lambda t: raw("add_key", b"user", b"fusewire", b"x", 1, -3),
    "make shared memory that stays": _segment,
    "make a queue that stays": _queue,
    "make memory that is not counted": lambda t: _closed(raw("memfd_create", b"x", 0)),
    "read a variable of the parent": _secret,
    "change how programs are loaded": lambda t: raw("personality", 0x0040000),
}


@contextlib.contextmanager
def outside() -> Iterator[dict[str, Fact]]:
    """Make what the attempts are aimed at, in this process, and name it."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outside-")))
        for name in ("cache", "home/.ssh", "empty"):
            (folder / name).mkdir(parents=True)
        files = ("secret", "cache/key", "home/.ssh/id", "home/.profile")
        for name in (*files, "truncated", "removed", "renamed"):
            (folder / name).write_text("secret")
        port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        abstract = f"fusewire-{os.getpid()}"
        for address in (str(folder / "socket"), f"\0{abstract}"):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        stack.callback(sleeper.wait)
        stack.callback(sleeper.kill)
        shared = Path("/dev/shm", abstract)
        stack.callback(shared.unlink, missing_ok=True)
        os.environ[TOKEN] = "secret"
        stack.callback(os.environ.pop, TOKEN)
        kept = ctypes.create_string_buffer(8)
        yield {
            "folder": str(folder),
            "port": port,
            "abstract": abstract,
            "shared": str(shared),
            "parent": os.getpid(),
            "address": str(ctypes.addressof(kept)),
            "sleeper": sleeper.pid,
            "program": str(Path("/bin/true").resolve()),
        }


@final
class EscapeExecutable(Executable):
    """Tries everything once."""

    is_reentrant = False

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Make all attempts; the input is as long as their list."""
        if "allocate" in self._targets:
            return [np.full(len(ATTEMPTS), _allocate(), np.int64)]
        return [np.array([try_(self._targets) for try_ in ATTEMPTS.values()], np.int64)]


@final
class EscapeBackend(Backend):
    """Takes any graph, and runs attempts instead."""

    info = BackendInfo("escapes", "1", "Tries to get out of its process.", "Fusewire")
    gaps: Sequence[Gap] = ()
    exchange = Exchange()

    def probe(self) -> list[Device | Unavailable]:
        """The host."""
        return [Device("cpu", "escapes")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Take all of it."""
        return claim_by_table(graph, lambda node: None)

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Keep the targets."""
        return Artifact("rebuild", b"", tuple(edge_slots(region)), launch=config.options)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Aim."""
        return EscapeExecutable(artifact.launch)


def attempts(closing: Closing) -> dict[str, int | str]:
    """Make all attempts in children of this process; a text says how a child ended."""
    x = Value(TensorType(int64, (len(ATTEMPTS),)), "x")
    region = Graph([x], [add(x, x)])
    device, given = Device("cpu", "escapes"), [np.zeros(len(ATTEMPTS), np.int64)]
    # What stops a child that allocates is its limit, which the control does not have.
    limits = ChildLimits(240.0, None if closing == "open" else _MOST_MEMORY)
    answers: dict[str, int | str] = {}
    with outside() as targets, ChildPool(closing=closing) as pool:
        found = first_contact(
            REFERENCE, region, device, Config(options=targets), given, limits, pool=pool
        )
        if isinstance(found, Refusal):
            raise RuntimeError(found.reason)
        (numbers,) = found.outputs
        assert isinstance(numbers, np.ndarray)
        answers |= dict(zip(ATTEMPTS, map(int, numbers), strict=True))
        endless = Config(options={"allocate": True})
        last = first_contact(REFERENCE, region, device, endless, given, limits, pool=pool)
        answers[ALLOCATE] = last.code if isinstance(last, Refusal) else 0
    return answers


def start_attempts(closing: Closing, user: int | None = None) -> subprocess.Popen[str]:
    """Start a process that makes all attempts and prints the answers; some aim at that process."""
    command = [sys.executable, "-m", "fusewire.testing.escapes", closing]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if user is None:
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
    command[0] = _interpreter_for(user) or command[0]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**variables, "HOME": "/nonexistent", "FUSEWIRE_CACHE": "off"},
        user=user,
        group=user,
        extra_groups=(),
        cwd="/",
    )


def _interpreter_for(user: int) -> str | None:
    """Find an interpreter of this version that a user may start: root's own may be hidden."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        with contextlib.suppress(OSError):
            tried = subprocess.run([path, "-c", ""], user=user, group=user, capture_output=True)
            if tried.returncode == 0:
                return path
    return None


def can_be(user: int) -> bool:
    """Tell whether attempts can be made as this user."""
    return os.getuid() == 0 and _interpreter_for(user) is not None


def is_refused(answer: int | str) -> bool:
    """Tell whether an attempt failed, or ended the child that made it."""
    return isinstance(answer, str) or answer < 0


if __name__ == "__main__":
    print(json.dumps(attempts("open" if sys.argv[1:] == ["open"] else "run")))
