"""What execution providers get wrong, found by `fusewire conform onnxruntime --device ...`.

A provider takes a node by its name and dtype, and may then compute it in another dtype, or not at
all. Such nodes are not given to it. What is lost only where an operand is NaN or beyond all
integers is a gap (gaps.py). All of this is onnxruntime-ep-openvino 1.8.1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusewire.backends.onnxruntime.providers import Provider
from fusewire.ir.graph import Graph, Node
from fusewire.ir.types import TensorType, Type

OPENVINO = "OpenVINOExecutionProvider"
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "bfloat16", "float32")
_ALL = (*_FLOATS, *_INTEGERS, "bool")
_RANDOM = ("random_uniform_like", "random_normal_like", "bernoulli", "dropout", "multinomial")
# Dtypes that a provider does not compute in, and what it does.
FOREIGN: Mapping[str, Mapping[str, str]] = {
    OPENVINO: {
        "float64": "computes float64 in float32",
        "uint32": "computes uint32 in int32",
        "uint64": "computes uint64 in int32",
        **{
            name: f"has no kernels for {name}"
            for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
        },
    }
}
# Dtypes for which an op is wrong, or stops the session.
WRONG: Mapping[str, Mapping[str, Collection[str]]] = {
    OPENVINO: {
        "subtract": ("uint8",),
        "copysign": _FLOATS,
        **dict.fromkeys(("shift_left", "shift_right", "population_count"), _INTEGERS),
        **dict.fromkeys(("cummax", "cummin"), ("int64",)),
        "cumlogsumexp": ("bfloat16",),
        "det": ("float16", "bfloat16"),
        "einsum": _FLOATS,
        **dict.fromkeys(("dft", "istft"), _FLOATS),
        **dict.fromkeys(("coo_to_dense", "csr_to_dense", "dense_to_coo", "dense_to_csr"), _ALL),
        "max_pool_with_indices": _ALL,
        # The remainder by infinity is NaN.
        "remainder": _FLOATS,
        # Compress of it ends the process: it divides by zero.
        "compress": _ALL,
        # What runs backwards is not empty.
        "range": _ALL,
        # The first output of each step is that of the step before.
        "scan": _ALL,
        # Where elements were first is memory that nobody wrote.
        "unique": _ALL,
        "non_max_suppression": _FLOATS,
        # Written with bits of uint32.
        **dict.fromkeys(_RANDOM, _ALL),
    }
}
# Ops that a provider does not run, or gets wrong, where a tensor has no elements.
EMPTY: Mapping[str, Collection[str]] = {
    OPENVINO: (
        *("split", "slice", "dynamic_slice", "dynamic_full"),
        *("nonzero", "scatter_nd", "loop"),
    )
}


@dataclass(frozen=True)
class Mistake:
    """An op that a provider gets wrong for some attributes or shapes, and what it does then."""

    op: str
    applies: Callable[[Node], bool]
    does: str


def _attribute(name: str, *values: object) -> Callable[[Node], bool]:
    return lambda node: node.attrs[name] in values


def _first_is(*dtypes: str) -> Callable[[Node], bool]:
    return lambda node: node.operands[0].tensor.dtype.name in dtypes


def _other_activations(node: Node) -> bool:
    one = {"rnn": ("tanh",), "lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh")}[
        node.op
    ]
    return node.attrs["activations"] not in (one, one + one)


def _is_part(node: Node) -> bool:
    """Tell whether indices leave out elements along another axis than their own."""
    data, indices = (value.tensor.shape for value in node.operands[:2])
    axis = int(str(node.attrs["axis"])) % max(1, len(data))
    return any(a != b for at, (a, b) in enumerate(zip(data, indices, strict=True)) if at != axis)


def _passes_through(node: Node) -> bool:
    """Tell whether a branch returns something that it is given, as it is."""
    return any(value in body.inputs for _, body in node.graphs() for value in body.outputs)


# Of the same version.
MISTAKES: Mapping[str, Sequence[Mistake]] = {
    OPENVINO: (
        Mistake("pad", lambda node: len(node.operands) > 1, "pads with 0, whatever it is given"),
        Mistake("cond", _passes_through, "does not return what a branch is given as it is"),
        Mistake("dynamic_slice", lambda node: node.inputs[3] is not None, "slices without steps"),
        Mistake("gather_elements", _is_part, "wants an index for each element of other axes"),
        Mistake("resize", _attribute("exclude_outside", True), "includes what is outside"),
        Mistake("resize", _attribute("antialias", True), "does not resize with antialiasing"),
        Mistake("roi_align", _attribute("mode", "max"), "is not right for the mode max"),
        Mistake(
            "grid_sample",
            lambda node: node.operands[0].tensor.rank != 4,
            "samples images only",
        ),
        *(
            Mistake(op, _first_is("bool", *_INTEGERS), "puts equal elements in another order")
            for op in ("top_k", "dynamic_top_k")
        ),
        Mistake("lstm", lambda node: node.inputs[7] is not None, "does not have peepholes"),
        Mistake("lstm", _attribute("input_forget", True), "does not couple input and forget gates"),
        *(
            Mistake(op, _other_activations, "does not have these activations")
            for op in ("rnn", "lstm", "gru")
        ),
    )
}


def provider_refusal(provider: Provider, node: Node) -> str | None:
    """Say why a provider must not run a node, or one in its bodies; None if it may."""
    foreign, wrong = FOREIGN.get(provider.name, {}), WRONG.get(provider.name, {})
    for inner in _with_bodies(node):
        types = (*inner.types, *(value.type for value in inner.operands))
        dtypes = {of.dtype.name for of in types if isinstance(of, TensorType)}
        if found := sorted(dtypes & foreign.keys()):
            return f"{provider.name} {foreign[found[0]]}."
        if found := sorted(dtypes & set(wrong.get(inner.op, ()))):
            return f"{provider.name} is not right for {inner.op} of {', '.join(found)}."
        if inner.op in EMPTY.get(provider.name, ()) and any(map(_is_empty, types)):
            return f"{provider.name} does not run {inner.op} where a tensor has no elements."
        for mistake in MISTAKES.get(provider.name, ()):
            if mistake.op == inner.op and mistake.applies(inner):
                return f"{provider.name} {mistake.does}."
    return None


def _is_empty(of: Type) -> bool:
    return isinstance(of, TensorType) and any(isinstance(dim, int) and dim == 0 for dim in of.shape)


def graph_refusal(provider: Provider, graph: Graph) -> str | None:
    """Say why a provider must not run a graph as it is; None if it may."""
    return next((said for node in graph.nodes if (said := provider_refusal(provider, node))), None)


def _with_bodies(node: Node) -> Iterator[Node]:
    yield node
    for _, body in node.graphs():
        for part in body.walk():
            yield from part.nodes
