"""Walk an ONNX model and make a graph of it, node by node.

What a node means is in ``onnx.ops``; here are names, scopes, functions, and what is known of
sizes while the graph grows. Nothing here computes on model data but small constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusewire.contract.frontend import Limits
from fusewire.errors import (
    BudgetError,
    DimError,
    FormatError,
    FusewireError,
    GraphError,
    SizesNeededError,
    TypeRuleError,
)
from fusewire.facts.known import Facts
from fusewire.ir.builder import constant
from fusewire.ir.dims import Symbol, lone_symbol
from fusewire.ir.graph import Constant, Graph, Node, Value, order
from fusewire.ir.types import TensorType, Type, tensor_of
from fusewire.onnx.ops.read_table import READERS
from fusewire.onnx.read.call import Converted, OnnxCall, read_attributes
from fusewire.onnx.read.model_file import Opened
from fusewire.onnx.read.outside_ops import read_outside
from fusewire.onnx.read.own_files import Own
from fusewire.onnx.read.scope import ImportedBody, ImportScope
from fusewire.onnx.read.standard_functions import standard_function
from fusewire.onnx.types import input_type
from fusewire.ops.outside import OUTSIDE
from fusewire.rewrite.fold import Budget, ConstantFolder

# A constant larger than this is not computed while importing: the pipeline may do it later.
_FOLDED_ELEMENTS = 4096
_STANDARD = ("", "ai.onnx")


class Importer:
    """Imports one model; ``facts`` knows the elements of small int tensors."""

    def __init__(self, opened: Opened, limits: Limits) -> None:
        self.opened = opened
        self.limits = limits
        self.facts = Facts(Graph((), ()))
        self.carriers: dict[Symbol, Value] = {}
        # What an engine that reads the file by itself might not survive: we write it otherwise.
        self.hazards: list[str] = []
        self._folder = ConstantFolder(Budget())
        self._functions = {
            (_domain(f.domain), f.name, f.overload): f for f in opened.proto.functions
        }
        self._opsets = _opsets(opened.proto.opset_import)
        self._own = Own(opened.proto)
        self._seen: set[Node] = set()
        self._count = self._fresh = 0

    def model(self, types: Mapping[str, Type]) -> Graph:
        """Import the main graph; ``types`` of inputs go before what the file says of them."""
        proto = self.opened.proto.graph
        scope = ImportScope()
        held = {t.name for t in proto.initializer}
        held |= {t.values.name for t in proto.sparse_initializer}
        inputs = []
        for info in proto.input:
            if info.name not in held:
                value = Value(types.get(info.name) or self._own.type(input_type(info)), info.name)
                self.know(value)
                scope.values[info.name] = value
                inputs.append(value)
        outputs = self.run(proto, scope, self.opened.initializers)
        names = [info.name for info in proto.output]
        return Graph(inputs, outputs, name=_word(proto.name), output_names=names)

    def run(
        self, proto: Any, scope: ImportScope, initializers: Mapping[str, Constant] = {}
    ) -> list[Value]:
        """Import the nodes of a graph whose inputs are bound, and give its outputs."""
        for tensor in proto.initializer:
            name = tensor.name
            held = initializers.get(name) or self.opened.constant(tensor)
            scope.values[name] = constant(held, name)
        for sparse in proto.sparse_initializer:
            name = sparse.values.name
            scope.values[name] = constant(self.opened.sparse(sparse), name)
        self._nodes(proto.node, scope, {}, self._opsets, 0)
        return [scope.find(info.name) for info in proto.output]

    def fresh(self, stem: str) -> str:
        """Make a name for a size that no other size of this model has."""
        self._fresh += 1
        return f"{stem}{self._fresh}"

    def body(
        self,
        proto: Any,
        inputs: Sequence[Value],
        scope: ImportScope,
        finish: Callable[[list[Value]], list[Value]] = list,
    ) -> ImportedBody:
        """Import a subgraph over inputs of its own; it sees the names around it.

        ``finish`` may put further nodes behind its outputs.
        """
        if len(proto.input) != len(inputs):
            raise FormatError(
                f"The body {proto.name!r} takes {len(proto.input)} values and is given "
                f"{len(inputs)}."
            )
        inner = scope.inner()
        for info, value in zip(proto.input, inputs, strict=True):
            self.know(value)
            inner.values[info.name] = value
        outputs = self.settle(finish(self.run(proto, inner)), inner, proto.name)
        return self.collected(_word(proto.name), inputs, outputs, inner)

    def collected(
        self, name: str, inputs: Sequence[Value], outputs: Sequence[Value], scope: ImportScope
    ) -> ImportedBody:
        """Make a body of the nodes of a scope that lead to its outputs."""
        nodes = [node for node in order(outputs) if node in scope.nodes]
        return ImportedBody(name, inputs, outputs, nodes)

    def _nodes(
        self,
        nodes: Sequence[Any],
        scope: ImportScope,
        given: Mapping[str, Any],
        opsets: Mapping[str, int],
        depth: int,
    ) -> None:
        for node in nodes:
            self._count += 1
            if self._count > self.limits.nodes:
                raise BudgetError(
                    f"{self.opened.source} has more than {self.limits.nodes:,} nodes once its "
                    "functions and bodies are written out. Raise Limits.nodes if you trust it."
                )
            try:
                self._node(node, scope, given, opsets, depth)
            except (FormatError, TypeRuleError, DimError, GraphError) as error:
                raise self._explained(error, node, opsets) from None
            except FusewireError:
                raise
            except (ValueError, LookupError, ArithmeticError, TypeError, AttributeError) as error:
                # A file may hold anything, also what no rule of an op looks for.
                said = FormatError(f"what it is given does not fit the op: {error}.")
                raise self._explained(said, node, opsets) from error

    def _explained(self, error: Exception, node: Any, opsets: Mapping[str, int]) -> FormatError:
        """Name the innermost node at fault, once."""
        if isinstance(error, _Explained):
            return error
        domain = _domain(node.domain)
        label = f"{domain}.{node.op_type}" if domain else node.op_type
        named = node.name or next(iter(node.output), "?")
        where = f"{self.opened.source}: node {named!r} ({label}, opset {opsets.get(domain, '?')})"
        if isinstance(error, SizesNeededError):
            return _SizesExplained(f"{where}: {error}", error.names)
        return _Explained(f"{where}: {error}")

    def _node(
        self,
        node: Any,
        scope: ImportScope,
        given: Mapping[str, Any],
        opsets: Mapping[str, int],
        depth: int,
    ) -> None:
        domain = _domain(node.domain)
        attrs = read_attributes(node.attribute, given)
        call = OnnxCall(self, scope, node, opsets.get(domain, 1), attrs)
        function = self._functions.get((domain, node.op_type, node.overload))
        convert = READERS.get(f"{domain}:{node.op_type}" if domain else node.op_type)
        found: Converted | None = None
        if function is not None:
            found = self._own.outputs(call, function)
        elif convert is not None:
            found = convert(call)
        elif domain and (declared := OUTSIDE.by_onnx(domain, node.op_type)) is not None:
            found = read_outside(call, declared)
        if found is not None:
            self._bind(call, found, scope)
            return
        function = function or standard_function(call, domain)
        if function is None:
            call.refuse(
                "no op of that name is known. Standard ONNX ops, functions in the file and some "
                "ops of com.microsoft are, such as MatMulNBits; write it with those."
            )
        self._bind(call, self._inlined(function, call, depth), scope)

    def _inlined(self, function: Any, call: OnnxCall, depth: int) -> list[Value | None]:
        """Write a function out in place of the call."""
        if depth >= self.limits.depth:
            raise BudgetError(
                f"Functions in {self.opened.source} call each other more than "
                f"{self.limits.depth} deep. Raise Limits.depth if you trust it."
            )
        inner = ImportScope(None)
        inner.nodes = call.scope.nodes
        for name, value in zip(function.input, call.inputs, strict=False):
            if value is not None:
                inner.values[name] = value
        attrs = read_attributes(function.attribute_proto, {}) | dict(call.attrs)
        opsets = {**self._opsets, **_opsets(function.opset_import)}
        # An operand that is absent is one whose name stands for nothing.
        nodes = [_without_absent(node, function, inner) for node in function.node]
        self._nodes(nodes, inner, attrs, opsets, depth + 1)
        return [inner.values.get(name) for name in function.output]

    def _bind(self, call: OnnxCall, found: Converted, scope: ImportScope) -> None:
        outputs = [found] if isinstance(found, Value) else list(found)
        kept = [v for v in outputs if v is not None]
        for type_ in [v.type for v in kept]:
            if any(isinstance(dim, int) and dim < 0 for dim in tensor_of(type_).shape):
                call.refuse(f"it would make a {type_}, and no size is below 0.")
        settled = dict(zip(kept, self.settle(kept, scope, call.label), strict=True))
        for position, name in enumerate(call.outputs):
            if not name:
                continue
            value = outputs[position] if position < len(outputs) else None
            if value is None:
                call.refuse(f"output {position} ({name}) is not made by this importer.")
            scope.values[name] = settled[value]

    def settle(self, outputs: Sequence[Value], scope: ImportScope, label: str) -> list[Value]:
        """Note new nodes: name them, learn what they tell, and compute small constants."""
        stand: dict[Value, Value] = {}
        for made in order(outputs, self._seen):
            inputs = [None if v is None else stand.get(v, v) for v in made.inputs]
            changed = any(a is not b for a, b in zip(inputs, made.inputs, strict=True))
            current = made.copy(inputs) if changed else made
            self._seen.update((made, current))
            folded = self._fold(current)
            if folded is not None:
                stand.update(zip(made.outputs, folded, strict=True))
                continue
            if changed:
                stand.update(zip(made.outputs, current.outputs, strict=True))
            if current.source is None:
                current.source = label
            scope.nodes[current] = None
            self.facts.learn(current)
            for value in current.outputs:
                self.know(value)
        return [stand.get(v, v) for v in outputs]

    def _fold(self, node: Node) -> Sequence[Value] | None:
        if any(v.constant is None for v in node.operands):
            return None
        for value in (*node.operands, *node.outputs):
            size = value.type.size if isinstance(value.type, TensorType) else None
            if not isinstance(size, int) or size > _FOLDED_ELEMENTS:
                return None
        found = self._folder.rule.apply(node, self.facts)
        return found if isinstance(found, tuple) else None

    def know(self, value: Value) -> None:
        """Note the sizes that a value tells."""
        if isinstance(value.type, TensorType):
            for dim in value.type.shape:
                alone = lone_symbol(dim)
                if alone is not None:
                    self.carriers.setdefault(alone, value)


class _Explained(FormatError):
    """A refusal that names its node already."""


class _SizesExplained(SizesNeededError, _Explained):
    pass


def _without_absent(node: Any, function: Any, scope: ImportScope) -> Any:
    absent = {name for name in function.input if name not in scope.values}
    if not absent.intersection(node.input):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    copy.input[:] = ["" if name in absent else name for name in node.input]
    return copy


def _opsets(imports: Sequence[Any]) -> dict[str, int]:
    return {_domain(entry.domain): entry.version for entry in imports}


def _domain(name: str) -> str:
    return "" if name in _STANDARD else name


def _word(name: str) -> str:
    kept = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return kept if kept and not kept[0].isdigit() else f"model_{kept}".rstrip("_")
