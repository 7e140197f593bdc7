"""Models that compute an index, each with inputs at which 32 bits are too few for the way there.

Run as ``python -m tests.index_graphs ENGINE GROUP``: compiles with default options, calls with the
honest inputs, then with the far ones, and compares both with the reference, refusals included.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import fusewire as fw
from fusewire.errors import FusewireError

Inputs: TypeAlias = Sequence[np.ndarray[Any, Any]]
ROWS = 1 << 16
INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT
OPS = ("Gather", "GatherND", "GatherElements", "ScatterElements", "ScatterND")


@dataclass(frozen=True)
class Model:
    """A model, inputs that stay within 32 bits, and inputs that do not."""

    proto: onnx.ModelProto
    honest: Inputs
    far: Inputs


def _constant(name: str, value: Any, of: Any = np.int64) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value, of), name)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int, Sequence[int | str]]],
    constants: Mapping[str, Any],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "indices",
        [helper.make_tensor_value_info(*given) for given in inputs],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [
            value if isinstance(value, onnx.TensorProto) else _constant(name, value)
            for name, value in constants.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _used(op: str, index: str, rows: int = ROWS) -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    """Use a list of one index on a table, or to write to one."""
    table = np.arange(rows, dtype=np.float32).reshape(rows, 1)
    is_written = op.startswith("Scatter")
    constants: dict[str, Any] = {
        "table": _constant("table", np.zeros_like(table) if is_written else table, np.float32),
        "column": [-1, 1],
    }
    at, nodes = index, []
    if op != "Gather":
        nodes.append(helper.make_node("Reshape", [index, "column"], ["at"]))
        at = "at"
    operands = ["table", at]
    if is_written:
        constants["written"] = _constant("written", np.full((1, 1), 7), np.float32)
        operands.append("written")
        if op == "ScatterND":
            constants["written"] = _constant("written", np.full((1, 1), 7), np.float32)
    attrs = {"axis": 0} if op in ("Gather", "GatherElements", "ScatterElements") else {}
    return [*nodes, helper.make_node(op, operands, ["y"], **attrs)], constants


def _empty(rows: int) -> np.ndarray[Any, Any]:
    return np.zeros((rows, 0), np.float32)


def _size_of_nothing(op: str, then: str, by: int, far: int) -> Model:
    """Use a size of an empty tensor, limited or divided."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "zero"], ["size"], axis=0),
        helper.make_node(then, ["size", "by"], ["index"]),
    ]
    used, constants = _used(op, "index")
    constants |= {"zero": [0], "by": [by]}
    proto = _model([*nodes, *used], [("x", FLOAT, ["n", "m"])], constants)
    return Model(proto, [_empty(3)], [_empty(far)])


