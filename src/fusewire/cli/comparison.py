"""Tables of the candidates that were compared, for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fusewire.cli.advice import for_commands
from fusewire.cli.ranking import summary
from fusewire.errors import visible
from fusewire.show.report import COLUMNS, Row, candidates, cells, heads, shown, unit_of

# Longer reasons are truncated; --json has all of them.
_LONGEST = 240


def title(report: Row) -> str:
    """Name the command and the model, without the model's folder."""
    return f"fusewire bench {Path(report['model']).name}"


def sheet(report: Row, *, is_wide: bool = False) -> RenderableType:
    """Lay out a whole report."""
    lines = Table.grid(padding=(0, 2))
    for name, line in remarks(report):
        lines.add_row(Text(name, "bold"), Text(visible(line)))
    return Group(
        Text(title(report), "bold"),
        *(Text(visible(line)) for line in summary(report)),
        Text(""),
        candidates(report["rows"], is_wide=is_wide),
        Text(""),
        lines,
    )


def markdown(report: Row) -> str:
    """Write a whole report as Markdown."""
    rows, (_, factor) = report["rows"], unit_of(report["rows"])
    names, places = heads(rows), shown(rows)
    rules = ["---" if COLUMNS[n].align == "left" else "---:" for n in places]
    lines = [[names[n] for n in places], rules]
    for row in rows:
        texts = cells(row, factor)
        first, *rest = (texts[n].replace("|", "\\|") for n in places)
        lines.append([f"**{first}**" if row["is_chosen"] else first, *rest])
    table = [f"| {' | '.join(line)} |" for line in lines]
    notes = [f"- {name}: {line}" for name, line in remarks(report)]
    said = " ".join(summary(report))
    return "\n".join([f"**{title(report)}**", "", said, "", *table, "", *notes])


def remarks(report: Row) -> Iterator[tuple[str, str]]:
    """Yield the lines below the table."""
    rows = report["rows"]
    for note in report["notes"]:
        # Reasons of these rows follow below, and ties are in the summary.
        is_said = " cannot be told apart: " in note
        if not is_said and not any(
            note.startswith(f"{row['name']} is {row['status']}") for row in rows
        ):
            yield "note", note
    yield from _reasons_by_name(rows)
    for row in rows:
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


def _reasons_by_name(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield why candidates were not taken, or in part; those with the same reason share a line."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if why := reason(row):
            status = "split" if row["elsewhere"] else row["status"]
            names.setdefault((status, why), []).append(row["name"])
    for (status, why), alike in names.items():
        yield status, f"{', '.join(alike)}: {why}"


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


def reason(row: Row) -> str:
    """Say why a candidate was not taken, or was taken only in part."""
    if row["elsewhere"]:
        split = f"{row['elsewhere']} nodes run on the reference, in {row['regions']} regions"
        return _truncated(f"{split}. The first is {row['elsewhere_why']}")
    why = _truncated(for_commands(row["reason"]))
    return f"{why} To lift it: {row['lift']}" if row.get("lift") else why


def _judged(rows: Sequence[Row]) -> str:
    """Say on which inputs answers were judged, and what share of elements was not."""
    judged = [row for row in rows if row["judged_on"]]
    if not judged:
        return "nothing was judged"
    on = dict.fromkeys(kind for row in judged for kind in row["judged_on"])
    most = max(row["unjudged"] or 0.0 for row in judged)
    left = f"{most:.1%} of the elements cannot be judged" if most else "every element"
    samples = [kind for kind in on if kind.startswith("sample")]
    kinds = [kind for kind in on if kind not in samples]
    if samples:
        kinds.append(f"{len(samples)} samples")
    return f"judged on inputs: {', '.join(kinds)}; {left}"


def _input(row: Row) -> str:
    generated = "" if row["is_given"] else ", generated"
    sizes = ", ".join(f"{dim} = {size}" for dim, size in row["assumed"].items())
    return f"{row['name']} {row['type']}{generated}" + (f" ({sizes} assumed)" if sizes else "")


def _truncated(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... (--json has all of it)"
