"""What the commands print passes through here: text of a stranger must not steer a terminal.

Names of a model, of its dims and nodes, and reasons from an imported cache may hold escape
sequences that clear a screen, or marks that reverse what is read. JSON escapes them by itself.
"""

from __future__ import annotations

from typing import Any, final

import click
from rich.console import Console, RenderableType
from rich.text import Text

from fusewire.errors import visible


@final
class Terminal(Console):
    """A console that prints strings, in tables too, with control characters escaped."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Render a string; it is here that strings become what is measured and printed."""
        return super().render_str(visible(text), **how)

    def show(self, shown: RenderableType) -> None:
        """Print tables; lines of a table that is to be wide may exceed the screen."""
        self.print(shown, crop=False, markup=False, highlight=False)


wide_option = click.option(
    "--wide", "is_wide", is_flag=True, help="Show every column, however wide the screen is."
)
