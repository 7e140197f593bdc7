"""Metadata in our own files beyond ONNX's vocabulary, for the writer and the reader.

A local function of our domain notes the op that it stands for, and the digest of its body: a body
that somebody changed since is read as any other function is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from fusewire.ir.dims import Sym, Symbol, symbols
from fusewire.ir.graph import Attr
from fusewire.ir.types import OptionalType, SequenceType, TensorType, type_symbols

# Who writes, and the domain of local functions.
PRODUCER = DOMAIN = "fusewire"
VERSION = 1
# Inputs of a local function begin so: operands of the op, then sizes that its attributes name.
OPERAND, SIZE = "operand", "size"


def body_digest(function: Any) -> str:
    """Hash what a local function does, so that a body that somebody changed is seen to be."""
    sha = hashlib.sha256(repr((list(function.input), list(function.output))).encode())
    for node in function.node:
        sha.update(repr((node.domain, node.op_type, list(node.input), list(node.output))).encode())
        for attribute in sorted(node.attribute, key=lambda a: str(a.name)):
            sha.update(attribute.SerializeToString(deterministic=True))
    return sha.hexdigest()


def attr_symbols(attr: Attr) -> Iterator[Symbol]:
    """Yield the symbols that an attribute mentions, also in types."""
    if isinstance(attr, tuple):
        for item in attr:
            yield from attr_symbols(item)
    elif isinstance(attr, Sym):
        yield from symbols(attr)
    elif isinstance(attr, TensorType | SequenceType | OptionalType):
        yield from type_symbols(attr)
