"""Sizes of axes: ints, symbols known per call, and symbols known only after a node has run.

A ``Dim`` is an ``int`` or a ``Sym``: a polynomial with integer coefficients over atoms, kept in
one canonical order, so that equal expressions are equal objects and hash alike. An atom is a
symbol or one of the functions of ``FUNCTIONS`` applied to two dims. Symbols are at least 0.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from fusewire.dtypes import ALL
from fusewire.errors import DimError

Dim: TypeAlias = "int | Sym"
Shape: TypeAlias = tuple[Dim, ...]


def _broadcast(a: int, b: int) -> int:
    if a != b and a != 1 and b != 1:
        raise DimError(f"{a} and {b} do not broadcast: sizes must be equal or 1.")
    return b if a == 1 else a


FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b if b else 0,
    "max": max,
    "min": min,
    "broadcast": _broadcast,
}
# Words that the printed form gives another meaning.
RESERVED = {*FUNCTIONS, "none", "true", "false", "nan", "inf", "graph", "type", "as", "return"}
RESERVED |= {d.name for d in ALL}


@dataclass(frozen=True)
class Symbol:
    """A named size; unbacked if it is known only after a node has run."""

    name: str
    unbacked: bool = False

    @cached_property
    def key(self) -> str:
        """The printed form; in backticks if the name is not a plain word or is reserved."""
        name = self.name
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name in RESERVED:
            name = "`" + json.dumps(name)[1:-1].replace("`", "\\u0060") + "`"
        return f"?{name}" if self.unbacked else name


@dataclass(frozen=True)
class Apply:
    """A function of two dims that cannot be simplified."""

    function: str
    left: Dim
    right: Dim

    # Sizes nest deeply and share parts: what is asked of them often is computed once.

    @cached_property
    def key(self) -> str:
        return f"{self.function}({self.left}, {self.right})"

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """The symbols of both dims, each once."""
        return tuple(dict.fromkeys((*symbols(self.left), *symbols(self.right))))

    def value(self, values: Mapping[Symbol, int]) -> int:
        """Compute it; kept for the next call, which mostly has the same sizes."""
        sizes = [values[symbol] for symbol in self.symbols]
        last: tuple[list[int], int] | None = self.__dict__.get("_last")
        if last is not None and last[0] == sizes:
            return last[1]
        found = FUNCTIONS[self.function](_value(self.left, values), _value(self.right, values))
        self.__dict__["_last"] = sizes, found
        return found

    @cached_property
    def _hash(self) -> int:
        return hash((self.function, self.left, self.right))

    def __hash__(self) -> int:
        return self._hash


# Hostile programs can double the terms of a size with every node: this limit stops them.
MOST_TERMS, MOST_POWER, MOST_TEXT = 2**12, 2**8, 2**12

Atom: TypeAlias = Symbol | Apply
# A product of atoms, each with its power, in the order of their keys; () is 1.
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]


def _order(monomial: Monomial) -> tuple[int, tuple[tuple[str, int], ...]]:
    return -sum(power for _, power in monomial), tuple((a.key, -p) for a, p in monomial)


class Sym:
    """A size that is not a plain int. Immutable; compare with ``==``."""

    __slots__ = ("_hash", "terms")
    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = tuple(sorted(terms.items(), key=lambda term: _order(term[0])))
        self._hash = hash(self.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sym) and self._hash == other._hash and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Dim) -> Dim:
        total = dict(self.terms)
        for monomial, factor in _terms(other):
            total[monomial] = total.get(monomial, 0) + factor
        return _dim(total)

    def __mul__(self, other: Dim) -> Dim:
        total: dict[Monomial, int] = {}
        terms = tuple(_terms(other))
        if len(self.terms) * len(terms) > MOST_TERMS:
            raise _too_long(f"A product of {len(self.terms):,} and {len(terms):,} terms")
        for (m1, f1), (m2, f2) in itertools.product(self.terms, terms):
            monomial = _product(m1, m2)
            total[monomial] = total.get(monomial, 0) + f1 * f2
        return _dim(total)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return self - floordiv(self, other) * other

    def __str__(self) -> str:
        text = ""
        for monomial, factor in self.terms:
            atoms = [a.key if p == 1 else "*".join([a.key] * p) for a, p in monomial]
            size = [] if abs(factor) == 1 and atoms else [str(abs(factor))]
            sign = "-" if factor < 0 else "+" if text else ""
            text += sign + "*".join(size + atoms)
        return text

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise DimError(
            f"The size {self} is not known yet, so it is neither true nor false. "
            "Compare sizes with fusewire.ir.dims.is_equal, or give the dim a number."
        )


def _terms(dim: Dim) -> Iterable[tuple[Monomial, int]]:
    if isinstance(dim, Sym):
        return dim.terms
    return (((), int(dim)),) if dim else ()


def _product(left: Monomial, right: Monomial) -> Monomial:
    powers: dict[Atom, int] = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
        if powers[atom] > MOST_POWER:
            raise _too_long(f"The {powers[atom]:,}th power of a size")
    return tuple(sorted(powers.items(), key=lambda item: item[0].key))


def _dim(terms: Mapping[Monomial, int]) -> Dim:
    kept = {monomial: factor for monomial, factor in terms.items() if factor}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Sym(kept)


def _atom(atom: Atom) -> Dim:
    if len(atom.key) > MOST_TEXT:
        raise _too_long(f"A size of {len(atom.key):,} characters")
    return Sym({((atom, 1),): 1})


def _too_long(what: str) -> DimError:
    return DimError(f"{what} exceeds the limit for dims. Replace symbols by numbers.")


def symbol(name: str) -> Sym:
    """Name a size that each call determines."""
    return Sym({((Symbol(name), 1),): 1})


_counter = itertools.count()


def unbacked(name: str | None = None) -> Sym:
    """Name a size that is known only after a node has run; a fresh name by default."""
    return Sym({((Symbol(f"u{next(_counter)}" if name is None else name, True), 1),): 1})


def floordiv(left: Dim, right: Dim) -> Dim:
    """Divide and round down; finds exact quotients of polynomials too."""
    if right == 0:
        raise DimError(f"{left} // 0: cannot divide a size by zero.")
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    if right == 1 or left == 0:
        return left
    if isinstance(right, int):
        return _divide_by_int(left, right)
    exact = _exact_quotient(left, right)
    return exact if exact is not None else _atom(Apply("floordiv", left, right))


def _divide_by_int(left: Dim, right: int) -> Dim:
    whole = _dim({m: f // right for m, f in _terms(left) if f % right == 0 or m == ()})
    rest = _dim({m: f % right if m == () else f for m, f in _terms(left) if m == () or f % right})
    if isinstance(rest, int):
        return whole + rest // right
    inner = _only_atom(rest)
    if isinstance(inner, Apply) and inner.function == "floordiv" and isinstance(inner.right, int):
        # Rounding down twice is rounding down once by the product.
        return whole + floordiv(inner.left, inner.right * right)
    return whole + _atom(Apply("floordiv", rest, right))


def _only_atom(dim: Sym) -> Atom | None:
    ((monomial, factor), *more) = dim.terms
    if more or factor != 1 or len(monomial) != 1 or monomial[0][1] != 1:
        return None
    return monomial[0][0]


def _exact_quotient(left: Dim, right: Sym) -> Dim | None:
    """Divide by leading terms; None if there is a remainder."""
    quotient: Dim = 0
    lead, lead_factor = right.terms[0]
    for _ in range(16):
        if left == 0:
            return quotient
        monomial, factor = next(iter(_terms(left)))
        powers = dict(monomial)
        for atom, power in lead:
            powers[atom] = powers.get(atom, 0) - power
        if factor % lead_factor or any(power < 0 for power in powers.values()):
            return None
        step = _dim({tuple((a, p) for a, p in powers.items() if p): factor // lead_factor})
        quotient, left = quotient + step, left - step * right
    return None


def ceildiv(left: Dim, right: Dim) -> Dim:
    """Divide and round up."""
    return -floordiv(-left, right)


def _ordered(function: str, left: Dim, right: Dim) -> Dim:
    first, second = sorted((left, right), key=str)
    return _atom(Apply(function, first, second))


# Larger than any tensor.
UNREACHED = 2**62


def dim_max(left: Dim, right: Dim) -> Dim:
    """Take the larger size."""
    if is_at_most(left, right):
        return right
    return left if is_at_most(right, left) else _ordered("max", left, right)


def dim_min(left: Dim, right: Dim) -> Dim:
    """Take the smaller size."""
    for bound, other in ((left, right), (right, left)):
        # No tensor is this long; files write "to the end" this way.
        if isinstance(bound, int) and bound >= UNREACHED:
            return other
    if is_at_most(left, right):
        return left
    return right if is_at_most(right, left) else _ordered("min", left, right)


def broadcast_dim(left: Dim, right: Dim) -> Dim:
    """Return the size that two axes broadcast to; raises DimError if they cannot."""
    if left == right or right == 1:
        return left
    if left == 1:
        return right
    if isinstance(left, int) and isinstance(right, int):
        return _broadcast(left, right)
    if isinstance(left, int) or isinstance(right, int):
        return left if isinstance(left, int) else right
    # Order, nesting and repeats do not matter.
    first, *rest = sorted({*_broadcast_parts(left), *_broadcast_parts(right)}, key=str)
    for part in rest:
        first = _atom(Apply("broadcast", first, part))
    return first


def _broadcast_parts(dim: Dim) -> Iterator[Dim]:
    atom = _only_atom(dim) if isinstance(dim, Sym) else None
    if isinstance(atom, Apply) and atom.function == "broadcast":
        yield from _broadcast_parts(atom.left)
        yield from _broadcast_parts(atom.right)
    else:
        yield dim


def lower_bound(dim: Dim) -> int | None:
    """Return a lower bound of the size, or None."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, factor in dim.terms:
        bounds = [_atom_bound(atom) for atom, _ in monomial]
        if monomial and (factor < 0 or any(b is None or b < 0 for b in bounds)):
            return None
        for (_, power), bound in zip(monomial, bounds, strict=True):
            factor *= (bound or 0) ** power
        total += factor
    return total


