"""How many ops that exporters spelled out are raised in each model of the zoo?

    python benchmarks/raising.py [NAME ...] [--write]

Reads each model as ``fw.compile`` does, rewrites it, and counts how often each raising rule fired,
and what kept one from firing. ``--write`` writes results/raising.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks" / "zoo"), str(ROOT)]

from benchmarks.roundtrip import read  # noqa: E402
from fusewire.rewrite.pipeline import run_pipeline  # noqa: E402
from fusewire.rewrite.rules import (  # noqa: E402
    raise_activation,
    raise_attention,
    raise_normalization,
)

TABLES = (raise_activation.TABLE, raise_normalization.TABLE, raise_attention.TABLE)
RULES = [rule.name for table in TABLES for rule in table.rules]
RESULTS = ROOT / "benchmarks" / "results" / "raising.md"


def looked_at(zoo: Any, name: str) -> tuple[int, int, dict[str, int], Counter[tuple[str, str]]]:
    """Count nodes before and after, what fired, and what was refused and why."""
    graph = read(str(zoo.path(name)), list(zoo.inputs(name).values()))
    done = run_pipeline(graph)
    fired = {rule: done.report.counts[rule] for rule in RULES if rule in done.report.counts}
    refused = Counter((r.rule, r.reason) for r in done.report.refused if r.rule in RULES)
    return len(graph.nodes), len(done.graph.nodes), fired, refused


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    zoo: Any = import_module("zoo")
    lines = [
        "# What is raised in real models",
        "",
        f"`python benchmarks/raising.py --write`, 2026-11-15, onnx {version('onnx')}. Nodes of the "
        "main graph, before and after all rewriting; models in which nothing is raised are left "
        "out. A count of refusals is that of nodes that are still there.",
        "",
        "| model | nodes | after | raised | refused |",
        "|---|---:|---:|---|---|",
    ]
    for name in args.names or zoo.MODELS:
        before, after, fired, refused = looked_at(zoo, name)
        shown = ", ".join(f"{n} {rule.removeprefix('raise-')}" for rule, n in fired.items())
        why = "; ".join(f"{n} {rule}: {reason}" for (rule, reason), n in refused.items())
        print(f"{name:22} {before:5} {after:5}  {shown}  {why}")
        if fired or refused:
            lines.append(f"| {name} | {before} | {after} | {shown} | {why} |")
    if args.write:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
