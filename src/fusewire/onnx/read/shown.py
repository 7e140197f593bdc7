"""Show untrusted text in messages: escaped and shortened."""

from __future__ import annotations

_MOST = 80


def shown(text: str | bytes) -> str:
    """Quote a name; line ends and controls are escaped.

    >>> shown("a\\nb"), shown("long" * 100)[-5:]
    ("'a\\\\nb'", "…'")
    """
    plain = text[: _MOST + 1]
    if isinstance(plain, bytes):
        plain = plain.decode("utf-8", "backslashreplace")
    return ascii(plain) if len(plain) <= _MOST else f"{ascii(plain[:_MOST])[:-1]}…'"
