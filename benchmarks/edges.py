"""Do engines answer as NumPy does, at the edges of dtypes?

    python benchmarks/edges.py [--engines xla,webgpu] [--minutes 10] [--keep DIR] [--write FILE]

Each function (benchmarks/edges_numpy.py) is compiled for each engine, with the reference for what
the engine refuses, and called. An answer has the dtype and the shape of NumPy's, and its values
within a tolerance, signs of zeros included; or the function is refused in a sentence. Each engine
has a process of its own, which stops after --minutes. With --keep, what a run reports is kept there
and not run again. Exit 1 if an answer differs for no known reason.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import fusewire as fw
from benchmarks.conform import table
from fusewire.errors import FusewireError
from fusewire.registry import REGISTRY

RESULTS = Path(__file__).parent / "results" / "edges.md"
ENGINES = ("reference", "onnxruntime", "openvino", "torch", "xla", "webgpu", "triton", "inductor")
# By the size of an element: how far a float may be off, relatively and absolutely.
TOLERANCES = {2: (4e-3, 1e-6), 4: (2e-5, 1e-37), 8: (1e-9, 1e-300)}
# Why an answer differs: engines, how it differs, what names of cases look like, and the reason.
REASONS: Sequence[tuple[str, str, str, str]] = (
    (
        "xla",
        "value",
        r"(and|ceil|count|log|not|outer|sign|sqrt|x\*\*0\.5|x%-1|x/x|\(x\*x\)/x) special"
        r"|two mul zero inf",
        "XLA takes numbers below 1.2e-38 for 0 on the CPU.",
    ),
    (
        "xla",
        "value",
        r"(\(x\+1\)-1|x\*1e30\*1e-30|x\*2/2|sqrt\(x\*x\)) .*",
        "XLA simplifies as if numbers were exact.",
    ),
    ("webgpu|openvino", "value", ".* f16", "A kernel computes float16 in float32 and rounds once."),
    ("onnxruntime", "value", "mean i64", "Floats near 2**63 are added in another order."),
    (".*", "sign of zero", ".*", "The page of the op promises no sign of a zero."),
)
Row = dict[str, Any]


def rows_of(engine: str, end: float) -> Iterator[Row]:
    """Run the functions of NumPy; leave out what NumPy itself refuses."""
    from benchmarks.edges_numpy import cases

    for name, function, inputs in _mixed(cases()):
        if time.monotonic() > end:
            return
        try:
            wanted = function(*[np.array(x) for x in inputs])
        except (TypeError, ValueError, OverflowError) as error:
            yield {"case": name, "status": "left out", "kind": "", "detail": str(error)}
            continue
        compared = partial(_compared, engine, function, inputs, wanted)
        yield {"case": name} | outcome(compared)


def _mixed(cases: Iterable[Any]) -> list[Any]:
    """Put cases in an order, always the same, in which those at the start are of all kinds."""
    return sorted(cases, key=lambda case: zlib.crc32(case.name.encode()))


def outcome(compared: Callable[[], tuple[str, str, str]]) -> Row:
    """Say what became of a case: who ran it, or how it differs."""
    try:
        ran, kind, detail = compared()
    except FusewireError as error:
        return {"status": "refused", "kind": "", "detail": str(error)}
    except Exception as error:  # noqa: BLE001 # an error of another kind is a finding
        return {"status": "differs", "kind": "error", "detail": f"{type(error).__name__}: {error}"}
    return {"status": "differs" if kind else ran, "kind": kind, "detail": detail}


def _compared(
    engine: str, function: Any, inputs: Sequence[Any], wanted: Any
) -> tuple[str, str, str]:
    given = [np.array(x) for x in inputs]
    with fw.compile(
        function, *inputs, backend=engine, isolate="never", cache=False, fallback="allow"
    ) as program:
        ran = _who(program, engine)
        got = program(*given)
    pairs = zip(_listed(wanted), _listed(got), strict=True)
    found = (_difference(np.asarray(x), np.asarray(y)) for x, y in pairs)
    return ran, *next((x for x in found if x[0]), ("", ""))


def _who(program: Any, engine: str) -> str:
    """Say whether an engine ran all of it, or the reference a part."""
    others = {region.backend for region in program.plan.regions()} - {engine}
    return "helped" if others else "alone"


def _difference(wanted: Any, got: Any) -> tuple[str, str]:
    if (wanted.dtype, wanted.shape) != (got.dtype, got.shape):
        shown = f"{wanted.dtype}{list(wanted.shape)}, got {got.dtype}{list(got.shape)}"
        return "type", shown
    if wanted.dtype.kind not in "fc":
        return _shown("value", wanted, got, wanted != got)
    relative, absolute = TOLERANCES[wanted.dtype.itemsize]
    wide = wanted.astype(np.float64), got.astype(np.float64)
    near = np.isclose(*wide, rtol=relative, atol=absolute, equal_nan=True)
    if not near.all():
        return _shown("value", wanted, got, ~near)
    zeros = (wanted == 0) & (got == 0) & (np.signbit(wanted) != np.signbit(got))
    return _shown("sign of zero", wanted, got, zeros)


def _shown(kind: str, wanted: Any, got: Any, differs: Any) -> tuple[str, str]:
    at = np.flatnonzero(differs)[:4]
    if not len(at):
        return "", ""
    return kind, f"{wanted.ravel()[at].tolist()}, got {got.ravel()[at].tolist()}"


def _listed(x: Any) -> list[Any]:
    return [part for item in x for part in _listed(item)] if isinstance(x, tuple | list) else [x]


def measured(engine: str, minutes: float) -> Row:
    """Run the functions on an engine until the time is over."""
    warnings.simplefilter("ignore")
    start = time.monotonic()
    with np.errstate(all="ignore"):
        rows = list(rows_of(engine, start + 60 * minutes))
    version, seconds = REGISTRY.get(engine).info.version, round(time.monotonic() - start)
    return {"engine": engine, "version": version, "rows": rows, "seconds": seconds}


def reason_of(engine: str, row: Row) -> str:
    """Give the known reason why an answer differs; nothing where there is none."""
    for engines, kind, names, why in REASONS:
        is_about = re.fullmatch(engines, engine) and re.fullmatch(names, row["case"])
        if is_about and kind == row["kind"]:
            return why
    return ""


def summary(report: Row) -> dict[str, object]:
    """Count what became of the cases, as a row."""
    counts = Counter(row["status"] for row in report["rows"])
    return {
        "engine": report["engine"],
        "version": report["version"],
        "cases": len(report["rows"]),
        "as NumPy": counts["alone"] + counts["helped"],
        "helped by the reference": counts["helped"],
        "refused": counts["refused"],
        "differs": counts["differs"],
        "for no known reason": sum(
            not reason_of(report["engine"], row) for row in differing(report)
        ),
        "left out": counts["left out"],
        "seconds": report["seconds"],
    }


def differing(report: Row) -> list[Row]:
    return [row for row in report["rows"] if row["status"] == "differs"]


def listed(reports: Sequence[Row]) -> Iterator[dict[str, object]]:
    """List what differs, as rows: alike on several engines in one."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for report in reports:
        for row in differing(report):
            detail = " ".join(row["detail"].split())[:160].replace("|", "/")
            grouped.setdefault((row["case"], row["kind"], detail), []).append(report["engine"])
    for (case, kind, detail), engines in sorted(grouped.items()):
        yield {
            "case": f"`{case.replace('|', '/')}`",
            "differs in": kind,
            "engines": ", ".join(engines),
            "wanted and got": detail,
            "reason": reason_of(engines[0], {"case": case, "kind": kind}) or "**unknown**",
        }


