"""Checks of type rules without a bad sample: their number may only shrink."""

from pathlib import Path

import fusewire.ops
from fusewire.ops.table import all_ops
from fusewire.testing.conformance import refused
from tests.refusal_sites import Site, lines_of, reached, sites, type_rule_checks

FOLDER = Path(fusewire.ops.__file__).parent
# What infers types; the rest of declare.py checks signatures, which the suite does for every op.
SHARED = ("declare.py", "inference.py")
# Checks that no bad sample reaches. Lower it when you add samples; never raise it.
UNCHECKED = 27


def _sites() -> set[Site]:
    files = [file for file in FOLDER.glob("*.py") if file.name not in SHARED]
    return sites(files, type_rule_checks)


def test_unchecked_refusals_only_shrink() -> None:
    every = _sites()
    assert len(every) > 350
    lines = set()
    for op in all_ops().values():
        for drawn in op.refuses() if op.refuses else ():
            lines |= lines_of(refused(op, drawn))
    unchecked = every - reached(every, lines)
    shown = "\n".join(sorted(f"{Path(file).name}:{line}" for file, line, _ in unchecked))
    assert len(unchecked) <= UNCHECKED, f"Add refuses= samples for:\n{shown}"
    assert len(unchecked) == UNCHECKED, f"Lower UNCHECKED to {len(unchecked)}."
