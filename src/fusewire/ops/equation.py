"""Einstein summation: equations as in NumPy, expanded into products of pairs."""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.dtypes import NUMERIC
from fusewire.ir.dims import Dim, Shape, dim_min
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.contraction import dot_general
from fusewire.ops.declare import LINEAR, Family, Trait
from fusewire.ops.inference import require, require_dims, same_dim, same_dtype
from fusewire.ops.layout import diagonal
from fusewire.ops.movement import squeeze, transpose
from fusewire.ops.reduction import reduce_sum
from fusewire.ops.sample import Sample, bad, draw, sample

FAMILY = Family("equation")

# A label is a letter, or the number of an axis that an ellipsis stands for.
Labels = list[str]


def _labels(term: str, ellipsis: int) -> Labels:
    """Read one term whose ellipsis, if it has one, stands for so many axes."""
    before, dots, after = term.partition("...")
    letters = before + after
    right = all(c.isascii() and c.isalpha() for c in letters)
    require(right, f"a term of an equation has letters and one ellipsis, found {term!r}.")
    return [*before, *(f"{i}" for i in range(-ellipsis, 0) if dots), *after]


def parse_equation(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Read an equation: the labels of every operand, and those of the output."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    require(
        len(terms) == len(ranks), f"{equation!r} is for {len(terms)} operands, found {len(ranks)}."
    )
    read: list[Labels] = []
    for term, rank in zip(terms, ranks, strict=True):
        letters = len(term.replace("...", ""))
        fits = letters <= rank if "..." in term else letters == rank
        require(fits, f"the term {term!r} does not fit an operand of rank {rank}.")
        read.append(_labels(term, rank - letters))
    shared = sorted({x for labels in read for x in labels if x.startswith("-")}, key=int)
    if arrow:
        wanted = _labels(output, len(shared))
    else:
        flat = [x for labels in read for x in labels]
        wanted = shared + sorted(x for x in set(flat) if flat.count(x) == 1 and x.isalpha())
    known = {x for labels in read for x in labels}
    lost = [x for x in wanted if x not in known or wanted.count(x) > 1]
    require(not lost, f"the output of {equation!r} needs labels of the operands, once each.")
    kept = all(x in wanted for x in shared)
    require(kept, f"the output of {equation!r} needs the ellipsis that its operands have.")
    return read, wanted


def _label_dims(terms: Sequence[Labels], shapes: Sequence[Shape]) -> dict[str, Dim]:
    """Find the size of every label; an axis of size 1 is repeated to the others' size."""
    dims: dict[str, Dim] = {}
    for labels, shape in zip(terms, shapes, strict=True):
        own: dict[str, Dim] = {}
        for label, dim in zip(labels, shape, strict=True):
            require_dims(own.get(label, dim), dim, f"dims of the repeated label {label}")
            own[label] = dim_min(own.get(label, dim), dim)
        for label, dim in own.items():
            other = dims.get(label, 1)
            what = f"dims of the label {label}"
            dims[label] = other if dim == 1 else dim if other == 1 else same_dim(other, dim, what)
    return dims


def _einsum_type(*xs: TensorType, equation: str) -> TensorType:
    terms, output = parse_equation(equation, [x.rank for x in xs])
    dims = _label_dims(terms, [x.shape for x in xs])
    return TensorType(same_dtype(*xs), tuple(dims[label] for label in output))


def _simplify(
    x: Value, labels: Labels, dims: dict[str, Dim], needed: set[str]
) -> tuple[Value, Labels]:
    """Take diagonals, drop axes that are repeated, and sum over what nobody else needs."""
    labels = list(labels)
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            x = diagonal(x, offset=0, axis1=first, axis2=second)
            labels = [y for i, y in enumerate(labels) if i not in (first, second)] + [label]
    shape = x.tensor.shape
    single = tuple(i for i, y in enumerate(labels) if shape[i] == 1 and dims[y] != 1)
    if single:
        x = squeeze(x, axes=single)
        labels = [y for i, y in enumerate(labels) if i not in single]
    summed = tuple(i for i, y in enumerate(labels) if y not in needed)
    if summed:
        x = reduce_sum(x, axes=summed)
    return x, [y for y in labels if y in needed]


