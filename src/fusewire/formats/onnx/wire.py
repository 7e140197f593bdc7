"""A look at the bytes of a model before anything is allocated for them.

Two bytes can stand for a message that takes a quarter of a kilobyte in memory, so that a file of
some megabytes would fill gigabytes. The parser has no limit for that; this is the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from fusewire.errors import BudgetError, FormatError
from fusewire.frontend import Limits

# Smaller files can do no harm, whatever they hold, and are not looked at.
HARMLESS = 2**20
# What a parsed file may take: so many bytes, and so many for each byte of the file.
_ALLOWED, _ALLOWED_EACH = 2**26, 8

# How a field is written: a number of 7 bits a byte, 8 bytes, a length and bytes, 4 bytes.
_NUMBER, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
# Numbers of FieldDescriptor types: messages; texts; what may grow when a list of it is unpacked.
_MESSAGE, _TEXTS = 11, (9, 12)
_GROWTH = {3: 8, 4: 8, 18: 8, 5: 4, 8: 4, 13: 4, 14: 4, 17: 4}
_NODE, _GRAPH = "onnx.NodeProto", "onnx.GraphProto"


@dataclass(frozen=True)
class _Kind:
    """A kind of message: its size in memory, and what its fields hold."""

    name: str
    size: int
    children: dict[int, str]
    growth: dict[int, int]


@cache
def _kinds() -> dict[str, _Kind]:
    """Read ONNX's own description of its messages."""
    from onnx import ModelProto

    kinds: dict[str, _Kind] = {}
    stack: list[Any] = [ModelProto.DESCRIPTOR]
    while stack:
        found = stack.pop()
        if found.full_name in kinds:
            continue
        inner = {f.number: f.message_type for f in found.fields if f.type == _MESSAGE}
        size = 16 + sum(16 if f.type in _TEXTS else 8 for f in found.fields)
        growth = {f.number: _GROWTH[f.type] for f in found.fields if f.type in _GROWTH}
        children = {number: kind.full_name for number, kind in inner.items()}
        kinds[found.full_name] = _Kind(found.full_name, size, children, growth)
        stack.extend(inner.values())
    return kinds


def look(data: bytes | bytearray, limits: Limits) -> None:
    """Refuse bytes that would become too many nodes, graphs too deep, or too much memory."""
    if len(data) <= HARMLESS:
        return
    kinds = _kinds()
    allowed = _ALLOWED + _ALLOWED_EACH * len(data)
    cost = nodes = 0
    stack = [(0, len(data), kinds["onnx.ModelProto"], 0)]
    while stack:
        start, end, kind, depth = stack.pop()
        depth += kind.name == _GRAPH
        for number, place, length in _fields(data, start, end):
            child = kind.children.get(number)
            if child is None:
                cost += 32 + length * kind.growth.get(number, 1)
            else:
                cost += kinds[child].size
                nodes += child == _NODE
                if length:
                    stack.append((place, place + length, kinds[child], depth))
            if cost > allowed or nodes > limits.nodes:
                raise _too_much(cost, nodes, len(data), limits)
        # The outermost graph is not inside another.
        if depth - 1 > limits.depth:
            raise BudgetError(
                f"The model has graphs inside each other, more than the {limits.depth} that "
                "Limits.depth allows."
            )


def _fields(data: bytes | bytearray, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, place and length of what a message holds; plain numbers have no length."""
    while at < end:
        tag = data[at]
        at += 1
        if tag > 0x7F:
            tag, at = _number(data, at - 1, end)
        form, length = tag & 7, 0
        if form == _BYTES:
            length = data[at] if at < end else 0x80
            at += 1
            if length > 0x7F:
                length, at = _number(data, at - 1, end)
        elif form == _NUMBER:
            _, at = _number(data, at, end)
        elif form in (_EIGHT, _FOUR):
            at += 8 if form == _EIGHT else 4
        else:
            raise _broken()
        yield tag >> 3, at, length
        at += length
    if at != end:
        raise _broken()


def _number(data: bytes | bytearray, at: int, end: int) -> tuple[int, int]:
    """Read a number of 7 bits a byte, and give the place after it."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _broken()


def _broken() -> FormatError:
    return FormatError("These bytes are no ONNX model: the file is damaged, or something else.")


def _too_much(cost: int, nodes: int, size: int, limits: Limits) -> BudgetError:
    if nodes > limits.nodes:
        return BudgetError(
            f"The model has more than {limits.nodes:,} nodes, which is what Limits.nodes allows."
        )
    return BudgetError(
        f"Reading these {size:,} bytes would take {cost:,} bytes of memory or more: the file is "
        "made of tiny parts, as no exporter makes them."
    )
