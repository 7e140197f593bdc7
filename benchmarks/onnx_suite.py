"""How many cases of ONNX's backend test suite pass, where, and why not the rest?

    python benchmarks/onnx_suite.py [SIDE ...] [-k REGEX] [--slice 1/8] [--again failed|all]
    python benchmarks/onnx_suite.py --page

Runs every backend, without fallback and with it, ONNX Runtime bare, and onnx's own evaluator.
Outcomes are kept in build/onnx_suite.json, so that a run goes on where another ended; ``--page``
writes docs/conformance.md, and the failures that the tests allow, from what is kept.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from fusewire.testing.onnx_suite.__main__ import arguments, main  # noqa: E402
from fusewire.testing.onnx_suite.crew import Outcome  # noqa: E402
from fusewire.testing.onnx_suite.record import COLUMNS, Record, exclusions, grouped  # noqa: E402

DATE = "2026-11-15"
RESULTS = ROOT / "build" / "onnx_suite.json"
PAGE = ROOT / "docs" / "conformance.md"
FAILURES = ROOT / "tests" / "conformance" / "onnx_failures.txt"
ENGINES = ("onnxruntime", "xla", "openvino", "webgpu")
BARE = {
    "benchmarks.onnx_sides:onnxruntime": "ONNX Runtime, bare",
    "benchmarks.onnx_sides:evaluator": "onnx's ReferenceEvaluator",
}
OURS = ("reference", *(name for e in ENGINES for name in (e, f"{e}+reference")))
PACKAGES = ("numpy", "ml_dtypes", "onnx", "onnxruntime", "jax", "openvino", "wgpu")
# These give softmax logits of 1e9 to 1e31 that are equal but for rounding: where an engine sums two
# channels in another order, or computes one twice, the answer is another one, by chance.
UNSTABLE = tuple(
    f"Real/test_{name}"
    for name in ("bvlc_alexnet", "inception_v1", "resnet50", "squeezenet", "vgg19", "zfnet512")
)
# What is behind a wrong answer, or an answer that nobody can give.
NOTES = {
    r"loop16_seq_none": "The runner of onnx takes the length of a tensor without axes, and raises "
    "whatever it is given; the elements of the sequence have different ranks",
    r"test_(dft|stft)": "Right to the digits of float32, seen from the largest element; 1e-7 is "
    "wanted where the exact answer is 0",
    r"attention.*(fp16|bf16)": "Off by one unit in the last place of 16 bits, which is more than "
    "the tolerance of 0.001",
    r"dynamicquantize": "A quotient half way between two codes is off by one unit in the last "
    "place, and rounds to the other",
    r"sizes_nearest_not_(smaller|larger)": "The engine takes sizes or scales, and here they "
    "differ; it stops, and does not guess",
    "|".join(UNSTABLE): "Logits of 1e9 to 1e31, equal but for rounding: chance decides",
}
INTRODUCTION = """\
# Conformance: the backend test suite of ONNX

Written by `python benchmarks/onnx_suite.py --page`; not edited. {date}, {versions}, Linux x86_64.

The suite has {total:,} cases. Models, data, comparison and tolerances are those of onnx's package;
that the lengths of sequences must be equal too is ours. A case passes, fails, is excluded for a
reason that is given below, or was not run; a case that a backend does not take has failed.

Without fallback, every node that works on model data runs on the named engine. What the host does
there, driving control flow and computing sizes of tensors, is counted: *with host* are the cases
among the passed that need it. With fallback, the reference runs the nodes that the engine refuses.
"""
HEADER = (
    "| Runs on | Fallback | Passed | Failed | of these refused | Excluded | Not run | With host |"
)


def table(record: Record) -> str:
    """Show the columns of every side."""
    rows = [HEADER, "|---|---|---:|---:|---:|---:|---:|---:|"]
    for side in (*OURS, *BARE):
        counts = record.counts(side)
        name, _, fallback = BARE.get(side, side).partition("+")
        found = record.sides.get(side, {}).values()
        refused = sum(o.status == "refused" for o in found)
        host = sum(o.elsewhere > 0 for o in found) if side in OURS and not fallback else ""
        passed, failed, excluded, left = (f"{counts[column]:,}" for column in COLUMNS)
        behind = fallback or ("" if side in BARE else "none")
        rows.append(
            f"| {name} | {behind} | {passed} | {failed} | {refused or ''} | {excluded} | {left} | "
            f"{host} |"
        )
    return "\n".join(rows)


def explained(side: str, problems: Mapping[str, Outcome]) -> dict[str, list[str]]:
    """Group failures by what is known to be behind them, else by what was said."""
    found: dict[str, list[str]] = {}
    rest = dict(problems)
    for pattern, why in NOTES.items():
        cases = [x for x, o in rest.items() if o.status == "failed" and re.search(pattern, x)]
        if cases:
            found[why] = cases
            rest = {case: outcome for case, outcome in rest.items() if case not in cases}
    return found | grouped(side, rest)


def groups(record: Record, side: str) -> list[str]:
    """List failures by reason; cases are named in full where the answer was wrong or none came."""
    problems = record.problems(side)
    reasons = explained(side, problems) if side in OURS else grouped(side, problems)
    rows = []
    for reason, cases in reasons.items():
        is_refusal = problems[cases[0]].status == "refused"
        shown = cases[:3] if is_refusal else cases
        more = f", and {len(cases) - len(shown)} more" if len(cases) > len(shown) else ""
        names = ", ".join(f"`{case}`" for case in shown)
        said = reason.replace("|", "\\|").replace("<", "&lt;").rstrip(".")
        rows.append(f"- {len(cases)}: {said}. {names}{more}")
    return rows


def page(record: Record) -> str:
    """Write the whole page."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    parts = [
        INTRODUCTION.format(date=DATE, versions=versions, total=len(record.cases)),
        table(record),
        f"\n## Excluded: {len(exclusions())}\n",
        *(f"- `{case}`: {reason}" for case, reason in exclusions().items()),
        "\nComparisons with others run these too.\n",
        f"Of the 9 real models {len(UNSTABLE)} compare logits that are equal but for "
        "rounding (1e9 to 1e31, before a softmax): whether an engine passes those is chance.",
    ]
    for side in (*OURS, *BARE):
        name, _, fallback = BARE.get(side, side).partition("+")
        title = f"{name}, with fallback" if fallback else name
        parts += [f"\n## Failures: {title}\n", *(groups(record, side) or ["None."])]
    return "\n".join(parts) + "\n"


def failures(record: Record) -> str:
    """List the failures that are no refusals, for the tests."""
    lines = ["# Cases that fail, by side; written by benchmarks/onnx_suite.py --page."]
    for side in OURS:
        found = record.problems(side).items()
        failed = {case for case, o in found if o.status == "failed"}
        failed |= set(UNSTABLE if side != "reference" else ())
        lines += [f"{side} {case}" for case in sorted(failed)]
    return "\n".join(lines) + "\n"


def run() -> int:
    """Run sides, or write the page."""
    parser: Any = arguments()
    parser.description = __doc__
    parser.add_argument("--page", action="store_true", help="write the page and run nothing")
    parser.set_defaults(results=RESULTS)
    given = parser.parse_args()
    given.sides = given.sides or ([] if given.page else [*OURS, *BARE])
    given.results.parent.mkdir(exist_ok=True)
    status = main(given) if given.sides else 0
    if given.page:
        record = Record(given.results)
        record.note(PACKAGES)
        PAGE.write_text(page(record), encoding="utf-8")
        FAILURES.write_text(failures(record), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(run())
