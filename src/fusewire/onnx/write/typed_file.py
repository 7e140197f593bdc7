"""Give a checked file the types of a region, and its weights where an engine wants them inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fusewire.contract.backend import Slot
from fusewire.contract.model_file import ModelFile
from fusewire.ir.dims import lone_symbol
from fusewire.ir.graph import Graph
from fusewire.ir.types import tensor_of
from fusewire.onnx.tensor_protos import place_of, put_inside
from fusewire.onnx.write.proto import parsed


def typed_model(file: ModelFile, region: Graph) -> Any:
    """Return the model of a file with the sizes of the region's inputs; others stay open."""
    model = parsed(file.payload)
    for info, value in zip(model.graph.input, region.inputs, strict=True):
        shape = info.type.tensor_type.shape
        shape.SetInParent()
        for dim in tensor_of(value.type).shape:
            if isinstance(dim, int):
                shape.dim.add(dim_value=dim)
            elif (symbol := lone_symbol(dim)) is not None and not symbol.unbacked:
                shape.dim.add(dim_param=symbol.name)
            else:
                shape.dim.add()
    return model


def file_slots(file: ModelFile) -> Iterator[Slot]:
    """Yield a slot for every weight that the model names by digest."""
    for digest, constant in file.weights.items():
        of = constant.type
        yield Slot("weight", "", of.dtype, of.shape, digest=digest)


def put_weights_inside(model: Any, file: ModelFile) -> None:
    """Put the weights into the model, for engines that take no others."""
    for tensor in model.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            digest = place_of(tensor)["location"]
            put_inside(tensor, file.weights[digest].array.tobytes())