def _einsum(*xs: Value, equation: str) -> Value:
    terms, output = parse_equation(equation, [x.tensor.rank for x in xs])
    dims = _label_dims(terms, [x.tensor.shape for x in xs])
    # An axis that is repeated does not count as having its label.
    present = [
        {y for y, dim in zip(labels, x.tensor.shape, strict=True) if dim != 1 or dims[y] == 1}
        for labels, x in zip(terms, xs, strict=True)
    ]
    product, have = _simplify(xs[0], terms[0], dims, {*output}.union(*present[1:]))
    for place in range(1, len(xs)):
        later = {*output}.union(*present[place + 1 :])
        x, labels = _simplify(xs[place], terms[place], dims, later.union(*present[:place]))
        both = [y for y in have if y in labels]
        sides = (have, labels)
        batch = tuple(tuple(side.index(y) for y in both if y in later) for side in sides)
        summed = tuple(tuple(side.index(y) for y in both if y not in later) for side in sides)
        product = dot_general(product, x, contract=summed, batch=batch)
        have = [y for y in both if y in later] + [y for y in have + labels if y not in both]
    perm = tuple(have.index(label) for label in output)
    return product if perm == tuple(range(len(perm))) else transpose(product, perm=perm)


def _einsum_samples() -> list[Sample]:
    return [
        sample(draw(3, 4), draw(4, 5), equation="ij,jk->ik"),
        sample(draw(3, 4), draw(4, 5), equation="ij, jk"),
        sample(draw(3, 3), equation="ii"),
        sample(draw(3, 2, 3), equation="iji->ji"),
        sample(draw(4, 2, 3), equation="b...->...b"),
        sample(draw(2, 3), equation="ba"),
        sample(draw(2, 3), equation="ij->"),
        sample(draw(3), draw(4), equation="i,j->ji"),
        sample(draw(2, 3, 4), draw(3, 1, 4, 5), equation="...ij,...jk->...ik"),
        sample(draw(2, 1, 2, 3), draw(3, 1), equation="...ij,...j->...i"),
        sample(draw(2, 3), draw(3, 4), draw(4, 2), equation="ij,jk,kl->il"),
        sample(draw(2, 3), draw(2, 3), draw(3), equation="ij,ij,j->i"),
        sample(draw(2, 3), draw(3, 4), draw(2), equation="ij,jk,i->"),
        sample(draw(1, 3), draw(2, 3), equation="ij,ij->ij"),
        sample(draw(), draw(2), equation=",i->i"),
        sample(draw(0, 3), draw(3, 2), equation="ij,jk"),
        sample(draw(3, 0), draw(0, 2), equation="ij,jk->ik"),
    ]


einsum = FAMILY.declare(
    "einsum",
    _einsum_type,
    doc="Sum products over the labels that the output of an equation leaves out.",
    expand=_einsum,
    dtypes=NUMERIC,
    traits=(Trait.CONTRACTION, Trait.LINEAR),
    tolerance=LINEAR,
    samples=_einsum_samples,
    refuses=lambda: [
        bad("'ii' is for 1 operands, found 0", equation="ii"),
        bad("the term 'ii' does not fit an operand of rank 0", "[]", equation="ii"),
        bad("the term 'ii' does not fit an operand of rank 3", "[3, 3, 1]", equation="ii"),
        bad("dims of the repeated label i must be equal, found 4 and 3", "[4, 3]", equation="ii"),
        bad(
            "dims of the label j must be equal, found 5 and 4",
            "[3, 5]",
            "[4, 5]",
            equation="ij, jk",
        ),
        bad(
            "operands must have one dtype, found int8 and float32",
            "int8[3]",
            "[4]",
            equation="i,j->ji",
        ),
        bad("a term of an equation has letters and one ellipsis, found '1'", "[2]", equation="1"),
        bad("needs labels of the operands, once each", "[2]", equation="i -> j"),
        bad("needs labels of the operands, once each", "[2]", equation="i -> ii"),
        bad("needs the ellipsis that its operands have", "[2, 3]", equation="...i -> i"),
    ],
)