def page(reports: list[Row]) -> Iterator[str]:
    """Print it all."""
    yield "# Answers at the edges, against NumPy\n"
    yield (
        f"`python benchmarks/edges.py`, {dt.date.today().isoformat()}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores shared with other work, Python "
        f"{platform.python_version()}, NumPy {np.__version__}.\n"
    )
    yield (
        "617 functions of NumPy: integers at both ends of six dtypes, special values of three "
        "floats, writes to views, arrays without elements and without axes, dtypes that meet. "
        "*As NumPy*: dtype, shape and values are the same, within a tolerance, signs of zeros "
        "included. *Helped*: the reference ran a part that the engine refuses. *Left out*: NumPy "
        "itself raises.\n"
    )
    yield from table([summary(report) for report in reports])
    yield "## What differs\n"
    rows = list(listed(reports))
    yield from table(rows) if rows else ["Nothing.\n"]
    for report in reports:
        for row in report["rows"]:
            if row["status"] == "refused":
                yield f"- {report['engine']} refuses `{row['case']}`: {row['detail'][:200]}"


def one(engine: str, folder: Path) -> Row:
    """Run an engine in a process of its own, unless its report is there."""
    path = folder / f"{engine}.json"
    if not path.exists():
        print(engine, file=sys.stderr)
        command = [sys.executable, __file__, *sys.argv[1:], "--one", engine]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        path.write_text(done.stdout.splitlines()[-1])
    report: Row = json.loads(path.read_text())
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default=",".join(ENGINES), help="names, with commas")
    parser.add_argument("--minutes", type=float, default=60.0, help="for each engine")
    parser.add_argument("--keep", type=Path, help="a folder for what the runs report")
    parser.add_argument("--write", type=Path, default=RESULTS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.one, given.minutes)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        reports = [one(engine, folder) for engine in given.engines.split(",")]
    given.write.write_text("\n".join(page(reports)) + "\n", encoding="utf-8")
    return 1 if any(not reason_of(r["engine"], row) for r in reports for row in differing(r)) else 0


if __name__ == "__main__":
    sys.exit(main())
