"""What do hostile ONNX files do to whoever loads them?

    python benchmarks/hostile.py escapes
    python benchmarks/hostile.py floods [--apart]
    python benchmarks/hostile.py mutations --count 200000 --processes 2 [--zoo]
    python benchmarks/hostile.py opens --count 200

Escapes: external data that is outside the model's folder, or not what it seems. Floods: small
files that ask for more than any machine has, each with its time and memory; with --apart each in a
process of its own. Mutations: damaged files, loaded in processes that must neither die nor hang nor
raise what is not ours; --zoo adds two seeds that benchmarks/zoo/zoo.py must have fetched. Opens:
every file that a load opens, as strace saw it. The files are made by tests/onnx. All take
--json. Exit 1 if one was not withstood.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import ml_dtypes
import numpy as np
import onnx

from fusewire.errors import FusewireError
from fusewire.onnx.frontend import OnnxFrontend
from fusewire.onnx.read.model_file import open_model
from fusewire.rewrite.pipeline import run_pipeline
from tests.onnx import escapes, floods, mutations

MOST_SECONDS = 2.0
MOST_BYTES = 512 << 20
# A mutant hangs that takes longer: in time of its process, or without taking any.
PATIENCE, SILENCE = 20.0, 300.0
# No flood may come near this: it is there so that a failure does not take the machine down.
ADDRESSES = 16 << 30
START, END = "/fusewire-begins", "/fusewire-ends"
ZOO = ("mnist", "whisper-mel-stft")
LANE = ("first", "last", "step")

Row = dict[str, Any]


def escape_rows(folder: Path) -> Iterator[Row]:
    """Make every attack and see who refuses it."""
    for place, name in enumerate(escapes.ESCAPES):
        row: Row = {"name": name, "kind": "", "said": "", "problem": ""}
        try:
            read = escapes.attempt(name, escapes.Box(folder / str(place)))
            row["problem"] = f"read {read!r}"
        except FusewireError as error:
            row |= {"kind": type(error).__name__, "said": str(error)}
        except PermissionError as error:
            row["kind"] = f"not made: {error.strerror}"
        yield row


def flood_row(name: str) -> Row:
    """Load one flood in this process, and measure."""
    is_work = name in floods.WORK
    data = (floods.WORK if is_work else floods.OPEN)[name]()
    row: Row = {"name": name, "size": len(data), "stage": "", "said": "", "problem": ""}
    before, start, begun = _memory(most=False), time.process_time(), time.monotonic()
    try:
        if is_work:
            row["stage"] = "load"
            graph = OnnxFrontend().read(data)
            row["stage"] = "rewriting"
            run_pipeline(graph)
            row["stage"] = "none: the work is not done"
        else:
            row["stage"] = "opening"
            open_model(data)
            row["problem"] = "opened"
    except FusewireError as error:
        row["said"] = f"{_kind(error)}: {error}"
    except Exception as error:  # noqa: BLE001 # that there is none is what is measured
        row["problem"] = f"{type(error).__name__}: {error}"
    row["cpu_seconds"] = time.process_time() - start
    row["seconds"] = time.monotonic() - begun
    row["bytes"] = _memory() - before
    # Other work on the machine makes time pass; it takes no time of this process.
    if row["cpu_seconds"] > MOST_SECONDS:
        row["problem"] = row["problem"] or f"{row['cpu_seconds']:.1f} s"
    if row["bytes"] > MOST_BYTES:
        row["problem"] = row["problem"] or f"{row['bytes'] >> 20} MB"
    return row


def flood_rows(names: list[str], apart: bool) -> Iterator[Row]:
    """Load floods, one after the other in one child, or each in one of its own.

    One that took too long is loaded once more: a machine that others use may be late once.
    """
    for group in [[name] for name in names] if apart else [names]:
        for row in _flood_child(group):
            is_late = row.get("cpu_seconds", 0.0) > MOST_SECONDS
            yield _flood_child([row["name"]])[0] if is_late else row


def _flood_child(names: list[str]) -> list[Row]:
    command = [sys.executable, __file__, "floods", "--here", "--names", *names]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    rows = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    rows += [
        {"name": name, "problem": f"the process ended: {ran.returncode}"}
        for name in names[len(rows) :]
    ]
    return rows


def floods_here(names: list[str]) -> Iterator[Row]:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    # What is imported when it is first needed is no cost of a flood.
    run_pipeline(OnnxFrontend().read(floods.model([floods.node("Relu", ["x"], ["y"])])))
    for name in names:
        yield flood_row(name)


def _kind(error: Exception) -> str:
    kinds = (kind.__name__ for kind in type(error).__mro__)
    return next(name for name in kinds if not name.startswith("_"))


def _memory(most: bool = True) -> int:
    """Give what this process holds, or the most that it held since the last look at what it holds.

    The kernel's ru_maxrss would count the parent as it was when it started this process.
    """
    if not most:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def sources(zoo: bool) -> list[bytes]:
    """Give the seeds; the zoo's, when asked for, must have been fetched."""
    found = list(mutations.seeds().values())
    if zoo:
        sys.path.insert(0, str(Path(__file__).parent / "zoo"))
        import zoo as listed  # type: ignore[import-not-found] # found by the line above

        found += [listed.path(name).read_bytes() for name in ZOO]
    return found


