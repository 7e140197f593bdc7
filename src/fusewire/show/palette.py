"""Colours of engines, which differ in lightness too and are told apart by all kinds of sight."""

from __future__ import annotations

from collections.abc import Sequence

# In the order in which engines get them. The tests compute how far apart they are, in lightness
# and for the common kinds of colour blindness.
_COLOURS = (
    "#0d2f63",
    "#efa101",
    "#28a870",
    "#c6ffb0",
    "#8d3fa0",
    "#8fd0ff",
    "#5a1a0a",
    "#f46cad",
)
# What is interpreted is grey.
_FIXED = {"reference": "#6e6e6e", "host": "#dddddd"}


def colours(backends: Sequence[str]) -> dict[str, str]:
    """Give each backend a colour, the most used first; from the ninth on they repeat."""
    engines = [name for name in backends if name not in _FIXED]
    given = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(engines)}
    return {name: _FIXED.get(name) or given[name] for name in backends}


def text_colour(colour: str) -> str:
    """Return black or white, whichever is easier to read on a colour."""
    return "#000000" if luminance(colour) > 0.18 else "#ffffff"


def luminance(colour: str) -> float:
    """Compute the relative luminance of a colour, as WCAG defines it: 0 is black, 1 is white."""
    red, green, blue = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(level: float) -> float:
    return level / 12.92 if level <= 0.04045 else float(((level + 0.055) / 1.055) ** 2.4)
