"""Local functions for ops that ONNX lacks, each with a body that any engine can run.

A node that one ONNX op says whole is written as that op. Any other is a call of a function of the
domain ``fusewire``, named after the op, whose body does the same with standard ops. The function
notes the op's attributes, so that our own reader brings the very op back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusewire.dtypes import bool_, int64
from fusewire.errors import FormatError
from fusewire.ir.builder import bind_attr
from fusewire.ir.dims import Dim, Sym, Symbol, lone_symbol, symbol
from fusewire.ir.graph import Graph, Node
from fusewire.ir.text import format_attr
from fusewire.ir.types import tensor_of
from fusewire.onnx.elements import element_of
from fusewire.onnx.notes import DOMAIN, OPERAND, SIZE, attr_symbols
from fusewire.onnx.write.emitter import Emitter, is_nothing, name_outputs, tried
from fusewire.onnx.write.model import LocalFunction, Model, OnnxStep, Ref, Write
from fusewire.onnx.write.target import OnnxTarget
from fusewire.ops.declare import Trait
from fusewire.ops.slicing import normalize_slice
from fusewire.ops.table import get_op

# ONNX ops that say several ops of ours, and those that a reader takes them for.
MEANT = {
    "Abs": {"abs"}, "Cast": {"cast"}, "Einsum": {"einsum"}, "Gather": {"gather"}, "Gemm": {"gemm"},
    "Expand": {"broadcast_to", "dynamic_broadcast_to"}, "Log": {"log"}, "MatMul": {"matmul"},
    "Mul": {"multiply"}, "Pow": {"power"}, "TopK": {"top_k", "dynamic_top_k"}, "Identity": {""},
    "ReduceMax": {"reduce_max"}, "ReduceMin": {"reduce_min"},
}  # fmt: skip


class Locals:
    """The local functions of one model; calls with the same body and attributes share one."""

    def __init__(self, target: OnnxTarget, table: Mapping[str, Write]) -> None:
        self.functions: dict[str, LocalFunction] = {}
        self._model = Model(target, table)
        self._known: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def call(self, emitter: Emitter, node: Node) -> list[Ref] | None:
        """Write a node as a call; None when one standard op says all of it, and nothing else."""
        if any(isinstance(attr, Graph) for attr in node.attrs.values()) or self._is_plain(node):
            return None
        draft = _Draft(node, self._model)
        sizes = {s: ref for s in draft.sizes() if (ref := _told(emitter, s)) is not None}
        given = [*(emitter.ref(v) for v in node.operands), *sizes.values()]
        made = [tensor_of(t).dtype for t in node.types]
        name = self._name(draft.function(list(sizes)))
        return emitter.raw(f"{DOMAIN}:{name}", given, made, {})

    def _is_plain(self, node: Node) -> bool:
        if is_nothing(node):
            return False
        try:
            emitter = tried(node, self._model)
        except FormatError:
            return False
        steps = [step for step in emitter.steps if not step.is_size]
        return len(steps) == 1 and _reads_back(node, steps[0], emitter.model)

    def _name(self, function: LocalFunction) -> str:
        """Find the function, or add it under a name that is free."""
        key = repr(function)
        if key not in self._known:
            count = self._counts[function.op] = self._counts.get(function.op, 0) + 1
            self._known[key] = function.op if count == 1 else f"{function.op}_{count}"
            self.functions[self._known[key]] = function
        return self._known[key]


def _reads_back(node: Node, step: OnnxStep, model: Model) -> bool:
    """Tell whether what a step says is taken for the node by whoever reads it."""
    if node.op not in MEANT.get(step.op, {node.op}):
        return False
    # Beside sizes and axes, an operand that we leave out and ONNX wants is there when it is read.
    added = {constant.type.dtype for constant in model.constants.values()}
    if step.op != "Resize" and not added <= {int64, bool_}:
        return False
    if node.attrs.get("ceil") and not step.attrs["ceil_mode"]:
        return False
    # ONNX asks whether to saturate for floats of 8 bits alone; shorter ones always do.
    if node.attrs.get("saturate") and tensor_of(node.types[0]).dtype.bits != 8:
        return False
    attrs: Any = node.attrs
    if node.op == "slice" and not all(map(_is_found, *_bounds(node))):
        return False
    if not get_op(node.op).is_(Trait.UNBACKED):
        return True
    dims = (*attrs.get("dims", ()), *([attrs["count"]] if "count" in attrs else []))
    # Only sizes that the reader too has to name anew: it does not know what we know of the others.
    return all((s := lone_symbol(dim)) is not None and s.unbacked for dim in dims)


def _bounds(node: Node) -> tuple[Any, ...]:
    attrs = node.attrs
    return node.operands[0].tensor.shape, attrs["starts"], attrs["limits"], attrs["strides"]


def _is_found(dim: Dim, start: Dim, limit: Dim, stride: int) -> bool:
    """Tell whether a reader, who keeps a slice within its axis, finds the bounds that are meant."""
    first, last = (0, dim) if stride > 0 else (dim - 1, -1)
    said = slice(None if start == first else start, None if limit == last else limit, stride)
    return normalize_slice(said, dim) == (start, limit, stride)


class _Draft:
    """A node written into a function of its own, composites that ONNX lacks written out."""

    def __init__(self, node: Node, model: Model) -> None:
        self._node = node
        self._asked: dict[Symbol, Ref] = {}
        self._model = Model(model.target, model.table, expands=True, outside=self._size)
        self._emitter = Emitter(self._model)
        self._inputs: list[str] = []
        for place, value in enumerate(node.inputs):
            if value is not None:
                self._inputs.append(self._model.own(f"{OPERAND}{place}", OPERAND))
                ref = Ref(self._inputs[-1], tensor_of(value.type).dtype)
                element_of(ref.dtype)
                self._emitter.bind(value, ref)
        self._emitter.nodes([node])

    def _size(self, dim: Sym) -> Ref:
        """Take a size that no operand tells as a further operand."""
        alone = lone_symbol(dim)
        assert alone is not None
        return self._asked.setdefault(alone, Ref(f"{SIZE}{len(self._asked)}", int64))

    def sizes(self) -> list[Symbol]:
        """List what the body asks for, then what attributes name beside it."""
        named = (s for attr in self._node.attrs.values() for s in attr_symbols(attr))
        return list(dict.fromkeys((*self._asked, *named)))

    def function(self, told: Sequence[Symbol]) -> LocalFunction:
        """Close the function over operands and sizes; sizes not told are the node's own to tell."""
        if untold := [s.key for s in self._asked if s not in told]:
            raise FormatError(
                f"{self._node!r} needs the size {untold[0]}, which nothing determines."
            )
        stand: dict[Symbol, Dim] = {s: symbol(f"{SIZE}{i}") for i, s in enumerate(told)}
        outputs = [f"output{i}" for i in range(len(self._node.outputs))]
        name_outputs(self._emitter, [self._emitter.ref(v) for v in self._node.outputs], outputs)
        attrs = {key: format_attr(bind_attr(a, stand)) for key, a in self._node.attrs.items()}
        inputs = [*self._inputs, *map(str, stand.values())]
        steps = self._emitter.steps
        return LocalFunction(self._node.op, attrs, inputs, outputs, steps, self._model.constants)


def _told(emitter: Emitter, wanted: Symbol) -> Ref | None:
    """Find a size that the model tells before this place."""
    try:
        return emitter.size(Sym({((wanted, 1),): 1}))
    except FormatError:
        return None
