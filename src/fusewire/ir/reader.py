"""Read tokens, dims and types of the printed form, one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeVar

from fusewire.dtypes import ALL
from fusewire.errors import ParseError
from fusewire.ir.dims import FUNCTIONS, Dim, Sym, apply, floordiv, symbol, unbacked
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type

_TOKEN = re.compile(
    r"""(?:\s|\#[^\n]*+)*+(?:(?P<value>%(?:[A-Za-z_][\w.]*|"(?:[^"\\]|\\.)*"|\d+)(?:\#\d+)?)
    |(?P<number>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+)|-inf\b)
    |(?P<hex>hex:"[0-9a-f]*")|(?P<digest>sha256:[0-9a-f]{64})
    |(?P<word>\??[A-Za-z_][\w.]*)|(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<symbol>\??`(?:[^`\\]|\\.)*`)
    |(?P<mark>//|[-+*(){}\[\],=:<>])|(?P<end>\Z))""",
    re.VERBOSE,
)


def parse_number(word: str) -> float | int:
    """Read a printed number."""
    if word in ("nan", "inf", "-inf") or not word.lstrip("-").isdigit():
        return float(word)
    return int(word)


_BLANK = re.compile(r"(?:\s|#[^\n]*+)*+")
_TENSOR = re.compile(r"\w+\[[^\]]*\]")
DTYPES = {d.name: d for d in ALL}
MAX_DEPTH = 64
# Sums are sorted as they grow, and products multiply: no shape has this many terms.
MAX_TERMS = 256
Known = TypeVar("Known")


class Reader:
    """``kind`` and ``text`` are the token in hand."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._start = self._end = 0
        # Few types stand in a text many times over.
        self._types: dict[str, TensorType] = {}
        self.kind = self.text = ""
        self.advance()

    def advance(self) -> str:
        """Take the next token in hand and give the one before."""
        before = self.text
        match = _TOKEN.match(self._source, self._end)
        if match is None:
            blank = _BLANK.match(self._source, self._end)
            self._start = blank.end() if blank else self._end
            raise self.error(f"{self._source[self._start]!r} belongs to no token")
        self.kind = match.lastgroup or ""
        self.text = match[self.kind] or "the end"
        self._start, self._end = match.span(self.kind)
        return before

    def memorized(self, pattern: re.Pattern[str], known: dict[str, Known]) -> Known | None:
        """Skip text that starts at the token in hand, when it is known what it reads as."""
        match = pattern.match(self._source, self._start)
        found = known.get(match.group()) if match else None
        if found is not None and match is not None:
            self._end = match.end()
            self.advance()
        return found

    def since(self, start: int) -> str:
        """Give the text from a place up to the token in hand."""
        return self._source[start : self._start].rstrip()

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

    def type(self, depth: int = 0) -> Type:
        known = self.memorized(_TENSOR, self._types)
        if known is not None:
            return known
        start = self._start
        word = self.take("word")
        if depth > MAX_DEPTH:
            raise self.error(f"types nested deeper than {MAX_DEPTH}")
        if word in ("sequence", "optional"):
            self.expect("<")
            element = self.type(depth + 1)
            self.expect(">")
            return SequenceType(element) if word == "sequence" else OptionalType(element)
        found = DTYPES.get(word)
        if found is None:
            raise self.error(f"{word!r} is not a type; known dtypes: {', '.join(DTYPES)}")
        dims: list[Dim] = []
        self.expect("[")
        self.many("]", lambda: dims.append(self.dim()))
        made = TensorType(found, tuple(dims))
        self._types[self.since(start)] = made
        return made

    def dim(self, depth: int = 0) -> Dim:
        total = self.term(depth)
        while self.text in ("+", "-") or (self.kind == "number" and self.text.startswith("-")):
            # "n-1" is a number token that starts with a minus: a sum without a mark.
            sign = 1 if self.kind == "number" else (1 if self.advance() == "+" else -1)
            total = self.limited(total + sign * self.term(depth))
        return total

    def term(self, depth: int) -> Dim:
        product = self.factor(depth)
        while self.kind == "mark" and self.text in ("*", "//"):
            if self.advance() == "*":
                product = self.limited(product * self.factor(depth))
            else:
                product = floordiv(product, self.factor(depth))
        return product

    def limited(self, dim: Dim) -> Dim:
        if isinstance(dim, Sym) and len(dim.terms) > MAX_TERMS:
            raise self.error(f"a dim of more than {MAX_TERMS} terms")
        return dim

    def factor(self, depth: int) -> Dim:
        if depth > MAX_DEPTH:
            raise self.error(f"a dim nested deeper than {MAX_DEPTH}")
        if self.kind == "number" and self.text.lstrip("-").isdigit():
            return int(self.advance())
        if self.text == "-":
            self.advance()
            return -self.factor(depth + 1)
        if self.text == "(":
            self.advance()
            inner = self.dim(depth + 1)
            self.expect(")")
            return inner
        if self.kind == "word" and self.text in FUNCTIONS:
            function = self.advance()
            self.expect("(")
            left = self.dim(depth + 1)
            self.expect(",")
            right = self.dim(depth + 1)
            self.expect(")")
            return apply(function, left, right)
        if self.kind not in ("word", "symbol"):
            raise self.error(f"expected a dim, found {self.text!r}")
        word = self.advance()
        make, name = (unbacked, word[1:]) if word.startswith("?") else (symbol, word)
        return make(json.loads(f'"{name[1:-1]}"') if name.startswith("`") else name)
