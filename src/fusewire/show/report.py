"""Tables of why a program runs as it does: for ``print``, for notebooks and for the commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from fusewire.errors import visible
from fusewire.show.ranks import open_sentence
from fusewire.tables import Column, Sheet, styled

if TYPE_CHECKING:
    from fusewire.show.contact import Contacted
    from fusewire.show.why import Why

# By verdict; a candidate with any other status did not run.
COLOURS = {
    "right": "green",
    "wrong": "red",
    "doubtful": "yellow",
    "inaccurate": "yellow",
    "cannot say": "yellow",
    "not judged": "yellow",
}
COLUMNS = (
    Column("engine"),
    Column("median", align="right"),
    Column("±", align="right"),
    Column("ratio", align="right"),
    Column("here", align="right"),
    Column("here ±", "extra", "right"),
    Column("verdict"),
    Column("compile", "extra", "right"),
    Column("memory", "extra", "right"),
    Column("error", "extra", "right"),
    Column("95% interval", "extra", "right"),
)
_UNITS = ((1.0, "s", 1.0), (1e-4, "ms", 1e3), (0.0, "us", 1e6))
# More regions are not worth printing; `fusewire explain --all` and `to_json` have all of them.
_MOST = 20

Row = Mapping[str, Any]


def digits(number: float) -> str:
    """Format a number with three digits, or with all digits before the point."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}" if number >= 1 else f"{number:.2g}"


def unit_of(rows: Sequence[Row]) -> tuple[str, float]:
    """Return the unit that suits the shortest time, and how many of it make a second."""
    times = [row.get(name) for row in rows for name in ("seconds", "here")]
    least = min((time for time in times if time is not None), default=1e-3)
    return next((name, factor) for bound, name, factor in _UNITS if least >= bound)


def seconds(time: float) -> str:
    """Format a time in the unit that suits it."""
    name, factor = unit_of([{"seconds": time}])
    return f"{digits(time * factor)} {name}"