def mutate_here(first: int, last: int, step: int, folder: Path, zoo: bool) -> Row:
    """Load mutants; after each, its number is where whoever watches can see it."""
    found = sources(zoo)
    outcomes: Counter[str] = Counter()
    problems: list[str] = []
    slowest = (0.0, -1)
    path = escapes.Box(folder / f"box{first}").folder / "model.onnx"
    with (folder / f"progress{first % step}").open("wb", buffering=0) as progress:
        for number in range(first, last, step):
            os.pwrite(progress.fileno(), f"{number:<20}".encode(), 0)
            path.write_bytes(mutations.mutant(found, number))
            start = time.process_time()
            try:
                outcomes[mutations.outcome(path)] += 1
            except Exception as error:  # noqa: BLE001 # that there is none is what is measured
                where = traceback.extract_tb(error.__traceback__)[-1]
                problems.append(f"{number}: {error!r} at {where.filename}:{where.lineno}")
            slowest = max(slowest, (time.process_time() - start, number))
    return {"outcomes": outcomes, "problems": problems, "slowest": slowest, "bytes": _memory()}


def mutate(count: int, processes: int, zoo: bool, first: int = 0) -> Row:
    """Watch processes that load mutants; one that dies or hangs is replaced after its mutant."""
    total: Row = {"outcomes": Counter(), "problems": [], "slowest": (0.0, -1), "bytes": 0}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        running = {
            lane: _worker(first + lane, first + count, processes, folder, zoo)
            for lane in range(processes)
        }
        seen: dict[int, tuple[str, float, float]] = {}
        while running:
            time.sleep(0.5)
            for lane, child in list(running.items()):
                at = _progress(folder, (first + lane) % processes)
                if lane not in seen or seen[lane][0] != at:
                    seen[lane] = at, _spent(child.pid), time.monotonic()
                _, spent, since = seen[lane]
                hangs = _spent(child.pid) - spent > PATIENCE or time.monotonic() - since > SILENCE
                if child.poll() is None and not hangs:
                    continue
                running.pop(lane)
                if not _finish(child, at, hangs, total):
                    start = int(at or first + lane) + processes
                    running[lane] = _worker(start, first + count, processes, folder, zoo)
                    seen.pop(lane)
    return total | {"count": count, "seconds": time.monotonic() - begun}


def _worker(first: int, last: int, step: int, folder: Path, zoo: bool) -> subprocess.Popen[str]:
    numbers = [f"--{key}={value}" for key, value in zip(LANE, (first, last, step), strict=True)]
    command = [sys.executable, __file__, "mutations", "--here", *numbers, f"--folder={folder}"]
    command += ["--zoo"] * zoo
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _spent(process: int) -> float:
    """Give the seconds that a process has computed; 0 when it is gone."""
    try:
        parts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def _progress(folder: Path, lane: int) -> str:
    path = folder / f"progress{lane}"
    return path.read_text().strip() if path.exists() else ""


def _finish(child: subprocess.Popen[str], at: str, hangs: bool, total: Row) -> bool:
    """Take what a worker found; tell whether it came to its end."""
    if hangs:
        child.kill()
    said, _ = child.communicate()
    if child.returncode:
        why = "hangs" if hangs else f"ended the process: {child.returncode}"
        total["problems"].append(f"{at}: {why}")
        return False
    found = json.loads(said)
    total["outcomes"].update(found["outcomes"])
    total["problems"] += found["problems"]
    total["slowest"] = max(total["slowest"], tuple(found["slowest"]))
    total["bytes"] = max(total["bytes"], found["bytes"])
    return True


def opens(count: int) -> Row:
    """Let strace list what loading hostile files opens, and find what is outside their folders."""
    with tempfile.TemporaryDirectory() as made:
        log = Path(made) / "strace.log"
        inner = [
            sys.executable,
            __file__,
            "opens",
            "--here",
            f"--count={count}",
            f"--folder={made}",
        ]
        names = "trace=open,openat,openat2,creat,execve,connect"
        traced = ["strace", "-f", "-o", str(log), "-e", names, *inner]
        ran = subprocess.run(traced, stdout=subprocess.PIPE, text=True, check=False)
        lines = log.read_text(errors="replace").splitlines()
        outside = sorted({line.split(maxsplit=1)[1] for line in _outside(lines, made)})
        traced_calls = sum(START not in line and "= -1" not in line for line in lines)
    problems = outside if ran.returncode == 0 else [*outside, f"ended: {ran.returncode}"]
    return {"files": ran.stdout.strip(), "calls": traced_calls, "problems": problems}


