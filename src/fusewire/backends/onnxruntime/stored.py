"""The engine's optimised model and weights as bytes, and sessions opened from them.

The quickest way that the engine has from bytes to a session (1.31.1): its own optimised model,
optimised no more, with initializers lent to it (``add_initializer``), which alone copies nothing.
It insists that the file is there that the model says they are in, and does not read it: that is a
file of this folder, too short for any of them. What the engine reads before it is lent any memory,
shapes, stays in the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from fusewire.backends.onnxruntime.executable import (
    ProfilableSession,
    bound,
    initializer,
    session_of,
    settings,
    wrapped,
)
from fusewire.backends.onnxruntime.info import INFO
from fusewire.contract.backend import Artifact, Slot
from fusewire.errors import FormatError
from fusewire.host_memory import ALIGNMENT, aligned_copy, aligned_empty
from fusewire.ir.dims import lone_symbol, unbacked
from fusewire.ir.graph import Array

# Smaller tensors stay in the model.
LENT_BYTES = 4096
# Above this, writing and keeping all weights again costs more than it saves.
MOST_BYTES = 1 << 30
_HERE, _FILE = str(Path(__file__).parent), "__init__.py"
_FOLDER = "session.model_external_initializers_file_folder_path"
_SAVED_FILE = "weights"
_SAVED = {
    "session.optimized_model_external_initializers_file_name": _SAVED_FILE,
    "session.optimized_model_external_initializers_min_size_in_bytes": str(LENT_BYTES),
}
_INT64 = 7


def optimised(
    artifact: Artifact, weights: Mapping[str, Array], lent: frozenset[str] = frozenset()
) -> Artifact:
    """Have the engine optimise the model of an artifact, and give what it makes of it.

    Of weights whose digests are in ``lent``, those that it left as they are stay where they lie.
    """
    held = [(slot, weights[slot.digest or ""]) for slot in artifact.slots if slot.role == "weight"]
    if sum(array.nbytes for _, array in held) > MOST_BYTES:
        return artifact
    from tempfile import TemporaryDirectory

    kept = (slot for slot in artifact.slots if slot.role != "weight")
    edges = tuple(_edge(place, slot) for place, slot in enumerate(kept))
    options = settings(artifact.launch)
    shown = bound(options, held)
    with TemporaryDirectory() as folder:
        path = Path(folder, "model")
        options.optimized_model_filepath = str(path)
        for name, value in _SAVED.items():
            options.add_session_config_entry(name, value)
        session_of(artifact.payload, options)
        del shown
        known = {digest: weights[digest] for digest in lent if digest in weights}
        payload, block, borrowed = _read(path, known)
    key = {"onnxruntime": INFO.version}
    slots = (*edges, *(slot for slot, _ in held if slot.digest in borrowed))
    return Artifact("native", payload, slots, launch=artifact.launch, key=key, weights=block)


def _edge(place: int, slot: Slot) -> Slot:
    """Leave out how open sizes come about: nobody asks, and reading it may take 50 ms."""
    dims = (
        dim if isinstance(dim, int) or lone_symbol(dim) else unbacked(f"u{place}x{axis}")
        for axis, dim in enumerate(slot.dims)
    )
    return replace(slot, dims=tuple(dims))


def _read(
    path: Path, known: Mapping[str, Array]
) -> tuple[bytes, memoryview | None, frozenset[str]]:
    """Read an optimised model: a table of what will be lent, a line, and the model; its weights.

    In place of weights that are ``known``, the table has their digests, which are returned, too.
    """
    from fusewire.onnx.tensor_protos import put_inside, put_outside
    from fusewire.onnx.write.proto import parsed

    model = parsed(path.read_bytes())
    found = _external(model.graph)
    names = [tensor.name for tensor in found]
    table: list[tuple[str, int, list[int], int | str, int]] = []
    pieces: list[tuple[int, Array]] = []
    at = 0
    for tensor in found:
        piece = _piece(path, tensor)
        count = int(np.prod(tensor.dims, dtype=np.int64))
        # A name may be another tensor's in the body of a loop; half bytes have no memory to lend.
        if tensor.data_type == _INT64 or names.count(tensor.name) > 1 or piece.size % count:
            put_inside(tensor, piece.tobytes())
            continue
        put_outside(tensor, _FILE, piece.size, at)
        place = _same_as(piece, known) or at
        table.append((tensor.name, tensor.data_type, [*tensor.dims], place, piece.size // count))
        if place is at:
            pieces.append((at, piece))
            at += piece.size + -piece.size % ALIGNMENT
    payload = json.dumps(table).encode() + b"\n" + model.SerializeToString()
    borrowed = frozenset(place for *_, place, _ in table if isinstance(place, str))
    if not pieces:
        return payload, None, borrowed
    block = aligned_empty((at,), np.dtype(np.uint8))
    for start, piece in pieces:
        block[start : start + piece.size] = piece
    return payload, block.data, borrowed


def _same_as(piece: Array, known: Mapping[str, Array]) -> str | None:
    """Find the digest of a known weight with the same bytes."""
    for digest, array in known.items():
        if array.nbytes == piece.nbytes and np.array_equal(_bytes(array), piece):
            return digest
    return None


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _piece(path: Path, tensor: Any) -> Array:
    """Map the elements of a tensor that is in the file beside a model."""
    from fusewire.onnx.tensor_protos import place_of

    where = place_of(tensor)
    file, size = path.with_name(_SAVED_FILE), int(where["length"])
    return np.memmap(file, np.uint8, "r", int(where.get("offset", 0)), (size,))


def _external(graph: Any) -> list[Any]:
    """List the initializers that are outside, in bodies too."""
    found = [tensor for tensor in graph.initializer if tensor.data_location == tensor.EXTERNAL]
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                found += _external(body)
    return found


def open_stored(
    artifact: Artifact, weights: Mapping[str, Array], measures: str = ""
) -> tuple[ProfilableSession, Any]:
    """Make a session of an optimised model; its weights are read where they lie.

    ``measures`` is that of ``open_session``.
    """
    found = artifact.key.get("onnxruntime")
    if found != INFO.version:
        raise FormatError(
            f"This model was optimised by ONNX Runtime {found}, and {INFO.version} is installed. "
            "Compile it again."
        )
    table, model = artifact.payload.split(b"\n", 1)
    options = settings(artifact.launch, measures)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    held: list[Any] = []
    rows = json.loads(table)
    if not rows:
        session = session_of(model, options)
        return wrapped(session, artifact, held), session
    options.add_session_config_entry(_FOLDER, _HERE)
    has_own = any(isinstance(at, int) for *_, at, _ in rows)
    block = _block(artifact.weights) if has_own else np.empty(0, np.uint8)
    for name, element, dims, at, size in rows:
        count = int(np.prod(dims, dtype=np.int64))
        own = block[at : at + count * size] if isinstance(at, int) else _bytes(weights[at])
        array = own.view(f"u{size}").reshape(dims)
        held.append(initializer(array, element))
        options.add_initializer(name, held[-1])
    session = session_of(model, options)
    return wrapped(session, artifact, (held, block, weights)), session


def _block(weights: memoryview | None) -> Array:
    """Show weights as bytes, where kernels read them without splitting lines of the cache."""
    if weights is None:
        raise FormatError("The model's weights are missing. Compile it again.")
    block: Array = np.frombuffer(weights, np.uint8)
    return aligned_copy(block) if block.ctypes.data % ALIGNMENT else block
