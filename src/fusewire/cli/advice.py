"""Advice in the words of the command line: errors name the options of Python."""

from __future__ import annotations

import re

_BACKEND = re.compile(r"""ask for backend=["']([\w-]+)["']""")
_ISOLATE = re.compile(r"""(?:[Pp]ass )?isolate=["'](\w+)["']""")


def for_commands(text: str) -> str:
    """Name the options of commands in place of those of Python.

    >>> for_commands("Run it again, or pass isolate='never' to run it here. Raise budget_seconds.")
    'Run it again, or use --isolate never to run it here. Raise --budget.'
    """

    def option(found: re.Match[str]) -> str:
        verb = {"P": "Use ", "p": "use "}.get(found[0][0], "")
        return f"{verb}--isolate {found[1]}"

    named = _BACKEND.sub(r"use --backend \1", _ISOLATE.sub(option, text))
    named = re.sub(r"ask for level=(\d)", r"use --level \1", named)
    named = named.replace('nan="exact" forbids', "--nan exact forbids")
    named = named.replace("budget_seconds=", "--budget ")
    return named.replace("budget_seconds", "--budget")
