"""What execution providers get wrong, found by `fusewire conform onnxruntime --device ...`.

A provider takes a node by its name and dtype, and may then compute it in another dtype, or not at
all. Such nodes are not given to it. What is lost only where an operand is NaN or beyond all
integers is a gap (gaps.py). All of this is onnxruntime-ep-openvino 1.8.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from fusewire.backends.onnxruntime.providers import Provider
from fusewire.ir.graph import Graph, Node
from fusewire.ir.types import TensorType

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
        # Written with bits of uint32.
        **dict.fromkeys(_RANDOM, _ALL),
    }
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
        if inner.op == "pad" and provider.name == OPENVINO and len(inner.operands) > 1:
            return f"{provider.name} pads with 0, whatever value it is given."
    return None


def graph_refusal(provider: Provider, graph: Graph) -> str | None:
    """Say why a provider must not run a graph as it is; None if it may."""
    return next((said for node in graph.nodes if (said := provider_refusal(provider, node))), None)


def _with_bodies(node: Node) -> Iterator[Node]:
    yield node
    for _, body in node.graphs():
        for part in body.walk():
            yield from part.nodes
