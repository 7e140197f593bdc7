"""Turn an exported program into a graph, node by node."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from fusewire.contract.frontend import Limits
from fusewire.dtypes import bool_
from fusewire.errors import (
    BudgetError,
    DTypeError,
    EngineError,
    FusewireError,
    TraceError,
)
from fusewire.frontends.torch.aten.table import aten_rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.frontends.torch.control import HIGHER_ORDER
from fusewire.frontends.torch.exporting import (
    ASSERTIONS,
    decomposed_program,
    exported,
    row_name,
)
from fusewire.frontends.torch.flat_call import FlatCall
from fusewire.frontends.torch.location import line_of, refusal
from fusewire.frontends.torch.ranges import Range, bounds, ranges_of, with_sizes
from fusewire.frontends.torch.scope import SizeScope
from fusewire.frontends.torch.tensors import array_of, our_dtype, unwritten
from fusewire.ir.dims import Symbol, is_equal, symbol
from fusewire.ir.graph import Constant, Graph, Value, order
from fusewire.ir.types import TensorType, Type
from fusewire.ops.control import check
from fusewire.ops.logic import not_equal
from fusewire.ops.movement import reshape
from fusewire.ops.table import verify
from fusewire.process.guard import guarded

# Ops that make numbers of tensors.
_ITEMS = frozenset({"item.default", "_local_scalar_dense.default"})
# Ops that check what tracing has assumed; nothing follows from them.
_CHECKS = frozenset(
    {
        "_assert_scalar.default",
        "_assert_tensor_metadata.default",
        "sym_constrain_range.default",
        "sym_constrain_range_for_size.default",
    }
)


def converted(call: FlatCall, types: Sequence[TensorType], limits: Limits) -> Graph:
    """Export a call for arguments of these types, unless it was exported before; convert it."""
    if call.exported is not None:
        conversion = ProgramConversion(decomposed_program(call.exported), limits)
    else:
        conversion = ProgramConversion(exported(call, types), limits, types)
    graph = conversion.graph(call.label, call.names, call.output_names)
    call.updated[:] = conversion.updated
    return graph if call.exported is None else with_sizes(graph, types, conversion.ranges)


class ProgramConversion:
    """One conversion of an exported program.

    ``types`` are those of the arguments; None takes them from the program. ``updated`` are the
    places of the arguments that it writes to: their new values are the last outputs.
    """

    def __init__(
        self, program: Any, limits: Limits, types: Sequence[TensorType] | None = None
    ) -> None:
        self._program = program
        self._limits = limits
        self._types = types
        self._scope = SizeScope()
        self._constants: dict[Any, Value] = {}
        # What the module asserts of values, and what it says if that does not hold.
        self._asserted: list[tuple[Value, str]] = []
        self._bytes = self._count = 0
        self.inputs: list[Value] = []
        self.updated: list[int] = []
        # Of the arguments that are tensors, by PyTorch's names.
        self._places: dict[str, int] = {}

    def graph(self, name: str, names: Sequence[str], output_names: Sequence[str] | None) -> Graph:
        """Convert the graph; the names are those of its inputs and outputs."""
        try:
            bound = self._bound(names)
        except DTypeError as error:
            raise TraceError(f"{name} has a tensor that no graph can hold: {error}") from error
        outputs = self._outputs(self.converted(self._program.graph_module, bound))
        if not outputs:
            raise TraceError(f"{name} returns no tensor. Return tensors: a program has outputs.")
        outputs[0] = self._with_assertions(outputs[0])
        named = output_names or [f"output{i}" for i in range(len(outputs))]
        nodes = [*order(outputs), *order(bounds(self.ranges))]
        graph = Graph(self.inputs, outputs, dict.fromkeys(nodes), name=name, output_names=named)
        try:
            verify(graph)
        except FusewireError as error:
            raise TraceError(f"The graph of {name} is not valid: {error}") from error
        return graph

    # Inputs and constants.

    def _bound(self, names: Sequence[str]) -> list[Any]:
        """Make the values of all placeholders: arguments, parameters, buffers, constants."""
        signature = self._program.graph_signature
        nodes = [
            node for node in self._program.graph_module.graph.nodes if node.op == "placeholder"
        ]
        users = [s.kind.name == "USER_INPUT" for s in signature.input_specs]
        self._learn_sizes([n for n, is_user in zip(nodes, users, strict=True) if is_user])
        rest = iter(names)
        bound: list[Any] = []
        for node, spec in zip(nodes, signature.input_specs, strict=True):
            fake = node.meta.get("val")
            if spec.kind.name != "USER_INPUT":
                bound.append(self._state(spec))
            elif not hasattr(fake, "dtype"):
                bound.append(fake)
            else:
                value = Value(
                    TensorType(our_dtype(fake.dtype), self._scope.shape(fake)), next(rest)
                )
                self._scope.note(value)
                self._places[spec.arg.name] = len(self.inputs)
                self.inputs.append(value)
                bound.append(value)
        return bound

    def _learn_sizes(self, nodes: Sequence[Any]) -> None:
        """Name PyTorch's symbols: after the dims of the types, or after themselves."""
        fakes = [fake for node in nodes if hasattr(fake := node.meta.get("val"), "dtype")]
        for place, fake in enumerate(fakes):
            for axis, size in enumerate(fake.shape):
                expression = None if type(size) is int else size.node.expr
                asked = None if self._types is None else self._types[place].shape[axis]
                if expression is not None and expression.is_Symbol:
                    found = asked if asked is not None else symbol(expression.name)
                    self._scope.known.setdefault(expression.name, found)
        if self._types is not None:
            self._check_open(fakes)

    def _check_open(self, fakes: Sequence[Any]) -> None:
        assert self._types is not None
        for fake, type_ in zip(fakes, self._types, strict=True):
            found = self._scope.shape(fake)
            if found != type_.shape:
                raise TraceError(
                    f"torch.export was asked for an argument {type_}, and made one with the sizes "
                    f"{list(found)}: the module works for these only."
                )

    def _state(self, spec: Any) -> Value:
        """Make the constant of a parameter, buffer or tensor of the code; it shares the memory."""
        if spec.kind.name not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            raise TraceError(
                f"The module needs a {spec.kind.name.lower()}, which is not a tensor: it has ops "
                "with side effects, such as printing, or custom objects. Leave them out."
            )
        program = self._program
        state = program.state_dict if spec.target in program.state_dict else program.constants
        return self._constant(state[spec.target], spec.target)

    def _constant(self, tensor: Any, name: str) -> Value:
        # Tied parameters are one constant.
        key = tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
        if tensor.numel() and key in self._constants:
            return self._constants[key]
        array = array_of(tensor)
        type_ = TensorType(our_dtype(tensor.dtype), tuple(array.shape))
        self._bytes += array.nbytes
        if self._bytes > self._limits.constant_bytes:
            raise BudgetError(
                f"The parameters take more than {self._limits.constant_bytes} bytes. "
                "Raise Limits(constant_bytes=...)."
            )
        # One that is not in row-major order is copied when it is first used.
        value = Value(
            type_,
            name,
            Constant(
                type_,
                lambda: array if array.flags.c_contiguous else array.copy(),
                is_current=unwritten(tensor),
            ),
        )
        self._constants[key] = value
        return value

    @property
    def ranges(self) -> Mapping[Symbol, Range]:
        """The sizes for which the module was traced, where they have limits."""
        return ranges_of(self._program, self._scope.known)

    # Nodes.

    def body(self, module: Any, types: Sequence[Type], *, scalar: bool = False) -> Graph:
        """Convert the body of a branch or a loop, for operands of these types.

        With ``scalar``, its one output is made a boolean without axes.
        """
        outer, self._scope = self._scope, self._scope.inner()
        asserted, self._asserted = self._asserted, []
        inputs = [Value(type_, f"input{i}") for i, type_ in enumerate(types)]
        for value in inputs:
            self._scope.note(value)
        found = self.converted(module, inputs)
        outputs = list(found) if isinstance(found, list | tuple) else [found]
        if not all(isinstance(x, Value) for x in outputs):
            raise TraceError("A branch or loop returns what is not a tensor. Return tensors.")
        if outputs:
            outputs[0] = self._with_assertions(outputs[0])
        self._scope, self._asserted = outer, asserted
        if scalar:
            outputs = [reshape(outputs[0], shape=())]
        names = [f"output{i}" for i in range(len(outputs))]
        return Graph(inputs, outputs, name="body", output_names=names)

    def converted(self, module: Any, bound: Sequence[Any]) -> Any:
        """Convert a graph module; returns what its output node holds."""
        held: dict[Any, Any] = {}
        rest = iter(bound)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                held[node] = next(rest)
            elif node.op == "get_attr":
                held[node] = self._attribute(module, node)
            elif node.op == "output":
                return _filled(node.args[0], held, self._scope)
            else:
                held[node] = self._result(node, held)
        raise AssertionError("a graph has an output node")

    def _attribute(self, module: Any, node: Any) -> Any:
        found = operator.attrgetter(node.target)(module)
        return self._constant(found, node.target) if hasattr(found, "data_ptr") else found

    def _result(self, node: Any, held: Mapping[Any, Any]) -> Any:
        try:
            return guarded("torch", "compile", str(node.target), self._called, node, held)
        except EngineError as error:
            raise _refused(node, error.__cause__) from error.__cause__

    def _called(self, node: Any, held: Mapping[Any, Any]) -> Any:
        target = node.target
        if target is operator.getitem:
            return held[node.args[0]][node.args[1]]
        name = row_name(target)
        if name in _CHECKS:
            return None
        if name in ASSERTIONS:
            return self._assert(node, *self._arguments(node, held))
        if name is None and (convert := HIGHER_ORDER.get(getattr(target, "__name__", ""))):
            return convert(self, *(_filled(x, held, self._scope) for x in node.args))
        fake = node.meta.get("val")
        if name not in _ITEMS and _is_size(fake):
            return None if isinstance(fake, bool) or _is_flag(fake) else self._scope.dim(fake)
        row = None if name is None else aten_rows().get(name)
        if row is None:
            raise TraceError(_unknown(target))
        results = row.convert(AtenCall(node, self._scope), *self._arguments(node, held))
        return results if name in _ITEMS else self._checked(node, results)

    def _assert(self, node: Any, value: Value, message: str = "") -> None:
        """Keep an assertion of the module for the end of its graph."""
        line = line_of(node)
        said = message or "An assertion of the module does not hold."
        scalar = reshape(value, shape=())
        condition = scalar if scalar.tensor.dtype is bool_ else not_equal(scalar, 0)
        self._stamp(condition, node)
        self._asserted.append((condition, f"{said} ({line.short})" if line else said))

    def _with_assertions(self, output: Value) -> Value:
        """Have an output depend on what is asserted: nothing runs that no output needs."""
        for condition, message in self._asserted:
            output = check(output, condition, message=message)
        return output

    def _arguments(self, node: Any, held: Mapping[Any, Any]) -> list[Any]:
        """List the arguments by the op's schema, with its defaults."""
        given = [_filled(x, held, self._scope) for x in node.args]
        for argument in node.target._schema.arguments[len(given) :]:
            if argument.name in node.kwargs:
                given.append(_filled(node.kwargs[argument.name], held, self._scope))
            else:
                given.append(argument.default_value if argument.has_default_value() else None)
        return given

    def _checked(self, node: Any, results: Any) -> Any:
        """Compare the types of results with PyTorch's, and note where they come from."""
        fake = node.meta["val"]
        is_many = isinstance(fake, list | tuple)
        for value, told in zip(
            results if is_many else (results,), fake if is_many else (fake,), strict=True
        ):
            if value is None:
                continue
            self._stamp(value, node)
            self._scope.learn(told, value)
            shape = self._scope.shape(told)
            type_ = TensorType(our_dtype(told.dtype), shape)
            wrong = value.type.dtype is not type_.dtype or len(value.type.shape) != len(shape)
            if wrong or any(
                is_equal(a, b) is False for a, b in zip(value.type.shape, shape, strict=True)
            ):
                raise refusal(
                    f"{node.target} was converted to {value.type}, but is {type_} in PyTorch: this "
                    "is a mistake of Fusewire. Please report it.",
                    node,
                )
        return results

    def _stamp(self, value: Value, node: Any) -> None:
        """Give new nodes the user's line, and count them."""
        stack = [value.node] if value.node is not None else []
        line = None
        while stack:
            made = stack.pop()
            if made.source is not None:
                continue
            line = line or line_of(node)
            made.source = line.short if line else "?"
            self._count += 1
            for output in made.outputs:
                self._scope.note(output)
            stack.extend(v.node for v in made.operands if v.node is not None)
        if self._count > self._limits.nodes:
            raise BudgetError(
                f"The graph has more than {self._limits.nodes} nodes. Python loops are unrolled: "
                "use fewer steps, or raise Limits(nodes=...)."
            )

    # Outputs.

    def _outputs(self, found: Any) -> list[Value]:
        """List the results, and then the new values of the arguments that are written to."""
        outputs, updates = [], []
        for spec, item in zip(self._program.graph_signature.output_specs, found, strict=True):
            if spec.kind.name == "BUFFER_MUTATION":
                raise TraceError(
                    f"The module writes to its buffer {spec.target.removeprefix('module.')!r} when "
                    "it runs, and a graph writes to nothing. Take the state as an argument."
                )
            if spec.kind.name == "USER_INPUT_MUTATION":
                self.updated.append(self._places[spec.target])
                updates.append(item)
            elif isinstance(item, Value):
                outputs.append(item)
            elif item is not None and not isinstance(item, bool | float | str):
                outputs.append(self._scope.measure(item))
        return outputs + updates


