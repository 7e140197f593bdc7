"""Write a plan or a profile as one page: style, script and data are in it, and it loads nothing.

Names in a model are a stranger's. They are data in the page, which the script only ever shows as
text; and the page forbids all scripts but its own by their digest, and all connections.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from importlib.resources import files
from typing import Any

_MARK = re.compile(r"@@(\w+)@@")
# What could end a script element, or a line of JavaScript, within the data.
_UNSAFE = re.compile("[<>&\u2028\u2029]")


def to_page(data: dict[str, Any], name: str = "page") -> str:
    """Write the page that shows such data; ``name`` is that of its files, without the endings."""
    style, script = _part("page.css"), _part(f"{name}.js")
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    parts = {
        "policy": f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "base-uri 'none'; form-action 'none'",
        "title": escape(f"{data['name']} · Fusewire"),
        "style": style,
        "script": script,
        "data": _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text),
    }
    return _MARK.sub(lambda mark: parts[mark[1]], _part(f"{name}.html"))


def in_frame(page: str, height: int = 720, title: str = "Plan") -> str:
    """Show a page inside another, without access to it."""
    look = "width:100%;border:1px solid #8888;border-radius:6px"
    return (
        f'<iframe sandbox="allow-scripts" title="{title}" height="{height}" style="{look}" '
        f'srcdoc="{escape(page)}"></iframe>'
    )


def _part(name: str) -> str:
    return files("fusewire.show").joinpath(name).read_text(encoding="utf-8").strip()


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
