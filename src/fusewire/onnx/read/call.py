"""One ONNX node, as the functions that import it see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from fusewire.dtypes import DType
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, symbols
from fusewire.ir.graph import Array, Value
from fusewire.onnx.annotating import node_label
from fusewire.onnx.elements import DTYPES

if TYPE_CHECKING:
    from fusewire.onnx.read.importer import Importer
    from fusewire.onnx.read.scope import ImportScope


class OnnxCall:
    """A node, its operands and attributes; ``opset`` is the version of its domain."""

    def __init__(
        self,
        importer: Importer,
        scope: ImportScope,
        node: Any,
        opset: int,
        attrs: Mapping[str, Any],
    ) -> None:
        self.importer = importer
        self.scope = scope
        self.op: str = node.op_type
        self.opset = opset
        self.attrs = attrs
        self.inputs = [scope.find(name) if name else None for name in node.input]
        self.outputs: Sequence[str] = tuple(node.output)
        self.node = node
        self.label = node_label(node)

    def __getitem__(self, position: int) -> Value:
        """Give an operand that must be there."""
        found = self.get(position)
        if found is None:
            self.refuse(f"operand {position} is needed and absent.")
        return found

    def get(self, position: int) -> Value | None:
        """Give an operand, or None when it is absent."""
        return self.inputs[position] if position < len(self.inputs) else None

    @property
    def rest(self) -> list[Value]:
        """All operands, which must all be there."""
        return [self[position] for position in range(len(self.inputs))]

    def wants(self, position: int) -> bool:
        """Tell whether an output has a name."""
        return position < len(self.outputs) and bool(self.outputs[position])

    def attr(self, name: str, default: Any = None) -> Any:
        """Read an attribute: int, float, str, tuples of them, or a message."""
        return self.attrs.get(name, default)

    def flag(self, name: str, default: int = 0) -> bool:
        """Read an attribute that is 0 or 1."""
        return bool(self.attr(name, default))

    def needed(self, name: str) -> Any:
        """Read an attribute that must be there."""
        if name not in self.attrs:
            self.refuse(f"the attribute {name} is needed and absent.")
        return self.attrs[name]

    def dtype(self, name: str = "dtype", default: DType | None = None) -> DType:
        """Read an attribute that names a dtype by ONNX's number."""
        number = self.attr(name)
        if number is None and default is not None:
            return default
        if number not in DTYPES:
            self.refuse(f"{name} is {number}, which is not a dtype.")
        return DTYPES[number]

    def tensor(self, name: str) -> Value:
        """Read a tensor attribute as a constant."""
        return constant(self.importer.opened.constant(self.needed(name)))

    def dims(self, value: Value | None) -> tuple[Dim, ...] | None:
        """Tell the elements of a small int tensor, in row-major order, as far as sizes go.

        None when the operand is absent, or only the run can tell.
        """
        found = self.importer.facts.elements(value)
        return None if found is None else tuple(found.reshape(-1).tolist())

    def ints(self, value: Value | None) -> tuple[int, ...] | None:
        """Tell the elements of a small int tensor if all are numbers."""
        found = self.dims(value)
        if found is None or not all(isinstance(item, int) for item in found):
            return None
        return tuple(int(item) for item in found)  # type: ignore[arg-type] # all are ints

    def array(self, value: Value | None) -> Array | None:
        """Give the elements of an operand that is constant, or None."""
        if value is None:
            return None
        if value.constant is not None:
            return value.constant.array
        found = self.ints(value)
        if found is None:
            return None
        return np.array(found, value.tensor.dtype.numpy).reshape(value.tensor.shape)

    def sizes_behind(self, value: Value) -> set[str]:
        """Name the sizes of inputs that a value is computed from."""
        found: set[str] = set()
        stack, seen = [value], {value}
        while stack:
            current = stack.pop()
            known = self.dims(current)
            if known is not None:
                found.update(s.name for dim in known for s in symbols(dim) if not s.unbacked)
            elif current.node is not None:
                fresh = [v for v in current.node.operands if v not in seen]
                seen.update(fresh)
                stack += fresh
        return found

    def settled(self, *values: Value) -> list[Value]:
        """Note values made on the way, so that what they tell is known: small ones get constant."""
        return self.importer.settle(values, self.scope, self.label)

    def within(self, found: int, most: int, what: str) -> int:
        """Refuse a number of things to make that no model means."""
        if not 0 <= found <= most:
            self.refuse(f"{what} is {found:,}, and 0 to {most:,} are taken.")
        return found

    def refuse(self, why: str) -> NoReturn:
        """Raise: this node cannot be taken."""
        raise FormatError(why)


Converted: TypeAlias = "Value | Sequence[Value | None]"
Read: TypeAlias = Callable[[OnnxCall], Converted]


# By AttributeProto.AttributeType; GRAPH, TENSOR, SPARSE_TENSOR and TYPE_PROTO stay messages.
_READERS: Mapping[int, Callable[[Any], Any]] = {
    1: lambda a: number(a),
    2: lambda a: int(a.i),
    3: lambda a: text(a.s),
    4: lambda a: a.t,
    5: lambda a: a.g,
    6: lambda a: tuple(a.floats),
    7: lambda a: tuple(a.ints),
    8: lambda a: tuple(text(s) for s in a.strings),
    9: lambda a: tuple(a.tensors),
    10: lambda a: tuple(a.graphs),
    11: lambda a: a.sparse_tensor,
    12: lambda a: tuple(a.sparse_tensors),
    13: lambda a: a.tp,
    14: lambda a: tuple(a.type_protos),
}
_LONGEST_NUMBER = 32
# Files from before the type was written down say it by the field they fill.
_FIELDS = {"f": 1, "i": 2, "s": 3, "t": 4, "g": 5, "floats": 6, "ints": 7, "strings": 8}


def number(attribute: Any) -> float:
    """Read a float; our own files note the digits that float32 has no room for."""
    held, noted = float(attribute.f), attribute.doc_string
    if not noted or len(noted) > _LONGEST_NUMBER:
        return held
    try:
        exact = float(noted)
    except ValueError:
        return held
    return exact if np.float32(exact) == np.float32(held) else held


def text(held: bytes) -> str:
    """Read bytes as text; what is not UTF-8 is shown, not lost."""
    return held.decode("utf-8", "backslashreplace")


def read_attributes(protos: Iterable[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Read attributes by name; ``given`` are those of the function call around the node."""
    found: dict[str, Any] = {}
    for attribute in protos:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                found[attribute.name] = given[attribute.ref_attr_name]
            continue
        kind = attribute.type
        if not kind:
            filled = [field.name for field, _ in attribute.ListFields()]
            kind = next((_FIELDS[name] for name in filled if name in _FIELDS), 7)
        found[attribute.name] = _READERS[kind](attribute)
    return found
