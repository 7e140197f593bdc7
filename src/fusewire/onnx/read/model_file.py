"""Open an untrusted ONNX model.

Sizes are checked before memory is taken, structure before it is walked by others, ONNX's rules
before an engine sees anything; external data is read beneath the model's folder alone. What leaves
here is the model's own description, and constants that are read when they are asked for.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fusewire.contract.frontend import Limits
from fusewire.errors import BudgetError, FormatError, FusewireError, SourceError
from fusewire.ir.graph import Array, Constant
from fusewire.ir.types import TensorType
from fusewire.onnx.elements import stored_bytes
from fusewire.onnx.package import need_onnx
from fusewire.onnx.read.external import ModelFolder, State, digest_of, read_at, span_of
from fusewire.onnx.read.shown import shown
from fusewire.onnx.read.straighten import check, straighten
from fusewire.onnx.read.survey import Survey
from fusewire.onnx.read.tensors import (
    EXTERNAL,
    check_data,
    decoded,
    dense,
    elements,
    sparse_type,
    type_of,
)
from fusewire.onnx.read.wire import look
from fusewire.system.beneath import FLAGS

# Protocol Buffers end here.
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Opened:
    """A model that was checked; ``source`` names it in messages."""

    proto: Any
    source: str
    limits: Limits
    file_digest: str
    folder: ModelFolder | None = None
    # What the files of external data were when they were checked.
    states: Mapping[str, State] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the file and all files of external data, as hex."""
        sha = hashlib.sha256(self.file_digest.encode())
        for location, state in sorted(self.states.items()):
            sha.update(f"\n{location}\n".encode())
            sha.update(digest_of(self._beneath, location, state))
        return sha.hexdigest()

    @cached_property
    def initializers(self) -> Mapping[str, Constant]:
        """The initializers of the main graph by name, each read and hashed once."""
        return {tensor.name: self.constant(tensor) for tensor in self.proto.graph.initializer}

    def constant(self, tensor: Any) -> Constant:
        """Make a constant of a TensorProto; its elements are read when they are asked for."""
        type_ = type_of(tensor, self.limits)
        if tensor.data_location != EXTERNAL:
            return Constant(type_, partial(elements, tensor, type_))
        check_data(tensor, type_)
        found = span_of(self._beneath, tensor.external_data, _needed(type_))
        span = replace(found, state=self.states.get(found.location, found.state))
        return Constant(type_, lambda: decoded(span.read(), type_))

    def sparse(self, sparse: Any) -> Constant:
        """Make a constant of a SparseTensorProto: dense, with zeros where it has nothing."""
        type_ = sparse_type(sparse, self.limits)

        def load(tensor: Any) -> Array:
            return self.constant(tensor).array

        return Constant(type_, lambda: dense(sparse, type_, load))

    @property
    def _beneath(self) -> ModelFolder:
        if self.folder is None:
            raise FormatError(
                "The model has external data, and was given without the folder that holds it. "
                "Give its path, or save it with the data inside."
            )
        return self.folder


def open_model(source: Any, limits: Limits = Limits()) -> Opened:
    """Open a path, the bytes of a file, or a ModelProto.

    Raises SourceError for what cannot be opened, FormatError for what is not a model to be trusted,
    BudgetError for what is beyond the limits.
    """
    name, data, home = _bytes_of(source, limits)
    try:
        return _open(name, data, home, limits)
    except FusewireError as error:
        # One of the three, or a kin of them that takes a message alone.
        raise type(error)(f"{name}: {error}") from None


def _open(name: str, data: bytes | bytearray, home: Path | None, limits: Limits) -> Opened:
    need_onnx("Reading")
    look(data, limits)
    sha = hashlib.sha256()
    # Neither waits for the other: hashing needs no interpreter.
    hashing = threading.Thread(target=sha.update, args=(data,))
    hashing.start()
    try:
        proto = _parse(data)
    finally:
        hashing.join()
    digest = sha.hexdigest()
    del data, hashing
    survey = Survey(proto, limits)
    folder = None if home is None or not survey.external else ModelFolder(home)
    states: dict[str, State] = {}
    opened = Opened(proto, name, limits, digest, folder, states)
    for tensor, type_ in survey.external:
        span = span_of(opened._beneath, tensor.external_data, _needed(type_))
        states[span.location] = span.state
    size = sum(state.size for state in states.values())
    if size > limits.file_bytes:
        raise _too_long("The external data", size, limits)
    straighten(proto)
    check(proto)
    return opened


def _bytes_of(source: Any, limits: Limits) -> tuple[str, bytes | bytearray, Path | None]:
    """Give a name, the bytes, and the folder beneath which external data may lie."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return path.name, _read(path, limits), path.parent
    if isinstance(source, bytes):
        if len(source) > limits.file_bytes:
            raise _too_long("These bytes", len(source), limits)
        return "model", source, None
    try:
        return "model", source.SerializeToString(), None
    except (AttributeError, ValueError) as error:
        raise SourceError(
            f"An ONNX model is a path, bytes or a ModelProto; {type(source).__name__} is none of "
            f"these, or cannot be written: {error}"
        ) from None


def _read(path: Path, limits: Limits) -> bytearray:
    """Read a regular file of an allowed size; what was checked is what is read."""
    asked = shown(str(path))
    try:
        # A FIFO must not make us wait for whoever writes it.
        descriptor = os.open(path, FLAGS)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SourceError(f"{asked} cannot be opened: {reason}.") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(f"{asked} is not a regular file. Give the path of an ONNX file.")
        if found.st_size > limits.file_bytes:
            raise _too_long(asked, found.st_size, limits)
        if found.st_size > _LARGEST:
            raise FormatError(
                f"{asked} has {found.st_size:,} bytes, and no ONNX file has more than "
                f"{_LARGEST:,}: larger models have their weights in files of external data."
            )
        data = read_at(descriptor, 0, found.st_size)
    finally:
        os.close(descriptor)
    if data is None:
        raise FormatError(f"{asked} was changed while it was read. Load it again.")
    return data


def _too_long(what: str, size: int, limits: Limits) -> BudgetError:
    return BudgetError(
        f"{what}: {size:,} bytes; the limit is {limits.file_bytes:,} (Limits.file_bytes)."
    )


def _parse(data: bytes | bytearray) -> Any:
    from google.protobuf.message import (  # type: ignore[import-untyped] # ships no types
        DecodeError,
    )
    from onnx import ModelProto

    try:
        proto = ModelProto.FromString(data)
    except DecodeError as error:
        raise FormatError(
            f"These {len(data):,} bytes are not an ONNX model ({error}): damaged, something else, "
            "or graphs inside each other deeper than Protocol Buffers allow."
        ) from None
    if not proto.HasField("graph"):
        raise FormatError("These bytes hold no graph: damaged, empty, or not an ONNX model.")
    return proto


def _needed(type_: TensorType) -> int:
    count = type_.size
    assert isinstance(count, int)
    return stored_bytes(type_.dtype, count)
