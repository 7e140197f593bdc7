"""What the commands print passes through here: text of a stranger must not steer a terminal.

Names of a model, of its dims and nodes, and reasons from an imported cache may hold escape
sequences that clear a screen, or marks that reverse what is read. JSON escapes them by itself.
"""

from __future__ import annotations

import re
from typing import Any, final

from rich.console import Console
from rich.text import Text

# C0 without tab and line feed, DEL and C1, and marks that order or break lines.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)


def visible(text: str) -> str:
    """Escape what a terminal would obey instead of showing it.

    >>> visible("\\x1b[2J")
    '\\\\x1b[2J'
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@final
class Terminal(Console):
    """A console that prints strings, in tables too, with control characters escaped."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Render a string; it is here that strings become what is measured and printed."""
        return super().render_str(visible(text), **how)
