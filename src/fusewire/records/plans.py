"""Saved plans: a plan, the targets it uses, and how it was chosen, as plain data.

A region is named by the digest of its graph: its artifacts are found by the digest, and the graph
is loaded when it is needed. The store authenticates what is read; a row of another form is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, get_args

from fusewire.contract.backend import Backend, Config, Device, Fact, Form, Shapes
from fusewire.errors import StoreError
from fusewire.ir.dims import Dim, lone_symbol
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.parse import parse_dim, parse_type
from fusewire.ir.types import Type
from fusewire.ops.intervals import Rule, Samples
from fusewire.options import FALLBACK
from fusewire.plan.guards import Guard
from fusewire.plan.plan import Plan, Region, Step
from fusewire.process.codec import read_record, read_value, write_record, write_value
from fusewire.records.keys import backend_fields

if TYPE_CHECKING:
    from fusewire.contract.model_file import ModelFile
    from fusewire.process.frames import Blobs

Row: TypeAlias = Any
# A forged choice must not start more threads than this.
_MOST_THREADS = 512
# What earlier versions chose at level 2, by the field that says so of a choice or a plan.
_SUPERSEDED = {
    "placing": "It places nodes on engines one by one, which Fusewire no longer does.",
    "is_concurrent": "It runs regions at the same time, which Fusewire no longer does.",
    "turns": "It runs regions at the same time, which Fusewire no longer does.",
}
# The place of a region: its step; in a body, the step around it, the body, and its own step.
Path: TypeAlias = tuple[int | str, ...]


class GraphSource(Protocol):
    """Loads graphs that a saved plan names by digest."""

    def stored_graph(self, region: Region) -> Graph | None:
        """Return the graph of a region that has a record of its own; None if it has none."""

    def plan(self) -> Plan:
        """Make the plan again, with its graphs."""


@dataclass(frozen=True)
class TargetPlace:
    """A backend and one of its devices, as plain data."""

    backend: str
    device: str


@dataclass(frozen=True)
class Choice:
    """A candidate as plain data; ``others`` are its further targets.

    With ``is_reduced`` the options have it compute in less than the model's own dtypes. Each engine
    has ``threads``, if that is not None, in place of those that the user asked for.
    """

    backend: str
    device: str
    form: Form = "native"
    options: Mapping[str, Fact] = field(default_factory=dict)
    others: tuple[TargetPlace, ...] = ()
    is_reduced: bool = False
    threads: int | None = None

    @property
    def places(self) -> tuple[TargetPlace, ...]:
        """Its targets, in order; the options of the first are those of the candidate."""
        return (TargetPlace(self.backend, self.device), *self.others)

    def to_data(self) -> dict[str, Any]:
        """Convert to plain data for JSON."""
        others = [[x.backend, x.device] for x in self.others]
        return {**asdict(self), "options": dict(self.options), "others": others}

    @staticmethod
    def from_data(row: Any) -> Choice:
        """Read plain data; StoreError if it is not a choice, or one that Fusewire no longer makes.

        Bundles of 0.1 have no others, and are exact.
        """
        if sentence := superseded(row):
            raise StoreError(sentence)
        return _read_choice(row)

    def config(self, config: Config, backend: str | None = None) -> Config:
        """Add the options of the candidate to those that the user asked for.

        They are for the first target: another one, by name, gets none of them. Nor does the
        fallback, which runs what that backend cannot.
        """
        config = replace(config, threads=self.threads or config.threads)
        if backend in [other.backend for other in self.others]:
            return replace(config, options={})
        asked = {} if self.backend == FALLBACK else config.options
        return replace(config, options={**asked, **self.options})


def superseded(row: Any) -> str:
    """Say why a choice or a plan of an earlier version is not used; empty if it is.

    >>> superseded({"placing": [], "is_concurrent": True})
    'It runs regions at the same time, which Fusewire no longer does.'
    """
    fields = _SUPERSEDED if isinstance(row, Mapping) else {}
    return next((sentence for name, sentence in fields.items() if row.get(name)), "")


def _read_choice(row: Any) -> Choice:
    new = {"others": [], "is_reduced": False, "threads": None}
    row = {**new, **row} if isinstance(row, Mapping) else row
    old = {name for name in _SUPERSEDED if isinstance(row, Mapping) and name in row}
    if not isinstance(row, Mapping) or set(row) - old != set(Choice.__dataclass_fields__):
        raise StoreError("A recorded choice has unknown or missing fields.")
    texts = [row["backend"], row["device"]]
    is_good = all(isinstance(x, str) for x in texts) and isinstance(row["options"], dict)
    is_good &= isinstance(row["is_reduced"], bool)
    is_good &= row["threads"] is None or _is_thread_count(row["threads"])
    if not is_good or row["form"] not in get_args(Form):
        raise StoreError("A recorded choice has a field of the wrong type.")
    own = {name: row[name] for name in row.keys() - old}
    own |= {"options": _read_options(row["options"]), "others": _read_others(row)}
    return Choice(**own)


def _is_thread_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= _MOST_THREADS


def _read_options(row: Mapping[str, Any]) -> dict[str, Fact]:
    """Read options; JSON has no tuples."""
    return {key: tuple(x) if isinstance(x, list) else x for key, x in row.items()}


def _read_others(row: Mapping[str, Any]) -> tuple[TargetPlace, ...]:
    """Read the further targets of a choice: each once. Earlier versions wrote empty options."""
    others = row["others"]
    is_listed = isinstance(others, list) and all(isinstance(x, list) for x in others)
    rows = [x[:2] if x[2:] == [{}] else x for x in others] if is_listed else [[]]
    if not all(list(map(type, x)) == [str, str] for x in rows):
        raise StoreError("A recorded choice has a field of the wrong type.")
    places = tuple(TargetPlace(name, device) for name, device in rows)
    if len({row["backend"], *(place.backend for place in places)}) <= len(places):
        raise StoreError("A recorded choice names a target twice.")
    return places


@dataclass(frozen=True)
class SavedTarget:
    """A target as a plan uses it.

    ``reference`` is "module:Class" of the backend, ``fields`` are what its artifacts depend on
    besides region and sizes, and ``environment`` has the values of the variables that its engine
    reads.
    """

    reference: str
    device: Device
    fields: tuple[tuple[str, str], ...]
    environment: Mapping[str, str | None] = field(default_factory=dict)

    @staticmethod
    def of(backend: Backend, reference: str, device: Device, config: Config) -> SavedTarget:
        """Describe a target of this process."""
        environment = {name: os.environ.get(name) for name in backend.info.environment}
        return SavedTarget(reference, device, backend_fields(backend, device, config), environment)

    @property
    def is_same_environment(self) -> bool:
        """Whether the variables that its engine reads are unchanged."""
        return all(os.environ.get(name) == text for name, text in self.environment.items())


@dataclass(frozen=True)
class SavedPlan:
    """A plan with all that a call needs, so that nothing has to be read, planned or measured.

    ``choice`` is its candidate, ``tried`` are the candidates that raced, and ``cut_at`` is the
    budget in seconds that ended the race early, or None; ``notes`` say what it left out.
    ``shapes`` are those of the inputs that it was chosen at, None for what is no tensor; empty if
    nothing was measured. ``warnings`` are shown at every warm start. ``is_alone``: the result is
    one array, not a tuple. ``superseded`` says why it is not used, if an earlier version made it
    in a way that Fusewire no longer does.
    """

    plan: Plan
    inputs: tuple[tuple[str, Type], ...]
    outputs: tuple[str, ...]
    is_alone: bool
    nodes: int
    targets: Mapping[str, SavedTarget]
    choice: Choice
    tried: Sequence[Mapping[str, Any]] = ()
    cut_at: float | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...] | None, ...] = ()
    superseded: str = ""

    @property
    def engine_names(self) -> str:
        """The names of the engines that run regions, as they are shown."""
        used = {region.backend for region in self.plan.regions()}
        names = [x.backend for x in self.choice.places if x.backend in used]
        return " + ".join(names or [self.choice.backend])


def write_saved(saved: SavedPlan, blobs: Blobs) -> Row:
    """Convert a saved plan to JSON and blobs."""
    return {
        "plan": write_plan(saved.plan, blobs),
        "inputs": _write_edges(saved.inputs),
        "outputs": list(saved.outputs),
        "is_alone": saved.is_alone,
        "nodes": saved.nodes,
        "targets": {name: _write_target(x) for name, x in saved.targets.items()},
        "choice": saved.choice.to_data(),
        "tried": list(saved.tried),
        "cut_at": saved.cut_at,
        "warnings": list(saved.warnings),
        "notes": list(saved.notes),
        "shapes": [None if shape is None else list(shape) for shape in saved.shapes],
    }


def read_saved(row: Row, blobs: Iterator[Array], source: GraphSource) -> SavedPlan:
    """Read a saved plan; StoreError, ValueError, TypeError or KeyError if the row is invalid."""
    _check_texts(*row["outputs"], *row["warnings"], *row["notes"])
    if type(row["nodes"]) is not int:
        raise StoreError("A recorded plan has a field of the wrong type.")
    sentence = superseded(row["choice"]) or superseded(row["plan"])
    # What it takes and returns is read all the same, and its first engine.
    choice = {**row["choice"], "others": []} if sentence else row["choice"]
    saved = SavedPlan(
        read_plan({**row["plan"], "turns": ()}, blobs, source),
        _read_edges(row["inputs"]),
        tuple(row["outputs"]),
        bool(row["is_alone"]),
        row["nodes"],
        {name: _read_target(x) for name, x in row["targets"].items()},
        _read_choice(choice),
        list(row["tried"]),
        None if row["cut_at"] is None else float(row["cut_at"]),
        tuple(row["warnings"]),
        tuple(row["notes"]),
        tuple(None if shape is None else tuple(map(int, shape)) for shape in row["shapes"]),
        sentence,
    )
    if not {x.backend for x in saved.choice.places} <= saved.targets.keys():
        raise StoreError("A recorded plan does not describe its own target.")
    return saved


def _write_target(target: SavedTarget) -> Row:
    return {
        "reference": target.reference,
        "device": write_record(target.device, []),
        "fields": [list(pair) for pair in target.fields],
        "environment": dict(target.environment),
    }


def _read_target(row: Row) -> SavedTarget:
    pairs = tuple((name, text) for name, text in row["fields"])
    _check_texts(row["reference"], *sum(pairs, ()))
    device = read_record(row["device"], iter(()), Device)
    return SavedTarget(row["reference"], device, pairs, dict(row["environment"]))


def write_plan(plan: Plan, blobs: Blobs) -> Row:
    """Convert a plan to JSON, with its constants as blobs."""
    return {
        "takes": plan.takes,
        "outputs": plan.outputs,
        "places": plan.places,
        "constants": [write_value(array, blobs) for array in plan.constants],
        "steps": [_write_step(step, blobs) for step in plan.steps],
        "guards": [_write_guard(guard) for guard in plan.guards],
        "steady": plan.steady,
    }


def _write_step(step: Step, blobs: Blobs) -> Row:
    region = step.region
    return {
        "edges": _write_edges([(v.name or "", v.type) for v in region.inputs]),
        "backend": region.backend,
        "device": write_record(region.device, []),
        "shapes": region.shapes,
        "digest": region.digest,
        "is_file": region.load_file is not None,
        "loses_nan": region.loses_nan,
        "inputs": step.inputs,
        "outputs": step.outputs,
        "frees": step.frees,
        "bodies": {name: write_plan(body, blobs) for name, body in step.bodies.items()},
        "guards": [_write_guard(guard) for guard in step.guards],
        "peaks": [str(peak) for peak in step.peaks],
    }


def read_plan(row: Row, blobs: Iterator[Array], source: GraphSource, path: Path = ()) -> Plan:
    """Read a plan; ``source`` loads graphs when they are needed. StoreError if it is invalid."""
    if sentence := superseded(row):
        raise StoreError(sentence)
    takes, places = row["takes"], row["places"]
    constants = tuple(read_value(x, blobs) for x in row["constants"])
    steps = [
        _read_step(step, blobs, places, source, (*path, number))
        for number, step in enumerate(row["steps"])
    ]
    _read_places([takes + len(constants)], places + 1)
    outputs = _read_places(row["outputs"], places)
    load = partial(_load_plan, source, path)
    # Guards of the start see the inputs and the constants.
    guards = _read_guards(row["guards"], takes + len(constants))
    # Bundles of 0.1 do not say it.
    steady = _read_places(row["steady"] if "steady" in row else range(takes), takes)
    return Plan(takes, tuple(steps), constants, outputs, places, load, guards, steady)


def _read_step(
    row: Row, blobs: Iterator[Array], places: int, source: GraphSource, path: Path
) -> Step:
    shapes: Shapes = row["shapes"]
    _check_texts(row["backend"], row["digest"])
    if shapes not in ("static", "dynamic"):
        raise StoreError("A recorded plan has a field of the wrong type.")
    inputs = tuple(Value(type_, name) for name, type_ in _read_edges(row["edges"]))
    device = read_record(row["device"], iter(()), Device)
    # Older records do not say it of a file, which may then be one that loses NaN.
    loses_nan = row.get("loses_nan", row["is_file"])
    if type(row["is_file"]) is not bool or type(loses_nan) is not bool:
        raise StoreError("A recorded plan has a field of the wrong type.")
    load = partial(_load_region, source, path)
    load_file = partial(_load_file, source, path) if row["is_file"] else None
    bodies = {
        name: read_plan(body, blobs, source, (*path, name)) for name, body in row["bodies"].items()
    }
    return Step(
        Region(inputs, row["backend"], device, shapes, load, row["digest"], load_file, loses_nan),
        _read_places(row["inputs"], places),
        _read_places(row["outputs"], places),
        _read_places(row["frees"], places),
        bodies,
        _read_guards(row["guards"], places),
        tuple(parse_dim(text) for text in row["peaks"]),
    )


def _load_plan(source: GraphSource, path: Path) -> Graph:
    return _body(source.plan(), path).graph


def _load_region(source: GraphSource, path: Path, region: Region) -> Graph:
    """Load the graph of a region; no other graph may ever be recorded under its digest."""
    stored = source.stored_graph(region)
    return stored if stored is not None else _planned_region(source, path, region).graph


def _load_file(source: GraphSource, path: Path, region: Region) -> ModelFile:
    """Load the file of a region, which must be the one that it was made of."""
    file = _planned_region(source, path, region).file
    assert file is not None, "its digest has that of a file"
    return file


def _planned_region(source: GraphSource, path: Path, region: Region) -> Region:
    *outer, number = path
    assert isinstance(number, int)
    planned = _body(source.plan(), tuple(outer)).steps[number].region
    if planned.digest != region.digest:
        raise StoreError(
            f"{region.backend} now claims other nodes of this model. Compile it again with "
            "cache=False."
        )
    return planned


def _body(plan: Plan, path: Path) -> Plan:
    """Follow a path of steps and body names into a plan."""
    for number, name in zip(path[::2], path[1::2], strict=True):
        assert isinstance(number, int)
        plan = plan.steps[number].bodies[str(name)]
    return plan


def _write_guard(guard: Guard) -> Row:
    return {
        "place": guard.place,
        "view": [_write_view(step) for step in guard.view],
        "shape": _write_dims(guard.shape),
        "intervals": [_write_dims(ends) for ends in guard.intervals],
        "ignored": guard.ignored,
        "sizes": [[symbol.key, place, axis] for symbol, place, axis in guard.sizes],
        "names": [guard.label, guard.operand, guard.source],
        "rule": guard.rule,
        "samples": None if guard.samples is None else [*guard.samples.bins, guard.samples.scale],
    }


def _write_view(step: Sequence[Any]) -> Row:
    """Write a step: its name, then numbers, texts, and lists of dims as texts."""
    return [_write_dims(x) if isinstance(x, tuple) else x for x in step]


def _write_dims(dims: Sequence[Dim]) -> Row:
    return [dim if isinstance(dim, int) else str(dim) for dim in dims]


def _read_dims(row: Row) -> tuple[Dim, ...]:
    # Most are numbers, and a parser for each takes its time at a warm start.
    return tuple(x if type(x) is int else parse_dim(x) for x in row)


def _read_guards(rows: Row, places: int) -> tuple[Guard, ...]:
    return tuple(_read_guard(row, places) for row in rows)


def _read_guard(row: Row, places: int) -> Guard:
    ignored, (label, operand, source) = row["ignored"], row["names"]
    _check_texts(label, operand, source or "")
    if type(ignored) not in (int, type(None)):
        raise StoreError("A recorded plan has a field of the wrong type.")
    sizes = []
    for key, place, axis in row["sizes"]:
        symbol = lone_symbol(parse_dim(key))
        if symbol is None or type(axis) is not int:
            raise StoreError("A recorded plan has a field of the wrong type.")
        sizes.append((symbol, _read_places([place], places)[0], axis))
    return Guard(
        _read_places([row["place"]], places)[0],
        tuple(_read_view(step) for step in row["view"]),
        _read_dims(row["shape"]),
        tuple((low, high) for low, high in map(_read_dims, row["intervals"])),
        ignored,
        tuple(sizes),
        label,
        operand,
        source,
        _read_rule(row),
        _read_samples(row),
    )


def _read_rule(row: Row) -> Rule:
    # Bundles of 0.1 have no other.
    rule: Rule = row.get("rule", "within")
    if rule not in ("within", "ordered", "finite", "sampled"):
        raise StoreError("A recorded plan has a guard of an unknown form.")
    return rule


def _read_samples(row: Row) -> Samples | None:
    samples = row.get("samples")
    if (samples is None) == (row.get("rule") == "sampled"):
        raise StoreError("A recorded plan has a guard of an unknown form.")
    if samples is None:
        return None
    rows, columns, scale = samples
    if not type(rows) is type(columns) is int or type(scale) is not float:
        raise StoreError("A recorded plan has a field of the wrong type.")
    return Samples((rows, columns), scale)


def _read_view(row: Row) -> tuple[Any, ...]:
    name, *arguments = row
    if name not in ("take", "slice", "reshape", "broadcast", "transpose", "cast"):
        raise StoreError("A recorded plan has a guard of an unknown form.")
    return name, *(_read_dims(x) if isinstance(x, list) else x for x in arguments)


def _write_edges(edges: Sequence[tuple[str, Type]]) -> Row:
    return [[name, str(type_)] for name, type_ in edges]


def _read_edges(rows: Row) -> tuple[tuple[str, Type], ...]:
    return tuple((str(name), parse_type(text)) for name, text in rows)


def _read_places(row: Row, places: int) -> tuple[int, ...]:
    if not all(type(place) is int and 0 <= place < places for place in row):
        raise StoreError("A recorded plan uses a place that it does not have.")
    return tuple(row)


def _check_texts(*texts: object) -> None:
    if not all(isinstance(text, str) for text in texts):
        raise StoreError("A recorded plan has a field of the wrong type.")
