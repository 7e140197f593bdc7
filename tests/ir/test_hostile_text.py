"""Text from anyone: whatever is wrong with it, the parser says so, soon, and as a ParseError."""

import time

import pytest

from fusewire.errors import ParseError
from fusewire.ir.parse import MAX_DEPTH, parse_dim, parse_graph


def _graph(statement: str) -> str:
    return f"graph g(%x: float32[]) {{\n  {statement}\n  return %0 as output\n}}"


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("#" * 60 + "\n@", id="comment of many marks"),
        pytest.param("%0 = f(%x) {a=" + "(" * 5000 + "} : float32[]", id="nested tuples"),
        pytest.param("%0 = f(%x) : float32[" + "-" * 5000 + "n]", id="many signs"),
        pytest.param(
            "%0 = f(%x) : float32[" + "+".join(f"n{i}" for i in range(2000)) + "]", id="long dim"
        ),
        pytest.param(
            "%0 = f(%x) : float32[" + "max(" * 60 + "`" + "\\`" * 16000, id="name without an end"
        ),
        pytest.param("%0 = f(%x) : float32[" + "max(n, " * 20000, id="calls without an end"),
        pytest.param(
            "%0 = f(%x) : float32[" + "*".join(["(a+b+c+d+e+f+g)"] * 20) + "]", id="long product"
        ),
    ],
)
def test_text_that_nests_or_repeats_is_refused_soon(statement: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ParseError):
        parse_graph(_graph(statement))
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    "statement",
    [
        "%0 = constant int8[1] {300}",
        "%0 = constant int8[1] {1.5}",
        "%0 = constant int8[1] {nan}",
        "%0 = constant int8[1] {true}",
        '%0 = constant int8[1] {"5"}',
        "%0 = constant int4[1] {100}",
        "%0 = constant uint8[1] {-1}",
        "%0 = constant bool[1] {5}",
        '%0 = constant bool[1] {"x"}',
        '%0 = constant bool[1] hex:"07"',
        "%0 = constant float32[1] {true}",
        '%0 = constant float32[1] {"a"}',
        '%0 = constant float32[1] hex:"abc"',
        "%0 = constant float32[-1] {1.0}",
        "%0 = constant string[1] {5}",
        '%0 = constant string[1] hex:"0000000000000000"',
        "%0, %1 = constant float32[] {1.0}",
        "%0 = f(%x) {a=1, a=2} : float32[]",
        r'%0 = f(%x) {a="\q"} : float32[]',
        "%0 = f(%x) {a=" + "9" * 5000 + "} : float32[]",
        r'%"\q" = f(%x) : float32[]',
        "%0 = f(%x) : float32[n//0]",
        "%0 = f(%x) : float32[`a\nb`]",
        '%0 = f(%x) : float32[`a"b`]',
    ],
)
def test_text_that_means_nothing_is_a_parse_error(statement: str) -> None:
    with pytest.raises(ParseError):
        parse_graph(_graph(statement))


@pytest.mark.parametrize("text", ["n//0", "-" * 5000 + "n", "9" * 5000, "`a\nb`"])
def test_dim_that_means_nothing_is_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError):
        parse_dim(text)


def test_depth_counts_also_where_a_part_was_read_before() -> None:
    part, deep = "max(m, n)", "n"
    for _ in range(MAX_DEPTH):
        deep = f"max({deep}, k)" if len(deep) % 2 else f"min({deep}, k)"
    parse_dim(deep)
    for text in (deep.replace("n,", f"{part},"), f"{part}+{deep.replace('n,', part + ',')}"):
        with pytest.raises(ParseError, match="nested deeper"):
            parse_dim(text)


@pytest.mark.parametrize(
    "text", ["max(n, m)+max(n, m)", "max(`(`, n)*max(`(`, n)", "max(n, # )\nm)+max(n, # )\nk)"]
)
def test_calls_that_repeat_mean_what_they_mean_alone(text: str) -> None:
    left, mark, right = text.rpartition("max")
    first, again = parse_dim(left.rstrip("+*")), parse_dim(mark + right)
    whole = first + again if "+" in text else first * again
    assert parse_dim(text) == whole
