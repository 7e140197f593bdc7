"""Run the backend test suite of ONNX.

    python -m fusewire.testing.onnx_suite SIDE ... [-k REGEX] [--slice 1/8] [--results FILE]

A side is a backend ("xla"), one on a device ("xla@cuda:0"), one with the reference behind it
("xla+reference"), or "module:function", which takes a ModelProto and returns a function. Exits
with 1 if a case fails.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from fusewire.registry import REGISTRY
from fusewire.testing.conformance import in_share
from fusewire.testing.onnx_suite.crew import Crew, SuiteOutcome
from fusewire.testing.onnx_suite.record import COLUMNS, SuiteRecord, exclusions, grouped
from fusewire.testing.onnx_suite.sides import backend_of

_SAVED_EVERY = 10.0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sides", nargs="*", metavar="SIDE")
    parser.add_argument("-k", "--match", default="", help="a regular expression that names match")
    parser.add_argument("--slice", default="1/1", help="a fixed share of the cases, such as 1/8")
    parser.add_argument(
        "--results", type=Path, help="keep outcomes in this file, and run only what it lacks"
    )
    parser.add_argument(
        "--again", choices=["failed", "all"], help="run cases again that the file has"
    )
    parser.add_argument("--excluded", action="store_true", help="run excluded cases as well")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def run_side(record: SuiteRecord, side: str, given: argparse.Namespace) -> None:
    """Run the selected cases on one side, and record the outcomes."""
    backend = backend_of(side)
    if backend is not None:
        REGISTRY.backends.get(backend)  # Raises for an unknown name.
    found = record.sides.setdefault(side, {})
    with Crew(given.workers) as crew:
        record.cases = crew.names()
        # Comparisons with others include the cases that we exclude.
        left_out = exclusions() if backend is not None and not given.excluded else {}
        found |= {case: SuiteOutcome("excluded", why) for case, why in left_out.items()}
        wanted = [case for case in record.cases if _is_wanted(case, given) and case not in left_out]
        if given.again != "all":
            kept = ("passed",) if given.again else ("passed", "failed", "refused")
            wanted = [
                case for case in wanted if case not in found or found[case].status not in kept
            ]
        saved = time.monotonic()
        for number, (case, outcome) in enumerate(crew.run(side, wanted), 1):
            found[case] = outcome
            _show(f"{side}: {number} of {len(wanted)}, {case}")
            if time.monotonic() - saved > _SAVED_EVERY:
                record.save()
                saved = time.monotonic()
    _show("")
    record.save()


def _is_wanted(case: str, given: argparse.Namespace) -> bool:
    return bool(re.search(given.match, case)) and in_share(case, Fraction(given.slice))


def _show(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{line[:100]}", end="", file=sys.stderr, flush=True)


def report(record: SuiteRecord, sides: Sequence[str]) -> dict[str, Any]:
    """Return counts and groups of failures as plain data."""
    return {
        side: {
            "counts": record.counts(side),
            "groups": grouped(side, record.problems(side)),
            "reasons": {case: o.reason for case, o in record.problems(side).items()},
        }
        for side in sides
    }


def _print(found: dict[str, Any]) -> None:
    for side, about in found.items():
        counts = "  ".join(f"{column} {about['counts'][column]}" for column in COLUMNS)
        print(f"{side}: {counts}")
        for reason, cases in about["groups"].items():
            more = f" and {len(cases) - 3} more" if len(cases) > 3 else ""
            print(f"  {len(cases):4}  {reason}\n        {', '.join(cases[:3])}{more}")


def main(given: argparse.Namespace) -> int:
    record = SuiteRecord(given.results)
    for side in given.sides:
        run_side(record, side, given)
    found = report(record, given.sides)
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        _print(found)
    return int(any(about["reasons"] for about in found.values()))


if __name__ == "__main__":
    sys.exit(main(arguments().parse_args()))
