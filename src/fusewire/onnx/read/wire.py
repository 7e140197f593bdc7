"""Scan the bytes of a model before memory is allocated for them.

Two bytes can stand for a message that takes a quarter of a kilobyte in memory, so that a file of
some megabytes would fill gigabytes. The parser has no limit for that; this is the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias

from fusewire.contract.frontend import Limits
from fusewire.errors import BudgetError, FormatError

# Smaller files can do no harm, whatever they hold, and are not looked at.
HARMLESS = 2**20
# What a parsed file may take: so many bytes, and so many for each byte of the file.
_ALLOWED, _ALLOWED_EACH = 2**26, 16

# How a field is written: a number of 7 bits a byte, 8 bytes, a length and bytes, 4 bytes.
_NUMBER, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
# Numbers of FieldDescriptor types: messages; texts; what may grow when a list of it is unpacked.
_MESSAGE, _TEXTS = 11, (9, 12)
_GROWTH = {3: 8, 4: 8, 18: 8, 5: 4, 8: 4, 13: 4, 14: 4, 17: 4}
_NODE, _GRAPH = "onnx.NodeProto", "onnx.GraphProto"

# The kind of message that a field holds, what it takes in memory, and what each of its bytes takes.
Field: TypeAlias = "tuple[MessageKind | None, int, int]"


@dataclass(frozen=True)
class MessageKind:
    """A kind of message: its size in memory, and what its fields hold."""

    name: str
    size: int
    is_node: bool
    growth: dict[int, int]
    children: dict[int, MessageKind]

    @cached_property
    def short(self) -> list[Field | None]:
        """Give the fields for every first byte, if that is the whole tag of a length and bytes."""
        is_short = [tag < 0x80 and tag & 7 == _BYTES for tag in range(256)]
        return [self.field(tag >> 3) if short else None for tag, short in enumerate(is_short)]

    def field(self, number: int) -> Field:
        """Give what a field takes: its kind if it is a message, its size, and that of each byte."""
        child = self.children.get(number)
        if child is not None:
            return child, child.size, 0
        return None, 32, self.growth.get(number, 1)


@cache
def model_kind() -> MessageKind:
    """Read ONNX's own description of its messages."""
    from onnx import ModelProto

    kinds: dict[str, MessageKind] = {}
    stack: list[Any] = [ModelProto.DESCRIPTOR]
    inner: dict[str, dict[int, str]] = {}
    while stack:
        found = stack.pop()
        if found.full_name in kinds:
            continue
        size = 16 + sum(16 if f.type in _TEXTS else 8 for f in found.fields)
        growth = {f.number: _GROWTH[f.type] for f in found.fields if f.type in _GROWTH}
        kinds[found.full_name] = MessageKind(
            found.full_name, size, found.full_name == _NODE, growth, {}
        )
        held = {f.number: f.message_type for f in found.fields if f.type == _MESSAGE}
        inner[found.full_name] = {number: kind.full_name for number, kind in held.items()}
        stack.extend(held.values())
    for name, children in inner.items():
        kinds[name].children.update((number, kinds[kind]) for number, kind in children.items())
    return kinds[ModelProto.DESCRIPTOR.full_name]


def look(data: bytes | bytearray, limits: Limits) -> None:
    """Refuse bytes that would become too many nodes, graphs too deep, or too much memory."""
    if len(data) <= HARMLESS:
        return
    tally = _Tally(data, _ALLOWED + _ALLOWED_EACH * len(data), limits)
    stack = [(0, len(data), model_kind(), 0)]
    while stack:
        start, end, kind, depth = stack.pop()
        depth += kind.name == _GRAPH
        # The outermost graph is not inside another.
        if depth - 1 > limits.depth:
            raise BudgetError(
                f"The model has graphs inside each other, more than the {limits.depth} that "
                "Limits.depth allows."
            )
        stack.extend([(*child, depth) for child in tally.message(start, end, kind)])


class _Tally:
    """Counts what bytes would become; refuses what is beyond."""

    def __init__(self, data: bytes | bytearray, allowed: int, limits: Limits) -> None:
        self._data, self._allowed, self._limits = data, allowed, limits
        self._cost = self._nodes = 0

    def message(self, at: int, end: int, kind: MessageKind) -> list[tuple[int, int, MessageKind]]:
        """Count the fields of a message, and give the place and kind of those that are messages.

        The same steps as in ``fields``, written out: this runs for every field of a large file.
        """
        data, short, allowed = self._data, kind.short, self._allowed
        cost, nodes, found = self._cost, self._nodes, []
        last, most = end - 1, self._limits.nodes
        while at < end:
            # Most fields have a tag and a length of one byte each.
            field = short[data[at]]
            if field is not None and at < last and (length := data[at + 1]) < 0x80:
                at += 2
            else:
                tag, at, length = _field(data, at, end)
                field = kind.field(tag >> 3)
            child, size, each = field
            cost += size
            if child is not None:
                nodes += child.is_node
            if length:
                cost += length * each
                if child is not None:
                    found.append((at, at + length, child))
                at += length
            if cost > allowed or nodes > most:
                raise _too_much(cost, nodes, len(data), self._limits)
        if at != end:
            raise _broken()
        self._cost, self._nodes = cost, nodes
        return found


def fields(data: bytes | bytearray, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, place and length of what a message holds; plain numbers have no length."""
    while at < end:
        tag, at, length = _field(data, at, end)
        yield tag >> 3, at, length
        at += length
    if at != end:
        raise _broken()


def _field(data: bytes | bytearray, at: int, end: int) -> tuple[int, int, int]:
    """Read a field up to its bytes: tag, place and length of them; plain numbers have none."""
    tag, at = _number(data, at, end)
    form = tag & 7
    if form == _BYTES:
        length, at = _number(data, at, end)
        return tag, at, length
    if form == _NUMBER:
        return tag, _number(data, at, end)[1], 0
    if form not in (_EIGHT, _FOUR):
        raise _broken()
    return tag, at + (8 if form == _EIGHT else 4), 0


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
    return FormatError("These bytes are not an ONNX model: the file is damaged, or something else.")


def _too_much(cost: int, nodes: int, size: int, limits: Limits) -> BudgetError:
    if nodes > limits.nodes:
        return BudgetError(
            f"The model has more than {limits.nodes:,} nodes, which is what Limits.nodes allows."
        )
    return BudgetError(
        f"Reading these {size:,} bytes would take {cost:,} bytes of memory or more: the file is "
        "made of tiny parts, unlike any exporter's."
    )
