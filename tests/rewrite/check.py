"""Whether a rewrite keeps what a graph means: the checks that every rule's example goes through."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import STORED, DType
from fusewire.errors import FusewireError, VerifyError
from fusewire.ir.dims import Symbol
from fusewire.ir.graph import Array, Graph
from fusewire.ir.types import TensorType, concrete_shape, type_symbols
from fusewire.ops.interpret import interpret
from fusewire.ops.table import verify
from fusewire.rewrite.engine import simplify
from fusewire.rewrite.pipeline import run_pipeline
from fusewire.rewrite.rule import Rule

SIZES = (0, 1, 3, 17)
SPECIAL_FLOATS = (
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 1e-40, -1e-7, 3e38, 7.0,
)  # fmt: skip


def special(of: DType, shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Make an array of what rules get wrong: NaN, infinities, signed zeros, limits of ints."""
    count = int(np.prod(shape))
    if of.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if of.is_integer:
        low, high = of.range
        pool: Array = np.array([low, high, 0, 1, 2, 3, low + 1, high - 1], object)
        if of.kind == "int":
            pool = np.append(pool, [-1, -2])
        return rng.choice(pool, count).reshape(shape).astype(of.numpy)
    with np.errstate(all="ignore"):
        drawn = rng.choice(SPECIAL_FLOATS, count)
        drawn = np.where(rng.random(count) < 0.3, rng.normal(size=count), drawn)
        if of.is_complex:
            drawn = drawn + 1j * rng.permutation(drawn)
        return drawn.reshape(shape).astype(of.numpy)


def differences(left: Sequence[Any], right: Sequence[Any], exact: bool = True) -> Iterator[str]:
    """Say where two lists of outputs differ: in bits, but for those of NaN, or beyond rounding."""
    for position, (a, b) in enumerate(zip(left, right, strict=True)):
        if a is None or b is None:
            if a is not b:
                yield f"output {position} was {a!r} and is {b!r}"
        elif isinstance(a, list) or isinstance(b, list):
            yield from differences(a, b, exact)
        elif a.dtype != b.dtype or a.shape != b.shape:
            yield f"output {position} was {a.dtype}{a.shape} and is {b.dtype}{b.shape}"
        elif not (_same_bits(a, b) if exact else _close(a, b)):
            yield f"output {position} was\n{a!r}\nand is\n{b!r}"


def _same_bits(a: Array, b: Array) -> bool:
    if a.dtype == object:
        return bool((a == b).all())
    if a.dtype.kind == "c":
        return _same_bits(a.real, b.real) and _same_bits(a.imag, b.imag)
    as_bytes = [np.ascontiguousarray(x).reshape(-1, 1).view(np.uint8) for x in (a, b)]
    same = (as_bytes[0] == as_bytes[1]).all(axis=1)
    if a.dtype.kind not in "biu":
        same |= np.isnan(a).reshape(-1) & np.isnan(b).reshape(-1)
    return bool(same.all())


def _close(a: Array, b: Array) -> bool:
    if a.dtype.kind in "biu":
        return bool((a == b).all())
    of = np.finfo(np.float32) if a.dtype.kind == "f" and a.dtype.itemsize == 4 else None
    eps = float(of.eps) if of else 1e-2 if a.dtype.itemsize <= 2 else 1e-14
    wide = (a.astype(np.complex128), b.astype(np.complex128))
    return bool(np.allclose(*wide, rtol=8 * eps, atol=1e-30, equal_nan=True))


def bindings_of(graph: Graph) -> Iterator[dict[Symbol, int]]:
    """Bind the symbols of a graph's inputs to sizes, also to 0 and 1."""
    found = list(dict.fromkeys(s for v in graph.inputs for s in type_symbols(v.type)))
    if not found:
        yield {}
    for shift, size in itertools.product(range(min(len(found), 2)), SIZES if found else ()):
        later = SIZES[(SIZES.index(size) + shift) % len(SIZES)]
        yield {s: size if i == 0 else later for i, s in enumerate(found)}


def value_problems(before: Graph, after: Graph, exact: bool = True) -> Iterator[str]:
    """Run two graphs on special inputs at several sizes, and say where they differ."""
    for bound in bindings_of(before):
        for seed in range(3):
            rng = np.random.default_rng(seed)
            inputs = []
            for value in before.inputs:
                assert isinstance(value.type, TensorType)
                shape = concrete_shape(value.type, bound)
                inputs.append(special(value.type.dtype, shape, rng))
            found = differences(interpret(before, inputs), interpret(after, inputs), exact)
            for difference in found:
                yield f"with {bound}, seed {seed}: {difference}"
                return


def type_problems(before: Graph, after: Graph) -> Iterator[str]:
    """Verify both graphs and compare their signatures."""
    for graph in (before, after):
        try:
            verify(graph)
        except VerifyError as error:
            yield f"{error}\n{graph}"
    for side in ("inputs", "outputs"):
        was, now = ([v.type for v in getattr(g, side)] for g in (before, after))
        if was != now:
            yield f"the {side} were {was} and are {now}"
    if before.output_names != after.output_names:
        yield f"outputs were named {before.output_names} and are {after.output_names}"


def rule_problems(rule: Rule) -> list[str]:
    """Check a rule on its example, in every dtype that it is meant for.

    Alone the rule must keep types and values. It must also fire among all others: an earlier rule
    that always takes its nodes first makes it dead code.
    """
    problems = [] if rule.because.endswith(".") else ["`because` is not a sentence"]
    fired, fired_in_pipeline = False, False
    names = [d.name for d in STORED] if rule.example.is_generic else ["float32"]
    for name in names:
        try:
            before = rule.example(name)
        except (FusewireError, TypeError, ValueError, OverflowError):
            continue
        fired_in_pipeline |= rule.name in run_pipeline(before).report.counts
        done = simplify(before, [rule])
        if done.report.counts.get(rule.name):
            fired = True
            found = [*type_problems(before, done.graph)]
            found += value_problems(before, done.graph, rule.exact) if not found else ()
            problems += [f"{name}: {problem}\n{before}\n{done.graph}" for problem in found]
    if not fired:
        problems.append("does not fire on its example")
    elif not fired_in_pipeline:
        problems.append("does not fire on its example in the pipeline, where others come first")
    return [f"rule {rule.name}: {problem}" for problem in problems]
