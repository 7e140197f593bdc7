"""Tables of the candidates that were compared, for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fusewire.errors import visible

# By verdict; a candidate with any other status did not run.
COLOURS = {
    "right": "green",
    "wrong": "red",
    "doubtful": "yellow",
    "cannot say": "yellow",
    "not judged": "yellow",
}
_COLUMNS = (
    "engine", "median", "95% interval", "x best", "compile", "memory", "error", "verdict"
)  # fmt: skip
_LEFT = ("engine", "verdict")
_UNITS = ((1.0, "s", 1.0), (1e-4, "ms", 1e3), (0.0, "us", 1e6))
# Longer reasons are truncated; --json has all of them.
_LONGEST = 240

Row = Mapping[str, Any]


def digits(number: float) -> str:
    """Format a number with three digits, or with all digits before the point."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}" if number >= 1 else f"{number:.2g}"


def unit_of(rows: Sequence[Row]) -> tuple[str, float]:
    """Return the unit that suits the shortest time, and how many of it make a second."""
    least = min((row["seconds"] for row in rows if row["seconds"] is not None), default=1e-3)
    return next((name, factor) for bound, name, factor in _UNITS if least >= bound)


def seconds(time: float) -> str:
    """Format a time in the unit that suits it."""
    name, factor = unit_of([{"seconds": time}])
    return f"{digits(time * factor)} {name}"


def cells(row: Row, factor: float) -> list[str]:
    """Return the cells of one candidate."""
    timed = row["seconds"] is not None
    memory, compiling, error = row["memory_bytes"], row["compile_seconds"], row["error"]
    return [
        named(row),
        digits(row["seconds"] * factor) if timed else "-",
        f"{digits(row['low'] * factor)} - {digits(row['high'] * factor)}" if timed else "-",
        digits(row["ratio"]) if timed else "-",
        "-" if compiling is None else f"{digits(compiling)} s",
        "-" if memory is None else f"{memory / 1e6:,.0f} MB",
        "-" if error is None else digits(error),
        verdict(row),
    ]


def verdict(row: Row) -> str:
    """Say in a few words what came of a candidate."""
    is_split = row["elsewhere"] and row["compile_seconds"] is not None
    return f"{row['status']}, split" if is_split else str(row["status"])


def named(row: Row) -> str:
    """Name a candidate, and mark it if its device is emulated in software."""
    return f"{row['name']}, software" if row["is_software"] else str(row["name"])


def table(rows: Sequence[Row], title: str) -> Table:
    """Lay out candidates as a table, with the chosen one marked."""
    unit, factor = unit_of(rows)
    shown = Table(title=title, header_style="bold", title_style="bold")
    shown.add_column("")
    for column in _COLUMNS:
        name = f"median, {unit}" if column == "median" else column
        shown.add_column(name, justify="left" if column in _LEFT else "right")
    for row in rows:
        colour = COLOURS.get(row["status"], "bright_black")
        *texts, last = map(escape, cells(row, factor))
        style = "bold" if row["is_chosen"] else None if row["status"] == "right" else "bright_black"
        mark = "[green]>[/]" if row["is_chosen"] else ""
        shown.add_row(mark, *texts, f"[{colour}]{last}[/]", style=style)
    return shown


def title(report: Row) -> str:
    """Name the command and the model, without the model's folder."""
    return f"fusewire bench {Path(report['model']).name}"


def sheet(report: Row) -> RenderableType:
    """Lay out a whole report."""
    lines = Table.grid(padding=(0, 2))
    for name, line in remarks(report):
        lines.add_row(Text(name, "bold"), Text(visible(line)))
    return Group(table(report["rows"], title(report)), lines)


def markdown(report: Row) -> str:
    """Write a whole report as Markdown."""
    rows, (unit, factor) = report["rows"], unit_of(report["rows"])
    heads = [f"median, {unit}" if name == "median" else name for name in _COLUMNS]
    lines = [heads, ["---" if name in _LEFT else "---:" for name in _COLUMNS]]
    for row in rows:
        first, *rest = (text.replace("|", "\\|") for text in cells(row, factor))
        lines.append([f"**{first}**" if row["is_chosen"] else first, *rest])
    shown = [f"| {' | '.join(line)} |" for line in lines]
    notes = [f"- {name}: {line}" for name, line in remarks(report)]
    return "\n".join([f"**{title(report)}**", "", *shown, "", *notes])


