"""Sequences, optionals and strings, which ONNX has as we do."""

from __future__ import annotations

from typing import Any

from fusewire.dtypes import int64
from fusewire.ir.graph import Node
from fusewire.ir.types import tensor_of
from fusewire.onnx.elements import element_of
from fusewire.onnx.ops.writing import attrs_of, indices
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import OnnxAttr, Ref, Write


def holding(op: str, **names: str) -> Write:
    """Write a node as one ONNX node, whose attributes (left) are named as ours (right)."""

    def write(e: Emitter, node: Node, *xs: Ref | None) -> list[Ref]:
        attrs: dict[str, OnnxAttr | None] = {}
        for theirs, ours in names.items():
            given: Any = attrs_of(node)[ours]
            attrs[theirs] = int(given) if isinstance(given, bool) else given
        return e.raw(op, xs, [tensor_of(t).dtype for t in node.types], attrs)

    return write


def sequence_empty(e: Emitter, node: Node) -> list[Ref]:
    """Hold nothing yet."""
    of = tensor_of(node.types[0]).dtype
    return e.raw("SequenceEmpty", [], [of], {"dtype": element_of(of)})


def optional_empty(e: Emitter, node: Node) -> list[Ref]:
    """Hold no value."""
    element = attrs_of(node)["element"]
    return e.raw("Optional", [], [tensor_of(element).dtype], {"type": element})


def split_to_sequence(e: Emitter, node: Node, x: Ref, sizes: Ref | None) -> list[Ref]:
    """Split into a sequence; sizes make the axis stay."""
    attrs = attrs_of(node)
    sizes = None if sizes is None else indices(e, sizes)
    given = {"axis": attrs["axis"], "keepdims": int(attrs["keepdims"])}
    return e.raw("SplitToSequence", [x, sizes], [x.dtype], given)


def string_normalize(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Drop stop words and change case."""
    attrs = attrs_of(node)
    given = {
        "case_change_action": attrs["case"].upper(),
        "is_case_sensitive": int(attrs["case_sensitive"]),
        "stopwords": attrs["stopwords"] or None,
    }
    return e.raw("StringNormalizer", [x], [x.dtype], given)


def string_split(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Split strings; any number of parts is left out."""
    attrs = attrs_of(node)
    most = attrs["most"] if attrs["most"] >= 0 else None
    given = {"delimiter": attrs["delimiter"], "maxsplit": most}
    return e.raw("StringSplit", [x], [x.dtype, int64], given)


WRITERS: dict[str, Write] = {
    "sequence_construct": holding("SequenceConstruct"),
    "sequence_empty": sequence_empty,
    "sequence_at": holding("SequenceAt"),
    "sequence_insert": holding("SequenceInsert"),
    "sequence_erase": holding("SequenceErase"),
    "sequence_length": holding("SequenceLength"),
    "concat_from_sequence": holding("ConcatFromSequence", axis="axis", new_axis="new_axis"),
    "split_to_sequence": split_to_sequence,
    "optional_of": holding("Optional"),
    "optional_empty": optional_empty,
    "optional_has": holding("OptionalHasElement"),
    "optional_get": holding("OptionalGetElement"),
    "string_concat": holding("StringConcat"),
    "string_split": string_split,
    "string_normalize": string_normalize,
    "regex_full_match": holding("RegexFullMatch", pattern="pattern"),
}