def _atom_bound(atom: Atom) -> int | None:
    if isinstance(atom, Symbol):
        return 0
    left, right = lower_bound(atom.left), lower_bound(atom.right)
    if atom.function == "max":
        return max((b for b in (left, right) if b is not None), default=None)
    if left is None or right is None or left < 0 or right < 0:
        return None
    return min(left, right) if atom.function == "min" else 0


def is_equal(left: Dim, right: Dim) -> bool | None:
    """Return whether two sizes are always equal (True), never (False), or it depends (None)."""
    if left == right:
        return True
    difference = left - right
    if isinstance(difference, int):
        return False
    apart = any((lower_bound(d) or 0) > 0 for d in (difference, -difference))
    return False if apart else None


def is_at_most(left: Dim, right: Dim) -> bool:
    """Return whether ``left <= right`` is certain."""
    if isinstance(left, int) and isinstance(right, int):
        return left <= right
    return any(distance >= 0 for distance in _distances(left, right))


def least_distance(left: Dim, right: Dim) -> int | None:
    """Return a lower bound of ``right - left``, which may be negative; None if none is known."""
    if isinstance(left, int) and isinstance(right, int):
        return right - left
    return max(_distances(left, right), default=None)


def _distances(left: Dim, right: Dim) -> Iterator[int]:
    """Give lower bounds of ``right - left``, the plainest first."""
    if (whole := lower_bound(right - left)) is not None:
        yield whole
    ways = [[(arm, right)] for arm in _arms(left, "min")]
    ways += [[(left, arm)] for arm in _arms(right, "max")]
    # Either arm may be the one that counts.
    ways += [[(arm, right) for arm in _arms(left, "max")]]
    ways += [[(left, arm) for arm in _arms(right, "min")]]
    for way in ways:
        bounds = [bound for pair in way if (bound := least_distance(*pair)) is not None]
        if bounds and len(bounds) == len(way):
            yield min(bounds)


