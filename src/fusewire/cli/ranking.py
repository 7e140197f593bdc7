"""Say in two lines who won a comparison and by how much, in the manner of hyperfine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fusewire.choosing.budget import Coverage
from fusewire.cli.advice import for_commands
from fusewire.runtime.report import Row, named, seconds

# Above this noise, an order would be chance.
BUSY = 0.25


def summary(report: Row) -> Iterator[str]:
    """Yield who won and by how much; then how much was compared, and how busy the machine was."""
    rows = [row for row in report["rows"] if row["seconds"] is not None]
    chosen = next((row for row in rows if row["is_chosen"]), None)
    if report.get("is_interrupted"):
        yield "Interrupted: this is what was found so far."
    elif chosen is None:
        yield "No engine gives a right answer."
    elif len(rows) == 1:
        yield f"{named(chosen)} is the only one that ran: {seconds(chosen['seconds'])} per call."
    elif (report["noise"] or 0.0) > BUSY:
        noise = f"{report['noise']:.0%}" if report["noise"] <= 1 else "above 100%"
        yield (f"The machine is too busy to rank them (noise {noise}). {named(chosen)} is used.")
    else:
        yield _ranked(chosen, _rivals(chosen, rows), report["noise"] or 0.0)
    yield f"{covered(report)} {_conditions(report)}".strip()


def _rivals(chosen: Row, rows: Sequence[Row]) -> list[Row]:
    """Return the best candidate of each other engine; of the same engine, if there is no other."""
    best: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: float(row["seconds"])):
        if row is not chosen and row["status"] in ("right", "cannot say", "not judged"):
            best.setdefault(row["backend"], row)
    others = [row for backend, row in best.items() if backend != chosen["backend"]]
    return others or [*best.values()]


def _ranked(chosen: Row, rivals: Sequence[Row], noise: float) -> str:
    """Name those that tie with the winner, and say how much slower the next engine is."""
    if not rivals:
        return f"{named(chosen)} is the only right one."
    ties, slower = [], ""
    for rival in rivals:
        times, spread = ratio(chosen, rival)
        if spread is None:
            # One sample shows neither a tie nor how sure a ratio is.
            if times <= 1 + noise:
                return f"One sample does not tell {_listed([named(chosen), named(rival)])} apart."
            slower = slower or f"{times:.1f} times faster than {named(rival)} (one sample)"
        elif times - spread <= 1 or times <= 1 + noise:
            ties.append(named(rival))
        elif not slower:
            slower = f"{times:.2f} ± {spread:.2f} times faster than {named(rival)}"
    if not ties:
        return f"{named(chosen)} ran {slower}."
    tied = f"{_listed([named(chosen), *ties])} tie"
    return f"{tied}, {slower}." if slower else f"{tied}."


def ratio(chosen: Row, rival: Row) -> tuple[float, float | None]:
    """Return how many times as long the rival takes, and half of its 95% interval.

    There is no interval if one of them has a single sample.
    """
    times = rival["seconds"] / chosen["seconds"]
    spreads = [spread for row in (chosen, rival) if (spread := _spread(row)) is not None]
    return times, times * math.hypot(*spreads) if len(spreads) == 2 else None


def _spread(row: Row) -> float | None:
    if row["low"] is None or row["high"] is None:
        return None
    return float((row["high"] - row["low"]) / 2 / row["seconds"])


def covered(report: Row) -> str:
    """Say how much of the comparison the budget covered, and which budget covers all of it."""
    if (coverage := report.get("coverage")) is not None:
        return for_commands(Coverage(**coverage).sentence())
    rows = report["rows"]
    return f"{_count(len(rows), 'candidate')} in {report['seconds']:.0f} s." if rows else ""


def _conditions(report: Row) -> str:
    load, cores = report.get("load"), report["machine"]["cores"]
    noise = report["noise"]
    said = [f"noise {noise:.0%}"] if noise is not None and noise <= BUSY else []
    if load is not None:
        busy = f"load {load['before']:.1f} before, {load['during']:.1f} during"
        said.append(f"{busy} on {_count(cores, 'core')}")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}." if said else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
