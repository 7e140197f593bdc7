"""Branches and loops, as the engine's If and Loop over models of their bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.backends.openvino.api import openvino, ops
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Table,
    concat,
    const,
    dim_of,
    port_of,
    shape_of,
    static_shape,
)
from fusewire.backends.openvino.lowering.wide import widened
from fusewire.ir.graph import Graph, Node, Value

ENDLESS = -1


def _body(node: Node, name: str) -> Graph:
    found = node.attrs[name]
    assert isinstance(found, Graph), "checked by the type rule"
    return found


def _model(scope: Any, name: str, results: Sequence[Ov]) -> openvino.Model:
    """Close a body; sizes of the graph around it have become parameters."""
    parameters = [*scope.parameters, *scope.sizes.captured.values()]
    return openvino.Model([ops.result(x) for x in results], parameters, name)


def _grouped(s: Any, node: Node, outputs: Sequence[Ov]) -> list[Any]:
    """Put pieces together, as many as each output is held in."""
    left, found = list(outputs), []
    for value in node.outputs:
        parts = s.holding.storage(value).parts
        found.append(left[0] if parts == 1 else tuple(left[:parts]))
        left = left[parts:]
    return found


def _cond(s: Any, node: Node) -> list[Any]:
    predicate, *given = node.operands
    chosen = ops.if_op(port_of(s.plain(predicate)))
    scopes, models, entered = [], [], []
    for name in ("then", "otherwise"):
        graph, scope = _body(node, name), s.inside()
        entered.append([scope.accept(value) for value in graph.inputs])
        scope.walk(graph)
        pairs = zip(graph.outputs, node.outputs, strict=True)
        results = [x for value, like in pairs for x in scope.shaped(value, like)]
        scopes.append(scope)
        models.append(_model(scope, name, results))
    chosen.set_then_body(models[0])
    chosen.set_else_body(models[1])
    for place, value in enumerate(given):
        for side, name in enumerate(("then", "otherwise")):
            for x, parameter in zip(
                s.shaped(value, _body(node, name).inputs[place]), entered[side][place], strict=True
            ):
                chosen.set_input(port_of(x), *_on_side(side, parameter))
    for side, scope in enumerate(scopes):
        for symbol, parameter in scope.sizes.captured.items():
            chosen.set_input(port_of(s.sizes.symbol(symbol)), *_on_side(side, parameter))
    ends = zip(models[0].results, models[1].results, strict=True)
    return _grouped(s, node, [chosen.set_output(*pair) for pair in ends])


def _refuses_cond(node: Node) -> str | None:
    for value in node.outputs:
        shape = value.tensor.shape
        if 0 in shape and any(not isinstance(dim, int) for dim in shape):
            # A Concat of pieces does, and a Reshape after it changes nothing (2026.4.1).
            return f"OpenVINO forgets the sizes of {value.type}, which has no elements."
    return None


def _on_side(side: int, parameter: Ov) -> tuple[Ov | None, Ov | None]:
    return (parameter, None) if side == 0 else (None, parameter)


class _Loop:
    """A Loop being built: what is carried, what stays, what is taken row by row.

    The engine copies what is carried from results to parameters one after the other, and a result
    may lie in the memory of a parameter: two values that change places would be one (2026.4.1).
    So what is carried is copied first, and rows are gathered instead of sliced.
    """

    def __init__(self, s: Any, node: Node, graph: Graph, trips: Ov, going: Ov) -> None:
        self.s = s
        self.node = node
        self.graph = graph
        self.loop = ops.loop(port_of(trips), port_of(going))
        self.scope = s.inside()
        self.counter = ops.parameter([], openvino.Type.i32)
        self.scope.parameters.append(self.counter)
        self.entered: list[list[Ov]] = []

    def count(self, value: Value) -> None:
        """Let an input be the number of the run."""
        is_wide = self.s.holding.storage(value).parts == 2
        self.scope.bind(value, widened(self.counter) if is_wide else (self.counter,))

    def accept(self, value: Value) -> None:
        """Let an input be a parameter."""
        self.entered.append(self.scope.accept(value))

    def accept_row(self, value: Value, rows: Value, reverse: bool) -> None:
        """Let an input be one row of what is scanned."""
        storage = self.s.holding.storage(value)
        dims = [dim if isinstance(dim, int) else -1 for dim in rows.tensor.shape]
        element = getattr(openvino.Type, storage.inner)
        made = [ops.parameter(dims, element) for _ in range(storage.parts)]
        self.scope.parameters += made
        self.entered.append(made)
        if value.tensor.size == 0:
            self.scope.bind(value, self.scope.nothing(value))
            return
        last = ops.subtract(ops.gather(shape_of(made[0]), const(0), const(0)), const(1))
        at = ops.subtract(last, self.counter) if reverse else self.counter
        self.scope.bind(value, tuple(ops.gather(x, at, const(0)) for x in made))

    def _detached(self, x: Ov) -> Ov:
        if 0 in (static_shape(x) or ()):
            return x
        nothing = ops.bitwise_and(self.counter, const(0))
        return ops.gather(ops.unsqueeze(x, const([0])), nothing, const(0))

    def finish(
        self, onward: Ov, outputs: Sequence[Value], given: Sequence[Value], carries: int
    ) -> list[Any]:
        """Close the body and connect it; ``outputs`` are the carried values, then the added."""
        inputs = self.graph.inputs[len(self.graph.inputs) - len(given) :]
        carried = [
            x
            for i, value in enumerate(outputs[:carries])
            for x in self.scope.shaped(value, inputs[i])
        ]
        added = [
            ops.unsqueeze(x, const([0]))
            for value, like in zip(outputs[carries:], self.node.outputs[carries:], strict=True)
            for x in self.scope.shaped(value, like)
        ]
        if len(carried) > 1:
            carried = [self._detached(x) for x in carried]
        model = _model(self.scope, "body", [onward, *carried, *added])
        results = [result.output(0) for result in model.results]
        self.loop.set_function(model)
        self.loop.set_special_body_ports([0, 0])
        left = results[1:]
        for i, value in enumerate(given):
            for x, parameter in zip(self.s.shaped(value, inputs[i]), self.entered[i], strict=True):
                if i < carries:
                    self.loop.set_merged_input(parameter, port_of(x), left.pop(0))
                else:
                    self.loop.set_invariant_input(parameter, port_of(x))
        for symbol, parameter in self.scope.sizes.captured.items():
            self.loop.set_invariant_input(parameter, port_of(self.s.sizes.symbol(symbol)))
        last = [self.loop.get_iter_value(x, -1) for x in results[1 : 1 + len(carried)]]
        rows = [self.loop.get_concatenated_slices(x, 0, 1, 1, -1, 0) for x in left]
        return self._outputs(inputs, last, rows, carries)

    def _stacked(self, value: Value, x: Ov) -> Ov:
        """Give back the dims that the engine forgets when there was no run at all."""
        _, *dims = value.tensor.shape
        if not all(self.s.sizes.knows(dim) for dim in dims):
            return x
        return ops.reshape(x, concat([dim_of(x, 0), self.s.shape(dims)], 0), False)

    def _outputs(
        self, inputs: Sequence[Value], last: list[Ov], rows: list[Ov], carries: int
    ) -> list[Any]:
        """Bring carried values from the pieces of the body's inputs to those of the outputs."""
        found: list[Any] = []
        for value, like in zip(self.node.outputs[:carries], inputs, strict=False):
            parts = self.s.holding.storage(like).parts
            found += self.s.fitted(value, tuple(last[:parts]))
            last = last[parts:]
        for value in self.node.outputs[carries:]:
            parts = self.s.holding.storage(value).parts
            found += [self._stacked(value, x) for x in rows[:parts]]
            rows = rows[parts:]
        return _grouped(self.s, self.node, found)


