"""Small models that ask for more than any machine has: one a row, each made when it is asked for.

``OPEN`` are refused when the file is opened. ``WORK`` are proper models whose work is beyond all
measure, so they may be loaded, as long as nothing of the work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL, STRING = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.STRING,
)
OPSET = 17
node = helper.make_node


def info(name: str, kind: int = FLOAT, shape: Sequence[int | str] | None = ()) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def tensor(name: str, value: Any, dtype: Any = np.float32) -> Any:
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def ints(name: str, *values: int) -> Any:
    return tensor(name, values, np.int64)


def model(
    nodes: Iterable[Any],
    held: Iterable[Any] = (),
    functions: Iterable[Any] = (),
    inputs: Iterable[Any] | None = None,
    kind: int = FLOAT,
    opset: int = OPSET,
) -> bytes:
    """Make a model from x to y; y has a shape that nobody gave."""
    takes = [info("x")] if inputs is None else list(inputs)
    graph = helper.make_graph(list(nodes), "g", takes, [info("y", kind, None)], list(held))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    made = helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=8)
    return bytes(made.SerializeToString())


def function(name: str, nodes: Sequence[Any]) -> Any:
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["x"], ["y"], nodes, opsets)


def chain(op: str, times: int, domain: str = "", extra: Sequence[str] = ()) -> list[Any]:
    """Apply an op so many times, from x to y."""
    names = ["x", *(f"t{i}" for i in range(1, times)), "y"]
    return [node(op, [a, *extra], [b], domain=domain) for a, b in pairwise(names)]


def calls(depth: int, times: int, leaf: Sequence[Any] | None = None) -> bytes:
    """Make functions that call the next so many times."""
    made = [function(f"f{i}", chain(f"f{i + 1}", times, "own")) for i in range(depth)]
    made.append(function(f"f{depth}", leaf or [node("Relu", ["x"], ["y"])]))
    return model(chain("f0", 1, "own"), functions=made)


def branch(nodes: Sequence[Any]) -> Any:
    return helper.make_graph(list(nodes), "b", [], [info("y", FLOAT, None)])


def if_(nodes: Sequence[Any], out: str = "y") -> Any:
    return node("If", ["c"], [out], then_branch=branch(nodes), else_branch=branch(nodes))


def nested(depth: int) -> list[Any]:
    """Put graphs inside each other; only the then branch goes on, or there would be 2^depth."""
    inner = branch([node("Relu", ["x"], [f"y{depth}"])])
    inner.output[0].name = f"y{depth}"
    for level in range(depth - 1, 0, -1):
        other = branch([node("Relu", ["x"], [f"z{level}"])])
        other.output[0].name = f"z{level}"
        step = node("If", ["c"], [f"y{level}"], then_branch=inner, else_branch=other)
        inner = branch([step])
        inner.output[0].name = f"y{level}"
    other = branch([node("Relu", ["x"], ["z0"])])
    other.output[0].name = "z0"
    return [node("If", ["c"], ["y"], then_branch=inner, else_branch=other)]


CONDITION = tensor("c", True, np.bool_)


def head(number: int, size: int) -> bytes:
    """Write what stands before bytes of a field, as Protocol Buffers do."""
    made = bytearray([number << 3 | 2])
    while size > 127:
        made.append(size & 127 | 128)
        size >>= 7
    return bytes(made) + bytes([size])


def packed(number: int, data: bytes) -> bytes:
    return head(number, len(data)) + data


def inside(levels: int, start: list[int], numbers: list[int]) -> bytes:
    """Write messages inside each other, which onnx itself could not write."""
    heads: list[bytes] = []
    size = 0
    for number in (*reversed(numbers * levels), *reversed(start)):
        heads.append(head(number, size))
        size += len(heads[-1])
    return b"".join(reversed(heads))


def deep(levels: int) -> bytes:
    """Put a graph into an attribute of a node of a graph, and so on."""
    return inside(levels, [7], [1, 5, 6])


def deep_type(levels: int) -> bytes:
    """Give an input the type of a sequence of sequences, and so on."""
    return inside(levels, [7, 11, 2], [4, 1])


def crowd(*numbers: int, times: int = 3_000_000) -> bytes:
    """Write millions of empty messages, two bytes each, at a place below the graph."""
    *outer, last = numbers
    data = bytes([last << 3 | 2, 0]) * times
    for number in reversed(outer):
        data = packed(number, data)
    return packed(7, data)


def with_dims(*dims: int, raw: bytes = b"\0" * 4) -> bytes:
    held = TensorProto(name="w", data_type=FLOAT, dims=dims, raw_data=raw)
    return model([node("Add", ["x", "w"], ["y"])], [held])


def sparse(count: int, *dims: int) -> bytes:
    """Make sparse tensors with one value each."""
    made = ModelProto.FromString(model([node("Relu", ["x"], ["y"])]))
    for place in range(count):
        values = tensor(f"s{place}", [1.0])
        found = helper.make_sparse_tensor(values, ints("", 0), dims)
        made.graph.sparse_initializer.append(found)
    return bytes(made.SerializeToString())


def imports(count: int) -> bytes:
    made = ModelProto.FromString(model([node("Relu", ["x"], ["y"])]))
    for place in range(count):
        made.opset_import.add(domain=f"d{place}", version=1)
    return bytes(made.SerializeToString())


def named(length: int) -> bytes:
    return model([node("Relu", ["x"], ["t"], name="n" * length), node("Neg", ["t"], ["y"])])


def loops_of_functions() -> bytes:
    ring = [function(f"f{i}", chain(f"f{(i + 1) % 3}", 1, "own")) for i in range(3)]
    return model(chain("f0", 1, "own"), functions=ring)


def hidden_ring() -> bytes:
    """Hide a call of the function itself in a branch."""
    body = [node("Constant", [], ["c"], value=CONDITION), if_(chain("f", 1, "own"), "y")]
    return model(chain("f", 1, "own"), functions=[function("f", body)])


def mixed_depth() -> bytes:
    """Call functions from within branches: each alone is shallow enough."""
    yes = node("Constant", [], ["c"], value=CONDITION)
    made = [function(f"f{i}", [yes, if_(chain(f"f{i + 1}", 1, "own"))]) for i in range(40)]
    made.append(function("f40", [node("Relu", ["x"], ["y"])]))
    return model(chain("f0", 1, "own"), functions=made)


def many_nodes(count: int) -> bytes:
    """Write real nodes; making them one by one would take onnx minutes."""
    one = node("Relu", ["x"], ["y"]).SerializeToString()
    return packed(8, b"\x10\x11") + packed(7, packed(1, one) * count)


OPEN: dict[str, Callable[[], bytes]] = {
    "3,000 functions deep": lambda: calls(3000, 1),
    "100 functions deep": lambda: calls(100, 1),
    "10^12 calls": lambda: calls(12, 10),
    "4,000,000 calls in two steps": lambda: calls(2, 2000),
    "100,000 calls in 1 kB": lambda: calls(5, 10),
    "900,000 calls in 40 kB": lambda: calls(2, 948),
    "2^40 calls": lambda: calls(40, 2),
    "10^6 calls in branches": lambda: calls(
        2, 1000, [node("Constant", [], ["c"], value=CONDITION), if_([node("Relu", ["x"], ["y"])])]
    ),
    "function that calls itself": lambda: model(
        chain("f", 1, "own"), functions=[function("f", chain("f", 1, "own"))]
    ),
    "ring of three functions": loops_of_functions,
    "ring in a branch": hidden_ring,
    "functions and branches, 80 deep": mixed_depth,
    "40 graphs deep": lambda: deep(40),
    "3,000 graphs deep": lambda: deep(3000),
    "1,000,000 graphs deep": lambda: deep(1_000_000),
    "3,000 types deep": lambda: deep_type(3000),
    "3,000,000 nodes of two bytes": lambda: crowd(1),
    "3,000,000 attributes of two bytes": lambda: crowd(1, 5),
    "3,000,000 tensors of two bytes": lambda: crowd(5),
    "3,000,000 infos of two bytes": lambda: crowd(13),
    "3,000,000 graphs of two bytes": lambda: crowd(1, 5, 11),
    "1,000,000 empty strings": lambda: crowd(5, 6, times=1_000_000),
    "1,100,000 real nodes": lambda: many_nodes(1_100_000),
    "dims that wrap to 0": lambda: with_dims(2**32, 2**32, raw=b""),
    "dims that wrap to 1": lambda: with_dims(2**32 + 1, 2**32 - 1, raw=b"\0" * 4),
    "dims of 2^62": lambda: with_dims(2**62),
    "dims of a terabyte": lambda: with_dims(2**38),
    "dims below 0": lambda: with_dims(-1, -1),
    "100,000 dims": lambda: with_dims(*[1] * 100_000),
    "sparse, 8 GB": lambda: sparse(1, 2**31),
    "sparse, dims that wrap": lambda: sparse(1, 2**32, 2**32),
    "sparse, 1,000 of 1 MB": lambda: sparse(1000, 2**18),
    "200,000 operator sets": lambda: imports(200_000),
    "name of 8 MB": lambda: named(8_000_000),
    "input of 2^80 elements": lambda: model(
        [node("Relu", ["x"], ["y"])], inputs=[info("x", FLOAT, [2**40, 2**40])]
    ),
}


def work(op: str, names: Sequence[str], *held: Any, opset: int = OPSET, **attrs: Any) -> bytes:
    """Make a model of one node over constants."""
    return model([node(op, names, ["y"], **attrs)], held, opset=opset)


def filled(name: str, *dims: int, value: Any = None) -> list[Any]:
    """Make a large tensor out of its shape."""
    return [
        node("Constant", [], [f"{name}_shape"], value_ints=list(dims)),
        node("ConstantOfShape", [f"{name}_shape"], [name], value=value or tensor("", [1.0])),
    ]


def doubling(op: str, start: Any, times: int, **attrs: Any) -> bytes:
    """Double a constant over and over."""
    nodes = [node("Identity", ["w"], ["t0"])]
    nodes += [node(op, [f"t{i}", f"t{i}"], [f"t{i + 1}"], **attrs) for i in range(times)]
    kind = start.data_type
    return model([*nodes, node("Identity", [f"t{times}"], ["y"])], [start], kind=kind, opset=20)


def loop(trips: int, body: Sequence[Any] | None = None, collects: bool = False) -> bytes:
    """Run a body over constants so many times; collect a value of each time, or carry one."""
    inner = helper.make_graph(
        [node("Identity", ["go"], ["on"]), *(body or [node("Add", ["v", "v"], ["r"])])],
        "body",
        [info("i", INT64), info("go", BOOL), info("v", FLOAT, [1])],
        [info("on", BOOL), info("r", FLOAT, [1])] + [info("i2", INT64)] * collects,
    )
    if collects:
        inner.node.append(node("Identity", ["i"], ["i2"]))
    outputs = ["last", "y"] if collects else ["y"]
    held = [ints("n", trips), CONDITION, tensor("w", [1.0])]
    held[0].ClearField("dims")
    return model(
        [node("Loop", ["n", "c", "w"], outputs, body=inner)],
        held,
        kind=INT64 if collects else FLOAT,
    )


def sizes(times: int) -> bytes:
    """Multiply open sizes with each other until no memory holds the product written out."""
    takes = [info("x", FLOAT, ["a", "b", "c", "d"])]
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("ReduceSum", ["s"], ["t0"], keepdims=1),
        node("Constant", [], ["one"], value_ints=[1]),
    ]
    for i in range(times):
        nodes += [
            node("Add", [f"t{i}", "one"], [f"u{i}"]),
            node("Mul", [f"t{i}", f"u{i}"], [f"t{i + 1}"]),
        ]
    return model([*nodes, node("ConstantOfShape", [f"t{times}"], ["y"])], inputs=takes)


def grown_shape(times: int) -> bytes:
    """Double a list of open sizes."""
    nodes = [node("Shape", ["x"], ["t0"])]
    nodes += [node("Concat", [f"t{i}", f"t{i}"], [f"t{i + 1}"], axis=0) for i in range(times)]
    takes = [info("x", FLOAT, ["a", "b"])]
    return model([*nodes, node("Identity", [f"t{times}"], ["y"])], inputs=takes, kind=INT64)


def pattern() -> bytes:
    """Match a pattern that takes a backtracking matcher 2^60 steps."""
    text = helper.make_tensor("w", STRING, [1], [b"a" * 60 + b"!"])
    return model(
        [node("RegexFullMatch", ["w"], ["y"], pattern="(a|a)+")], [text], kind=BOOL, opset=20
    )


def scanned(inputs: int = 1) -> bytes:
    body = helper.make_graph(
        [node("Add", ["v", "e"], ["r"]), node("Identity", ["e"], ["o"])],
        "body",
        [info("v", FLOAT, [1]), info("e", FLOAT, [1])],
        [info("r", FLOAT, [1]), info("o", FLOAT, [1])],
    )
    step = node("Scan", ["w", "big"], ["last", "y"], body=body, num_scan_inputs=inputs)
    return model([*filled("big", 2**36, 1), step], [tensor("w", [1.0])])


N = 2**18
SCALAR, ONE = tensor("w", 1.0), tensor("w", [1.0])
PIXEL = tensor("w", [[[[1.0]]]])
WORK: dict[str, Callable[[], bytes]] = {
    "Expand": lambda: work("Expand", ["w", "n"], SCALAR, ints("n", N, N)),
    "Tile": lambda: work("Tile", ["w", "n"], ONE, ints("n", N * N)),
    "ConstantOfShape": lambda: work("ConstantOfShape", ["n"], ints("n", N, N)),
    "ConstantOfShape, 2^120": lambda: work("ConstantOfShape", ["n"], ints("n", 2**60, 2**60)),
    "Range": lambda: work(
        "Range", ["a", "b", "d"], *(tensor(k, v) for k, v in zip("abd", (0, 1e12, 1), strict=True))
    ),
    "Pad": lambda: work("Pad", ["w", "n"], ONE, ints("n", 0, N * N)),
    "Resize": lambda: work(
        "Resize", ["w", "", "n"], PIXEL, tensor("n", [1, 1, N, N]), mode="nearest"
    ),
    "OneHot": lambda: work(
        "OneHot", ["i", "n", "v"], ints("i", 0), ints("n", N * N), tensor("v", [0, 1])
    ),
    "EyeLike": lambda: model([*filled("big", N, N), node("EyeLike", ["big"], ["y"])]),
    "outer product": lambda: model(
        [*filled("p", N, 1), *filled("q", 1, N), node("MatMul", ["p", "q"], ["y"])]
    ),
    "outer sum": lambda: model(
        [*filled("p", N, 1), *filled("q", 1, N), node("Add", ["p", "q"], ["y"])]
    ),
    "Einsum": lambda: model(
        [
            *filled("p", 2**13),
            node("Einsum", ["p", "p", "p"], ["y"], equation="i,j,k->ijk"),
        ]
    ),
    "Concat, 2^40": lambda: doubling("Concat", ONE, 40, axis=0),
    "strings, 2^40": lambda: doubling(
        "StringConcat", helper.make_tensor("w", STRING, [1], [b"ab"]), 40
    ),
    "Gather": lambda: model(
        [*filled("i", N, N, value=ints("", 0)), node("Gather", ["w", "i"], ["y"])], [ONE]
    ),
    "NonZero": lambda: model([*filled("big", N, N), node("NonZero", ["big"], ["y"])], kind=INT64),
    "Conv with wide edges": lambda: work(
        "Conv", ["w", "k"], PIXEL, tensor("k", [[[[1.0]]]]), pads=[N] * 4
    ),
    "AveragePool with a wide window": lambda: work(
        "AveragePool", ["w"], PIXEL, kernel_shape=[N, N], pads=[N // 2] * 4
    ),
    "Conv with wide edges and steps": lambda: work(
        "Conv", ["w", "k"], PIXEL, tensor("k", [[[[1.0]]]]), pads=[2**20] * 4, strides=[2**20] * 2
    ),
    "AveragePool with few wide windows": lambda: work(
        "AveragePool", ["w"], PIXEL, kernel_shape=[N, N], strides=[N, N], pads=[N // 2] * 4
    ),
    "LpPool with few wide windows": lambda: work(
        "LpPool", ["w"], PIXEL, kernel_shape=[2**14] * 2, strides=[2**14] * 2, pads=[2**13] * 4
    ),
    "RoiAlign with many samples": lambda: work(
        "RoiAlign",
        ["w", "b", "i"],
        PIXEL,
        tensor("b", [[0, 0, 1, 1]]),
        ints("i", 0),
        sampling_ratio=2**30,
    ),
    "RoiAlign of a wide box": lambda: work(
        "RoiAlign", ["w", "b", "i"], PIXEL, tensor("b", [[0, 0, 1e9, 1e9]]), ints("i", 0)
    ),
    "Resize to almost nothing": lambda: work(
        "Resize",
        ["w", "", "n"],
        tensor("w", np.ones((1, 1, 64, 64))),
        tensor("n", [1, 1, 1e-9, 1e-9]),
        mode="cubic",
        antialias=1,
        opset=18,
    ),
    "Expand to nothing, 2^124 wide": lambda: work(
        "Expand", ["w", "n"], ONE, ints("n", 0, 2**62, 2**62)
    ),
    "TfIdfVectorizer": lambda: model(
        [
            node(
                "TfIdfVectorizer",
                ["w"],
                ["y"],
                mode="TF",
                min_gram_length=1,
                max_gram_length=2,
                max_skip_count=2**62,
                ngram_counts=[0, 1],
                ngram_indexes=[0, 2**40],
                pool_int64s=[1, 2, 3],
            )
        ],
        [ints("w", 1, 2, 3)],
    ),
    "Scan of 2^40 inputs": lambda: scanned(2**40),
    "RandomNormal": lambda: work("RandomNormal", [], shape=[N, N]),
    "HannWindow": lambda: model([node("HannWindow", ["n"], ["y"])], [tensor("n", 2**40, np.int64)]),
    "MelWeightMatrix": lambda: model(
        [node("MelWeightMatrix", list("abcde"), ["y"])],
        [
            *(tensor(k, v, np.int64) for k, v in zip("abc", (N, N, 16000), strict=True)),
            tensor("d", 0.0),
            tensor("e", 8000.0),
        ],
    ),
    "DFT": lambda: model(
        [node("DFT", ["w", "n"], ["y"], axis=1)],
        [tensor("w", [[[1.0]]]), tensor("n", 2**40, np.int64)],
    ),
    "CenterCropPad": lambda: work("CenterCropPad", ["w", "n"], ONE, ints("n", N * N), opset=18),
    "AffineGrid": lambda: work(
        "AffineGrid",
        ["w", "n"],
        tensor("w", [[[1, 0, 0], [0, 1, 0]]]),
        ints("n", 1, 1, N, N),
        opset=20,
    ),
    "SplitToSequence": lambda: model(
        [
            *filled("big", N * N),
            node("SplitToSequence", ["big"], ["s"], axis=0),
            node("SequenceLength", ["s"], ["y"]),
        ],
        kind=INT64,
    ),
    "Unsqueeze, 100,000 dims": lambda: work(
        "Unsqueeze", ["w", "n"], ONE, ints("n", *range(100_000))
    ),
    "pattern": pattern,
    "Loop, 2^62 times": lambda: loop(2**62),
    "Loop, collecting": lambda: loop(2**40, collects=True),
    "Scan": scanned,
    "sizes multiplied": lambda: sizes(20),
    "list of sizes, 2^40": lambda: grown_shape(40),
}
