"""Read the printed form of graphs (docs/ir.md has the grammar). Does not trust its input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from fusewire.dtypes import ALL, DType, bool_, string
from fusewire.errors import DimError, GraphError, ParseError
from fusewire.ir.collection import collection_paused
from fusewire.ir.dims import FUNCTIONS, Dim, Sym, apply, floordiv, symbol, unbacked
from fusewire.ir.graph import Array, Attr, Constant, Graph, Node, Value
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type

_TOKEN = re.compile(
    r"""(?:\s|\#[^\n]*+)*+(?:(?P<value>%(?:[A-Za-z_][\w.]*|"(?:[^"\\]|\\.)*"|\d+)(?:\#\d+)?)
    |(?P<number>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+)|-inf\b)
    |(?P<hex>hex:"[0-9a-f]*")|(?P<digest>sha256:[0-9a-f]{64})
    |(?P<word>\??[A-Za-z_][\w.]*(?:@[1-9]\d*)?)|(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<symbol>\??`(?:[^`\\]|\\.)*`)
    |(?P<mark>//|[-+*(){}\[\],=:<>])|(?P<end>\Z))""",
    re.VERBOSE,
)

_BLANK = re.compile(r"(?:\s|#[^\n]*+)*+")
_TENSOR = re.compile(r"\w+\[[^\]]*\]")
# Parentheses of a dim; those in names and comments are none.
_BRACKET = re.compile(r"""[()]|`(?:[^`\\]|\\.)*+`?|\#[^\n]*+""")
# Calls of more characters are not looked up.
_MOST_CALL = 2**14
DTYPES = {d.name: d for d in ALL}
MAX_DEPTH = 64
# Sums are sorted as they grow and products multiply terms: no real shape has this many.
MAX_TERMS = 256
Known = TypeVar("Known")
_WORDS: dict[str, Attr] = {
    "none": None,
    "true": True,
    "false": False,
    "nan": float("nan"),
    "inf": float("inf"),
}
_ELEMENTS: dict[str, type] = {"bool": bool, "string": str}
Result = TypeVar("Result")


def parse_dim(text: str) -> Dim:
    """Read a dim.

    >>> parse_dim("(n + 1)//2*4")
    4*floordiv(n+1, 2)
    """
    return _whole(_Parser(text, {}), _Parser.dim)


def parse_type(text: str) -> Type:
    """Read a type."""
    return _whole(_Parser(text, {}), _Parser.type)


def parse_attr(text: str) -> Attr:
    """Read an attribute."""
    return _whole(_Parser(text, {}), lambda parser: parser.attr(0))


def parse_graph(text: str, constants: Mapping[str, Constant] | None = None) -> Graph:
    """Read a graph; ``constants`` has, by digest, those too large for the text."""
    with collection_paused():
        return _whole(_Parser(text, constants or {}), lambda parser: parser.graph(0))


def _whole(parser: _Parser, rule: Callable[[_Parser], Result]) -> Result:
    try:
        result = rule(parser)
    except ParseError:
        raise
    except (GraphError, DimError, ValueError, ArithmeticError) as error:
        # Escapes that JSON lacks, ints that are too long, divisions by zero.
        raise parser.error(str(error)) from None
    if parser.kind != "end":
        raise parser.error(f"expected the end, found {parser.text!r}")
    return result


def parse_number(word: str) -> float | int:
    """Read a printed number."""
    if word in ("nan", "inf", "-inf") or not word.lstrip("-").isdigit():
        return float(word)
    return int(word)


class _Parser:
    """Recursive descent; ``kind`` and ``text`` are the token in hand."""

    def __init__(self, source: str, constants: Mapping[str, Constant]) -> None:
        self._source = source
        self._constants = constants
        self._start = self._end = 0
        # A text repeats few types many times.
        self._types: dict[str, TensorType] = {}
        # Dims repeat their parts: by text, what a call came to and how deeply it nests.
        self._calls: dict[str, tuple[Dim, int]] = {}
        self._deepest = 0
        self.kind = self.text = ""
        self.advance()

    def advance(self) -> str:
        """Move to the next token and return the current one."""
        before = self.text
        match = _TOKEN.match(self._source, self._end)
        if match is None:
            blank = _BLANK.match(self._source, self._end)
            self._start = blank.end() if blank else self._end
            raise self.error(f"unexpected character {self._source[self._start]!r}")
        self.kind = match.lastgroup or ""
        self.text = match[self.kind] or "the end"
        self._start, self._end = match.span(self.kind)
        return before

    def memorized(self, pattern: re.Pattern[str], known: dict[str, Known]) -> Known | None:
        """Skip text at the current token that was parsed before, and return its value."""
        match = pattern.match(self._source, self._start)
        found = known.get(match.group()) if match else None
        if found is not None and match is not None:
            self._end = match.end()
            self.advance()
        return found

    def since(self, start: int) -> str:
        """Return the text from a place up to the current token."""
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
        """Read items separated by commas up to a closing mark; a trailing comma is allowed."""
        while self.text != close:
            item()
            if self.text != ",":
                break
            self.advance()
        self.expect(close)

    def name(self) -> str:
        return json.loads(self.advance()) if self.kind == "string" else self.take("word")

    # -- types and dims

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
        self._deepest = max(self._deepest, depth)
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
            return self.call(depth)
        if self.kind not in ("word", "symbol"):
            raise self.error(f"expected a dim, found {self.text!r}")
        word = self.advance()
        make, name = (unbacked, word[1:]) if word.startswith("?") else (symbol, word)
        return make(json.loads(f'"{name[1:-1]}"') if name.startswith("`") else name)

    def call(self, depth: int) -> Dim:
        text = self.call_text()
        known = self._calls.get(text)
        if known is not None and depth + known[1] <= MAX_DEPTH:
            self._deepest = max(self._deepest, depth + known[1])
            self._end = self._start + len(text)
            self.advance()
            return known[0]
        before, self._deepest = self._deepest, depth
        function = self.advance()
        self.expect("(")
        left = self.dim(depth + 1)
        self.expect(",")
        right = self.dim(depth + 1)
        self.expect(")")
        made = apply(function, left, right)
        if text:
            self._calls[text] = made, self._deepest - depth
        self._deepest = max(self._deepest, before)
        return made

    def call_text(self) -> str:
        """Return the text of the call that starts here; "" if it is very long or does not end."""
        open_ = 0
        for bracket in _BRACKET.finditer(self._source, self._end, self._end + _MOST_CALL):
            mark = bracket.group()
            open_ += {"(": 1, ")": -1}.get(mark, 0)
            if mark == ")" and open_ <= 0:
                return self._source[self._start : bracket.end()]
        return ""

    # -- graphs

    def graph(self, depth: int) -> Graph:
        if depth > MAX_DEPTH:
            raise self.error(f"graphs nested deeper than {MAX_DEPTH}")
        self.expect("graph")
        name = self.name()
        scope: dict[str, Value] = {}
        inputs: list[Value] = []

        def one_input() -> None:
            label = self.take("value")
            self.expect(":")
            inputs.append(self.define(scope, label, Value(self.type(), _plain(label))))

        self.expect("(")
        self.many(")", one_input)
        self.expect("{")
        nodes: list[Node] = []
        while self.text != "return":
            self.statement(scope, nodes, depth)
        self.advance()
        outputs, names = self.results(scope)
        self.expect("}")
        return Graph(inputs, outputs, nodes, name=name, output_names=names)

    def results(self, scope: Mapping[str, Value]) -> tuple[list[Value], list[str]]:
        outputs: list[Value] = []
        names: list[str] = []
        while self.kind == "value":
            outputs.append(self.use(scope))
            self.expect("as")
            names.append(self.name())
            if self.text == ",":
                self.advance()
        return outputs, names

    def define(self, scope: dict[str, Value], label: str, value: Value) -> Value:
        if label in scope:
            raise self.error(f"{label} is defined twice")
        scope[label] = value
        return value

    def use(self, scope: Mapping[str, Value]) -> Value:
        if self.text not in scope:
            raise self.error(f"{self.text} is used before it is defined")
        return scope[self.advance()]

    def operand(self, scope: Mapping[str, Value]) -> Value | None:
        if self.text != "none":
            return self.use(scope)
        self.advance()
        return None

    def statement(self, scope: dict[str, Value], nodes: list[Node], depth: int) -> None:
        labels = [self.take("value")]
        while self.text == ",":
            self.advance()
            labels.append(self.take("value"))
        self.expect("=")
        op = self.take("word")
        if op == "constant" and self.text != "(":
            if len(labels) > 1:
                raise self.error(f"{len(labels)} names for one constant")
            held = self.constant()
            self.define(scope, labels[0], Value(held.type, _plain(labels[0]), held))
            return
        inputs: list[Value | None] = []
        attrs: dict[str, Attr] = {}

        def one_attr() -> None:
            key = self.take("word")
            if key in attrs:
                raise self.error(f"the attribute {key} is given twice")
            self.expect("=")
            attrs[key] = self.attr(depth)

        self.expect("(")
        self.many(")", lambda: inputs.append(self.operand(scope)))
        if self.text == "{":
            self.advance()
            self.many("}", one_attr)
        types = self.types(len(labels))
        label = None
        if self.text == "as":
            self.advance()
            label = self.name()
        node = Node(op, inputs, attrs, types, names=[_plain(x) for x in labels], name=label)
        for text, value in zip(labels, node.outputs, strict=True):
            self.define(scope, text, value)
        nodes.append(node)

    def types(self, count: int) -> list[Type]:
        self.expect(":")
        types = [self.type()]
        while self.text == ",":
            self.advance()
            types.append(self.type())
        if len(types) != count:
            raise self.error(f"{count} values and {len(types)} types")
        return types

    def constant(self) -> Constant:
        type_ = self.type()
        if not isinstance(type_, TensorType) or not all(_is_size(dim) for dim in type_.shape):
            raise self.error(f"a constant must be a tensor with known dims, found {type_}")
        if self.kind == "digest":
            digest = self.advance().removeprefix("sha256:")
            if digest not in self._constants:
                raise self.error(
                    f"the constant {digest[:12]} is not in the text; give it in `constants`"
                )
            if self._constants[digest].type != type_:
                raise self.error(f"{digest[:12]} is {self._constants[digest].type}, not {type_}")
            return self._constants[digest]
        of = type_.dtype
        if self.kind == "hex" and of is not string:
            raw = bytes.fromhex(self.advance()[5:-1])
            if of is bool_ and max(raw, default=0) > 1:
                raise self.error("a bool must be a byte of 0 or 1")
            return self.shaped(np.frombuffer(raw, np.uint8), type_, view=True)
        items: list[Any] = []
        self.expect("{")
        self.many("}", lambda: items.append(self.element(of)))
        if of.is_float:
            return self.shaped(np.array(items, np.float64).astype(of.numpy), type_)
        return self.shaped(np.array(items, of.numpy), type_)

    def shaped(self, flat: Array, type_: TensorType, view: bool = False) -> Constant:
        try:
            array = flat.view(type_.dtype.numpy) if view else flat
            array = array.reshape([int(d) for d in type_.shape if isinstance(d, int)])
        except ValueError:
            raise self.error(f"{flat.size} elements or bytes do not fit {type_}") from None
        if type_.dtype is not string:
            array.flags.writeable = False
        return Constant.of(array)

    def element(self, of: DType) -> Any:
        found: Any = None
        if self.kind == "number":
            found = parse_number(self.text)
        elif self.kind == "string":
            found = json.loads(self.text)
        elif self.text in ("true", "false", "nan", "inf"):
            found = _WORDS[self.text]
        kinds = (float, int) if of.is_float else _ELEMENTS.get(of.kind, int)
        wrong = not isinstance(found, kinds) or isinstance(found, bool) != (of is bool_)
        if wrong or (of.is_integer and not of.range[0] <= found <= of.range[1]):
            raise self.error(f"expected an element of {of}, found {self.text!r}")
        self.advance()
        return found

    # -- attributes

    def attr(self, depth: int) -> Attr:
        if self.kind == "string":
            return str(json.loads(self.advance()))
        if self.kind == "word":
            if self.text in _WORDS:
                return _WORDS[self.advance()]
            if self.text in DTYPES:
                return DTYPES[self.advance()]
            if self.text == "graph":
                return self.graph(depth + 1)
            if self.text == "type":
                self.advance()
                return self.type()
        if self.text == "(" and self.kind == "mark":
            return self.tuple(depth)
        if self.kind == "number" and not self.text.lstrip("-").isdigit():
            return parse_number(self.advance())
        return self.dim()

    def tuple(self, depth: int) -> Attr:
        if depth > MAX_DEPTH:
            raise self.error(f"tuples nested deeper than {MAX_DEPTH}")
        items: list[Attr] = []
        self.expect("(")
        self.many(")", lambda: items.append(self.attr(depth + 1)))
        return tuple(items)


def _is_size(dim: Dim) -> bool:
    return isinstance(dim, int) and dim >= 0


def _plain(label: str) -> str | None:
    """Return the name in a printed value: %12 has none, %x#2 is called x."""
    name = label[1:]
    if name.startswith('"'):
        return str(json.loads(name[: name.rindex('"') + 1]))
    name = name.partition("#")[0]
    return None if name.isdigit() else name
