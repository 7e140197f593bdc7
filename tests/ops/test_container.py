"""Sequences, optionals and strings, in graphs and against onnx's reference."""

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import float32, int64
from fusewire.errors import ShapeMismatchError, TypeRuleError
from fusewire.ir.builder import constant
from fusewire.ir.dims import unbacked
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import OptionalType, SequenceType, TensorType
from fusewire.ops.container import (
    concat_from_sequence,
    optional_get,
    optional_has,
    sequence_at,
    split_to_sequence,
)
from fusewire.ops.interpret import interpret
from fusewire.ops.subgraph import result_types
from fusewire.ops.table import verify
from tests.ops.onnx_oracle import run_onnx

ONE, TWO, THREE = (np.full(2, n, np.float32) for n in (1, 2, 3))


def test_places_count_from_both_ends() -> None:
    held = [ONE, TWO]
    assert [x[0] for x in ops.sequence_insert(held, THREE)] == [1, 2, 3]
    assert [x[0] for x in ops.sequence_insert(held, THREE, np.int64(0))] == [3, 1, 2]
    assert [x[0] for x in ops.sequence_insert(held, THREE, np.int64(-1))] == [1, 3, 2]
    assert [x[0] for x in ops.sequence_erase(held)] == [1]
    assert [x[0] for x in ops.sequence_erase(held, np.int64(-2))] == [2]
    assert ops.sequence_at(held, np.int64(-1))[0] == 2
    assert ops.sequence_length(held) == 2


def test_parts_of_different_size_are_taken_and_joined_again() -> None:
    x, sizes = Value(TensorType(float32, (5, 2)), "x"), Value(TensorType(int64, (3,)), "sizes")
    told = result_types(split_to_sequence, [x.type, sizes.type])
    parts = split_to_sequence(x, sizes, types=told)
    place = constant(np.int64(-1))
    last = sequence_at(parts, place, types=result_types(sequence_at, [parts.type, place.type]))
    told = result_types(concat_from_sequence, [parts.type], axis=0)
    whole = concat_from_sequence(parts, axis=0, types=told)
    graph = Graph([x, sizes], [last, whole], output_names=["last", "whole"])
    verify(graph)
    given = np.arange(10, dtype=np.float32).reshape(5, 2)
    got = interpret(graph, [given, np.array([1, 1, 3])])
    assert np.array_equal(got[0], given[2:])
    assert np.array_equal(got[1], given)


def test_an_element_whose_size_may_differ_needs_a_name_for_it() -> None:
    held = Value(SequenceType(TensorType(float32, (unbacked("each"),))))
    with pytest.raises(TypeRuleError, match="only the run can tell"):
        sequence_at(held, constant(np.int64(0)))


def test_an_absent_value_is_seen_and_not_taken() -> None:
    x = Value(OptionalType(TensorType(float32, (2,))), "x")
    has = Graph([x], [optional_has(x)], output_names=["has"])
    verify(has)
    assert [interpret(has, [v])[0] for v in (None, ONE)] == [False, True]
    take = Graph([x], [optional_get(x)], output_names=["got"])
    assert np.array_equal(interpret(take, [ONE])[0], ONE)
    with pytest.raises(ShapeMismatchError, match="absent"):
        interpret(take, [None])


WORDS = np.array([["a b  c", "d"], ["", " e "]], object)


def test_strings_split_as_onnx() -> None:
    want = run_onnx("StringSplit", WORDS, outputs=2)
    assert [x.tolist() for x in ops.string_split(WORDS)] == [x.tolist() for x in want]
    listed = np.array(["a,b,,c", "x"], object)
    want = run_onnx("StringSplit", listed, outputs=2, delimiter=",", maxsplit=2)
    got = ops.string_split(listed, delimiter=",", most=2)
    assert [x.tolist() for x in got] == [x.tolist() for x in want]


def test_strings_join_with_broadcasting_and_match_as_onnx() -> None:
    tail = np.array(["!", "?"], object)
    assert np.array_equal(ops.string_concat(WORDS, tail), run_onnx("StringConcat", WORDS, tail))
    pattern = r"[a-d].*"
    want = run_onnx("RegexFullMatch", WORDS, pattern=pattern)
    assert np.array_equal(ops.regex_full_match(WORDS, pattern=pattern), want)


@pytest.mark.parametrize("case", ["none", "lower", "upper"])
@pytest.mark.parametrize("case_sensitive", [False, True])
def test_stop_words_are_dropped_before_the_case_changes(case: str, case_sensitive: bool) -> None:
    days, stops = np.array(["Monday", "tuesday", "monday"], object), ("monday",)
    got = ops.string_normalize(days, case=case, stopwords=stops, case_sensitive=case_sensitive)
    lowered = days if case_sensitive else np.array([d.lower() for d in days], object)
    kept = [d for d, key in zip(days, lowered, strict=True) if key not in stops]
    assert got.tolist() == [getattr(str, case, str)(d) for d in kept]
    assert ops.string_normalize(days, stopwords=tuple(days)).tolist() == [""]
