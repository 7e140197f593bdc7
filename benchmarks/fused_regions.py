"""Do kernels of random fused regions compute what the regions mean?

    python benchmarks/fused_regions.py --count 20000 [--seed 0] [--engine webgpu] [--report FILE]

Makes regions of the ops that kernels take (tests/kernel/regions.py), fuses and lowers each, checks
its kernels, interprets them (with ``--engine``, runs the region there instead, and counts what that
refuses), and lets the oracle judge. Prints how many were right, what they were
made of, and every region that was wrong; `--seed N --count 1` makes one again and prints it.
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

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from fusewire.contract.backend import Refusal
from fusewire.contract.region import build, first_device
from fusewire.errors import FusewireError
from fusewire.ir.graph import HostValue
from fusewire.kernel.analysis import shape_of
from fusewire.kernel.text import print_lowered
from fusewire.numerics.judge import Verdict, judge_op
from fusewire.plan.transfer import to_host
from fusewire.process.guard import guarded
from fusewire.registry import REGISTRY
from tests.kernel.regions import Region, random_region

EVERY = 1000


class Tally:
    """What was met so far."""

    def __init__(self, engine: str | None = None) -> None:
        self.engine = engine
        self.verdicts: Counter[str] = Counter()
        self.patterns: Counter[str] = Counter()
        self.shapes: Counter[str] = Counter()
        self.ops: Counter[str] = Counter()
        self.kernels = self.before = 0
        self.failed: list[str] = []

    def add(self, seed: int, show: bool) -> None:
        """Make one region, and judge it."""
        try:
            region = random_region(seed)
            verdict = region.judge() if self.engine is None else judged_on(self.engine, region)
        except (FusewireError, AssertionError) as error:
            self.verdicts["failed"] += 1
            self.failed.append(f"seed {seed}: {type(error).__name__}: {error}")
            return
        self.verdicts[verdict.status if verdict is not None else "refused"] += 1
        if verdict is None:
            return
        self.patterns.update(region.fusion.patterns)
        self.shapes.update(map(shape_of, region.lowered.kernels))
        self.ops.update({node.op for node in region.generated.graph.nodes})
        self.kernels += len(region.lowered.kernels)
        self.before += region.fusion.before.launches
        if verdict.status == "wrong":
            self.failed.append(f"seed {seed}: {verdict.reason}")
        if show:
            print(region.fusion.graph, print_lowered(region.lowered), verdict, sep="\n\n")


def judged_on(engine: str, region: Region) -> Verdict | None:
    """Run a region on an engine, without fallback, and judge the answer; None if it is refused."""
    backend = REGISTRY.backends.get(engine)
    device = first_device(backend)
    graph, inputs = region.generated.graph, region.generated.inputs
    if any(isinstance(said, Refusal) for said in backend.claim(graph, device)):
        return None

    def answers() -> list[HostValue]:
        executable = build(backend, graph, device)
        got = [to_host(x) for x in executable.run(inputs)]
        executable.close()
        return got

    return judge_op(graph, inputs, guarded(engine, "run", "a region", answers))


def main() -> int:
    parser = argparse.ArgumentParser(description="Check kernels of random fused regions.")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first region")
    parser.add_argument("--engine", help="run regions on this backend instead")
    parser.add_argument("--report", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    tally, started = Tally(options.engine), time.monotonic()
    with np.errstate(all="ignore"):
        for done, seed in enumerate(range(options.seed, options.seed + options.count), 1):
            tally.add(seed, options.count == 1)
            if done % EVERY == 0:
                print(done, dict(tally.verdicts), flush=True)
    text = report(options, tally, time.monotonic() - started)
    print(text)
    if options.report is not None:
        options.report.write_text(text + "\n")
    return 1 if tally.failed else 0


def report(options: argparse.Namespace, tally: Tally, seconds: float) -> str:
    """Say what was found as Markdown."""
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, "
    versions += f"ml_dtypes {ml_dtypes.__version__}, {platform.system()} {platform.machine()}"
    lines = [
        "# Random fused regions",
        "",
        f"`python benchmarks/fused_regions.py --count {options.count} --seed {options.seed}"
        f"{f' --engine {options.engine}' if options.engine else ''}`, "
        f"{datetime.now(UTC):%Y-%m-%d}, {seconds:.0f} s, {versions}.",
        "",
        f"{options.count:,} regions; {tally.before:,} kernels without fusion, {tally.kernels:,} "
        f"with it; {len(tally.ops)} ops.",
        "",
        f"**{len(tally.failed)} failures.** Verdicts of the oracle: {_counts(tally.verdicts)}.",
        "",
        f"Patterns: {_counts(tally.patterns)}.",
        "",
        f"Shapes of kernels: {_counts(tally.shapes)}.",
    ]
    return "\n".join([*lines, *_listed(tally.failed)])


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counter.most_common())


def _listed(failed: Sequence[str]) -> list[str]:
    return ["", *(f"- {line}" for line in failed)] if failed else []


if __name__ == "__main__":
    sys.exit(main())
