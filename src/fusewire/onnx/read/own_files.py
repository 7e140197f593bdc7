"""Read the metadata that our own files have beyond ONNX's vocabulary.

A function of our domain is taken back into the op it stands for. What it notes about itself is
believed only while its body is the one that was written with the note; a body that somebody
changed is read as any function is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.errors import DimError, FusewireError, ParseError
from fusewire.ir.builder import bind_attr
from fusewire.ir.dims import Dim, Symbol, unbacked
from fusewire.ir.graph import Attr, Value
from fusewire.ir.parse import parse_attr, parse_dim
from fusewire.ir.types import Type, substitute_type, type_symbols
from fusewire.onnx.notes import DOMAIN, OPERAND, PRODUCER, VERSION, attr_symbols, body_digest
from fusewire.onnx.read.call import OnnxCall
from fusewire.ops.table import all_ops, get_op


class Own:
    """Reads what one file of ours notes."""

    def __init__(self, model: Any) -> None:
        self._is_ours = model.producer_name == PRODUCER
        self._notes: dict[str, dict[str, str] | None] = {}
        self._told: dict[Symbol, Dim] = {}

    def type(self, type_: Type) -> Type:
        """Read dims that are printed expressions, such as 2*n+1."""
        if not self._is_ours:
            return type_
        try:
            said = {s: parse_dim(s.name) for s in type_symbols(type_) if not s.unbacked}
            return substitute_type(type_, said)
        except ParseError:
            return type_

    def outputs(self, call: OnnxCall, function: Any) -> Sequence[Value] | None:
        """Make the node that a function stands for; None when it is to be read as written."""
        notes = self._believed(function) if call.opset == VERSION else None
        if notes is None:
            return None
        operands, sizes = _arguments(call, function)
        texts = {key[5:]: text for key, text in notes.items() if key.startswith("attr.")}
        try:
            attrs = {key: self._bound(parse_attr(text), sizes) for key, text in texts.items()}
            return get_op(notes["op"]).make(operands, attrs).outputs
        except FusewireError:
            # Types that do not fit, a size that is not known, or a note that is no attribute.
            return None

    def _believed(self, function: Any) -> dict[str, str] | None:
        if function.domain != DOMAIN:
            return None
        if function.name not in self._notes:
            notes = {entry.key: entry.value for entry in function.metadata_props}
            same = _is_known(notes.get("op")) and notes.get("body") == body_digest(function)
            self._notes[function.name] = notes if same else None
        return self._notes[function.name]

    def _bound(self, attr: Attr, sizes: dict[Symbol, Dim]) -> Attr:
        """Put sizes in their places; one that is not given is for the node itself to tell."""
        for symbol in attr_symbols(attr):
            if symbol.unbacked:
                self._told.setdefault(symbol, unbacked())
            elif symbol not in sizes:
                raise DimError(f"{symbol.name} is not known.")
        return bind_attr(attr, {**sizes, **self._told})


def _is_known(name: str | None) -> bool:
    """Tell whether an op is there: ours, or one of a package that is installed."""
    if name is None or "." not in name:
        return name in all_ops()
    try:
        get_op(name)
    except FusewireError:
        return False
    return True


def _arguments(call: OnnxCall, function: Any) -> tuple[list[Value | None], dict[Symbol, Dim]]:
    """Tell operands from sizes by the names of the function's inputs."""
    operands: dict[int, Value | None] = {}
    sizes: dict[Symbol, Dim] = {}
    for name, value in zip(function.input, call.inputs, strict=False):
        if name.startswith(OPERAND):
            operands[int(name.removeprefix(OPERAND))] = value
        elif known := call.dims(value):
            sizes[Symbol(name)] = known[0]
    return [operands.get(i) for i in range(max(operands, default=-1) + 1)], sizes
