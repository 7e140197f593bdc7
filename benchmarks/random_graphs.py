"""Does every rewrite keep what random graphs compute?

    python benchmarks/random_graphs.py --graphs 10000 --seed 0

Makes graphs from the op table, rewrites each in every way (tests/rewrite/random_check.py) and runs
both. Prints how often each rule fired and each op was used. Failures go to --failures, each as the
graph's text and an .npz of its inputs and constants; `--seed N --graphs 1` makes one again.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from fusewire.ir.text import constants_of, print_graph
from fusewire.ops.table import all_ops
from fusewire.rewrite.pipeline import RULES
from tests.random_graphs import FromRandom, Generated, random_graph
from tests.rewrite.random_check import REWRITES, Tally, failures


def main() -> int:
    parser = argparse.ArgumentParser(description="Check rewrites on random graphs.")
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--nodes", type=int, default=0, help="of each graph; 4 to 27 by default")
    parser.add_argument("--failures", type=Path, default=Path("random_graph_failures"))
    parser.add_argument("--report", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    tally, ops, failed = Tally(), Counter[str](), list[str]()
    started = time.monotonic()
    for seed in range(options.seed, options.seed + options.graphs):
        found = random_graph(FromRandom(seed), options.nodes or 4 + seed % 24)
        ops.update(node.op for node in found.graph.nodes)
        problems = list(failures(found, tally))
        if problems:
            failed.append(f"seed {seed}: {problems[0]}")
            _store(options.failures, seed, found, problems)
            print(failed[-1], flush=True)
    text = _report(options, tally, ops, failed, time.monotonic() - started)
    print(text)
    if options.report is not None:
        options.report.write_text(text + "\n")
    return 1 if failed else 0


def _store(folder: Path, seed: int, found: Generated, problems: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(["# " + line for p in problems for line in p.splitlines()])
    (folder / f"{seed}.txt").write_text(f"{text}\n{print_graph(found.graph)}\n")
    arrays: dict[str, Any] = {
        f"input_{v.name}": np.asarray(x)
        for v, x in zip(found.graph.inputs, found.inputs, strict=True)
        if isinstance(x, np.ndarray) and x.dtype != object
    }
    held = constants_of(found.graph).items()
    arrays |= {digest: c.array for digest, c in held if c.array.dtype != object}
    np.savez(folder / f"{seed}.npz", **arrays)


def _report(
    options: argparse.Namespace,
    tally: Tally,
    ops: Counter[str],
    failed: Sequence[str],
    seconds: float,
) -> str:
    silent = [rule.name for rule in RULES if not tally.fired[rule.name]]
    unused = [name for name in all_ops() if not ops[name]]
    return "\n".join([
        "# Random graphs", "",
        f"`python benchmarks/random_graphs.py --graphs {options.graphs} --seed {options.seed}`, "
        f"{datetime.now(UTC):%Y-%m-%d}, {seconds:.0f} s, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, ml_dtypes {ml_dtypes.__version__}, "
        f"{platform.system()} {platform.machine()}.", "",
        f"{options.graphs:,} graphs, {ops.total():,} nodes, {len(ops)} of {len(all_ops())} ops"
        f"{' (not: ' + ', '.join(unused) + ')' if unused else ''}; "
        f"{len(RULES)} rules, {len(REWRITES)} ways to rewrite, printing and specializing.", "",
        f"**{len(failed)} failures.** All other rewritten graphs give the same bits, but for "
        f"{tally.rounded.total()} that round otherwise: within 16 last places of the largest "
        f"element, or right by the oracle ({_listed(tally.rounded) or 'none'}).", "",
        *(f"- {line.splitlines()[0]}" for line in failed),
        "## Graphs that each rewrite changed", "", _listed(tally.changed), "",
        "## Firings (pipeline, and folding, sharing, dead code and expansion alone)", "",
        _listed(tally.fired), "",
        f"Never fired: {', '.join(silent) or 'none'}.", "",
        "## Refusals (pipeline)", "", _listed(tally.refused), "",
        "## Uses of each op", "", _listed(ops),
    ])  # fmt: skip


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
