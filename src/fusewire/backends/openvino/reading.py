"""Model files that the engine reads by itself: which it may, and how they are compiled.

It holds 64-bit integers in 32 bits, whatever a file says. So it may read a file only if all of them
are known to fit once those that enter do, and those are checked at every call.

What we write for it goes around nodes that fail at some sizes: with no elements a Broadcast divides
by 0, which ends the process (2026.4.1). Of a file it runs just these. So sizes must be known: then
the first run, in a child, has met all that later runs meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusewire import dtypes
from fusewire.backends.openvino.edges import Told
from fusewire.backends.openvino.holding import Holding
from fusewire.backends.openvino.storage import LONG, NARROWED, STORAGE
from fusewire.contract.backend import Fact, Role
from fusewire.contract.model_file import ModelFile
from fusewire.dtypes import DType
from fusewire.ir.graph import Graph
from fusewire.ir.types import TensorType
from fusewire.rewrite.roles import ENTERING

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
    holding = Holding(region, guarded=True)
    for part in region.walk():
        made = (value for node in part.nodes for value in node.outputs)
        for value in (*part.inputs, *part.constants, *made):
            if not isinstance(value.type, TensorType):
                return f"OpenVINO is given tensors only, not a {value.type}."
            of = value.type.dtype
            if of not in _KEPT and not (of in LONG and holding.is_narrow(value)):
                return f"OpenVINO does not compute in {of}, as the file says, but in fewer bits."
    return None


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


def told_of_file(slots: Sequence[Slot]) -> dict[Role, list[Told]]:
    """Say how arrays go in and out: as the file says, but for 64-bit integers."""
    told: dict[Role, list[Told]] = {"input": [], "output": []}
    for slot in slots:
        told[slot.role].append(_told(slot.dtype))
    return told


def _told(of: DType) -> Told:
    return Told(NARROWED if of in LONG else STORAGE[of], reach=(ENTERING.low, ENTERING.high))
