"""What comes of a fault, by its kind, its phase and the policy of fallback, through fw.compile?

    python benchmarks/policies.py [--faults segv hang ...] [--phases claim run ...] [--json]

One parent, real faults in the child of first contact. With "error" a typed error must come, with
"warn" a right answer and a FallbackWarning, with "allow" a right answer and silence; and `why`
must hold what happened. Exit 1 if anything else came, or if a process was left behind.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import time
import warnings
from typing import Any

import numpy as np

import fusewire as fw
from benchmarks.faults import left
from fusewire.errors import FusewireError
from fusewire.options import Options
from fusewire.process.pool import shared_pool

CHAOS = "fusewire.testing.chaos:"
PHASES = ("import", "probe", "claim", "compile", "load", "run")
POLICIES = ("error", "warn", "allow")
# The code of what happened; a hang has another while it compiles.
FAULTS = {
    "segv": "crashed", "abort": "crashed", "exit": "crashed", "quit": "raised", "raise": "raised",
    "garbage": "garbage", "scribble": "garbage", "hang": "hung", "hang_gil": "hung",
    "spin": "hung", "stop": "hung",
}  # fmt: skip
HARMLESS = ("none", "slow")
# A hang ends at the deadline; before it, a child must have got ready on a busy machine.
DEADLINE = 5.0
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def _model(x: Any) -> Any:
    return np.tanh(x) @ np.ones((4, 4), np.float32) + 1


def problem(fault: str, phase: str, policy: str) -> str | None:
    """Have one fault; say what was wrong with what came of it."""
    reference = f"{CHAOS}{fault}_at_{phase}"
    fw.register(reference, "chaos")
    said: list[str] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            options = Options.of(None, {"fallback": policy})
            program = fw.compile(_model, X, options=options, backend="chaos", deadline=DEADLINE)
            answers = [program(X) for _ in range(2)]
        said = [str(w.message) for w in caught if w.category is fw.FallbackWarning]
    except FusewireError as error:
        is_due = policy == "error" and fault in FAULTS
        return None if is_due else f"{type(error).__name__}: {error}"
    finally:
        fw.unregister("chaos")
        shared_pool().release(reference)
    if not all(np.allclose(answer, _model(X), rtol=1e-5) for answer in answers):
        return f"a wrong answer: {answers}"
    if fault in HARMLESS:
        return None if not said else f"a warning: {said}"
    if policy == "error":
        return "an answer, and no error"
    if bool(said) != (policy == "warn"):
        return f"{len(said)} warnings"
    return _unexplained(program.why(), fault, phase)


def _unexplained(why: Any, fault: str, phase: str) -> str | None:
    """Say if `why` does not hold what happened."""
    if phase in ("import", "probe"):
        return None if why.notes else "nothing noted"
    code = FAULTS[fault]
    code = "compile-timeout" if (code, phase) == ("hung", "compile") else code
    if phase == "claim":
        found = {verdict.code for node in why.nodes for verdict in node.verdicts}
    else:
        found = {contact.outcome for contact in why.contacts}
    return None if code in found else f"why tells of {sorted(found)}, not of {code}"


def measure(faults: list[str], phases: list[str], policies: list[str]) -> dict[str, Any]:
    """Run all combinations in this process."""
    problems = []
    seconds: dict[str, list[float]] = {}
    problem("none", "run", "error")
    before = left()
    combinations = list(itertools.product(faults, phases, policies))
    for fault, phase, policy in combinations:
        start = time.perf_counter()
        if wrong := problem(fault, phase, policy):
            problems.append(f"{fault} at {phase}, {policy}: {wrong}")
        seconds.setdefault(fault, []).append(time.perf_counter() - start)
    after = left()
    problems += [
        f"{key}: {before[key]} before, {after[key]} after"
        for key in after
        if after[key] > before[key]
    ]
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "combinations": len(combinations),
        "median_seconds": {fault: float(np.median(found)) for fault, found in seconds.items()},
        "before": before,
        "after": after,
        "problems": problems,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", nargs="+", default=[*FAULTS, *HARMLESS])
    parser.add_argument("--phases", nargs="+", default=list(PHASES))
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.faults, given.phases, given.policies)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        for key, value in found.items():
            print(f"{key}: {value}")
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
