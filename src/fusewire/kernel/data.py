"""Kernels as lists, strings and numbers, and back: what an artifact holds instead of code.

Reading trusts nothing. Names become names in printed code, so they are words and nothing else; each
field has the type that the form gives it. What is read may compute nonsense, but a printer can only
print of it what it prints of any kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NoReturn, TypeAlias, get_args

from fusewire.dtypes import DType, dtype
from fusewire.errors import DTypeError, EngineGarbage
from fusewire.ir.graph import Attr
from fusewire.kernel.form import (
    Bound,
    BufferLoad,
    BufferStore,
    Carry,
    Combine,
    Compute,
    Fold,
    Holds,
    Kernel,
    KernelBuffer,
    Literal,
    Loop,
    OutsideCall,
    Place,
)
from fusewire.kernel.index import Axis, Held, Index, Quotient, Remainder

Json: TypeAlias = Any
Reader: TypeAlias = Callable[[Json], Any]
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_OP = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)(?:@[1-9]\d{0,3})?")
_DIGEST = re.compile(r"[0-9a-f]{16}")
_PLAIN = (bool, int, float, str, type(None))
_DTYPE, _TUPLE = "dtype", "tuple"


def kernel_to_data(kernel: Kernel) -> Json:
    """Write a kernel: an object is the name of its class and its fields in order."""
    return _written(kernel)


def kernel_from_data(data: Json) -> Kernel:
    """Read what ``kernel_to_data`` wrote; EngineGarbage if it is not a kernel."""
    kernel: Kernel = _one(Kernel)(data)
    return kernel


def _written(value: Any) -> Json:
    kind = type(value)
    if kind is OutsideCall:
        named = [[name, _written_attr(attr)] for name, attr in value.attrs]
        tensors = [_written(value.operands), _written(value.results)]
        return ["OutsideCall", value.op, value.digest, *tensors, named]
    if kind is Compute:
        attrs = [[name, _written_attr(attr)] for name, attr in value.attrs]
        return ["Compute", value.name, value.dtype.name, value.op, list(value.operands), attrs]
    if kind in _FIELDS:
        return [kind.__name__, *(_written(getattr(value, field.name)) for field in fields(value))]
    if kind is DType:
        return value.name
    if kind is tuple:
        return [_written(item) for item in value]
    return value if kind in _PLAIN else _refuse("a part of a kernel", value)


def _written_attr(attr: Attr) -> Json:
    if isinstance(attr, DType):
        return [_DTYPE, attr.name]
    if isinstance(attr, tuple):
        return [_TUPLE, *map(_written_attr, attr)]
    return attr if type(attr) in _PLAIN else _refuse("a plain attribute", attr)


def _refuse(expected: str, found: object) -> NoReturn:
    raise EngineGarbage(f"expected {expected}, found {type(found).__name__} {repr(found)[:80]}")


def _word(data: Json) -> str:
    if isinstance(data, str) and _WORD.fullmatch(data):
        return data
    _refuse("a name", data)


def _matching(pattern: re.Pattern[str], what: str) -> Reader:
    def matching(data: Json) -> str:
        return data if type(data) is str and pattern.fullmatch(data) else _refuse(what, data)

    return matching


def _whole(data: Json) -> int:
    return data if type(data) is int else _refuse("a whole number", data)


def _size(data: Json) -> int:
    return data if type(data) is int and data >= 0 else _refuse("a size", data)


def _divisor(data: Json) -> int:
    return data if type(data) is int and data > 0 else _refuse("a positive number", data)


def _number(data: Json) -> Any:
    return data if type(data) in (bool, int, float) else _refuse("a number", data)


def _flag(data: Json) -> bool:
    return data if type(data) is bool else _refuse("true or false", data)


def _dtype(data: Json) -> DType:
    try:
        return dtype(_word(data))
    except DTypeError as error:
        raise EngineGarbage(f"expected a dtype: {error}") from None


def _combine(data: Json) -> Any:
    return data if data in get_args(Combine) else _refuse("a way to combine", data)


def _combine_or_none(data: Json) -> Any:
    return None if data is None else _combine(data)


def _attr(data: Json) -> Any:
    if type(data) is list and data:
        if data[0] == _DTYPE and len(data) == 2:
            return _dtype(data[1])
        if data[0] == _TUPLE:
            return tuple(_attr(item) for item in data[1:])
    if type(data) is str:
        return _word(data)
    return data if type(data) in _PLAIN else _refuse("a plain attribute", data)


def _many(read: Reader) -> Reader:
    def many(data: Json) -> Any:
        is_list = type(data) is list
        return tuple(read(item) for item in data) if is_list else _refuse("a list", data)

    return many


def _pair(first: Reader, second: Reader) -> Reader:
    def pair(data: Json) -> Any:
        if type(data) is not list or len(data) != 2:
            _refuse("a pair", data)
        return first(data[0]), second(data[1])

    return pair


def _one(*kinds: type) -> Reader:
    """Read an object of one of these classes."""
    names = {kind.__name__: kind for kind in kinds}

    def one(data: Json) -> Any:
        name = data[0] if type(data) is list and data else None
        kind = names.get(name) if type(name) is str else None
        if kind is None or len(data) != 1 + len(_FIELDS[kind]):
            _refuse(" or ".join(names), data)
        return kind(*(read(item) for read, item in zip(_FIELDS[kind], data[1:], strict=True)))

    return one


def _optional(read: Reader) -> Reader:
    return lambda data: None if data is None else read(data)


_INDEX = _one(Index)
_INDICES = _many(_INDEX)
_AXES = _many(_one(Axis))
_GUARD = _many(_one(Bound))
_BUFFERS = _many(_one(KernelBuffer))
_WORDS = _many(_word)
_BODY = _many(_one(BufferLoad, Literal, Place, Holds, Compute, Fold, Loop, BufferStore))

# The fields of each class, in order.
_FIELDS: dict[type, tuple[Reader, ...]] = {
    Axis: (_word, _size),
    Held: (_word, _size),
    Quotient: (_INDEX, _divisor),
    Remainder: (_INDEX, _divisor),
    Index: (_many(_pair(_one(Axis, Held, Quotient, Remainder), _whole)), _whole),
    KernelBuffer: (_word, _dtype, _many(_size)),
    Bound: (_INDEX, _whole, _whole),
    BufferLoad: (_word, _dtype, _word, _INDICES, _GUARD),
    Literal: (_word, _dtype, _number),
    Place: (_word, _dtype, _INDEX),
    Holds: (_word, _GUARD),
    Compute: (_word, _dtype, _word, _WORDS, _many(_pair(_word, _attr))),
    Fold: (_WORDS, _many(_dtype), _combine, _AXES, _BODY, _WORDS),
    Carry: (_word, _dtype, _word, _word),
    Loop: (_AXES, _BODY, _flag, _many(_one(Carry))),
    BufferStore: (_word, _INDICES, _word, _GUARD, _combine_or_none),
    OutsideCall: (
        _matching(_OP, "the name of an op"),
        _matching(_DIGEST, "a digest"),
        _BUFFERS,
        _BUFFERS,
        _many(_pair(_word, _attr)),
    ),
    Kernel: (
        *(_word, _AXES, _BODY, _BUFFERS, _BUFFERS, _BUFFERS, _AXES),
        _optional(_one(OutsideCall)),
    ),
}
