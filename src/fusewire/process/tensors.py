"""How values lie in shared memory: a short header that says what they are, then their bytes.

Headers have no offsets: each tensor begins at the next multiple of the alignment, so a reader
computes where it is. A reader works on its own copy of a header, which nobody can change after it
was checked.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fusewire.dtypes import ALL, DType, dtype, string
from fusewire.errors import DTypeError, EngineGarbage
from fusewire.ir.graph import Array, HostValue
from fusewire.process.arena import aligned
from fusewire.process.codec import read_words, write_words

_NONE, _LIST, _TENSOR, _STRINGS = range(4)
_MAX_DEPTH = 8
_MAX_RANK = 64
_CODES = {of: code for code, of in enumerate(ALL)}
_COUNT = struct.Struct("<BI")
_KIND = struct.Struct("<BBBQ")
_TOO_MANY = 1 << 63


class Tensor(NamedTuple):
    """Where a tensor lies: bytes from the start of the values, and how many."""

    dtype: DType
    shape: tuple[int, ...]
    start: int
    size: int


class ArrayPlace(NamedTuple):
    """What an array is, and the bytes before it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int


# A tensor, several, or nothing.
Layout: TypeAlias = "Tensor | list[Layout] | None"


class PackedValues:
    """The header of values, and the arrays to copy to their places."""

    def __init__(self, values: Sequence[HostValue]) -> None:
        self.arrays: list[tuple[Array, np.dtype[Any], int]] = []
        # Whether all are tensors of numbers.
        self.is_plain = True
        self.size = 0
        self._parts: list[bytes] = []
        for value in values:
            self._write(value)
        self.header = b"".join(self._parts)

    def _write(self, value: HostValue) -> None:
        if value is None:
            self.is_plain = False
            self._parts.append(_COUNT.pack(_NONE, 0))
        elif isinstance(value, list):
            self.is_plain = False
            self._parts.append(_COUNT.pack(_LIST, len(value)))
            for item in value:
                self._write(item)
        elif isinstance(value, np.ndarray | np.generic):
            self._write_array(np.asarray(value))
        else:
            raise EngineGarbage(
                f"expected an array, a list or None, found a {type(value).__name__}"
            )

    def _write_array(self, array: Array) -> None:
        try:
            of = dtype(array.dtype)
        except DTypeError as error:
            raise EngineGarbage(f"expected an array of a supported dtype: {error}") from None
        kind, shape, numpy = _TENSOR, array.shape, of.numpy
        if of is string:
            self.is_plain = False
            kind, array = _STRINGS, write_words(array)
            numpy = array.dtype
        if len(shape) > _MAX_RANK:
            raise EngineGarbage(f"an array of {len(shape)} dims; the limit is {_MAX_RANK}")
        self._parts.append(_KIND.pack(kind, _CODES[of], len(shape), array.nbytes))
        self._parts.append(struct.pack(f"<{len(shape)}Q", *shape))
        self.arrays.append((array, numpy, self.size))
        self.size += aligned(array.nbytes)

    @property
    def places(self) -> list[ArrayPlace]:
        """Where each array goes."""
        return [ArrayPlace(array.shape, numpy, start) for array, numpy, start in self.arrays]

    def copy_to(self, memory: Any, offset: int, written: Sequence[Array] = ()) -> None:
        """Copy the arrays to memory that has room for them, but for those written there before."""
        own = {id(array): index for index, array in enumerate(written)}
        for index, (array, numpy, start) in enumerate(self.arrays):
            if own.get(id(array)) != index:
                np.copyto(np.ndarray(array.shape, numpy, memory, offset + start), array)

    def take_away(self, written: Sequence[Array]) -> None:
        """Copy what lies in memory of the caller's."""
        own = set(map(id, written))
        self.arrays = [
            (array.copy() if id(array) in own else array, numpy, start)
            for array, numpy, start in self.arrays
        ]


class ValueHeader:
    """Reads a header; EngineGarbage if it is not one."""

    def __init__(self, header: bytes) -> None:
        self.layouts: list[Layout] = []
        # Bytes that the values take.
        self.size = 0
        self._header = header
        self._place = 0
        try:
            while self._place < len(header):
                self.layouts.append(self._read(0))
        except (struct.error, IndexError):
            raise EngineGarbage(f"a header that ends early: {header[:40].hex()}") from None

    def _read(self, depth: int) -> Layout:
        kind = self._header[self._place]
        if kind in (_NONE, _LIST) and depth <= _MAX_DEPTH:
            _, count = _COUNT.unpack_from(self._header, self._place)
            self._place += _COUNT.size
            if kind == _NONE:
                return None
            if count > len(self._header):
                raise EngineGarbage(f"a list of {count} in a header of {len(self._header)} bytes")
            return [self._read(depth + 1) for _ in range(count)]
        if kind not in (_TENSOR, _STRINGS):
            raise EngineGarbage(f"a value of an unknown kind {kind}")
        return self._read_tensor()

    def _read_tensor(self) -> Tensor:
        kind, code, rank, size = _KIND.unpack_from(self._header, self._place)
        self._place += _KIND.size
        if code >= len(ALL) or rank > _MAX_RANK or (kind == _STRINGS) != (ALL[code] is string):
            raise EngineGarbage(f"a tensor of dtype {code} and {rank} dims")
        of = ALL[code]
        shape = struct.unpack_from(f"<{rank}Q", self._header, self._place)
        self._place += 8 * rank
        count = 1
        for dim in shape:
            count *= dim
        if any(dim >= _TOO_MANY for dim in shape) or size >= _TOO_MANY:
            raise EngineGarbage(f"a tensor of shape {list(shape)}")
        if of is not string and size != count * of.itemsize:
            raise EngineGarbage(f"{size} bytes do not fit {of.name}{list(shape)}")
        tensor = Tensor(of, shape, self.size, size)
        self.size += aligned(size)
        return tensor


def strings(tensor: Tensor, raw: Array) -> Array:
    """Read strings from a copy of their bytes."""
    count = 1
    for dim in tensor.shape:
        count *= dim
    if count > tensor.size:
        raise EngineGarbage(f"{tensor.size} bytes do not hold {count} strings")
    return read_words(raw, count).reshape(tensor.shape)
