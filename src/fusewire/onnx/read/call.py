"""One ONNX node as those see it who turn it into ops of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from fusewire.dtypes import DType
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, symbols
from fusewire.ir.graph import Array, Value
from fusewire.onnx.elements import DTYPES

if TYPE_CHECKING:
    from fusewire.onnx.read.importer import Importer
    from fusewire.onnx.read.scope import Scope


class Call:
    """A node, its operands and attributes; ``opset`` is the version of its domain."""

    def __init__(
        self, importer: Importer, scope: Scope, node: Any, opset: int, attrs: Mapping[str, Any]
    ) -> None:
        self.importer = importer
        self.scope = scope
        self.op: str = node.op_type
        self.opset = opset
        self.attrs = attrs
        self.inputs = [scope.find(name) if name else None for name in node.input]
        self.outputs: Sequence[str] = tuple(node.output)
        self.node = node
        self.label = f"{node.op_type} {node.name or next(iter(node.output), '')}"

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
            self.refuse(f"{name} is {number}, which is no dtype.")
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

    def needed_ints(self, position: int, what: str) -> tuple[int, ...]:
        """Tell the elements of an operand that must be known before the run."""
        found = self.ints(self[position])
        if found is None:
            self.refuse(
                f"{what} is computed by the model, and must be known before it runs. "
                "Make it a constant, or give the sizes of inputs."
            )
        return found

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
Convert: TypeAlias = Callable[[Call], Converted]
