"""Draw a comparison as SVG: one bar per candidate, with whiskers for its 95% interval.

The colours are readable on light and on dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from fusewire.cli.comparison import title
from fusewire.show.report import digits, named, unit_of

Row = Mapping[str, Any]
_WIDTH, _LEFT, _RIGHT, _TOP, _PITCH, _BAR = 860, 210, 200, 66, 36, 20
_TEXT, _FAINT = "#6e7781", "#6e778140"
_COLOURS = {"right": "#2da44e", "cannot say": "#bf8700", "not judged": "#bf8700"}
_FAULT = "#d1464f"
# Beyond this ratio short bars look alike on a linear scale.
_LOG = 10.0
_STYLE = (
    "text { font: 13px -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif; "
    f"fill: {_TEXT}; }} .head {{ font-size: 16px; font-weight: 600; }} "
    ".small { font-size: 11px; } .chosen { font-weight: 700; } "
    ".end { text-anchor: end; } .middle { text-anchor: middle; }"
)


def plot(report: Row) -> str:
    """Draw the rows of a report."""
    rows = report["rows"]
    height = _TOP + _PITCH * len(rows) + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img">',
        f"<title>{escape(_summary(report))}</title>",
        f"<style>{_STYLE}</style>",
        _text(16, 28, title(report), "head"),
        _text(16, 48, _subtitle(report), "small"),
        *_axis(rows, height - 30),
        *(part for place, row in enumerate(rows) for part in _row(row, rows, place)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _summary(report: Row) -> str:
    unit, factor = unit_of(report["rows"])
    texts = (
        f"{row['name']} {digits(row['seconds'] * factor)} {unit}"
        if row["seconds"] is not None
        else f"{row['name']} {row['status']}"
        for row in report["rows"]
    )
    return f"{title(report)}: {', '.join(texts)}"


def _subtitle(report: Row) -> str:
    host = report["machine"]
    shapes = ", ".join(f"{row['name']} {row['type']}" for row in report["inputs"][:3])
    return f"{shapes} · {host['processor']}, {host['cores']} cores · {report['date']}"


def _interval(row: Row) -> tuple[float, float]:
    """Return the ends of a row's whisker, which has no length after one sample."""
    low, high = row["low"], row["high"]
    return (row["seconds"],) * 2 if low is None or high is None else (low, high)


def _scale(rows: Sequence[Row]) -> tuple[Callable[[float], float], float, float, bool]:
    """Return the position of a time, the least and most shown, and whether the scale is log."""
    room = _WIDTH - _LEFT - _RIGHT
    ends = [_interval(row) for row in rows if row["seconds"] is not None]
    lows, highs = [low for low, _ in ends], [high for _, high in ends]
    most, least = max(highs, default=1e-3), min(lows, default=1e-3)
    is_log = most / least > _LOG
    if not is_log:
        return lambda x: _LEFT + room * x / most, 0.0, most, False
    # Start below the least time, or the shortest bar would have no length.
    start = least / 10**0.4
    span = math.log(most / start)
    return lambda x: _LEFT + room * math.log(x / start) / span, start, most, True


def _ticks(start: float, most: float, is_log: bool) -> list[float]:
    """Choose round numbers between two."""
    if is_log:
        powers = range(math.floor(math.log10(start)), math.ceil(math.log10(most)) + 1)
        steps = (1,) if len(powers) > 4 else (1, 2, 5)
        ticks = [step * 10.0**power for power in powers for step in steps]
    else:
        raw = most / 5
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(x * power for x in (1, 2, 5, 10) if x * power >= raw)
        ticks = [place * step for place in range(math.floor(most / step) + 1)]
    return [x for x in ticks if start <= x <= most]


def _axis(rows: Sequence[Row], bottom: int) -> Iterator[str]:
    unit, factor = unit_of(rows)
    at, start, most, is_log = _scale(rows)
    for tick in _ticks(start * factor, most * factor, is_log):
        x = at(tick / factor)
        yield _line(x, _TOP - 4, x, bottom - 14, _FAINT)
        yield _text(x, bottom, f"{tick:g}", "small middle")
    kind = " (log scale)" if is_log else ""
    yield _text(_WIDTH - 16, bottom, f"{unit} a call{kind}", "small end")


def _row(row: Row, rows: Sequence[Row], place: int) -> Iterator[str]:
    top = _TOP + _PITCH * place + (_PITCH - _BAR) / 2
    middle = top + _BAR / 2
    base = middle + 4.5
    chosen = " chosen" if row["is_chosen"] else ""
    yield _text(_LEFT - 12, base, named(row), f"end{chosen}")
    if row["seconds"] is None:
        colour = _FAULT if row["status"] == "wrong" else _TEXT
        yield _text(_LEFT + 6, base, row["status"], "", colour)
        return
    unit, factor = unit_of(rows)
    at = _scale(rows)[0]
    colour = _COLOURS.get(row["status"], _FAULT)
    opacity = 0.9 if row["is_chosen"] else 0.45
    end, (low, high) = at(row["seconds"]), map(at, _interval(row))
    yield (
        f'<rect x="{_LEFT}" y="{top:.1f}" width="{end - _LEFT:.1f}" height="{_BAR}" rx="3" '
        f'fill="{colour}" fill-opacity="{opacity}"/>'
    )
    if low < high:
        yield _line(low, middle, high, middle, _TEXT, 1.5)
        for x in (low, high):
            yield _line(x, middle - 5, x, middle + 5, _TEXT, 1.5)
    notes = [f"{digits(row['ratio'])}x"] if row["ratio"] > 1 else []
    notes += [row["status"]] if row["status"] != "right" else []
    notes += ["split"] if row["elsewhere"] else []
    notes += ["chosen"] if row["is_chosen"] else []
    label = f"{digits(row['seconds'] * factor)} {unit}" + (
        f" ({', '.join(notes)})" if notes else ""
    )
    yield _text(max(end, high) + 8, base, label, chosen.strip())


def _text(x: float, y: float, text: str, kind: str = "", colour: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    fill = f' style="fill: {colour}"' if colour else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}{fill}>{escape(text)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, colour: str, width: float = 1.0) -> str:
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )
