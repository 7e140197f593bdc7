"""How many cases of ONNX's backend test suite pass, where, and why do the others fail?

    python benchmarks/onnx_suite.py [SIDE ...] [-k REGEX] [--slice 1/8] [--again failed|all]
    python benchmarks/onnx_suite.py --record

Runs every backend, without fallback and with it, ONNX Runtime bare, and onnx's own evaluator.
Outcomes are kept in build/onnx_suite.json, so that a run continues where another ended.
``--record`` copies every side that ran all cases, with its date and commit, into
benchmarks/results/onnx_suite.json; other sides keep their earlier result. It then writes
benchmarks/results/onnx_suite.md and the failures that the tests allow. docs/generate.py shows the
counts in docs/conformance.md.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from fusewire.testing.onnx_suite.__main__ import arguments, main  # noqa: E402
from fusewire.testing.onnx_suite.crew import SuiteOutcome  # noqa: E402
from fusewire.testing.onnx_suite.record import SuiteRecord, exclusions, grouped  # noqa: E402

OUTCOMES = ROOT / "build" / "onnx_suite.json"
RESULTS = ROOT / "benchmarks" / "results" / "onnx_suite.json"
PAGE = RESULTS.with_suffix(".md")
FAILURES = ROOT / "tests" / "conformance" / "onnx_failures.txt"
OPENVINO_PROVIDER = "onnxruntime@cpu:openvino"
ENGINES = ("onnxruntime", OPENVINO_PROVIDER, "xla", "openvino", "torch", "webgpu", "triton")
BARE = {
    "benchmarks.onnx_sides:onnxruntime": "ONNX Runtime, bare",
    "benchmarks.onnx_sides:evaluator": "onnx's ReferenceEvaluator",
}
BARE_ENGINES = {"benchmarks.onnx_sides:onnxruntime": "onnxruntime"}
OURS = ("reference", *(name for e in ENGINES for name in (e, f"{e}+reference")))
# What a side's outcomes depend on, beside onnx and numpy.
PACKAGES = {
    "onnxruntime": "onnxruntime",
    OPENVINO_PROVIDER: "onnxruntime-ep-openvino",
    "xla": "jax",
    "openvino": "openvino",
    "torch": "torch",
    "webgpu": "wgpu",
    "triton": "triton",
}
Results = dict[str, Any]
# These give softmax logits of 1e9 to 1e31 that are equal but for rounding: an engine that sums two
# channels in another order, or computes one twice, gives another answer, by chance.
UNSTABLE = tuple(
    f"Real/test_{name}"
    for name in ("bvlc_alexnet", "inception_v1", "resnet50", "squeezenet", "vgg19", "zfnet512")
)
# Known causes of a wrong answer, or of an answer that nobody can give.
NOTES = {
    r"loop16_seq_none": "The runner of onnx takes the length of a tensor without axes, and raises "
    "whatever it is given; the elements of the sequence have different ranks",
    r"test_(dft|stft)": "Right to the digits of float32, seen from the largest element; 1e-7 is "
    "wanted where the exact answer is 0",
    r"attention.*(fp16|bf16)": "Nearer to the exact answer than what is expected, which is off by "
    "1.4 units in the last place of 16 bits; apart by one or two, more than the tolerance of 0.001",
    r"dynamicquantize": "A quotient half way between two codes is off by one unit in the last "
    "place, and rounds to the other",
    r"sizes_nearest_not_(smaller|larger)": "The engine takes sizes or scales, and here they "
    "differ; it stops, and does not guess",
    "|".join(UNSTABLE): "Logits of 1e9 to 1e31, equal but for rounding: chance decides",
}
INTRODUCTION = """\
# The backend test suite of ONNX: what passes, and why the rest fails

Written by `python benchmarks/onnx_suite.py --record`; not edited. docs/conformance.md explains the
columns. Linux x86_64.
"""
HEADER = (
    "| Runs on | Fallback | Passed | Failed | Refused | Excluded | With host | Recorded |",
    "|---|---|---:|---:|---:|---:|---:|---|",
)


def stamp(side: str) -> dict[str, Any]:
    """Say when and at which commit a side ran, with which versions."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    name = BARE_ENGINES.get(side, side.partition("+")[0])
    packages = ("onnx", "numpy", *([PACKAGES[name]] if name in PACKAGES else []))
    return {
        "date": dt.date.today().isoformat(),
        "commit": commit,
        "versions": {package: version(package) for package in packages},
    }


def summary(record: SuiteRecord, side: str) -> Results:
    """Reduce the outcomes of a side to counts and groups of failures."""
    outcomes = record.sides[side].values()
    is_alone = side in OURS and "+" not in side
    return {
        **record.runs[side],
        "counts": record.counts(side),
        "refused": sum(outcome.status == "refused" for outcome in outcomes),
        "host": sum(outcome.elsewhere > 0 for outcome in outcomes) if is_alone else None,
        "groups": groups(record, side),
    }


