"""Say in two lines who won a comparison and by how much, in the manner of hyperfine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fusewire.choosing.budget import Coverage
from fusewire.cli.advice import for_commands
from fusewire.show.ranks import ORDER, is_below, open_sentence
from fusewire.show.report import Row, named, seconds


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
    elif sentence := open_sentence(rows):
        yield sentence
    else:
        yield _ranked(chosen, _rivals(chosen, rows), report["noise"] or 0.0)
    yield f"{covered(report)} {_conditions(report)}".strip()


def _rivals(chosen: Row, rows: Sequence[Row]) -> list[Row]:
    """Return the best candidate of each other engine; of the same engine, if there is no other."""
    best: dict[str, Row] = {}
    usable = [row for row in rows if row["status"] in ORDER and not row["is_barred"]]
    for row in sorted(usable, key=lambda row: float(row["seconds"])):
        if row is not chosen:
            best.setdefault(row["backend"], row)
    quicker = [row for row in best.values() if row["seconds"] < chosen["seconds"]]
    others = [row for row in best.values() if row["backend"] != chosen["backend"]]
    return [row for row in best.values() if row in quicker or row in others] or [*best.values()]


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
        elif not is_below(*((row["low"], row["high"]) for row in (chosen, rival))):
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
    said = [f"noise {noise:.0%}" if noise <= 1 else "noise above 100%"] if noise is not None else []
    if load is not None:
        busy = f"load {load['before']:.1f} before, {load['during']:.1f} during"
        said.append(f"{busy} on {_count(cores, 'core')}")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}." if said else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
