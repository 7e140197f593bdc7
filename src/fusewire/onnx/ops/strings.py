"""Strings, and n-gram counts. Only the reference runs strings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import float32, int64
from fusewire.ir.builder import constant
from fusewire.ir.dims import dim_max
from fusewire.ir.graph import Node, Value
from fusewire.onnx.ops.reading import cast
from fusewire.onnx.ops.rows import OnnxRow, readers, writers
from fusewire.onnx.ops.writing import attrs_of, holding
from fusewire.ops import elementwise, indexing, logic, movement, reduction, strings
from fusewire.ops.slicing import slice_

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

# Each skip becomes nodes, and each place an element of a constant.
_MOST_SKIPS, _MOST_PLACES = 1000, 2**24


def _read_split(call: OnnxCall) -> Converted:
    most = call.attr("maxsplit")
    return strings.string_split(
        call[0], delimiter=call.attr("delimiter") or None, most=-1 if most is None else most
    )


def _write_string_split(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Split strings; any number of parts is left out."""
    attrs = attrs_of(node)
    most = attrs["most"] if attrs["most"] >= 0 else None
    given = {"delimiter": attrs["delimiter"], "maxsplit": most}
    return e.raw("StringSplit", [x], [x.dtype, int64], given)


def _read_normalize(call: OnnxCall) -> Converted:
    return strings.string_normalize(
        call[0],
        case=call.attr("case_change_action", "NONE").lower(),
        stopwords=call.attr("stopwords", ()),
        case_sensitive=call.flag("is_case_sensitive"),
    )


def _write_string_normalize(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Drop stop words and change case."""
    attrs = attrs_of(node)
    given = {
        "case_change_action": attrs["case"].upper(),
        "is_case_sensitive": int(attrs["case_sensitive"]),
        "stopwords": attrs["stopwords"] or None,
    }
    return e.raw("StringNormalizer", [x], [x.dtype], given)


def _read_match(call: OnnxCall) -> Converted:
    return strings.regex_full_match(call[0], pattern=call.needed("pattern"))


def _read_tf_idf(call: OnnxCall) -> Converted:
    """Count runs of items, which may skip some in between, and weigh the counts."""
    x, mode = call[0], call.needed("mode")
    indexes = np.array(call.needed("ngram_indexes"), np.int64)
    counts: list[Value] = []
    for size, pool in enumerate(_pools(call), 1):
        if size < call.needed("min_gram_length") or size > call.needed("max_gram_length"):
            zeros = constant(np.zeros(len(pool), np.float32))
            counts.append(movement.broadcast_to(zeros, shape=(*x.tensor.shape[:-1], len(pool))))
            continue
        # A single item skips nothing.
        most = call.within(call.needed("max_skip_count"), _MOST_SKIPS, "max_skip_count")
        skips = range(1 if size == 1 else most + 1)
        found = [_found(x, pool, size, skip + 1) for skip in skips]
        total = found[0]
        for more in found[1:]:
            total = elementwise.add(total, more)
        counts.append(total)
    listed = movement.concat(*counts, axis=-1)
    if mode != "TF":
        listed = elementwise.minimum(listed, 1.0) if mode == "IDF" else listed
        weights = call.attr("weights") or (1.0,) * len(indexes)
        listed = elementwise.multiply(listed, constant(np.array(weights, np.float32)))
    # Each place of the result has one run, or none: then what lies behind the last.
    last = call.within(int(indexes.max()), _MOST_PLACES, "the largest of ngram_indexes")
    places = np.full(last + 1, len(indexes), np.int64)
    places[indexes] = np.arange(len(indexes))
    none = constant(np.zeros(1, np.float32))
    padded = movement.broadcast_to(none, shape=(*x.tensor.shape[:-1], 1))
    return indexing.gather(
        movement.concat(listed, padded, axis=-1), constant(places), axis=x.tensor.rank - 1
    )


def _pools(call: OnnxCall) -> list[np.ndarray[Any, Any]]:
    """Give the known runs of one item, of two, and so on."""
    words = call.attr("pool_strings")
    held = np.array(call.needed("pool_int64s")) if words is None else np.array(words, object)
    starts = [*call.needed("ngram_counts"), len(held)]
    cuts = itertools.pairwise(starts)
    return [held[a:b].reshape(-1, size) for size, (a, b) in enumerate(cuts, 1)]


def _found(x: Value, pool: np.ndarray[Any, Any], size: int, step: int) -> Value:
    """Count for each run of a pool how often x has it with its items so far apart."""
    rank, (*batch, length) = x.tensor.rank, x.tensor.shape
    places = dim_max(length - (size - 1) * step, 0)
    equal: Value | None = None
    for item in range(size):
        start = item * step if places != 0 else 0
        part = slice_(
            x,
            starts=(*[0] * (rank - 1), start),
            limits=(*batch, start + places),
            strides=(1,) * rank,
        )
        column = constant(pool[:, item].astype(x.tensor.dtype.numpy))
        same = logic.equal(movement.expand_dims(part, axes=(rank,)), column)
        equal = same if equal is None else logic.logical_and(equal, same)
    assert equal is not None
    return reduction.reduce_sum(cast(equal, float32), axes=(rank - 1,))


ROWS = (
    OnnxRow(strings.string_concat, "StringConcat", writer=holding("StringConcat")),
    OnnxRow(strings.string_split, "StringSplit", reader=_read_split, writer=_write_string_split),
    OnnxRow(
        strings.string_normalize,
        "StringNormalizer",
        reader=_read_normalize,
        writer=_write_string_normalize,
    ),
    OnnxRow(
        strings.regex_full_match,
        "RegexFullMatch",
        reader=_read_match,
        writer=holding("RegexFullMatch", pattern="pattern"),
    ),
)
READERS: Mapping[str, Read] = {**readers(ROWS), "TfIdfVectorizer": _read_tf_idf}
WRITERS: Mapping[str, Write] = writers(ROWS)
