"""Tokens of the printed form of graphs, and how to read them one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from fusewire.errors import ParseError

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)
    |(?P<value>%(?:[A-Za-z_][\w.]*|"(?:[^"\\]|\\.)*"|\d+)(?:\#\d+)?)
    |(?P<number>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+)|-inf\b)
    |(?P<hex>hex:"[0-9a-f]*")|(?P<digest>sha256:[0-9a-f]{64})
    |(?P<word>\??[A-Za-z_][\w.]*)|(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<symbol>\??`(?:[^`\\]|\\.)*`)
    |(?P<mark>//|[-+*(){}\[\],=:<>])""",
    re.VERBOSE,
)


def parse_number(word: str) -> float | int:
    """Read a printed number."""
    if word in ("nan", "inf", "-inf") or not word.lstrip("-").isdigit():
        return float(word)
    return int(word)


class Reader:
    """``kind`` and ``text`` are the token in hand."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._start = self._end = 0
        self.kind = self.text = ""
        self.advance()

    def advance(self) -> str:
        """Take the next token in hand and give the one before."""
        before = self.text
        while True:
            self._start = self._end
            if self._start == len(self._source):
                self.kind, self.text = "end", "the end"
                return before
            match = _TOKEN.match(self._source, self._start)
            if match is None:
                self.text = self._source[self._start]
                raise self.error(f"{self.text!r} belongs to no token")
            self._end = match.end()
            if match.lastgroup != "space":
                self.kind, self.text = match.lastgroup or "", match.group()
                return before

    def error(self, message: str) -> ParseError:
        line = self._source.count("\n", 0, self._start) + 1
        return ParseError(message, line, self._start - self._source.rfind("\n", 0, self._start))

    def expect(self, text: str) -> None:
        if self.text != text or self.kind == "string":
            raise self.error(f"expected {text!r}, found {self.text!r}")
        self.advance()

    def take(self, kind: str) -> str:
        if self.kind != kind:
            raise self.error(f"expected a {kind}, found {self.text!r}")
        return self.advance()

    def many(self, close: str, item: Callable[[], None]) -> None:
        """Read items between commas up to a closing mark; a comma may come last."""
        while self.text != close:
            item()
            if self.text != ",":
                break
            self.advance()
        self.expect(close)

    def name(self) -> str:
        return json.loads(self.advance()) if self.kind == "string" else self.take("word")
