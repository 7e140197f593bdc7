"""Count and check the content of a parsed model before it is imported.

One walk over every message, never by recursion: nodes, graphs inside graphs, calls of functions,
tensors, and the text of names.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from fusewire import dtypes
from fusewire.contract.frontend import Limits
from fusewire.errors import BudgetError, FormatError
from fusewire.ir.types import TensorType
from fusewire.onnx.read.shown import shown
from fusewire.onnx.read.tensors import (
    EXTERNAL,
    check_data,
    element_count,
    name_of,
    sparse_type,
    type_of,
)
from fusewire.ops.outside import OUTSIDE

STANDARD = ("", "ai.onnx")
DOMAINS = ("ai.onnx.ml", "ai.onnx.training", "com.microsoft")
PREVIEW = "ai.onnx.preview"
# Nodes that are a program of some engine in the form of bytes, or a call of somebody's own code.
NATIVE = {
    "EPContext": "it holds code that was compiled for one engine",
    "Snpe": "it holds a model of another engine",
    "PythonOp": "it calls Python code",
    "PythonOpGrad": "it calls Python code",
    "ATen": "it calls a function of PyTorch",
}
_LONGEST_NAME = 2**16
_MOST_OPSETS = 1000
# Numbers of FieldDescriptor types.
_STRING, _MESSAGE = 9, 11
# Strings that are no names, and may be long.
_TEXTS = ("doc_string", "value")
# With its functions, a file may stand for so many nodes, and for those that its bytes could hold.
_NODES, _NODE_BYTES = 10_000, 10


class Survey:
    """Walks a model; afterwards ``external`` lists the tensors whose elements are elsewhere."""

    def __init__(self, proto: Any, limits: Limits) -> None:
        self._limits = limits
        self._held = self._spread = 0
        self.external: list[tuple[Any, TensorType]] = []
        self._calls = FunctionCalls(_key(function, function.name) for function in proto.functions)
        self._walk(proto)
        self._calls.check(limits, _NODES + proto.ByteSize() // _NODE_BYTES)

    def _walk(self, proto: Any) -> None:
        single = _message_class()
        stack: list[tuple[Any, FunctionKey | None, int]] = [(proto, None, 0)]
        while stack:
            message, owner, depth = stack.pop()
            kind = type(message).__name__
            if kind == "FunctionProto":
                owner = _key(message, message.name)
            deeper = depth + (kind == "AttributeProto")
            # Listing the fields of a tensor would copy its elements.
            for field, held in message.ListFields() if kind != "TensorProto" else ():
                if field.type == _MESSAGE:
                    if isinstance(held, single):
                        stack.append((held, owner, deeper))
                    else:
                        stack.extend([(inner, owner, deeper) for inner in held])
                elif field.type == _STRING:
                    _check_text(field.name, held)
            if kind in _CHECKS:
                _CHECKS[kind](self, message, owner, depth)

    def _node(self, node: Any, owner: FunctionKey | None, depth: int) -> None:
        key = _key(node, node.op_type)
        if self._calls.add(owner, key, depth):
            return
        domain, op, _ = key
        if not domain:
            return
        if op in NATIVE:
            why = f"is refused: {NATIVE[op]}. Use the model as it was before it was prepared so"
        elif domain in DOMAINS or domain.startswith(PREVIEW):
            return
        elif OUTSIDE.by_onnx(domain, op) is None:
            why = (
                "nothing here knows, and the model has no function of that name. Export it with "
                "standard operators, or with this one as a function of the model; or install a "
                "package that declares it (docs/own-ops.md)"
            )
        else:
            return
        raise FormatError(
            f"The node {shown(node.name)} is {shown(op)} of {shown(domain)}, which {why}."
        )

    def _tensor(self, tensor: Any, owner: FunctionKey | None, depth: int) -> None:
        _check_text("name", tensor.name)
        for entry in tensor.external_data:
            _check_text("key", entry.key)
            _check_text("location", entry.value)
        type_ = type_of(tensor, self._limits)
        check_data(tensor, type_)
        self._held += _bytes(type_)
        if self._held > self._limits.constant_bytes:
            raise BudgetError(
                f"{name_of(tensor)} brings the constants to {self._held:,} bytes; "
                f"the limit is {self._limits.constant_bytes:,} (Limits.constant_bytes)."
            )
        if tensor.data_location == EXTERNAL:
            self.external.append((tensor, type_))

    def _sparse(self, sparse: Any, owner: FunctionKey | None, depth: int) -> None:
        self._spread += _bytes(sparse_type(sparse, self._limits))
        if self._spread > self._limits.sparse_bytes:
            raise BudgetError(
                f"{name_of(sparse.values)} is sparse, and would bring sparse tensors to "
                f"{self._spread:,} bytes when dense; the limit is {self._limits.sparse_bytes:,} "
                "(Limits.sparse_bytes)."
            )

    def _shape(self, shape: Any, owner: FunctionKey | None, depth: int) -> None:
        known = [dim.dim_value for dim in shape.dim if dim.HasField("dim_value")]
        # Some files mean "any size" by a negative one. What is open here counts as 1.
        sizes = [size for size in known if size >= 0]
        element_count(sizes + [1] * (len(shape.dim) - len(sizes)), "A declared shape", self._limits)

    def _opsets(self, holder: Any, owner: FunctionKey | None, depth: int) -> None:
        if len(holder.opset_import) > _MOST_OPSETS:
            raise BudgetError(
                f"The model imports {len(holder.opset_import):,} operator sets; "
                f"the limit is {_MOST_OPSETS:,}."
            )


# What is looked at more closely, by the name of the message.
_CHECKS: dict[str, Callable[[Survey, Any, FunctionKey | None, int], None]] = {
    "NodeProto": Survey._node,
    "TensorProto": Survey._tensor,
    "SparseTensorProto": Survey._sparse,
    "TensorShapeProto": Survey._shape,
    "ModelProto": Survey._opsets,
    "FunctionProto": Survey._opsets,
}


def _message_class() -> type:
    from google.protobuf.message import Message  # type: ignore[import-untyped] # ships no types

    return Message  # type: ignore[no-any-return]


def _key(of: Any, name: str) -> FunctionKey:
    return "" if of.domain in STANDARD else of.domain, name, of.overload


def _bytes(type_: TensorType) -> int:
    # A string takes at least a reference.
    each = 8 if type_.dtype is dtypes.string else type_.dtype.itemsize
    return math.prod(dim for dim in type_.shape if isinstance(dim, int)) * each


def _check_text(field: str, held: Any) -> None:
    """See that text is text: the parser gives bytes where it is not UTF-8."""
    for text in (held,) if type(held) in (str, bytes) else held:
        if isinstance(text, bytes):
            raise FormatError(f"A {field} is {shown(text)}, which is not UTF-8.")
        if len(text) > _LONGEST_NAME and field not in _TEXTS:
            raise FormatError(
                f"A {field} has {len(text):,} characters ({shown(text)}); "
                f"the limit is {_LONGEST_NAME:,}."
            )


# Domain, name and overload: what a node calls, and what a function is. The main graph has None.
FunctionKey: TypeAlias = tuple[str, str, str]


@dataclasses.dataclass
class _Body:
    """Nodes, the depth of graphs inside, and calls: how many, and from how deep inside."""

    nodes: int = 0
    depth: int = 0
    calls: Counter[FunctionKey] = dataclasses.field(default_factory=Counter)
    deepest: dict[FunctionKey, int] = dataclasses.field(default_factory=dict)


class FunctionCalls:
    """Counts nodes by the function that they are in, as if functions stood where they are called.

    Twenty functions that call each other ten times stand for more nodes than any memory holds, and
    a function that calls itself for infinitely many. Both are counted without being made.
    """

    def __init__(self, functions: Iterable[FunctionKey]) -> None:
        self._bodies: dict[FunctionKey | None, _Body] = {None: _Body()}
        for key in functions:
            if key in self._bodies:
                raise FormatError(f"The model has two functions called {_named(key)}. Rename one.")
            self._bodies[key] = _Body()

    def add(self, owner: FunctionKey | None, key: FunctionKey, depth: int) -> bool:
        """Count a node, and tell whether it calls a function of the model."""
        body = self._bodies[owner]
        body.nodes += 1
        body.depth = max(body.depth, depth)
        if key not in self._bodies:
            return False
        body.calls[key] += 1
        body.deepest[key] = max(depth, body.deepest.get(key, 0))
        return True

    def check(self, limits: Limits, fitting: int) -> None:
        """Refuse functions that call themselves, and a main graph beyond the limits or its file."""
        most = min(limits.nodes, fitting)
        nodes: dict[FunctionKey | None, int] = {}
        depths: dict[FunctionKey | None, int] = {}
        for key in self._ordered():
            body = self._bodies[key]
            called = sum(times * nodes[callee] for callee, times in body.calls.items())
            # No larger than it takes to refuse it: the count itself could fill the memory.
            nodes[key] = min(body.nodes + called, most + 1)
            inner = (deep + 1 + depths[callee] for callee, deep in body.deepest.items())
            depths[key] = max(body.depth, max(inner, default=0))
        if nodes[None] > most:
            raise BudgetError(
                f"The model has more than {most:,} nodes when its functions are put where they are "
                f"called: Limits.nodes allows {limits.nodes:,}, the size of its file {fitting:,}."
            )
        if depths[None] > limits.depth:
            raise BudgetError(
                f"The model has graphs and calls of functions inside each other {depths[None]:,} "
                f"deep; the limit is {limits.depth} (Limits.depth)."
            )

    def _ordered(self) -> list[FunctionKey | None]:
        """List functions and the main graph, each after what it calls."""
        done: dict[FunctionKey | None, None] = {}
        begun: dict[FunctionKey | None, Iterator[FunctionKey]] = {}
        for root in self._bodies:
            stack = [] if root in done else [root]
            while stack:
                key = stack[-1]
                rest = begun.setdefault(key, iter(self._bodies[key].calls))
                callee = next((k for k in rest if k not in done), None)
                if callee is None:
                    done[key] = None
                    stack.pop()
                elif callee in begun:
                    raise FormatError(
                        f"The function {_named(callee)} calls itself, alone or through others, so "
                        "that the model has no end. Write it as a Loop or a Scan."
                    )
                else:
                    stack.append(callee)
        return list(done)


def _named(key: FunctionKey) -> str:
    return shown(":".join(part for part in key if part))