def _outside(lines: list[str], folder: str) -> Iterator[str]:
    inside = False
    for line in lines:
        if START in line or END in line:
            inside = START in line
        elif inside and (found := re.search(r'"((?:[^"\\]|\\.)*)"', line)):
            path = found[1]
            is_relative = "AT_FDCWD" not in line and not path.startswith("/")
            if ".." in path.split("/") or not (is_relative or path.startswith(folder)):
                yield line


def opens_here(count: int, folder: Path) -> int:
    """Load escapes and mutants between two marks that strace sees."""
    found = sources(zoo=False)
    path = escapes.Box(folder / "warm").folder / "model.onnx"
    for number, data in enumerate(found):
        path.write_bytes(data)
        mutations.outcome(path)
        path.write_bytes(mutations.mutant(found, number))
        mutations.outcome(path)
    boxes = [escapes.Box(folder / str(place)) for place in range(len(escapes.ESCAPES))]
    _mark(START)
    loaded = 0
    for box, name in zip(boxes, escapes.ESCAPES, strict=True):
        # A model that the user names is opened wherever it is.
        if name.startswith("model ") or "/" in name:
            continue
        loaded += 1
        with contextlib.suppress(FusewireError):
            escapes.attempt(name, box)
    for number in range(count):
        path.write_bytes(mutations.mutant(found, number))
        mutations.outcome(path)
    _mark(END)
    return loaded + count


def _mark(path: str) -> None:
    if Path(path).exists():
        raise SystemExit(f"{path} must not exist: it is a mark in the list of strace.")
    with contextlib.suppress(FileNotFoundError):
        os.close(os.open(path, os.O_RDONLY))


def versions() -> str:
    return (
        f"Python {platform.python_version()}, NumPy {np.__version__}, onnx {onnx.__version__}, "
        f"ml_dtypes {ml_dtypes.__version__}, Linux {platform.release()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}"
    )


def in_child(given: argparse.Namespace) -> None:
    """Do a part of the work in this process, and write what came of it."""
    if given.what == "floods":
        for row in floods_here(given.names):
            print(json.dumps(row), flush=True)
    elif given.what == "mutations":
        lane = (given.first, given.last, given.step)
        print(json.dumps(mutate_here(*lane, given.folder, given.zoo)))
    else:
        print(opens_here(given.count, given.folder))


def measure(given: argparse.Namespace) -> Row:
    if given.what == "escapes":
        with tempfile.TemporaryDirectory() as folder:
            rows = list(escape_rows(Path(folder)))
    elif given.what == "floods":
        rows = list(flood_rows(given.names or [*floods.OPEN, *floods.WORK], given.apart))
    elif given.what == "mutations":
        return mutate(given.count, given.processes, given.zoo, given.first)
    else:
        return opens(given.count)
    problems = [f"{row['name']}: {row['problem']}" for row in rows if row["problem"]]
    return {"rows": rows, "problems": problems}


def table(found: Row) -> Iterator[str]:
    """Write what was found as lines of Markdown."""
    rows = found.pop("rows", [])
    if rows:
        keys = list(rows[0])
        yield "| " + " | ".join(keys) + " |"
        yield "|---" * len(keys) + "|"
    for row in rows:
        yield "| " + " | ".join(_cell(key, row.get(key, "")) for key in row) + " |"
    for key, value in found.items():
        yield f"{key}: {value}"


def _cell(key: str, value: Any) -> str:
    if key == "bytes":
        return f"{value / 2**20:.0f} MB"
    if key.endswith("seconds"):
        return f"{value:.2f}"
    return str(value)[:100].replace("|", "/").replace("\n", " ")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["escapes", "floods", "mutations", "opens"])
    parser.add_argument("--names", nargs="*", default=[], help="of floods; all by default")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--zoo", action="store_true")
    parser.add_argument("--json", action="store_true")
    for name in LANE:
        parser.add_argument(f"--{name}", type=int, default=0, help="of mutants")
    for name in ("here", "folder"):
        kind: Any = {"action": "store_true"} if name == "here" else {"type": Path}
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS, **kind)
    given = parser.parse_args()
    if given.what == "opens" and shutil.which("strace") is None:
        raise SystemExit("This needs strace: apt-get install strace")
    if given.here:
        in_child(given)
        return 0
    found = measure(given) | {"versions": versions()}
    print(json.dumps(found, indent=1) if given.json else "\n".join(table(dict(found))))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