def _is_size(fake: Any) -> bool:
    """Tell whether PyTorch has traced a number: sizes and what is computed of them."""
    return type(fake).__name__ in ("SymInt", "SymBool", "int", "bool")


def _is_flag(fake: Any) -> bool:
    # Only checks of what tracing has assumed use one.
    return type(fake).__name__ == "SymBool"


def _unknown(target: Any) -> str:
    import torch

    if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
        return (
            f"{target} draws random numbers, and ours are not PyTorch's. Pass them as an argument; "
            "if only training draws them, call eval() on the module."
        )
    return (
        f"There is no conversion of {target}. Write the line with other ops of PyTorch, or leave "
        "the module as it is: it runs on PyTorch."
    )


def _refused(node: Any, cause: BaseException | None) -> TraceError:
    """Show the user's line with what was refused, unless it is shown already."""
    if isinstance(cause, TraceError):
        return cause if "\n" in str(cause) else refusal(str(cause), node)
    if isinstance(cause, FusewireError):
        return refusal(f"{node.target} cannot be converted: {cause}", node)
    found = f"{type(cause).__name__}: {cause}"
    return refusal(
        f"{node.target} could not be converted ({found}): this is a mistake of Fusewire. "
        "Please report it.",
        node,
    )


def _filled(argument: Any, held: Mapping[Any, Any], scope: SizeScope) -> Any:
    """Replace nodes in an argument by what they hold, and dtypes by ours."""
    if isinstance(argument, list | tuple):
        return [_filled(item, held, scope) for item in argument]
    if type(argument).__name__ == "Node":
        return held[argument]
    if type(argument).__name__ == "dtype":
        return our_dtype(argument)
    return scope.dim(argument) if type(argument).__name__ == "SymInt" else argument
