"""Tensors of strings. Only the reference runs them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from fusewire.dtypes import bool_, int64, string
from fusewire.ir.dims import Dim, is_equal
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType
from fusewire.ops.declare import EXACT, FRESH, Family, Trait
from fusewire.ops.inference import binary_type, require
from fusewire.ops.sample import bad, binary_samples, draw, given, sample

FAMILY = Family("strings")
FIELDS: dict[str, Any] = {
    "dtypes": (string,),
    "traits": (Trait.HOST,),
    "tolerance": EXACT,
    "flops": 0,
}
CASES: dict[str, Callable[[str], str]] = {"none": str, "lower": str.lower, "upper": str.upper}


string_concat = FAMILY.declare(
    "string_concat",
    binary_type,
    doc="Concatenate strings.",
    reference=lambda x, y: np.asarray(np.add(x, y), object),
    samples=binary_samples(),
    **FIELDS,
)


def _split_type(
    x: TensorType, *, delimiter: str | None = None, most: int = -1, count: Dim = FRESH
) -> tuple[TensorType, ...]:
    return TensorType(string, (*x.shape, count)), TensorType(int64, x.shape)


def _split(x: Array, delimiter: str | None, most: int, count: Any) -> tuple[Array, Array]:
    rows = [str(item).split(delimiter, most) for item in x.reshape(-1)]
    width = max(map(len, rows), default=0)
    parts = np.full((len(rows), width), "", object)
    for place, row in enumerate(rows):
        parts[place, : len(row)] = row
    counts = np.array([len(row) for row in rows], np.int64)
    return parts.reshape(*x.shape, width), counts.reshape(x.shape)


def _split_shapes(x: Array, delimiter: str | None, most: int, count: Any) -> list[list[int]]:
    # At most so many parts; an empty row takes as much room as the longest.
    gaps = [len(item) // 2 if delimiter is None else item.count(delimiter) for item in x.flat]
    width = 1 + max(gaps, default=0)
    return [[*x.shape, width if most < 0 else min(width, most + 1)], [*x.shape]]


string_split = FAMILY.declare(
    "string_split",
    _split_type,
    doc="Split at a delimiter or white space; returns the parts, padded with '', and counts.",
    reference=_split,
    output_shapes=_split_shapes,
    samples=lambda: [
        sample(given([["a b  c", "d"], ["", " e "]])),
        sample(given(["a,b,,c", "x"]), delimiter=",", most=2),
        sample(given("a b")),
        sample(draw(0, 2)),
    ],
    **{**FIELDS, "traits": (Trait.HOST, Trait.UNBACKED)},
)


def _normalize_type(
    x: TensorType,
    *,
    case: str = "none",
    stopwords: tuple[str, ...] = (),
    case_sensitive: bool = True,
    count: Dim = FRESH,
) -> TensorType:
    require(case in CASES, f"case is one of {', '.join(CASES)}, found {case!r}.")
    fits = x.rank == 1 or (x.rank == 2 and is_equal(x.shape[0], 1) is not False)
    require(fits, f"a vector or one row of strings is needed, found {x}.")
    return x.with_shape((*x.shape[:-1], count))


def _normalize(
    x: Array, case: str, stopwords: tuple[str, ...], case_sensitive: bool, count: Any
) -> Array:
    compared = str if case_sensitive else str.lower
    stops = {compared(word) for word in stopwords}
    kept = [CASES[case](item) for item in x.reshape(-1) if compared(item) not in stops]
    return np.array(kept or [""], object).reshape(*x.shape[:-1], -1)


string_normalize = FAMILY.declare(
    "string_normalize",
    _normalize_type,
    doc="Remove stop words and change case; returns one empty string if none are left.",
    reference=_normalize,
    lacks={"scalar": "the strings are in a row"},
    samples=lambda: [
        sample(given(["Monday", "tuesday"]), case="upper", stopwords=("monday",)),
        sample(given([["Monday", "x"]]), stopwords=("monday",), case_sensitive=False),
        sample(given(["a", "a"]), stopwords=("a",), case="lower"),
        sample(draw(0)),
    ],
    refuses=lambda: [
        bad("case is one of none, lower, upper, found 'odd'", "[0]", case="odd"),
        bad("a vector or one row of strings is needed, found string[]", "[]"),
    ],
    **{**FIELDS, "traits": (Trait.HOST, Trait.UNBACKED)},
)


def _match_type(x: TensorType, *, pattern: str) -> TensorType:
    try:
        re.compile(pattern)
    except re.error as error:
        require(False, f"the pattern {pattern!r} does not parse: {error}.")
    return x.with_dtype(bool_)


def _match(x: Array, pattern: str) -> Array:
    found = [re.fullmatch(pattern, item) is not None for item in x.reshape(-1)]
    return np.array(found, np.bool_).reshape(x.shape)


regex_full_match = FAMILY.declare(
    "regex_full_match",
    _match_type,
    doc="Test whether the whole string matches a pattern.",
    reference=_match,
    samples=lambda: [
        sample(given(["a1", "b", "c22"]), pattern="[a-c][0-9]+"),
        sample(given("x"), pattern="x|y"),
        sample(draw(0, 2), pattern=".*"),
    ],
    refuses=lambda: [bad("the pattern '(' does not parse", "[3]", pattern="(")],
    **FIELDS,
)
