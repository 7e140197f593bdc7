"""Read the printed form of graphs (docs/ir.md has the grammar). Trusts nothing it is given."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from fusewire.dtypes import DType, bool_, string
from fusewire.errors import DimError, GraphError, ParseError
from fusewire.ir.collection import collection_paused
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Array, Attr, Constant, Graph, Node, Value
from fusewire.ir.reader import DTYPES, MAX_DEPTH, Reader, parse_number
from fusewire.ir.types import TensorType, Type

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
    """Read a graph; ``constants`` holds by digest those too large to be in the text."""
    with collection_paused():
        return _whole(_Parser(text, constants or {}), lambda parser: parser.graph(0))


def _whole(parser: _Parser, rule: Callable[[_Parser], Result]) -> Result:
    try:
        result = rule(parser)
    except ParseError:
        raise
    except (GraphError, DimError, ValueError, ArithmeticError) as error:
        # Escapes that JSON has not, ints that are too long, divisions by zero.
        raise parser.error(str(error)) from None
    if parser.kind != "end":
        raise parser.error(f"expected the end, found {parser.text!r}")
    return result


class _Parser(Reader):
    """Recursive descent."""

    def __init__(self, source: str, constants: Mapping[str, Constant]) -> None:
        super().__init__(source)
        self._constants = constants

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
            raise self.error(f"a constant of type {type_}: it must be a tensor with known dims")
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
                raise self.error("a byte of a bool is 0 or 1")
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
            raise self.error(f"{flat.size} elements or bytes do not make {type_}") from None
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
    """Find the name in a printed value: %12 has none, %x#2 is called x."""
    name = label[1:]
    if name.startswith('"'):
        return str(json.loads(name[: name.rindex('"') + 1]))
    name = name.partition("#")[0]
    return None if name.isdigit() else name
