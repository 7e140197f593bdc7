"""How an op is declared: once, in its family's module, with everything about it.

A primitive has a ``reference`` (its meaning in NumPy), a composite an ``expand`` (its meaning in
other ops). The signature of the type rule is the signature of the op: positional parameters are
operands (``= None`` makes one optional, ``*xs`` any number), keyword-only ones are attributes.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar, cast, overload

from fusewire.dtypes import DType
from fusewire.errors import TypeRuleError
from fusewire.ir.dims import Dim, unbacked
from fusewire.ir.graph import Attr, Graph, Node, Value
from fusewire.ir.types import OptionalType, SequenceType, TensorType, Type, impossible, tensor_of
from fusewire.ops.decompose import Decomposition, Grade, decomposition
from fusewire.ops.operand import Operand, Traced, as_values, canonical
from fusewire.ops.ranges import ValueRange
from fusewire.ops.requires import Requirement
from fusewire.ops.sample import Refuses, Sample
from fusewire.ops.symbolic import Symbolic

R = TypeVar("R")


class Trait(enum.Enum):
    """What passes, the oracle and backends may rely on."""

    ELEMENTWISE = "each output element depends on the operands' elements at its place"
    REDUCTION = "axes are combined away"
    CONTRACTION = "sums of products"
    MOVEMENT = "elements are moved or repeated, never computed; any dtype, bit for bit"
    RANDOM = "counter-based random numbers"
    DISCONTINUOUS = "jumps: a small change of an operand can change the output by a lot"
    BITS = "reads or writes stored bits: the oracle rounds its operands to their dtype first"
    CONTROL = "runs subgraphs"
    HOST = "sequences, optionals or strings: only the reference runs it"
    UNBACKED = "an output's shape depends on the values of operands"
    COMMUTATIVE = "its two operands may be swapped"
    LINEAR = "linear in each operand: an error bound follows from the operands' magnitudes"
    COUNTING = "integers of integers: what it makes of sizes and places may be one again"
    SHAPE = "uses only the shape of its operand"
    REPLACES = "its first operand with some elements replaced: an engine may do it in place"
    READS_ONCE = "its own kernel reads each element of an operand once, so may compute it there"


class Kind(enum.Enum):
    """How an element is computed: what an op is to fusion."""

    FREE = "another index of the operand, or a number that the index gives"
    MAP = "of a few elements"
    FOLD = "of all elements along some axes, each of them once"
    WINDOW = "of the elements of a window, which windows beside it share"
    CONTRACT = "of products, each factor of which is used many times"
    WHOLE = "by kernels of its own"


class CostClass(enum.Enum):
    """How long one element takes."""

    LIGHT = "so short that a product may compute it anew for each use of a factor"
    USUAL = "about as long as an addition"
    SLOW = "many times as long as an addition"


# Only ops with one of these take sequences and optionals.
_NESTED = frozenset({Trait.HOST, Trait.CONTROL})
# Elementwise ops with so many are slow.
SLOW_FLOPS = 8


@dataclass(frozen=True)
class BodyLayout:
    """How operands and outputs of a control op line up with those of its subgraphs.

    The first ``fixed`` operands stay with the op, which gives each subgraph inputs of the types
    ``leading`` instead. The first ``flags`` outputs of the body are not outputs of the op.
    """

    fixed: int = 0
    leading: tuple[Type, ...] = ()
    flags: int = 0

    @property
    def skipped(self) -> int:
        """How far an operand is behind the input of a subgraph that it becomes."""
        return self.fixed - len(self.leading)

    def carries(self, node: Node) -> int:
        """Count the operands that each run of the body makes anew."""
        if "carries" not in node.attrs:
            return 0
        count = node.attrs["carries"]
        return count if isinstance(count, int) else len(node.inputs)


@dataclass(frozen=True)
class Tolerance:
    """How far a right answer may be from the exact one, judged on the same operands.

    ``exact``: not at all. ``codes``: integers by one, where the value lies between two of them.
    ``ulps``: so many times epsilon times the value. ``ranged``: times 1 where that is more.
    ``linear``: epsilon times sqrt(terms) times the op on the operands' magnitudes.
    ``spread``: a multiple of what last-place rounding inside the expansion changes.
    ``scaled``: like ulps, but of the largest output: algorithms that mix all elements (FFT, LU).
    """

    kind: str
    ulps: float = 0.0


# Why engines run some ops even on constants.
NEEDS_ROOM = "inside, it may need far more than its operands and outputs have."
EXACT = Tolerance("exact")
SPREAD = Tolerance("spread", 8.0)
LINEAR = Tolerance("linear", 4.0)
SCALED = Tolerance("scaled", 8.0)
CODES = Tolerance("codes", 4.0)


def ulps(count: float) -> Tolerance:
    """Allow so many units in the last place."""
    return Tolerance("ulps", count)


class Fresh:
    """The default of an attribute that names a size only the run can tell."""

    def __repr__(self) -> str:
        return "a fresh unbacked symbol"


FRESH: Any = Fresh()


Rule: TypeAlias = Callable[..., "TensorType | SequenceType | OptionalType | tuple[Type, ...]"]
Flops: TypeAlias = "int | Callable[[Sequence[Type | None], Sequence[Type], Mapping[str, Any]], Dim]"


@dataclass(frozen=True, eq=False)
class Op(Generic[R]):
    """A declared op; call it on values to make a node, on arrays to run the reference.

    ``decompose`` gives a primitive in simpler ones, for engines that lack it.
    ``kind`` and ``cost`` are for fusion. ``not_folded`` says why engines run it even on constants.
    ``value_range`` bounds the integers it makes, and ``symbolic`` is what it means on sizes.
    ``layout`` is for ops that run subgraphs. ``requires`` bounds the integers of its operands.
    ``steady`` names the operands that a kernel may read again and must find the same, besides
    those with an index: they decide how much it writes, or in what order. They are all operands of
    an op that is unbacked, unless it says more.
    ``refuses`` are uses that its type rule must refuse. ``kept_whole`` says why engines without a
    composite are not given its expansion.
    ``output_shapes`` gives the shapes of the outputs from operands and attributes, where values of
    operands decide them and may ask for any size.
    ``version`` and ``onnx``, DOMAIN:OpName, are of ops outside the tree: see ``outside``.
    """

    name: str
    family: str
    rule: Rule
    doc: str
    samples: Callable[[], Sequence[Sample]]
    dtypes: tuple[DType, ...]
    traits: frozenset[Trait]
    tolerance: Tolerance
    lacks: Mapping[str, str]
    kind: Kind | Callable[[Mapping[str, Attr]], Kind]
    cost: CostClass
    reference: Callable[..., Any] | None = None
    expand: Callable[..., Any] | None = None
    decompose: Decomposition | None = None
    flops: Flops | None = None
    index_operands: tuple[str, ...] = ()
    not_folded: str | None = None
    value_range: ValueRange | None = None
    symbolic: Symbolic | None = None
    layout: BodyLayout | None = None
    requires: tuple[Requirement, ...] = ()
    steady: tuple[str, ...] = ()
    refuses: Refuses | None = None
    kept_whole: str | None = None
    output_shapes: Callable[..., Sequence[Sequence[int]]] | None = None
    version: int = 1
    onnx: str | None = None

    def __repr__(self) -> str:
        return f"<op {self.name}{self.signature}>"

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.rule)

    @cached_property
    def parameters(self) -> tuple[tuple[str, ...], str | None, Mapping[str, Any]]:
        """Names of operands, name of the variadic operand, attributes with their defaults."""
        operands: list[str] = []
        variadic = None
        attrs: dict[str, Any] = {}
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                variadic = name
            elif parameter.kind is parameter.KEYWORD_ONLY:
                attrs[name] = parameter.default
            else:
                operands.append(name)
        return tuple(operands), variadic, attrs

    @property
    def is_composite(self) -> bool:
        return self.expand is not None

    def kind_of(self, attrs: Mapping[str, Attr]) -> Kind:
        """Tell the kind of a node with these attributes."""
        return self.kind(attrs) if callable(self.kind) else self.kind

    def is_(self, *traits: Trait) -> bool:
        """Tell whether the op has all of these traits."""
        return self.traits.issuperset(traits)

    def infer(self, inputs: Sequence[Type | None], attrs: Mapping[str, Attr]) -> tuple[Type, ...]:
        """Apply the type rule; TypeRuleError says what is wrong."""
        self._check_arity(inputs, attrs)
        first = next((t for t in inputs if t is not None), None)
        if first is not None and tensor_of(first).dtype not in self.dtypes:
            raise TypeRuleError(
                f"{self.name} does not take {tensor_of(first).dtype.name}. "
                f"It takes {', '.join(d.name for d in self.dtypes)}; cast the operand."
            )
        nested = next((t for t in inputs if isinstance(t, SequenceType | OptionalType)), None)
        if nested is not None and not self.traits & _NESTED:
            raise TypeRuleError(f"{self.name} takes tensors, found {nested}.")
        try:
            types = self.rule(*inputs, **attrs)
        except TypeRuleError as error:
            given = ", ".join("none" if t is None else str(t) for t in inputs)
            raise TypeRuleError(f"{self.name}({given}): {error}") from None
        found = types if isinstance(types, tuple) else (types,)
        if why := next(filter(None, map(impossible, found)), None):
            raise TypeRuleError(f"{self.name}: {why}")
        return found

    def _check_arity(self, inputs: Sequence[Type | None], attrs: Mapping[str, Attr]) -> None:
        operands, variadic, declared = self.parameters
        required = sum(
            self.signature.parameters[n].default is inspect.Parameter.empty for n in operands
        )
        given = next((i for i in range(len(inputs), 0, -1) if inputs[i - 1] is not None), 0)
        if given < required or (len(inputs) > len(operands) and variadic is None):
            raise TypeRuleError(
                f"{self.name} takes {self.name}{self.signature}, found {len(inputs)} operands."
            )
        if any(t is None for t in inputs[:required]):
            raise TypeRuleError(f"{self.name}: a required operand is absent.")
        if set(attrs) != set(declared):
            raise TypeRuleError(
                f"{self.name} has the attributes {sorted(declared)}, found {sorted(attrs)}."
            )

    def complete(self, attrs: Mapping[str, Any]) -> dict[str, Attr]:
        """Add defaults and bring attributes to their canonical form."""
        _, _, declared = self.parameters
        if unknown := sorted(set(attrs) - set(declared)):
            raise TypeRuleError(
                f"{self.name} has no attribute {', '.join(unknown)}. "
                f"It has {', '.join(sorted(declared)) or 'none'}."
            )
        full: dict[str, Attr] = {}
        for key, default in declared.items():
            if key in attrs:
                full[key] = canonical(attrs[key], self.signature.parameters[key].annotation)
            elif default is FRESH:
                full[key] = unbacked()
            elif default is inspect.Parameter.empty:
                raise TypeRuleError(f"{self.name} needs the attribute {key}.")
            else:
                full[key] = default
        return full

    def make(self, inputs: Sequence[Value | None], attrs: Mapping[str, Any]) -> Node:
        """Make a node; types are inferred."""
        operands, variadic, _ = self.parameters
        missing = 0 if variadic else max(0, len(operands) - len(inputs))
        padded = [*inputs, *([None] * missing)]
        full = self.complete(attrs)
        types = self.infer([None if v is None else v.type for v in padded], full)
        return Node(self.name, padded, full, types)

    def __call__(self, *operands: Operand, **attrs: Any) -> R:
        """Make a node over values, or run on arrays when no operand is a value."""
        leader = next((x for x in operands if isinstance(x, Traced)), None)
        if leader is None and not any(isinstance(x, Value) for x in operands):
            from fusewire.ops.interpret import run_op

            return cast(R, run_op(self, operands, attrs))
        values = as_values([x.value if isinstance(x, Traced) else x for x in operands])
        outputs = self.make(values, attrs).outputs
        wrapped = outputs if leader is None else tuple(leader.wrap(v) for v in outputs)
        return cast(R, wrapped[0] if len(wrapped) == 1 and not self.is_multiple else wrapped)

    def new(self, **attrs: Any) -> R:
        """Make a node of an op without operands: calling it would run it."""
        return cast(R, self.make([], attrs).outputs[0])

    @cached_property
    def is_multiple(self) -> bool:
        """Whether calling it gives a tuple: its rule says so in its return annotation."""
        said = self.signature.return_annotation
        # Annotations are strings here; one that is a name stands for an alias of its module.
        named = inspect.unwrap(self.rule).__globals__.get(said, said)
        return str(named).startswith("tuple")

    def expansion(self, node: Node) -> Graph:
        """Give the meaning of a composite node as a graph over the same inputs."""
        assert self.expand is not None, f"{self.name} is a primitive"
        inputs = [
            None if v is None else Value(v.type, f"operand{i}") for i, v in enumerate(node.inputs)
        ]
        found = self.expand(*inputs, **node.attrs)
        outputs = found if isinstance(found, tuple) else (found,)
        types = tuple(v.type for v in outputs)
        if types != node.types:
            raise TypeRuleError(
                f"{self.name} is {', '.join(map(str, node.types))} by its type rule and "
                f"{', '.join(map(str, types))} by its expansion."
            )
        names = [f"output{i}" for i in range(len(outputs))]
        present = [v for v in inputs if v is not None]
        return Graph(present, outputs, name=self.name, output_names=names)

    def decomposition(self, node: Node, grade: Grade) -> Graph | None:
        """Give a primitive node in simpler ones over the same inputs; None where it has no way."""
        return decomposition(self, node, grade)


ONE_OPERAND = "has one operand, so there is nothing to broadcast"


class Family:
    """The ops of one module: what declares them and keeps them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ops: dict[str, Op[Any]] = {}

    @overload
    def declare(
        self, name: str, rule: Callable[..., tuple[Type, ...]], **fields: Any
    ) -> Op[tuple[Value, ...]]: ...

    @overload
    def declare(
        self,
        name: str,
        rule: Callable[..., TensorType | SequenceType | OptionalType],
        **fields: Any,
    ) -> Op[Value]: ...

    def declare(self, name: str, rule: Rule, **fields: Any) -> Op[Any]:
        """Declare an op; ``fields`` are those of ``Op``, some of which follow from others."""
        op: Op[Any] = Op(name, self.name, rule, **_completed(name, rule, fields))
        assert name not in self.ops, f"the op {name} is declared twice in {self.name}"
        self.ops[name] = op
        return op


