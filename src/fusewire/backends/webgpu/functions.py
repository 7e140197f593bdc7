"""Our WGSL functions by name; a kernel includes only those that it needs.

The folder ``wgsl`` holds them. In a name or a body, ``T`` stands for any scalar type, ``U`` and
``I`` for the unsigned and the signed integer of its width: ``maximum_T`` serves ``maximum_f64``.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_START = re.compile(r"^(?:fn|const) (\w+)", re.MULTILINE)
_WORD = re.compile(r"\b[A-Za-z_]\w*")
_TWINS = {
    "f32": ("u32", "i32"),
    "i32": ("u32", "i32"),
    "u32": ("u32", "i32"),
    "f64": ("u64", "i64"),
    "i64": ("u64", "i64"),
    "u64": ("u64", "i64"),
}


@cache
def _written() -> dict[str, str]:
    """Read every function and constant as it is written."""
    found: dict[str, str] = {}
    folder = files(__package__).joinpath("wgsl")
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        text = re.sub(r"^//.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        starts = list(_START.finditer(text))
        ends = [*(match.start() for match in starts[1:]), len(text)]
        for match, end in zip(starts, ends, strict=True):
            assert match[1] not in found, f"{match[1]} is written twice"
            found[match[1]] = text[match.start() : end].rstrip()
    return found


@cache
def find(name: str) -> str | None:
    """Give the text of a function or constant; None when there is none of that name."""
    written = _written()
    if name in written:
        return written[name]
    stem, _, of = name.rpartition("_")
    general = written.get(f"{stem}_T")
    if general is None or of not in _TWINS:
        return None
    unsigned, signed = _TWINS[of]
    text = re.sub(r"_T\b", f"_{of}", general)
    for stand_in, meant in (("T", of), ("U", unsigned), ("I", signed)):
        text = re.sub(rf"\b{stand_in}\b", meant, text)
    return text


def needed(code: str) -> list[str]:
    """List the texts that a piece of code calls for, each before what uses it."""
    done: dict[str, str] = {}

    def visit(text: str) -> None:
        for name in dict.fromkeys(_WORD.findall(text)):
            found = find(name)
            if found is not None and name not in done:
                done[name] = ""
                visit(found)
                # WGSL takes declarations in any order; this one reads from the ground up.
                done[name] = done.pop(name) or found

    visit(code)
    return list(done.values())
