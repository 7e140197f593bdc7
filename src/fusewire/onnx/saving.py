"""Save a graph as an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fusewire.dtypes import DType, int64
from fusewire.ir.graph import Constant, Graph, Node
from fusewire.ir.types import tensor_of
from fusewire.onnx.elements import element_of
from fusewire.onnx.ops.write_table import WRITERS
from fusewire.onnx.package import need_onnx
from fusewire.onnx.tensor_protos import bytes_of, is_weight, place_of, put_outside
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.local_functions import Locals
from fusewire.onnx.write.model import Ref, Write
from fusewire.onnx.write.target import DEFAULT, Standard
from fusewire.onnx.write.writer import WrittenModel, emit
from fusewire.ops.table import get_op

# A file of more than 2 GB cannot be read by protobuf: weights then lie in a file beside it.
INSIDE_BYTES = 2**31 - 2**27
# What is smaller stays in the model, and what is outside begins at such a place.
SMALL_BYTES, ALIGNMENT = 1024, 4096


def save_graph(
    graph: Graph,
    path: str | os.PathLike[str],
    opset: int = DEFAULT,
    *,
    inside_bytes: int = INSIDE_BYTES,
) -> None:
    """Write a graph to an ONNX file; a node that ONNX has no op for calls a local function.

    Weights of more than ``inside_bytes`` together go to a file beside it, with ``.data`` added to
    its name. Raises FormatError for what ONNX cannot hold, such as complex numbers.
    """
    need_onnx("Writing")
    path = Path(path)
    written = written_with_functions(graph, opset)
    outside = _outside(written, inside_bytes)
    model = written.proto({constant.digest for constant in outside})
    if outside:
        places = _save_beside(outside, path.with_name(path.name + ".data"))
        for tensor in model.graph.initializer:
            if tensor.external_data:
                location, offset, length = places[place_of(tensor)["location"]]
                put_outside(tensor, location, length, offset)
    _replace(path, [model.SerializeToString()])


def _check(e: Emitter, node: Node, x: Ref, condition: Ref) -> Ref:
    """Take the only row there is, or stop the run by asking for the next one."""
    row = e.cast(e("Not", condition), int64)
    return e("Gather", e("Unsqueeze", x, e.integers(0)), row, axis=0)


def _fused(e: Emitter, node: Node, *operands: Ref) -> list[Ref]:
    """Write the nodes of the body: which of them are one kernel is not part of a model."""
    return e.run(get_op(node.op).expansion(node), operands, inline=True)[0]


# What a file says that engines are not asked to do: the host does it, and says more.
SAVED: Mapping[str, Write] = {**WRITERS, "check": _check, "fused": _fused}


def written_with_functions(graph: Graph, opset: int = DEFAULT) -> WrittenModel:
    """Write a graph so that reading it back gives the same graph."""
    target, table = Standard(opset), {**SAVED, **_custom(graph)}
    return emit(graph, target, table, functions=Locals(target, table))


def _custom(graph: Graph) -> dict[str, Write]:
    """Write ops of packages that NumPy defines as nodes of their own domains."""
    named = {node.op for part in graph.walk() for node in part.nodes if "." in node.op}
    ops = [get_op(name) for name in sorted(named)]
    return {op.name: _custom_node for op in ops if op.onnx is not None and not op.is_composite}


def _custom_node(e: Emitter, node: Node, *operands: Ref | None) -> list[Ref]:
    domain_and_op = get_op(node.op).onnx
    assert domain_and_op is not None
    attrs: dict[str, Any] = {}
    for name, attr in node.attrs.items():
        plain = int(attr) if isinstance(attr, bool) else attr
        attrs[name] = element_of(plain) if isinstance(plain, DType) else plain
    made = [tensor_of(type_).dtype for type_ in node.types]
    return e.raw(domain_and_op, operands, made, attrs)


def _outside(written: WrittenModel, most: int) -> list[Constant]:
    """Choose the weights that lie beside the file: none of them if all have room inside."""
    if sum(map(bytes_of, written.constants.values())) <= most:
        return []
    weights = {c.digest: c for c in written.constants.values() if is_weight(c, SMALL_BYTES)}
    return list(weights.values())


def _save_beside(constants: Iterable[Constant], path: Path) -> dict[str, tuple[str, int, int]]:
    """Write weights one after the other; gives file, offset and length by digest."""
    places: dict[str, tuple[str, int, int]] = {}

    def parts() -> Iterable[bytes]:
        place = 0
        for constant in constants:
            length = bytes_of(constant)
            places[constant.digest] = (path.name, place, length)
            yield constant.array.tobytes()
            gap = -length % ALIGNMENT
            yield b"\0" * gap
            place += length + gap

    _replace(path, parts())
    return places


def _replace(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            file.writelines(parts)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
