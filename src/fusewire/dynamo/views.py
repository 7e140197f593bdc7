"""Results that share memory with arguments or with each other: PyTorch makes these views.

Engines return memory of their own. A graph with such results is cut in two: engines compute the
tensors that are viewed, and PyTorch makes the views, of the tensors of the very call.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from fusewire.dynamo.fakes import storages_of, tensors_of

# Methods and functions that return views of their first argument; some may copy it instead.
_VIEWS = frozenset(
    [
        "as_strided",
        "broadcast_to",
        "chunk",
        "contiguous",
        "detach",
        "diagonal",
        "expand",
        "expand_as",
        "flatten",
        "getitem",
        "movedim",
        "narrow",
        "permute",
        "real",
        "reshape",
        "select",
        "split",
        "split_with_sizes",
        "squeeze",
        "swapaxes",
        "swapdims",
        "t",
        "tensor_split",
        "transpose",
        "unbind",
        "unflatten",
        "unfold",
        "unsqueeze",
        "view",
        "view_as",
    ]
)
# What the builtin getattr may ask for.
_VIEW_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
# Methods and functions that write to their first argument and return it.
_WRITES = frozenset(
    [
        "add_",
        "clamp_",
        "clamp_min_",
        "clamp_max_",
        "copy_",
        "div_",
        "exp_",
        "fill_",
        "iadd",
        "imul",
        "isub",
        "itruediv",
        "index_add_",
        "index_copy_",
        "index_fill_",
        "index_put_",
        "masked_fill_",
        "masked_scatter_",
        "mul_",
        "neg_",
        "relu_",
        "scatter_",
        "scatter_add_",
        "sigmoid_",
        "sqrt_",
        "sub_",
        "tanh_",
        "zero_",
    ]
)
# Methods that return sizes.
_SIZES = frozenset({"size", "dim", "numel"})


class _NoCutError(Exception):
    """A result is neither computed anew nor a view that can be made again."""


@dataclass(frozen=True, eq=False)
class CutGraph:
    """A graph in two parts: ``views`` takes the arguments, then the results of ``computed``.

    It returns the results of the whole; without it, ``computed`` does.
    """

    computed: Any
    views: Any = None


def cut_views(graph: Any) -> CutGraph | None:
    """Cut a graph of Dynamo; None if PyTorch must run all of it."""
    results = list(graph.graph.output_node().args[0])
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    owned = {storage for place in places for storage in storages_of(place)}
    uses = Counter(storage for result in results for storage in storages_of(result))
    views = [r for r in results if any(s in owned or uses[s] > 1 for s in storages_of(r))]
    if not views:
        return CutGraph(graph)
    walk = _Walk()
    try:
        for view in views:
            walk.visit(view)
        walk.check_bases()
    except _NoCutError:
        return None
    kept = [result for result in results if result not in views]
    if not kept and not walk.bases:
        return None
    kept += walk.bases
    return CutGraph(_computing(graph, kept), _viewing(graph, places, kept, walk, results))


@final
class _Walk:
    """Walks from views to the tensors that they are of."""

    def __init__(self) -> None:
        # The tensors that engines must compute, and what to run again, in order.
        self.bases: list[Any] = []
        self.steps: list[Any] = []
        self._seen: set[Any] = set()

    def visit(self, node: Any) -> None:
        """Note what a node takes to be made again."""
        if node in self._seen or node.op == "placeholder":
            return
        self._seen.add(node)
        if _is_base(node):
            self.bases.append(node)
            return
        if not (_is_write(node) or _is_view(node) or _is_size(node)):
            raise _NoCutError
        for source in node.all_input_nodes[: 1 if _is_write(node) else None]:
            self.visit(source)
        self.steps.append(node)

    def check_bases(self) -> None:
        """Refuse tensors that share memory, or are not laid out as engines return them."""
        storages = [storage for base in self.bases for storage in storages_of(base)]
        if len(set(storages)) < len(self.bases):
            raise _NoCutError
        if not all(tensor.is_contiguous() for base in self.bases for tensor in tensors_of(base)):
            raise _NoCutError


def _name(node: Any) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_write(node: Any) -> bool:
    """Tell whether a node writes to its first argument and returns it."""
    is_call = node.op in ("call_method", "call_function")
    return is_call and bool(node.args) and _name(node) in _WRITES


def _is_base(node: Any) -> bool:
    """Tell whether a node returns one tensor in memory of its own."""
    sources = {storage for source in node.all_input_nodes for storage in storages_of(source)}
    if node.target is operator.getitem and len(tensors_of(node.args[0])) != 1:
        # One of several results of another node.
        sources = {s for source in node.args[0].all_input_nodes for s in storages_of(source)}
    found = list(storages_of(node))
    return len(found) == 1 and node.op != "get_attr" and not sources.intersection(found)


def _is_view(node: Any) -> bool:
    if node.op not in ("call_method", "call_function") or not tensors_of(node):
        return False
    return _name(node) in _VIEWS or (
        node.target is getattr and len(node.args) == 2 and node.args[1] in _VIEW_ATTRIBUTES
    )


def _is_size(node: Any) -> bool:
    if tensors_of(node):
        return False
    if node.op == "call_method":
        return node.target in _SIZES
    return node.op == "call_function" and node.target.__module__ in ("_operator", "builtins")


def _computing(graph: Any, results: Sequence[Any]) -> Any:
    """Make the graph that returns other results."""
    from torch.fx import Graph, GraphModule

    computed = Graph()
    copies: dict[Any, Any] = {}
    computed.graph_copy(graph.graph, copies)
    computed.output(tuple([copies[result] for result in results]))
    return GraphModule(graph, computed)


def _viewing(
    graph: Any, places: Sequence[Any], kept: Sequence[Any], walk: _Walk, results: Sequence[Any]
) -> Any:
    """Make the graph that makes all results of the arguments and of what engines computed."""
    from torch.fx import Graph, GraphModule

    views = Graph()
    copies = {node: views.placeholder(node.name) for node in (*places, *kept)}
    for base in walk.bases:
        copies[base] = views.call_method("contiguous", (copies[base],))
    for step in walk.steps:
        if _is_write(step):
            copies[step] = copies[step.args[0]]
        else:
            copies[step] = views.node_copy(step, copies.__getitem__)
    views.output(tuple([copies[result] for result in results]))
    return GraphModule(graph, views)
