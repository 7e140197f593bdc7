"""What does each engine lose of NaN, both infinities and -0, of which op, and in which form?

    python benchmarks/poison.py [--engines xla,openvino] [--dtypes float32] [--slice 1/8]
                                [--minutes 10] [--keep DIR] [--write FILE]

Runs the rounds of `fusewire conform` (fusewire.testing.poison): each of the four at the first, a
middle and the last place of each axis of each float operand, in every sample of every op. Each
engine runs in its exact form, and in its own (`nan=engine`) if it has one, each in a process of its
own, which stops after --minutes. An engine may be of a device: ``onnxruntime@cpu:openvino``. With
--keep, what a run reports is kept there and not run again. Exit 1 if an exact form loses something
that is no known gap.
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
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.conform import table
from fusewire.contract.backend import ENGINE_NAN, EXACT_NAN, NAN, Backend, Config, Device
from fusewire.contract.region import first_device
from fusewire.errors import FusewireError
from fusewire.ops.table import all_ops
from fusewire.planning.claims import ask
from fusewire.planning.target import Target
from fusewire.registry import REGISTRY
from fusewire.testing.conformance import Case, cases, gap_of, sliced
from fusewire.testing.poison import POISONED, rounds_of
from fusewire.testing.suite import BATCH, is_tensor_op, run_cases

RESULTS = Path(__file__).parent / "results" / "poison.md"
ENGINES = ("onnxruntime", "openvino", "torch", "xla", "webgpu", "triton", "inductor")
# Those that have the option `nan`.
OWN_FORMS = ("onnxruntime", "openvino")
# How the suite writes what was lost in a round.
_LOSS = re.compile(r"with (nan|inf|-inf|-0\.0) at (\[[^\]]*\]) of operand (\d+): ")
Report = dict[str, Any]


def asked(dtypes: Sequence[str], part: Fraction) -> list[Case]:
    """List the cases that have rounds."""
    ops = [op for op in all_ops().values() if is_tensor_op(op)]
    found = [c for op in ops for c in sliced([c for c in cases([op]) if c.is_numeric], part)]
    names = {of.name for of in POISONED} & set(dtypes)
    return [case for case in found if case.dtype.name in names]


def counted(found: Sequence[Case], path: Path) -> dict[str, int]:
    """Count the rounds of each case, once for all engines."""
    known: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    for case in found:
        if case.id not in known:
            known[case.id] = len(rounds_of(*case.make(), case.dtype))
    path.write_text(json.dumps(known))
    return known


def measured(engine: str, form: str, found: Sequence[Case], minutes: float) -> Report:
    """Run the rounds on an engine until the time is over."""
    name, _, place = engine.partition("@")
    backend = REGISTRY.get(name)
    device = first_device(backend, place or None)
    config = Config(options={NAN: form}) if form == ENGINE_NAN else Config()
    start, rows = time.monotonic(), []
    for first in range(0, len(found), BATCH):
        if time.monotonic() - start > 60 * minutes:
            break
        part = found[first : first + BATCH]
        for case, outcome in run_cases(backend, device, part, config).items():
            row = {"case": case.id, "op": case.op.name, "dtype": case.dtype.name}
            row |= {"status": outcome.status, "reason": outcome.reason}
            if outcome.status == "failed":
                row["status"] = "expanded" if _is_expanded(backend, device, case) else "native"
                row["gap"] = _known_gap(backend, device, case)
            rows.append(row)
    return {
        "engine": engine,
        "version": backend.info.version,
        "form": form,
        "rows": rows,
        "left": len(found) - len(rows),
        "ops left": sorted({case.op.name for case in found[len(rows) :]}),
        "seconds": round(time.monotonic() - start),
    }


def _is_expanded(backend: Backend, device: Device, case: Case) -> bool:
    try:
        return bool(ask(Target(backend, device), case.make()[0]).expanded)
    except FusewireError:
        return False


def _known_gap(backend: Backend, device: Device, case: Case) -> str:
    gap = gap_of([x for x in backend.gaps if x.device in (None, device.id)], case)
    return gap.reason if gap else ""


def losses(row: Report) -> set[tuple[str, ...]]:
    """List the rounds of a case in which something was lost, each as poison, index and operand."""
    return set(_LOSS.findall(row["reason"])) if row["status"] != "refused" else set()


def is_failed(row: Report) -> bool:
    return bool(row["reason"]) and row["status"] != "refused"


def summary(report: Report, rounds: dict[str, int]) -> dict[str, object]:
    """Count what an engine ran and lost in one form, as a row."""
    ran = [row for row in report["rows"] if row["status"] != "refused"]
    lost = [row for row in ran if losses(row)]
    return {
        "engine": report["engine"],
        "version": report["version"],
        "form": report["form"],
        "cases": f"{len(ran):,}",
        "rounds": f"{sum(rounds[row['case']] for row in ran):,}",
        "refused": f"{len(report['rows']) - len(ran):,}",
        "not reached": f"{report['left']:,}",
        "ops that lose": len({row["op"] for row in lost}),
        "cases that lose": f"{len(lost):,}",
        "rounds lost": f"{sum(len(losses(row)) for row in lost):,}",
        "wrong otherwise": sum(is_failed(row) and not losses(row) for row in ran),
        "seconds": report["seconds"],
    }


def by_op(report: Report, rounds: dict[str, int]) -> Iterator[dict[str, object]]:
    """Tell of each op what is lost, as rows."""
    grouped: dict[str, list[Report]] = {}
    for row in report["rows"]:
        if losses(row):
            grouped.setdefault(row["op"], []).append(row)
    for op, rows in sorted(grouped.items()):
        kinds = Counter(poison for row in rows for poison, *_ in losses(row))
        operands = sorted({int(operand) for row in rows for *_, operand in losses(row)})
        yield {
            "op": op,
            "runs": " and ".join(sorted({row["status"] for row in rows})),
            "dtypes": ", ".join(sorted({row["dtype"] for row in rows})),
            "cases": len(rows),
            "rounds lost": f"{kinds.total():,} of {sum(rounds[row['case']] for row in rows):,}",
            "lost": ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
            "operands": ", ".join(map(str, operands)),
            "such as": f"`{rows[0]['case']}` {rows[0]['reason'].split('; ')[0].replace('|', '/')}",
            "known gap": next((row["gap"] for row in rows if row["gap"]), "-"),
        }


def page(reports: list[Report], rounds: dict[str, int]) -> Iterator[str]:
    """Print it all."""
    yield "# What each engine loses of NaN, infinities and -0\n"
    yield (
        f"`python benchmarks/poison.py`, {dt.date.today().isoformat()}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores shared with other work, Python "
        f"{platform.python_version()}, NumPy {np.__version__}.\n"
    )
    yield (
        "One of NaN, both infinities and -0 at the first, a middle and the last place of each axis "
        "of each float operand, in every sample of every op. *Exact* is the form that runs by "
        "default; *engine* is the engine's own (`nan=engine`), whose calls with a NaN or an "
        "infinity in an input run in the exact form. A round is lost if a NaN or an infinity of "
        "the reference comes out as a number, if what is no float differs, or if a zero loses a "
        "sign that the op promises. *Runs*: as a node of the backend, or expanded into other ops.\n"
    )
    yield from table([summary(report, rounds) for report in reports])
    for report in reports:
        yield f"## {report['engine']}, {report['form']}\n"
        rows = list(by_op(report, rounds))
        yield from table(rows) if rows else ["Nothing is lost.\n"]
        if report["left"]:
            yield f"Not reached, or in part: {', '.join(report['ops left'])}.\n"
        others = [row for row in report["rows"] if is_failed(row) and not losses(row)]
        for row in others:
            known = f" (known gap: {row['gap']})" if row["gap"] else ""
            yield f"- wrong without a loss: `{row['case']}` {row['reason'][:200]}{known}"
        if others:
            yield ""


def forms_of(engine: str) -> list[str]:
    """List the forms that an engine has."""
    return [EXACT_NAN, ENGINE_NAN] if engine in OWN_FORMS else [EXACT_NAN]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default=",".join(ENGINES), help="names, with commas")
    parser.add_argument("--dtypes", default=",".join(of.name for of in POISONED))
    parser.add_argument("--slice", default="1/1", help="a fixed share of the cases, such as 1/8")
    parser.add_argument("--minutes", type=float, default=60.0, help="for each engine and form")
    parser.add_argument("--keep", type=Path, help="a folder for what the runs report")
    parser.add_argument("--write", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "FORM"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    found = asked(given.dtypes.split(","), Fraction(given.slice))
    if given.one:
        engine, form = given.one
        print(json.dumps(measured(engine, form, found, given.minutes)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        rounds = counted(found, folder / "rounds.json")
        reports = [
            one(engine, form, folder)
            for engine in given.engines.split(",")
            for form in forms_of(engine)
        ]
    given.write.write_text("\n".join(page(reports, rounds)) + "\n", encoding="utf-8")
    exact = [row for report in reports if report["form"] == EXACT_NAN for row in report["rows"]]
    return 1 if any(losses(row) and not row["gap"] for row in exact) else 0


def one(engine: str, form: str, folder: Path) -> Report:
    """Run an engine in one form in a process of its own, unless its report is there."""
    path = folder / f"{engine.replace(':', '-')}-{form}.json"
    if not path.exists():
        print(f"{engine}, {form}", file=sys.stderr)
        command = [sys.executable, __file__, *sys.argv[1:], "--one", engine, form]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        path.write_text(done.stdout.splitlines()[-1])
    report: Report = json.loads(path.read_text())
    return report


if __name__ == "__main__":
    sys.exit(main())
