"""How tables are laid out, for the commands, for ``print`` and for notebooks.

A name is never cut: it folds if it is wider than the screen. Where room is short, prose wraps,
and columns that are extra are left out, the last one first. There are no vertical rules, which
cost two characters a column.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, TypeAlias, final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from fusewire.errors import visible

# A "key" is always shown, and does not wrap while there is prose that can; an "extra" is shown if
# there is room; "prose" takes the room that is left.
Role = Literal["key", "extra", "prose"]
Align = Literal["left", "right", "center"]
Cell: TypeAlias = str | Text

_GAP = 2
# Prose gets at least so many columns before extras are shown, and before names fold.
_PROSE, _LEAST_PROSE, _LEAST = 40, 16, 4


def styled(text: str, style: str) -> Text:
    """Return a cell in a style, with control characters escaped."""
    return Text(visible(text), style)


@dataclass(frozen=True)
class Column:
    """A column of a sheet."""

    name: str
    role: Role = "key"
    align: Align = "left"


@final
class Sheet:
    """A table that fits the screen; ``is_wide`` shows every column, whatever the screen."""

    def __init__(
        self, *columns: Column | str, title: str = "", is_wide: bool = False, caption: str = ""
    ) -> None:
        self.columns = [Column(x) if isinstance(x, str) else x for x in columns]
        self.title = title
        self.is_wide = is_wide
        self.caption = caption
        # Whether the reader can ask for the columns that are left out.
        self.has_option = True
        self._rows: list[tuple[list[Text], str]] = []
        self._sections: set[int] = set()

    def add(self, *cells: Cell, style: str = "") -> None:
        """Add a row."""
        assert len(cells) == len(self.columns)
        texts = [x if isinstance(x, Text) else Text(visible(x)) for x in cells]
        self._rows.append((texts, style))

    def section(self) -> None:
        """Draw a rule after the latest row."""
        self._sections.add(len(self._rows) - 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        if self.title:
            yield Text(visible(self.title), "bold")
        yield from self._lines(console, widths, [Text(x.name) for x in self.columns], "bold")
        yield _line(Text("─" * _total(widths.values()), "dim"))
        for number, (texts, style) in enumerate(self._rows):
            yield from self._lines(console, widths, texts, style)
            if number in self._sections and number + 1 < len(self._rows):
                yield Text("")
        yield from (Text(visible(line), "italic dim") for line in self._captions(widths))

    def _lines(
        self, console: Console, widths: dict[int, int], texts: Sequence[Text], style: str
    ) -> Iterator[Text]:
        """Lay out one row, in as many lines as its longest cell takes."""
        columns = []
        for place, width in widths.items():
            column = list(texts[place].wrap(console, width, overflow="fold"))
            for line in column:
                line.rstrip()
                line.align(self.columns[place].align, width)
            columns.append((column, width))
        for number in range(max(len(column) for column, _ in columns)):
            line = Text(" " * _GAP).join(
                column[number] if number < len(column) else Text(" " * width)
                for column, width in columns
            )
            line.rstrip()
            line.stylize_before(style)
            yield _line(line)

    def _captions(self, widths: dict[int, int]) -> Iterator[str]:
        if self.caption:
            yield self.caption
        hidden = [x.name for place, x in enumerate(self.columns) if place not in widths]
        if hidden and self.has_option:
            yield f"--wide shows {', '.join(hidden)} too"

    def _natural(self, place: int) -> int:
        texts = [self.columns[place].name, *(texts[place].plain for texts, _ in self._rows)]
        return max(cell_len(line) for text in texts for line in text.split("\n"))

    def _widths(self, room: int) -> dict[int, int]:
        """Return the columns that are shown, and how wide each is."""
        widths = {place: self._natural(place) for place in range(len(self.columns))}
        if self.is_wide:
            return widths
        extras = [place for place in widths if self.columns[place].role == "extra"]
        while extras and self._least(widths) > room:
            del widths[extras.pop()]
        self._narrow(widths, room, "prose", _LEAST_PROSE)
        self._narrow(widths, room, "key", _LEAST)
        return widths

    def _least(self, widths: dict[int, int]) -> int:
        """Return the width at which everything can be read with ease."""
        return _total(
            min(width, _PROSE) if self.columns[place].role == "prose" else width
            for place, width in widths.items()
        )

    def _narrow(self, widths: dict[int, int], room: int, role: Role, least: int) -> None:
        """Narrow the widest columns of a role until all fit."""
        places = [place for place in widths if self.columns[place].role == role]
        while _total(widths.values()) > room:
            widest = max(places, key=widths.__getitem__, default=None)
            if widest is None or widths[widest] <= least:
                return
            widths[widest] -= 1

    def to_text(self, width: int | None = None) -> str:
        """Write the table as plain text, for the screen or for this width."""
        file = io.StringIO()
        console = Console(file=file, width=width, color_system=None, force_terminal=False)
        console.print(self, crop=False)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    def to_html(self) -> str:
        """Write the table as HTML, every column of it."""
        head = "".join(_html("th", x.name, x.align) for x in self.columns)
        rows = "".join(f"<tr>{''.join(self._cells(*row))}</tr>" for row in self._rows)
        title = escape(visible(self.title))
        look = "text-align:left;font-weight:bold"
        caption = f'<caption style="{look}">{title}</caption>' if title else ""
        body = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
        style = "border-collapse:collapse;margin:.5em 0"
        return f'<table style="{style}">{caption}{body}</table>'

    def _cells(self, texts: Sequence[Text], style: str) -> Iterator[str]:
        for column, text in zip(self.columns, texts, strict=True):
            yield _html("td", text.plain, column.align, is_bold="bold" in style.split())


def _line(text: Text) -> Text:
    """Keep a text on one line, even if that is longer than the screen is wide."""
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _total(widths: Iterable[int]) -> int:
    sizes = [*widths]
    return sum(sizes) + _GAP * (len(sizes) - 1)


def _html(tag: str, text: str, align: Align, *, is_bold: bool = False) -> str:
    weight = ";font-weight:bold" if is_bold else ""
    style = f"text-align:{align};padding:.1em .6em{weight}"
    return f'<{tag} style="{style}">{escape(text)}</{tag}>'
