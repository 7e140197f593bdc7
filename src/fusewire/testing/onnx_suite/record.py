"""Outcomes of the suite, kept in a file so that a run continues where another ended."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple
from importlib.resources import files
from pathlib import Path
from typing import Any

from fusewire.testing.onnx_suite.crew import SuiteOutcome

COLUMNS = ("passed", "failed", "excluded", "not run")


def exclusions() -> dict[str, str]:
    """Map the cases that none of our backends can run to the reasons."""
    text = files(__package__).joinpath("exclusions.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: reason for name, _, reason in (line.partition(": ") for line in lines)}


class SuiteRecord:
    """Outcomes by side and case; ``runs`` holds whatever a caller notes about a side's run."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.cases: list[str] = []
        self.sides: dict[str, dict[str, SuiteOutcome]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            self.cases, self.runs = content["cases"], content["runs"]
            for side, outcomes in content["sides"].items():
                self.sides[side] = {case: SuiteOutcome(*row) for case, row in outcomes.items()}

    def save(self) -> None:
        """Write the file atomically."""
        if self._path is None:
            return
        sides = {
            side: {case: astuple(outcome) for case, outcome in sorted(found.items())}
            for side, found in sorted(self.sides.items())
        }
        content = {"runs": self.runs, "cases": self.cases, "sides": sides}
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")
        new.replace(self._path)

    def counts(self, side: str) -> dict[str, int]:
        """Count the four columns; they add up to all cases."""
        found = self.sides.get(side, {})
        counted: Counter[str] = Counter()
        counted.update("failed" if o.status == "refused" else o.status for o in found.values())
        counted["not run"] = len(self.cases) - len(found)
        return {column: counted[column] for column in COLUMNS}

    def problems(self, side: str) -> dict[str, SuiteOutcome]:
        """Map the cases that did not pass, without excluded ones."""
        found = self.sides.get(side, {}).items()
        return {case: o for case, o in found if o.status in ("failed", "refused")}


def grouped(side: str, problems: Mapping[str, SuiteOutcome]) -> dict[str, list[str]]:
    """Group cases by reason, ignoring numbers and names; the largest group comes first."""
    groups: dict[str, list[str]] = {}
    for case, outcome in problems.items():
        groups.setdefault(_kind(side, case, outcome.reason), []).append(case)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _kind(side: str, case: str, reason: str) -> str:
    said = reason.removeprefix(f"{side} failed while running {case}: ")
    for pattern, instead in _PLAIN:
        said = pattern.sub(instead, said)
    return said[:160]


_PLAIN = [
    (re.compile(pattern), instead)
    for pattern, instead in (
        # For a refusal, what the backend says about the first node.
        (r".* nodes run on none of .*? The first is .*?\. (?=\w+: )", "Refused: "),
        (r" Allow fallback=.*", ""),
        (r"\S*/site-packages/", ""),
        (r"\S*/src/fusewire/", "fusewire/"),
        (r"'[^']*'|\"[^\"]*\"", "'..'"),
        (r"Mismatched elements.*", "values differ"),
        (r"\([^()]*opset [^()]*\): ", ""),
        (r"\[[^\[\]]*\]", "[..]"),
        (r"%\w+", "%"),
        (r"\?\w+", "?"),
        (r"-?\b\d[\d.]*(e[-+]?\d+)?\b", "N"),
    )
]