def _beside_the_last(op: str) -> Model:
    """Use the last row less a part of a size of an empty tensor."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "zero"], ["size"], axis=0),
        helper.make_node("Div", ["size", "by"], ["part"]),
        helper.make_node("Sub", ["last", "part"], ["index"]),
    ]
    used, constants = _used(op, "index")
    constants |= {"zero": [0], "by": [2**31 // ROWS], "last": [ROWS - 1]}
    proto = _model([*nodes, *used], [("x", FLOAT, ["n", "m"])], constants)
    return Model(proto, [_empty(3)], [_empty(2**31 + 2**20)])


def _product_of_sizes(op: str) -> Model:
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Shape", ["z"], ["m"]),
        helper.make_node("Mul", ["n", "m"], ["product"]),
        helper.make_node("Min", ["product", "last"], ["index"]),
    ]
    used, constants = _used(op, "index")
    inputs = [("x", FLOAT, ["N"]), ("z", FLOAT, ["M"])]
    proto = _model([*nodes, *used], inputs, {**constants, "last": [ROWS - 1]})
    far = [np.zeros(n, np.float32) for n in (65536, 49152)]
    return Model(proto, [np.zeros(n, np.float32) for n in (3, 2)], far)


# How a value is made of the input x: its dtype and shape, what leads to "far", and two inputs.
_Values: TypeAlias = tuple[int, list[int | str], list[onnx.NodeProto], Any, Any]
_LAST = np.eye(1, 4096, 3000, dtype=np.float32)[0]
_FIRST = np.eye(1, 4096, 0, dtype=np.float32)[0]
VALUES: Mapping[str, _Values] = {
    "uint32": (
        TensorProto.UINT32,
        [1],
        [helper.make_node("Cast", ["x"], ["far"], to=INT64)],
        np.array([5], np.uint32),
        np.array([3 * 2**30], np.uint32),
    ),
    "argmax": (
        FLOAT,
        [4096],
        [
            helper.make_node("ArgMax", ["x"], ["place"], axis=0, keepdims=1),
            helper.make_node("Mul", ["place", "million"], ["far"]),
        ],
        _FIRST,
        _LAST,
    ),
    "size": (
        FLOAT,
        ["N"],
        [
            helper.make_node("Shape", ["x"], ["place"]),
            helper.make_node("Mul", ["place", "million"], ["far"]),
        ],
        np.zeros(1, np.float32),
        np.zeros(3000, np.float32),
    ),
    "bool": (
        TensorProto.BOOL,
        [1],
        [
            helper.make_node("Cast", ["x"], ["place"], to=INT64),
            helper.make_node("Mul", ["place", "half"], ["far"]),
        ],
        np.array([False]),
        np.array([True]),
    ),
    "sum": (
        TensorProto.BOOL,
        [4096],
        [
            helper.make_node("Cast", ["x"], ["place"], to=INT64),
            helper.make_node("Mul", ["place", "million"], ["parts"]),
            helper.make_node("ReduceSum", ["parts"], ["far"], keepdims=1),
        ],
        np.zeros(4096, np.bool_),
        np.arange(4096) < 3000,
    ),
    "nonzero": (
        FLOAT,
        [4096],
        [
            helper.make_node("NonZero", ["x"], ["place"]),
            helper.make_node("Mul", ["place", "million"], ["parts"]),
            helper.make_node("ReduceMax", ["parts"], ["whole"], keepdims=0),
            helper.make_node("Reshape", ["whole", "one"], ["far"]),
        ],
        _FIRST,
        _LAST,
    ),
    "range": (
        FLOAT,
        ["N"],
        [
            helper.make_node("Size", ["x"], ["count"]),
            helper.make_node("Range", ["start", "count", "step"], ["place"]),
            helper.make_node("Mul", ["place", "million"], ["parts"]),
            helper.make_node("ReduceMax", ["parts"], ["whole"], keepdims=0),
            helper.make_node("Reshape", ["whole", "one"], ["far"]),
        ],
        np.zeros(1, np.float32),
        np.zeros(3001, np.float32),
    ),
    "float": (
        FLOAT,
        [1],
        [
            helper.make_node("Cast", ["x"], ["whole"], to=INT64),
            helper.make_node("Max", ["whole", "none"], ["far"]),
        ],
        np.array([5], np.float32),
        np.array([3e9], np.float32),
    ),
}
_NUMBERS: Mapping[str, Any] = {
    "million": 2**20,
    "half": 2**31 + 5,
    "none": [0],
    "one": [1],
    "start": 0,
    "step": 1,
    "last": [ROWS - 1],
}


def _from_values(op: str, name: str) -> Model:
    of, shape, nodes, honest, far = VALUES[name]
    used, constants = _used(op, "index")
    nodes = [*nodes, helper.make_node("Min", ["far", "last"], ["index"])]
    proto = _model([*nodes, *used], [("x", of, shape)], {**_NUMBERS, **constants})
    return Model(proto, [honest], [far])


def _leaking() -> Model:
    """Read many rows of a small table, as many as would show the memory behind it."""
    nodes = [
        helper.make_node("Cast", ["x"], ["far"], to=INT64),
        helper.make_node("Min", ["far", "last"], ["index"]),
    ]
    used, constants = _used("GatherND", "index", 16)
    proto = _model([*nodes, *used], [("x", TensorProto.UINT32, ["k"])], constants | {"last": [15]})
    rows = np.arange(65536, dtype=np.uint32)
    return Model(proto, [rows % 16], [(rows + (2**32 - 16 - 65536)).astype(np.uint32)])


def _ints(
    nodes: Sequence[onnx.NodeProto], given: Any, honest: Any, far: Any, **numbers: Any
) -> Any:
    """Describe a model with one input, whose table has 64 elements."""
    of, shape = given

    def make() -> Model:
        constants: dict[str, Any] = {**numbers, "table": _constant("table", range(64), np.float32)}
        proto = _model(nodes, [("x", of, shape)], constants)
        return Model(proto, [np.array(honest)], [np.array(far)])

    return make


_N = helper.make_node
_TAKEN = _N("Gather", ["table", "index"], ["y"])
_CUT = _N("Slice", ["table", "zero", "index"], ["y"])
_PLACE = _N("ArgMax", ["x"], ["place"], axis=0, keepdims=1)
_FAR_PLACE = [np.eye(1, 5000, at, dtype=np.float32)[0] for at in (0, 4999)]
# Wrong rows without a word: index arithmetic that wraps and stays in range.
WRAPPED: Mapping[str, Callable[[], Model]] = {
    "hash": _ints(
        [_N("Mul", ["x", "by"], ["far"]), _N("Mod", ["far", "over"], ["index"]), _TAKEN],
        (INT64, [3]),
        [1, 2, 3],
        [5, 123456, 7],
        by=2654435761,
        over=64,
    ),
    "hash-uint32": _ints(
        [_N("Cast", ["x"], ["far"], to=INT64), _N("Mod", ["far", "over"], ["index"]), _TAKEN],
        (TensorProto.UINT32, [3]),
        np.array([1, 2, 3], np.uint32),
        np.array([2**31, 2**32 - 1, 3 * 2**30], np.uint32),
        over=63,
    ),
    "ids-modulo": _ints(
        [_N("Mod", ["x", "over"], ["index"]), _TAKEN],
        (INT64, [3]),
        [1, 2, 3],
        [2**40 + 1, 2**33 + 5, 10**15],
        over=63,
    ),
    "ids-shifted": _ints(
        [_N("Div", ["x", "by"], ["far"]), _N("Clip", ["far", "low", "high"], ["index"]), _TAKEN],
        (INT64, [3]),
        [1, 2, 3],
        [2**34, 2**33, 2**35 + 7],
        by=2**30,
        low=0,
        high=63,
    ),
    "slice-product": _ints(
        [_N("Mul", ["x", "by"], ["index"]), _CUT], (INT64, [1]), [0], [4096], by=[2**20], zero=[0]
    ),
    "slice-size": _ints(
        [_N("Shape", ["x"], ["n"]), _N("Mul", ["n", "by"], ["index"]), _CUT],
        (INT64, ["n"]),
        np.zeros(1, np.int64),
        np.zeros(3000, np.int64),
        by=[2**20],
        zero=[0],
    ),
    "argmax-hash": _ints(
        [
            _PLACE,
            _N("Mul", ["place", "by"], ["far"]),
            _N("Mod", ["far", "over"], ["index"]),
            _TAKEN,
        ],
        (FLOAT, [5000]),
        *_FAR_PLACE,
        by=2654435761,
        over=64,
    ),
    "argmax-modulo": _ints(
        [
            _PLACE,
            _N("Mul", ["place", "by"], ["far"]),
            _N("Mod", ["far", "over"], ["index"]),
            _TAKEN,
        ],
        (FLOAT, [5000]),
        *_FAR_PLACE,
        by=1048577,
        over=63,
    ),
    "compared-size": _ints(
        [
            _N("Shape", ["x"], ["n"]),
            _N("Mul", ["n", "by"], ["far"]),
            _N("Greater", ["far", "limit"], ["is_far"]),
            _N("Cast", ["is_far"], ["index"], to=INT64),
            _TAKEN,
        ],
        (INT64, ["n"]),
        np.zeros(1, np.int64),
        np.zeros(3000, np.int64),
        by=[2**20],
        limit=[2**30],
    ),
    "uint32-as-data": _ints(
        [_N("Cast", ["x"], ["whole"], to=INT64), _N("Cast", ["whole"], ["y"], to=FLOAT)],
        (TensorProto.UINT32, [3]),
        np.array([1, 2, 3], np.uint32),
        np.array([2**31, 2**32 - 1, 3 * 2**30], np.uint32),
    ),
}


# By what goes too far: the models of a group run in one process.
GROUPS: Mapping[str, Mapping[str, Callable[[], Model]]] = {
    "size-limited": {op: partial(_size_of_nothing, op, "Min", ROWS - 1, 2**31) for op in OPS},
    "size-divided": {op: partial(_size_of_nothing, op, "Div", 2**27, 2**40) for op in OPS},
    "last-less-size": {op: partial(_beside_the_last, op) for op in OPS},
    "product": {op: partial(_product_of_sizes, op) for op in OPS},
    "read": {name: partial(_from_values, "GatherND", name) for name in VALUES},
    "written": {name: partial(_from_values, "ScatterElements", name) for name in VALUES},
    "leak": {"uint32": _leaking},
    "wrapped": WRAPPED,
}


def answer(program: Any, inputs: Inputs) -> Any:
    """Call a program; a refusal is the name of its error."""
    try:
        found = program(*inputs)
    except FusewireError as error:
        return type(error).__name__
    return np.asarray(found[0] if isinstance(found, list | tuple) else found)


def problems(engine: str, group: str, name: str) -> list[str]:
    """Compare an engine with the reference."""
    model, found = GROUPS[group][name](), []
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        onnx.save(model.proto, path)
        asked = fw.compile(path, backend=engine, fallback="allow", cache=False)
        reference = fw.compile(path, backend="reference", cache=False)
        for kind, inputs in (("honest", model.honest), ("far", model.far)):
            wanted, got = answer(reference, inputs), answer(asked, inputs)
            same = isinstance(got, str) == isinstance(wanted, str) and np.array_equal(got, wanted)
            if not same:
                found.append(f"{kind}: {wanted} wanted, {got} found".replace("\n", ""))
    return found


if __name__ == "__main__":
    for name in GROUPS[sys.argv[2]]:
        # Said before it is known: the process may end here.
        print(f"{name}:", end=" ", flush=True)
        print("; ".join(problems(sys.argv[1], sys.argv[2], name)) or "as the reference")