def with_ratios(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Sort candidates by median, and add the ratio of each to the fastest."""
    timed = sorted((row for row in rows if row["seconds"] is not None), key=_seconds)
    rest = [row for row in rows if row["seconds"] is None]
    least = timed[0]["seconds"] if timed else None
    return [{**row, "ratio": row["seconds"] and row["seconds"] / least} for row in (*timed, *rest)]


def _seconds(row: Row) -> float:
    return float(row["seconds"])


def heads(rows: Sequence[Row]) -> list[str]:
    """Return the names of the columns, with the unit of the median."""
    unit, _ = unit_of(rows)
    return [f"{x.name}, {unit}" if x.name in ("median", "here") else x.name for x in COLUMNS]


def shown(rows: Sequence[Row]) -> list[int]:
    """List the places of the columns to show: those of a duel only if there was one."""
    has_duel = any(row.get("here") is not None for row in rows)
    return [n for n, x in enumerate(COLUMNS) if has_duel or x.name not in ("here", "here ±")]


def cells(row: Row, factor: float) -> list[str]:
    """Return the cells of one candidate."""
    memory, compiling, error = row["memory_bytes"], row["compile_seconds"], row["error"]
    low, high, median = row["low"], row["high"], row["seconds"]
    has_interval = median is not None and low is not None and high is not None
    here, ends = row.get("here"), (row.get("here_low"), row.get("here_high"))
    return [
        named(row),
        "-" if median is None else digits(median * factor),
        _half(median, low, high),
        "-" if row["ratio"] is None else digits(row["ratio"]),
        "-" if here is None else digits(here * factor),
        _half(here, *ends),
        verdict(row),
        "-" if compiling is None else f"{digits(compiling)} s",
        "-" if memory is None else f"{memory / 1e6:,.0f} MB",
        "-" if error is None else digits(error),
        f"{digits(low * factor)} - {digits(high * factor)}" if has_interval else "-",
    ]


def _half(median: float | None, low: float | None, high: float | None) -> str:
    """Write half of an interval as a share of the median."""
    has_interval = median and low is not None and high is not None
    return f"{(high - low) / 2 / median:.0%}" if has_interval else "-"  # type: ignore[operator]


def verdict(row: Row) -> str:
    """Say in a few words what came of a candidate."""
    is_split = row["elsewhere"] and row["compile_seconds"] is not None
    return f"{row['status']}, split" if is_split else str(row["status"])


def named(row: Row) -> str:
    """Name a candidate, and mark it if its device is emulated in software."""
    return f"{row['name']}, software" if row["is_software"] else str(row["name"])


def candidates(rows: Sequence[Row], title: str = "", *, is_wide: bool = False) -> Sheet:
    """Lay out candidates as a table, with the chosen one marked."""
    _, factor = unit_of(rows)
    names, places = heads(rows), shown(rows)
    columns = [Column(names[n], COLUMNS[n].role, COLUMNS[n].align) for n in places]
    sheet = Sheet("", *columns, title=title, is_wide=is_wide)
    place = [x.name for x in COLUMNS].index("verdict")
    for row in rows:
        texts: list[Any] = cells(row, factor)
        texts[place] = styled(texts[place], COLOURS.get(row["status"], "bright_black"))
        style = "bold" if row["is_chosen"] else "" if row["status"] == "right" else "bright_black"
        mark = styled(">" if row["is_chosen"] else "", "green")
        sheet.add(mark, *(texts[n] for n in places), style=style)
    return sheet


def regions(why: Why, title: str = "", *, most: int = _MOST, is_wide: bool = False) -> Sheet:
    """Lay out the regions of a plan, with what came of building each."""
    left = len(why.regions) - most
    sheet = Sheet(
        "region",
        "backend",
        Column("nodes", align="right"),
        "outcome",
        Column("compile", align="right"),
        Column("first run", align="right"),
        Column("memory", "extra", "right"),
        Column("cache", "extra"),
        Column("device", "extra"),
        Column("shapes", "extra"),
        title=title,
        is_wide=is_wide,
        caption=f"and {left} more; --all lists them" if left > 0 else "",
    )
    contacts = {contact.region: contact for contact in why.contacts}
    for region in why.regions[:most]:
        contact = _contact(contacts.get(region.name))
        about = region.name, region.backend, str(region.nodes)
        sheet.add(*about, *contact, region.device, region.shapes)
    return sheet


def _contact(contact: Contacted | None) -> Iterator[str]:
    if contact is None:
        yield from ["not run", "", "", "", ""]
        return
    metrics, outcome = contact.metrics, contact.outcome
    yield outcome if outcome == "ready" else f"{outcome}: on {contact.runs_on}"
    for name in ("compile_seconds", "run_seconds"):
        yield seconds(metrics[name]) if name in metrics else ""
    yield f"{metrics['peak_bytes'] / 1e6:,.0f} MB" if "peak_bytes" in metrics else ""
    yield contact.cache if contact.cache in ("", "hit", "off") else "miss"


def summary(why: Why) -> str:
    """Say in one line where a program runs."""
    nodes, parts = len(why.nodes), len(why.regions)
    many = "" if nodes == 1 else "s", "" if parts == 1 else "s"
    return f"{why.backend} ({why.device}): {nodes} node{many[0]} in {parts} region{many[1]}"


def remarks(why: Why) -> list[str]:
    """List the notes, why candidates were not taken, and what goes through the host."""
    said = [*reasons([asdict(row) for row in why.tried]), *why.notes]
    if why.host_bytes:
        copied = f"{why.host_bytes:,} bytes between the host and devices"
        said.append(f"A call with arrays copies {copied}.")
    return said


def reasons(rows: Sequence[Row]) -> Iterator[str]:
    """Yield why candidates were not taken; those with the same reason share a line."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["reason"]:
            names.setdefault((row["status"], row["reason"]), []).append(row["name"])
    for (status, why), alike in names.items():
        yield f"{status}: {', '.join(alike)}. {why}"


def sheets(why: Why) -> Iterator[Sheet]:
    """Yield the candidates, if there was a comparison, and the regions."""
    if why.tried:
        yield candidates(with_ratios([asdict(row) for row in why.tried]), "Candidates")
    yield regions(why, "Regions")


def text(why: Why) -> str:
    """Write tables and notes as plain text."""
    tables = []
    for sheet in sheets(why):
        sheet.has_option = False
        tables.append(sheet.to_text())
    first = f"{opening(why)} Runs on {summary(why)}".lstrip()
    return "\n\n".join([first, *tables, *map(visible, remarks(why))])


def opening(why: Why) -> str:
    """Return the sentence that comes before all others: what is used is beaten; or ""."""
    return visible(open_sentence([asdict(row) for row in why.tried]))


def html(why: Why) -> str:
    """Write tables and notes as HTML, with every text escaped and nothing loaded from elsewhere."""
    notes = "".join(f"<p>{escape(visible(note))}</p>" for note in remarks(why))
    tables = "".join(sheet.to_html() for sheet in sheets(why))
    where = f"Runs on <b>{escape(visible(summary(why)))}</b>"
    return f"<div><p>{escape(opening(why))} {where}</p>{tables}{notes}</div>"