def groups(record: SuiteRecord, side: str) -> list[Results]:
    """Group failures by reason; cases are named in full where the answer was wrong or none came."""
    problems = record.problems(side)
    reasons = explained(side, problems) if side in OURS else grouped(side, problems)
    return [
        {
            "reason": reason.rstrip("."),
            "count": len(cases),
            "cases": cases[:3] if problems[cases[0]].status == "refused" else cases,
        }
        for reason, cases in reasons.items()
    ]


def explained(side: str, problems: Mapping[str, SuiteOutcome]) -> dict[str, list[str]]:
    """Group failures by their known cause, else by what was said."""
    causes: dict[str, list[str]] = {}
    rest = dict(problems)
    for pattern, why in NOTES.items():
        cases = [x for x, o in rest.items() if o.status == "failed" and re.search(pattern, x)]
        if cases:
            causes[why] = cases
            rest = {case: outcome for case, outcome in rest.items() if case not in cases}
    return causes | grouped(side, rest)


def table(results: Results) -> Iterator[str]:
    """Show the counts of every recorded side."""
    yield from HEADER
    for side, result in results["sides"].items():
        name, _, fallback = BARE.get(side, side).partition("+")
        counts = result["counts"]
        versions = ", ".join(f"{package} {text}" for package, text in result["versions"].items())
        cells = [
            name,
            fallback or ("" if side in BARE else "none"),
            f"{counts['passed']:,}",
            f"{counts['failed']:,}",
            f"{result['refused']:,}" if result["refused"] else "",
            str(counts["excluded"]),
            "" if result["host"] is None else str(result["host"]),
            f"{result['date']} at {result['commit']}, {versions}",
        ]
        yield f"| {' | '.join(cells)} |"


def page(results: Results) -> Iterator[str]:
    """Write the counts, the exclusions and the failures by reason."""
    yield INTRODUCTION
    yield from table(results)
    yield f"\n## Excluded: {len(exclusions())}\n"
    yield from (f"- `{case}`: {reason}" for case, reason in exclusions().items())
    yield "\nComparisons with others run these too.\n"
    yield (
        f"Of the 9 real models {len(UNSTABLE)} compare logits that are equal but for "
        "rounding (1e9 to 1e31, before a softmax): whether an engine passes those is chance."
    )
    for side, result in results["sides"].items():
        name, _, fallback = BARE.get(side, side).partition("+")
        yield f"\n## Failures: {name}{', with fallback' if fallback else ''}\n"
        yield from ([_listed(group) for group in result["groups"]] or ["None."])


def _listed(group: Results) -> str:
    left = group["count"] - len(group["cases"])
    more = f", and {left} more" if left else ""
    names = ", ".join(f"`{case}`" for case in group["cases"])
    reason = group["reason"].replace("|", "\\|").replace("<", "&lt;")
    return f"- {group['count']}: {reason}. {names}{more}"


def failures(record: SuiteRecord, complete: list[str]) -> str:
    """List the failures that are not refusals, for the tests; sides that did not run stay."""
    listed = FAILURES.read_text(encoding="utf-8").splitlines()
    known = [line for line in listed if not line.startswith("#")]
    lines = [
        "# Cases that fail, by side; written by benchmarks/onnx_suite.py --record. Known causes:",
        *(f"# {pattern}: {why}." for pattern, why in NOTES.items()),
    ]
    for side in OURS:
        if side not in complete:
            lines += [line for line in known if line.split()[0] == side]
            continue
        outcomes = record.problems(side).items()
        failed = {case for case, outcome in outcomes if outcome.status == "failed"}
        failed |= set(UNSTABLE if side != "reference" else ())
        lines += [f"{side} {case}" for case in sorted(failed)]
    return "\n".join(lines) + "\n"


def write(record: SuiteRecord) -> None:
    """Update the recorded results by the sides that ran all cases, and what follows from them."""
    results: Results = json.loads(RESULTS.read_text(encoding="utf-8"))
    complete = [side for side in record.sides if record.counts(side)["not run"] == 0]
    results["cases"] = len(record.cases) or results["cases"]
    sides = results["sides"] | {side: summary(record, side) for side in complete}
    results["sides"] = {side: sides[side] for side in (*OURS, *BARE) if side in sides}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text("\n".join(page(results)) + "\n", encoding="utf-8")
    FAILURES.write_text(failures(record, complete), encoding="utf-8")


def run() -> int:
    """Run sides, or record what was kept."""
    parser: Any = arguments()
    parser.description = __doc__
    parser.add_argument("--record", action="store_true", help="record outcomes and run nothing")
    parser.set_defaults(results=OUTCOMES)
    given = parser.parse_args()
    given.sides = given.sides or ([] if given.record else [*OURS, *BARE])
    given.results.parent.mkdir(exist_ok=True)
    status = main(given) if given.sides else 0
    record = SuiteRecord(given.results)
    if given.sides:
        record.runs |= {side: stamp(side) for side in given.sides}
        record.save()
    if given.record:
        write(record)
    return status


if __name__ == "__main__":
    sys.exit(run())
