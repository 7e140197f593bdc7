"""What can code in a closed child still do, do engines still work there, and what does it cost?

    python benchmarks/closed.py [--count 20] [--engines xla,webgpu] [--seed 0] [--json]

Attempts to get out of a child by raw system calls, in an open child, where each must succeed, and
in a closed one, where each must fail; as this user and, for root, as nobody. Then one sample of
every op on every engine in a closed child. Then the time to start open and closed children, taking
turns. Exit 1 if an attempt got through, failed in the open child, or an engine was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fusewire.contract.backend import Config, Refusal
from fusewire.contract.region import first_device
from fusewire.errors import FusewireError
from fusewire.ir.graph import HostValue
from fusewire.ops.table import all_ops
from fusewire.planning.claims import ask
from fusewire.planning.target import Target
from fusewire.process.confinement import Closing
from fusewire.process.guard import BY_CODE
from fusewire.process.isolate import first_contact, probe
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import ChildPool
from fusewire.process.sandbox import landlock_version
from fusewire.registry import REGISTRY
from fusewire.testing.conformance import Case, first_cases
from fusewire.testing.escapes import can_be, is_refused, start_attempts
from fusewire.testing.suite import CaseResult, Ready, judge, merge

NOBODY = 65534
LIMITS = ChildLimits(300.0)
IDLE = "fusewire.testing.chaos:none_at_run"
CLOSINGS: tuple[Closing, Closing] = ("open", "run")


def attempts() -> dict[str, dict[str, dict[str, int | str]]]:
    """Make all attempts: by user, then by how the child is closed."""
    users: dict[str, int | None] = {"root" if os.getuid() == 0 else "user": None}
    if can_be(NOBODY):
        users["nobody"] = NOBODY
    answers: dict[str, dict[str, dict[str, int | str]]] = {}
    for name, user in users.items():
        for closing in CLOSINGS:
            text, _ = start_attempts(closing, user).communicate(timeout=600)
            answers.setdefault(name, {})[closing] = json.loads(text)
    return answers


def attempt_problems(answers: dict[str, dict[str, dict[str, int | str]]]) -> list[str]:
    problems = []
    for user, found in answers.items():
        for name, answer in found["open"].items():
            if is_refused(answer):
                problems.append(f"{name} as {user} failed in the open child: {answer}")
            if not is_refused(found["run"][name]):
                problems.append(f"{name} as {user} got through: {found['run'][name]}")
    return problems


def conformance(name: str) -> dict[Case, CaseResult]:
    """Run one sample of each op in a closed child, as many as fit into one graph."""
    reference, backend = REGISTRY.meet(name).reference, REGISTRY.get(name)
    target = Target(backend, first_device(backend))
    results: dict[Case, CaseResult] = {}
    ready: list[Ready[Case]] = []
    for op in all_ops().values():
        case = first_cases(op)[0]
        try:
            graph, inputs = case.make()
            claimed = ask(target, graph)
        except FusewireError as error:
            results[case] = CaseResult("failed", str(error))
            continue
        if claimed.refusals or not claimed.graph.nodes:
            results[case] = CaseResult("refused")
            continue
        ready.append(Ready(case, graph, claimed.graph, inputs, "native"))
    with ChildPool() as pool:

        def run(
            part: Sequence[Ready[Case]], calls: Sequence[Sequence[HostValue]]
        ) -> list[list[HostValue]]:
            region = merge([item.legal for item in part])
            # A child compiles anew for each call: one, without the poisoned inputs.
            result = first_contact(
                reference, region, target.device, Config(), calls[0], LIMITS, pool=pool
            )
            if isinstance(result, Refusal):
                raise BY_CODE[result.code](result.reason, result.suggestion)
            return [result.outputs]

        judge(name, ready, run, results)
    known = {gap.op for gap in backend.gaps}
    return {
        case: CaseResult("gap", result.reason)
        if result.status == "failed" and case.op.name in known
        else result
        for case, result in results.items()
    }


def starts(count: int, seed: int) -> dict[str, list[float]]:
    """Time a child from its start to the end of its first job, in random turns."""
    turns = [closing for closing in CLOSINGS for _ in range(count)]
    random.Random(seed).shuffle(turns)
    seconds: dict[str, list[float]] = {closing: [] for closing in CLOSINGS}
    for closing in turns:
        with ChildPool(closing=closing) as pool:
            start = time.perf_counter()
            probe(IDLE, LIMITS, pool=pool)
            seconds[closing].append(time.perf_counter() - start)
    return seconds


def measure(count: int, engines: Sequence[str], seed: int) -> dict[str, Any]:
    answers = attempts()
    problems = attempt_problems(answers)
    ops: dict[str, dict[str, int]] = {}
    for name in engines:
        results = conformance(name)
        ops[name] = dict(Counter(result.status for result in results.values()))
        problems += [
            f"{name}: {case.id}: {result.reason}"
            for case, result in results.items()
            if result.status == "failed"
        ]
    seconds = starts(count, seed)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "kernel": f"{platform.release()}, Landlock {landlock_version()}",
        "python": platform.python_version(),
        "attempts": answers,
        "ops": ops,
        "start_ms": {key: [round(1000 * x, 1) for x in found] for key, found in seconds.items()},
        "start_median_ms": {
            key: round(1000 * statistics.median(found), 1)
            for key, found in seconds.items()
            if found
        },
        "problems": problems,
    }


def table(answers: dict[str, dict[str, dict[str, int | str]]]) -> list[str]:
    """Show attempts as a table: what the system call returned."""
    columns = [(user, closing) for user in answers for closing in CLOSINGS]
    words = {"open": "open", "run": "closed"}
    head = [f"{words[closing]}, {user}" for user, closing in columns]
    lines = ["| attempt | " + " | ".join(head) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in next(iter(answers.values()))["open"]:
        shown = (_shown(answers[user][closing][name]) for user, closing in columns)
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return lines


def _shown(answer: int | str) -> str:
    if isinstance(answer, str):
        return f"ended: {answer}"
    return "done" if answer >= 0 else os.strerror(-answer)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20, help="starts of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", help="names, separated by commas; all if not given")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    names = [name for name in REGISTRY.ranked() if not REGISTRY.get(name).info.trusted]
    if given.engines is not None:
        names = [name for name in given.engines.split(",") if name]
    found = measure(given.count, names, given.seed)
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(table(found.pop("attempts"))))
        for key, value in found.items():
            print(f"{key}: {value}")
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
