"""Model files that the engine reads by itself: which it may, and how they are compiled.

It holds 64-bit integers in 32 bits, whatever a file says. So it may read a file only if all of them
are known to fit once those that enter do, and those are checked at every call: in the graph as it
was read, of which rewriting may have removed what the engine still runs. Nor is an index limited,
as in what we write for it. So what a plan has only proven of an index that is computed from values
is not enough: of values, the engine may have others on the way.

What we write for it goes around nodes that fail at some sizes: with no elements a Broadcast divides
by 0, which ends the process (2026.4.1). Of a file it runs just these. So sizes must be known: then
the first run, in a child, has met all that later runs meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusewire import dtypes
from fusewire.backends.openvino.edges import Border, Told
from fusewire.backends.openvino.storage import LONG, NARROWED, STORAGE
from fusewire.contract.backend import Fact
from fusewire.contract.model_file import ModelFile
from fusewire.dtypes import DType
from fusewire.facts.roles import ENTERING
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.requires import label_of
from fusewire.ops.table import get_op
from fusewire.rewrite.narrowing import Narrowing

if TYPE_CHECKING:
    from fusewire.contract.backend import Slot

# Beyond this the engine would have to be given a message that Protocol Buffers do not write.
MOST_BYTES = 1 << 30
# Dtypes that it computes in as the file says, beside 64-bit integers that fit in 32.
_KEPT = frozenset(
    (
        dtypes.bool_,
        dtypes.int8,
        dtypes.int16,
        dtypes.int32,
        dtypes.uint8,
        dtypes.uint16,
        dtypes.float16,
        dtypes.bfloat16,
        dtypes.float32,
    )
)


def refuses_file(file: ModelFile, region: Graph) -> str | None:
    """Say why the engine must not read a file by itself, or None."""
    size = sum(constant.array.nbytes for constant in file.weights.values())
    if size > MOST_BYTES:
        return f"OpenVINO would be given {size:,} bytes of weights in one message."
    if any(not value.tensor.is_static for value in region.inputs):
        return "OpenVINO's own nodes do not stand every size, and sizes are open here."
    if any(True for node in file.graph.nodes for _ in node.graphs()):
        return "Values of OpenVINO's own loops may share memory."
    if any(value.node is None for value in (*file.graph.outputs, *region.outputs)):
        return "OpenVINO does not write an output that nothing computes."
    for graph in (file.graph, region):
        narrowing = Narrowing(graph, guarded=True)
        for part in graph.walk():
            made = (value for node in part.nodes for value in node.outputs)
            for value in (*part.inputs, *part.constants, *made):
                refused = _refuses_value(value, narrowing)
                if refused is not None:
                    return refused
    return next((why for node in file.graph.nodes if (why := _refuses_index(node))), None)


def _refuses_value(value: Value, narrowing: Narrowing) -> str | None:
    if not isinstance(value.type, TensorType):
        return f"OpenVINO is given tensors only, not a {value.type}."
    of = value.type.dtype
    if of in _KEPT or (of in LONG and narrowing.is_narrow(value)):
        return None
    return f"OpenVINO does not compute in {of}, as the file says, but in fewer bits."


def _refuses_index(node: Node) -> str | None:
    """Say of which index only a proof tells that it exists; those of inputs are checked."""
    if node.op == "dynamic_top_k":
        return f"{label_of(node)} may be of none, which OpenVINO does not stand."
    names = get_op(node.op).parameters[0]
    required = {requirement.operand for requirement in get_op(node.op).requires}
    for name, value in zip(names, node.inputs, strict=False):
        if name in required and value is not None and _is_computed(value):
            return f"{label_of(node)} takes indices that are computed, and OpenVINO checks none."
    return None


def _is_computed(value: Value) -> bool:
    """Tell whether a value is computed from inputs, and not only moved or made of their sizes."""
    waiting, seen = [(value, False)], {(value, False)}
    while waiting:
        at, is_made = waiting.pop()
        if at.node is None:
            if is_made and at.constant is None:
                return True
        elif not get_op(at.node.op).is_(Trait.SHAPE):
            is_made = is_made or not _moves(at.node)
            more = {(operand, is_made) for operand in at.node.operands} - seen
            seen |= more
            waiting += more
    return False


def _moves(node: Node) -> bool:
    """Tell whether a node leaves integers as they are; a guard sees through that."""
    is_cast = node.op == "cast" and node.operands[0].tensor.dtype.is_integer
    return is_cast or get_op(node.op).is_(Trait.MOVEMENT)


def compiled_file(
    core: Any, plugin: str, file: ModelFile, region: Graph, launch: Mapping[str, Fact]
) -> Any:
    """Have the engine read a model from memory, with all weights inside, and compile it."""
    from fusewire.backends.openvino.api import openvino
    from fusewire.backends.openvino.devices import block_of, settings
    from fusewire.backends.openvino.int8 import round_weights
    from fusewire.onnx.write.typed_file import put_weights_inside, typed_model

    proto = typed_model(file, region)
    put_weights_inside(proto, file)
    model = core.read_model(proto.SerializeToString(), b"")
    # Checked and narrowed before they enter, as in regions.
    long = [place for place, value in enumerate(region.inputs) if value.tensor.dtype in LONG]
    if long:
        editor = openvino.preprocess.PrePostProcessor(model)
        for place in long:
            editor.input(place).tensor().set_element_type(openvino.Type.i32)
        model = editor.build()
    if launch.get("precision") == "int8":
        model = round_weights(model, block_of(launch))
    return core.compile_model(model, plugin, settings(core, plugin, launch))


def border_of_file(slots: Sequence[Slot]) -> Border:
    """Say how arrays go in and out: but for 64-bit integers as the file says."""
    inputs, outputs = ([_told(x.dtype) for x in slots if x.role == r] for r in ("input", "output"))
    return Border(tuple(inputs), tuple(outputs))


def _told(of: DType) -> Told:
    return Told(NARROWED if of in LONG else STORAGE[of], reach=(ENTERING.low, ENTERING.high))
