"""The engine's own blob of a compiled model, with its weights, and executables from it.

The blob is imported as a tensor over the memory that it came in, which alone copies no weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusewire.backends.openvino.api import openvino
from fusewire.backends.openvino.devices import counting, settings
from fusewire.backends.openvino.edges import Border, Told
from fusewire.backends.openvino.executable import OpenvinoExecutable
from fusewire.backends.openvino.info import INFO
from fusewire.backends.openvino.storage import Storage, writable
from fusewire.contract.backend import Artifact
from fusewire.errors import FormatError
from fusewire.host_memory import aligned_copy
from fusewire.ir.graph import Array

# Elements of the blob are read as they lie.
_ALIGNMENT = 16


def exported(artifact: Artifact, compiled: Any, border: Border) -> Artifact:
    """Give an artifact of a compiled model in place of the one that it was made of."""
    rows = {"input": list(map(_row, border.inputs)), "output": list(map(_row, border.outputs))}
    payload = json.dumps({**rows, "sizes": list(map(str, border.sizes))})
    edges = tuple(slot for slot in artifact.slots if slot.role != "weight")
    blob = memoryview(compiled.export_model().getvalue())
    key = {"openvino": INFO.version}
    return Artifact(
        "native", payload.encode(), edges, launch=artifact.launch, key=key, weights=blob
    )


def imported(
    artifact: Artifact, core: Any, plugin: str, *, counts: bool = False
) -> OpenvinoExecutable:
    """Have the engine read its blob; with ``counts``, requests tell how long each node takes."""
    found = artifact.key.get("openvino")
    if found != INFO.version or artifact.weights is None:
        raise FormatError(
            f"This model was compiled by OpenVINO {found}, and {INFO.version} is installed, or its "
            "blob is missing. Compile it again."
        )
    blob: Array = np.frombuffer(artifact.weights, np.uint8)
    if blob.ctypes.data % _ALIGNMENT:
        blob = aligned_copy(blob)
    tensor = openvino.Tensor(writable(blob), shared_memory=True)
    told_to = settings(core, plugin, artifact.launch) | counting(counts)
    compiled = core.import_model(tensor, plugin, told_to)
    border = _border(json.loads(artifact.payload))
    return OpenvinoExecutable(compiled, artifact.slots, border, (blob, tensor))


def _border(rows: Mapping[str, Sequence[Any]]) -> Border:
    inputs, outputs = (tuple(map(_told, rows[role])) for role in ("input", "output"))
    if not rows["sizes"]:
        return Border(inputs, outputs)
    from fusewire.ir.parse import parse_dim

    return Border(inputs, outputs, tuple(map(parse_dim, rows["sizes"])))


def _row(told: Told) -> list[Any]:
    held = told.storage
    return [held.edge, held.inner, held.carrier.str, held.parts, told.is_direct, *told.reach]


def _told(row: Sequence[Any]) -> Told:
    edge, inner, carrier, parts, is_direct, low, high = row
    return Told(Storage(edge, inner, np.dtype(carrier), parts), is_direct, (low, high))