def remarks(report: Row) -> Iterator[tuple[str, str]]:
    """Yield the lines below the table."""
    rows = report["rows"]
    yield "chosen", _chosen(report)
    for note in report["notes"]:
        # Reasons of these rows follow below, with the others.
        if not any(note.startswith(f"{row['name']} is {row['status']}") for row in rows):
            yield "note", note
    for row in rows:
        if why := reason(row):
            yield "split" if row["elsewhere"] else row["status"], f"{row['name']}: {why}"
        if row["tuned"]:
            yield "tuned", f"{row['name']}: {tuned_kernels(row)}"
    for name, why in report["missing"].items():
        yield "missing", _truncated(why if name in why else f"{name}: {why}")
    yield "error", f"the worst error divided by the model's tolerance; {_judged(rows)}"
    yield "inputs", "; ".join(_input(row) for row in report["inputs"])
    threads = report["threads"] or "engine default"
    host = report["machine"]
    yield "machine", f"{host['processor']}, {host['cores']} cores, {host['system']}"
    engines = {row["backend"]: row["version"] for row in rows}
    both = {**report["versions"], **engines}
    versions = ", ".join(f"{name} {text}" for name, text in both.items())
    yield "with", f"{versions}; threads: {threads}; {report['date']}, {report['seconds']:.0f} s"


def tuned_kernels(row: Row) -> str:
    """List the tuned kernels of a candidate, the one that gains most first."""
    others = [kernel for kernel in row["tuned"] if kernel["is_other"]]
    others.sort(key=lambda kernel: -kernel["gain"])
    first = "; ".join(
        f"{kernel['name']} {kernel['gain']:.2f} times as fast ({configuration(kernel)})"
        for kernel in others[:3]
    )
    more = f"; and {len(others) - 3} more" if len(others) > 3 else ""
    return f"{len(others)} of {len(row['tuned'])} kernels: {first}{more}"


def configuration(kernel: Row) -> str:
    """Write the configuration of a kernel."""
    pairs = (
        (name, x if isinstance(x, list | tuple) else [x]) for name, x in kernel["chosen"].items()
    )
    return " ".join(f"{name}={','.join(map(str, numbers))}" for name, numbers in pairs)


def _chosen(report: Row) -> str:
    chosen = report["chosen"]
    if chosen is None:
        return "none: no engine gives a right answer"
    noise = f"the noise is {report['noise']:.1%}; differences within it do not count"
    others = [row["ratio"] for row in report["rows"] if row["ratio"] and not row["is_chosen"]]
    lead = min(others, default=1.0)
    margin = f", {lead:.2f} times as fast as the next" if lead > 1 + report["noise"] else ""
    return f"{chosen}{margin}; {noise}"


def reason(row: Row) -> str:
    """Say why a candidate was not taken, or was taken only in part."""
    if row["elsewhere"]:
        split = f"{row['elsewhere']} nodes run on the reference, in {row['regions']} regions"
        return _truncated(f"{split}. The first is {row['elsewhere_why']}")
    return _truncated(row["reason"])


def _judged(rows: Sequence[Row]) -> str:
    """Say on which inputs answers were judged, and what share of elements was not."""
    judged = [row for row in rows if row["judged_on"]]
    if not judged:
        return "nothing was judged"
    on = dict.fromkeys(kind for row in judged for kind in row["judged_on"])
    most = max(row["unjudged"] or 0.0 for row in judged)
    left = f"{most:.1%} of the elements cannot be judged" if most else "every element"
    return f"judged on inputs: {', '.join(on)}; {left}"


def _input(row: Row) -> str:
    generated = "" if row["is_given"] else ", generated"
    sizes = ", ".join(f"{dim} = {size}" for dim, size in row["assumed"].items())
    return f"{row['name']} {row['type']}{generated}" + (f" ({sizes} assumed)" if sizes else "")


def _truncated(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... (--json has all of it)"