def _arms(dim: Dim, function: str) -> tuple[Dim, ...]:
    """Return the two operands of a maximum or minimum; nothing for other dims."""
    atom = _only_atom(dim) if isinstance(dim, Sym) else None
    return (atom.left, atom.right) if isinstance(atom, Apply) and atom.function == function else ()


def lone_symbol(dim: Dim) -> Symbol | None:
    """Return the symbol if a size is one alone: only then can a shape determine it."""
    atom = _only_atom(dim) if isinstance(dim, Sym) else None
    return atom if isinstance(atom, Symbol) else None


def bind_alone(dims: Sequence[Dim], sizes: Sequence[int], bound: dict[Symbol, int]) -> None:
    """Read the symbols that stand alone in a shape off its sizes; the first place counts."""
    for dim, actual in zip(dims, sizes, strict=True):
        if (alone := lone_symbol(dim)) is not None:
            bound.setdefault(alone, actual)


def symbols(dim: Dim) -> Iterator[Symbol]:
    """Yield the symbols of a size, in order of appearance."""
    for monomial, _ in dim.terms if isinstance(dim, Sym) else ():
        for atom, _ in monomial:
            if isinstance(atom, Symbol):
                yield atom
            else:
                yield from atom.symbols


def substitute(
    dim: Dim, values: Mapping[Symbol, Dim], known: dict[Apply, Dim] | None = None
) -> Dim:
    """Replace symbols; those without a value stay.

    ``known`` has the parts that were met already, for those who replace the same in many sizes.
    """
    if isinstance(dim, int):
        return dim
    known = {} if known is None else known
    total: Dim = 0
    for monomial, factor in dim.terms:
        term: Dim = factor
        for atom, power in monomial:
            if isinstance(atom, Symbol):
                value = values.get(atom, _atom(atom))
            elif (met := known.get(atom)) is not None:
                value = met
            else:
                left, right = (substitute(x, values, known) for x in (atom.left, atom.right))
                value = known[atom] = apply(atom.function, left, right)
            for _ in range(power):
                term = term * value
        total = total + term
    return total


_SIMPLIFIERS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "floordiv": floordiv,
    "max": dim_max,
    "min": dim_min,
    "broadcast": broadcast_dim,
}


def apply(function: str, left: Dim, right: Dim) -> Dim:
    """Apply a function of ``FUNCTIONS`` by name, simplified."""
    if isinstance(left, int) and isinstance(right, int):
        return FUNCTIONS[function](left, right)
    return _SIMPLIFIERS[function](left, right)


def evaluate(dim: Dim, values: Mapping[Symbol, int]) -> int:
    """Compute a size; raises DimError if a symbol has no value."""
    try:
        return _value(dim, values)
    except KeyError:
        missing = ", ".join(sorted({s.key for s in symbols(dim) if s not in values}))
    raise DimError(f"The size {dim} needs {missing}, which no input or earlier node determines.")


def _value(dim: Dim, values: Mapping[Symbol, int]) -> int:
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, factor in dim.terms:
        for atom, power in monomial:
            value = values[atom] if isinstance(atom, Symbol) else atom.value(values)
            factor *= value if power == 1 else value**power
        total += factor
    return total


def size(shape: Sequence[Dim]) -> Dim:
    """Count the elements of a shape."""
    total: Dim = 1
    for dim in shape:
        total = total * dim
    return total