def _loop(s: Any, node: Node) -> list[Any]:
    trips, condition, *given = node.inputs
    graph, carries = _body(node, "body"), _count(node, "carries")
    limit = const(ENDLESS) if trips is None else s.index(trips)
    going = const(True, "boolean") if condition is None else s.plain(condition)
    built = _Loop(s, node, graph, limit, going)
    index, flag, *inputs = graph.inputs
    built.count(index)
    # The condition goes in as it went out of the run before.
    built.scope.parameters.append(parameter := ops.parameter([], openvino.Type.boolean))
    built.scope.bind(flag, (parameter,))
    for value in inputs:
        built.accept(value)
    built.scope.walk(graph)
    onward = const(True, "boolean") if condition is None else built.scope.plain(graph.outputs[0])
    first = port_of(going)
    values = [v for v in given if v is not None]
    found = built.finish(onward, graph.outputs[1:], values, carries)
    built.loop.set_merged_input(parameter, first, _condition(built.loop))
    return found


def _condition(loop: Any) -> Ov:
    return loop.get_function().results[0].output(0)


def _while(s: Any, node: Node) -> list[Any]:
    given, body, test = list(node.operands), _body(node, "body"), _body(node, "condition")
    carries = node.attrs["carries"]
    count = carries if isinstance(carries, int) else len(given)

    def tested(scope: Any, values: Sequence[Value]) -> Ov:
        inner = scope.inside(inline=True)
        for value, like in zip(values, test.inputs, strict=True):
            inner.bind(like, scope.shaped(value, like))
        inner.walk(test)
        return inner.plain(test.outputs[0])

    built = _Loop(s, node, body, const(ENDLESS), tested(s, given))
    for value in body.inputs:
        built.accept(value)
    built.scope.walk(body)
    onward = tested(built.scope, [*body.outputs, *body.inputs[count:]])
    return built.finish(onward, body.outputs, given, count)


def _scan(s: Any, node: Node) -> list[Any]:
    given, graph = list(node.operands), _body(node, "body")
    carries, scans = _count(node, "carries"), _count(node, "scans")
    length = given[carries].tensor.shape[0] if scans else node.attrs["length"]
    if length == 0:
        none = [s.nothing(value) for value in node.outputs[carries:]]
        kept = zip(given, node.outputs[:carries], strict=False)
        return [*(s.shaped(value, like) for value, like in kept), *none]
    built = _Loop(s, node, graph, s.scalar(length), const(True, "boolean"))
    reverse = bool(node.attrs["reverse"])
    for place, value in enumerate(graph.inputs):
        if carries <= place < carries + scans:
            built.accept_row(value, given[place], reverse)
        else:
            built.accept(value)
    built.scope.walk(graph)
    found = built.finish(const(True, "boolean"), graph.outputs, given, carries)
    return [*found[:carries], *map(_turned, found[carries:])] if reverse else found


def _turned(x: Any) -> Any:
    """Reverse the first axis of each piece."""
    if isinstance(x, tuple):
        return tuple(map(_turned, x))
    return ops.slice(x, const([-1]), const([-(2**31)]), const([-1]), const([0]))


def _count(node: Node, name: str) -> int:
    found = node.attrs[name]
    assert isinstance(found, int), "checked by the type rule"
    return found


TABLE: Table = {
    "cond": Entry(_cond, refuses=_refuses_cond),
    "loop": Entry(_loop),
    "while": Entry(_while),
    "scan": Entry(_scan),
}
