"""Write values of the contract, and arrays, as JSON and blobs, and read them back.

``RECORDS`` says which classes cross the boundary, with which fields, in which form. Reading trusts
nothing: what does not fit its form is EngineGarbage, when writing as when reading. Blobs are read
in the order in which they were written, so that nothing can refer to one twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, get_args

import numpy as np

from fusewire.contract.backend import (
    Artifact,
    BackendInfo,
    Config,
    Device,
    Offer,
    Refusal,
    Role,
    Shapes,
    Slot,
    Unavailable,
)
from fusewire.dtypes import DType, dtype, string
from fusewire.errors import DTypeError, EngineGarbage, GraphError
from fusewire.ir.dims import Dim, Sym
from fusewire.ir.graph import Array, HostValue
from fusewire.ir.parse import parse_dim

if TYPE_CHECKING:
    from fusewire.process.frames import Blobs

Json: TypeAlias = Any
Blob: TypeAlias = Iterator[Array]
_MAX_DEPTH = 8
_MAX_RANK = 64


@dataclass(frozen=True)
class Written:
    """How to write and read one kind of value; blobs are appended, and read in order."""

    write: Callable[[Any, Blobs], Json]
    read: Callable[[Json, Blob], Any]


def _refuse(expected: str, found: object) -> NoReturn:
    raise EngineGarbage(f"expected {expected}, found {type(found).__name__} {repr(found)[:80]}")


def _plain(*kinds: type) -> Written:
    """Write what JSON has itself, of exactly these types: True is not an int here."""
    expected = " or ".join(kind.__name__ for kind in kinds)

    def check(value: Any, blobs: object) -> Any:
        return value if type(value) in kinds else _refuse(expected, value)

    return Written(check, check)


def _word_of(literal: Any) -> Written:
    words = get_args(literal)

    def check(value: Any, blobs: object) -> Any:
        is_one = type(value) is str and value in words
        return value if is_one else _refuse(f"one of {', '.join(words)}", value)

    return Written(check, check)


def _many(item: Written) -> Written:
    """A tuple of any length."""

    def write(value: Any, blobs: Blobs) -> Json:
        is_tuple = type(value) is tuple
        return [item.write(x, blobs) for x in value] if is_tuple else _refuse("a tuple", value)

    def read(value: Json, blobs: Blob) -> Any:
        is_list = type(value) is list
        return tuple(item.read(x, blobs) for x in value) if is_list else _refuse("a list", value)

    return Written(write, read)


def _one_or_many(item: Written) -> Written:
    many = _many(item)
    return Written(
        lambda value, blobs: (many if type(value) is tuple else item).write(value, blobs),
        lambda value, blobs: (many if type(value) is list else item).read(value, blobs),
    )


def _table(item: Written) -> Written:
    """A mapping from words."""

    def write(value: Any, blobs: Blobs) -> Json:
        rows = value.items() if isinstance(value, Mapping) else _refuse("a mapping", value)
        return {TEXT.write(key, blobs): item.write(x, blobs) for key, x in rows}

    def read(value: Json, blobs: Blob) -> Any:
        rows = value.items() if type(value) is dict else _refuse("an object", value)
        return {key: item.read(x, blobs) for key, x in rows}

    return Written(write, read)


def _or_none(item: Written) -> Written:
    return Written(
        lambda value, blobs: None if value is None else item.write(value, blobs),
        lambda value, blobs: None if value is None else item.read(value, blobs),
    )


def _write_bytes(value: Any, blobs: Blobs) -> Json:
    raw = value if type(value) is bytes else _refuse("bytes", value)
    blobs.append(np.frombuffer(raw, np.uint8))
    return len(raw)


def _write_block(value: Any, blobs: Blobs) -> Json:
    if not (type(value) is memoryview and value.contiguous):
        _refuse("a memoryview in one piece", value)
    blobs.append(np.frombuffer(value, np.uint8))
    return value.nbytes


def _next(size: Any, blobs: Blob) -> Array:
    """Take the next blob, which must have the stated size."""
    blob = next(blobs, None)
    if blob is None or type(size) is not int or blob.nbytes != size:
        found = "no more blobs" if blob is None else f"{blob.nbytes} bytes"
        raise EngineGarbage(f"expected a blob of {repr(size)[:40]} bytes, found {found}")
    return blob


def _write_dtype(value: Any, blobs: Blobs) -> Json:
    return value.name if type(value) is DType else _refuse("a dtype", value)


def _read_dtype(value: Json, blobs: Blob) -> DType:
    try:
        return dtype(TEXT.read(value, blobs))
    except DTypeError as error:
        raise EngineGarbage(f"expected a dtype: {error}") from None


def _write_dim(value: Any, blobs: Blobs) -> Json:
    return str(value) if type(value) is Sym else WHOLE.write(value, blobs)


def _read_dim(value: Json, blobs: Blob) -> Dim:
    if type(value) is int:
        return value
    try:
        return parse_dim(TEXT.read(value, blobs))
    except GraphError as error:
        raise EngineGarbage(f"expected a dim: {error}") from None


def write_record(value: object, blobs: Blobs) -> Json:
    """Write an object of one of the classes in ``RECORDS``."""
    kind = type(value)
    if kind not in RECORDS:
        _refuse(" or ".join(known.__name__ for known in RECORDS), value)
    row: dict[str, Json] = {"is": kind.__name__}
    for name, form in RECORDS[kind].items():
        try:
            row[name] = form.write(getattr(value, name), blobs)
        except EngineGarbage as error:
            raise EngineGarbage(f"{kind.__name__}.{name}: {error}") from None
    return row


def read_record(value: Json, blobs: Blob, *kinds: type) -> Any:
    """Read an object of one of these classes."""
    for kind in kinds:
        if type(value) is not dict or value.get("is") != kind.__name__:
            continue
        fields = {}
        for name, form in RECORDS[kind].items():
            try:
                fields[name] = form.read(value.get(name), blobs)
            except EngineGarbage as error:
                raise EngineGarbage(f"{kind.__name__}.{name}: {error}") from None
        return kind(**fields)
    _refuse(" or ".join(kind.__name__ for kind in kinds), value)


def write_value(value: HostValue, blobs: Blobs) -> Json:
    """Write an array, a list of values, or None."""
    if value is None:
        return None
    if isinstance(value, list):
        return {"items": [write_value(item, blobs) for item in value]}
    if not isinstance(value, np.ndarray | np.generic):
        _refuse("an array, a list or None", value)
    array = np.asarray(value)
    try:
        of = dtype(array.dtype)
    except DTypeError as error:
        raise EngineGarbage(f"expected an array of a supported dtype: {error}") from None
    if of is string:
        flat = write_words(array)
    else:
        flat = np.ascontiguousarray(array, of.numpy).reshape(-1).view(np.uint8)
    blobs.append(flat)
    return {"dtype": of.name, "shape": list(array.shape), "bytes": flat.nbytes}


def read_value(value: Json, blobs: Blob, depth: int = 0) -> HostValue:
    """Read what ``write_value`` wrote; arrays are writable and share no memory."""
    if value is None:
        return None
    if type(value) is not dict or depth > _MAX_DEPTH:
        _refuse("an array, a list or None", value)
    if "items" in value:
        items = value["items"] if type(value["items"]) is list else _refuse("a list", value)
        return [read_value(item, blobs, depth + 1) for item in items]
    of, shape = _read_dtype(value.get("dtype"), blobs), _read_shape(value.get("shape"))
    flat, count = _next(value.get("bytes"), blobs), math.prod(shape)
    if of is not string and flat.nbytes != count * of.itemsize:
        raise EngineGarbage(f"{flat.nbytes} bytes do not fit {of.name}{list(shape)}")
    if of.kind == "bool" and flat.size and flat.max() > 1:
        raise EngineGarbage("a bool that is neither 0 nor 1")
    elements = read_words(flat, count) if of is string else flat.view(of.numpy)
    try:
        return elements.reshape(shape)
    except ValueError:
        # There are no elements, but NumPy cannot hold the product of the dims.
        _refuse("a shape", shape)


def _read_shape(value: Json) -> tuple[int, ...]:
    is_shape = type(value) is list and len(value) <= _MAX_RANK
    if not is_shape or any(type(dim) is not int or not 0 <= dim < 1 << 63 for dim in value):
        _refuse("a shape", value)
    return tuple(value)


def write_words(array: Array) -> Array:
    """Write strings as bytes."""
    words = [TEXT.write(item, []) for item in array.astype(object).reshape(-1)]
    return np.frombuffer(json.dumps(words).encode(), np.uint8)


def read_words(flat: Array, count: int) -> Array:
    """Read what ``write_words`` wrote."""
    try:
        words = json.loads(flat.tobytes())
    except (ValueError, RecursionError):
        words = None
    if type(words) is not list or len(words) != count or any(type(w) is not str for w in words):
        raise EngineGarbage(f"expected {count} strings in {flat.nbytes} bytes")
    array = np.empty(count, object)
    array[:] = words
    return array


TEXT = _plain(str)
FLAG = _plain(bool)
WHOLE = _plain(int)
WHOLE_OR_NONE = _or_none(WHOLE)
BYTES = Written(_write_bytes, lambda value, blobs: _next(value, blobs).tobytes())
# Not copied: it may be as large as all weights.
BLOCK = Written(_write_block, lambda value, blobs: _next(value, blobs).data)
DTYPE = Written(_write_dtype, _read_dtype)
DIMS = _many(Written(_write_dim, _read_dim))
FACTS = _table(_one_or_many(_plain(str, bool, int, float)))
NUMBER = _plain(float, int)
NUMBERS = _table(NUMBER)
TIMES = _many(NUMBER)
LIST = _plain(list)
OBJECT = _plain(dict)
SLOT = Written(write_record, lambda value, blobs: read_record(value, blobs, Slot))

RECORDS: dict[type, dict[str, Written]] = {
    BackendInfo: {
        "name": TEXT,
        "version": TEXT,
        "description": TEXT,
        "vendor": TEXT,
        "api": _many(WHOLE),
        "extra": _or_none(TEXT),
        "trusted": FLAG,
        "priority": WHOLE,
        "metadata": _table(TEXT),
        "environment": _many(TEXT),
        "checks_indices": FLAG,
        "programs": _many(TEXT),
        "unchecked_ops": _many(TEXT),
        "claims_by_table": FLAG,
        "compile_seconds": NUMBER,
        "plans_memory": FLAG,
    },
    Device: {"id": TEXT, "name": TEXT, "is_software": FLAG, "facts": FACTS},
    Unavailable: {"code": TEXT, "reason": TEXT, "fix": TEXT, "device": TEXT},
    Offer: {
        "nodes": _many(WHOLE),
        "shapes": _word_of(Shapes),
    },
    Refusal: {"nodes": _many(WHOLE), "code": TEXT, "reason": TEXT, "suggestion": TEXT},
    Slot: {
        "role": _word_of(Role),
        "name": TEXT,
        "dtype": DTYPE,
        "dims": DIMS,
        "digest": _or_none(TEXT),
    },
    Artifact: {
        "kind": _word_of(Literal["native", "rebuild"]),
        "payload": BYTES,
        "slots": _many(SLOT),
        "workspace": WHOLE,
        "launch": FACTS,
        "metrics": NUMBERS,
        "key": _table(TEXT),
        "weights": _or_none(BLOCK),
    },
    Config: {
        "threads": _or_none(WHOLE),
        "memory_limit": _or_none(WHOLE),
        "deterministic": FLAG,
        "options": FACTS,
    },
}