def _completed(name: str, rule: Rule, fields: dict[str, Any]) -> dict[str, Any]:
    """Fill in what follows: tolerance, kind and cost, and that one operand has no broadcast.

    A field of None is left open, as by helpers that pass on what they were not given.
    """
    fields = {key: value for key, value in fields.items() if value is not None}
    is_composite = "expand" in fields
    assert ("reference" in fields) != is_composite, f"{name} needs a reference or an expansion"
    traits = frozenset(fields.get("traits", ()))
    is_map = Trait.ELEMENTWISE in traits and not is_composite
    flops = fields.get("flops")
    is_slow = is_map and isinstance(flops, int) and flops >= SLOW_FLOPS
    lacks = dict(fields.get("lacks", {}))
    parameters = inspect.signature(rule).parameters.values()
    operands = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    if len(operands) == 1 and operands[0].kind is not operands[0].VAR_POSITIONAL:
        lacks.setdefault("broadcast", ONE_OPERAND)
    defaults = {
        "tolerance": SPREAD if is_composite else EXACT,
        "kind": Kind.MAP if is_map else Kind.WHOLE,
        "cost": CostClass.SLOW if is_slow else CostClass.USUAL,
    }
    given = {"dtypes": tuple(fields["dtypes"]), "traits": traits, "lacks": lacks}
    return defaults | fields | given
