"""A plan as far as a call must know it, as what can be written down.

Its regions are named by digest: artifacts are found by that, and the graphs are read when somebody
asks. What is read back was authenticated by the store; what does not fit its form is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fusewire.contract.backend import Device, Shapes
from fusewire.errors import StoreError
from fusewire.ir.graph import Array, Value
from fusewire.ir.parse import parse_type
from fusewire.ir.types import Type
from fusewire.process.codec import read_record, read_value, write_record, write_value
from fusewire.process.frames import Blobs
from fusewire.runtime.plan import Course, Outline, Region, Step

Row: TypeAlias = Any
# Gives the course as it is planned, graphs and all.
Find: TypeAlias = Callable[[], Course]
# Gives a region whose graph is kept by itself.
Tell: TypeAlias = Callable[[Outline], Region | None]
MakeCourse: TypeAlias = Callable[[Find, Tell], Course]


@dataclass(frozen=True)
class Station:
    """A backend as a plan uses it.

    ``reference`` is "module:Class", ``fields`` are what its artifacts depend on beside region and
    sizes, ``environment`` the variables that it listens to, as they were.
    """

    reference: str
    device: Device
    fields: tuple[tuple[str, str], ...]
    environment: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Sketch:
    """A plan, as far as a call must know it; the rest is read when it is asked for.

    ``course`` makes its course, given who finds regions that somebody asks for. ``choice`` is the
    form and the options of the backend, ``tried`` what was compared, ``cut_at`` the budget in
    seconds that ended this early, None if none did; ``said`` is what a user is warned of.
    """

    inputs: tuple[tuple[str, Type], ...]
    outputs: tuple[str, ...]
    is_alone: bool
    backend: str
    nodes: int
    stations: Mapping[str, Station]
    course: MakeCourse
    choice: Mapping[str, Any] = field(default_factory=dict)
    tried: Sequence[Mapping[str, Any]] = ()
    cut_at: float | None = None
    said: tuple[str, ...] = ()


def write_sketch(sketch: Sketch, blobs: Blobs) -> Row:
    """Give a sketch as JSON and blobs."""
    return {
        "inputs": _write_edges(sketch.inputs),
        "outputs": list(sketch.outputs),
        "is_alone": sketch.is_alone,
        "backend": sketch.backend,
        "nodes": sketch.nodes,
        "stations": {name: _write_station(x) for name, x in sketch.stations.items()},
        "course": write_course(sketch.course(_unasked, _untold), blobs),
        "choice": dict(sketch.choice),
        "tried": list(sketch.tried),
        "cut_at": sketch.cut_at,
        "said": list(sketch.said),
    }


def read_sketch(row: Row, blobs: Iterator[Array]) -> Sketch:
    """Read it back; StoreError, ValueError, TypeError or KeyError when it is none."""
    _texts(row["backend"], *row["outputs"], *row["said"])
    if type(row["nodes"]) is not int or not isinstance(row["choice"], dict):
        raise StoreError("A plan holds what is not of its kind.")
    course = read_course(row["course"], blobs)
    return Sketch(
        _read_edges(row["inputs"]),
        tuple(row["outputs"]),
        bool(row["is_alone"]),
        row["backend"],
        row["nodes"],
        {name: _read_station(x) for name, x in row["stations"].items()},
        course,
        row["choice"],
        list(row["tried"]),
        None if row["cut_at"] is None else float(row["cut_at"]),
        tuple(row["said"]),
    )


def _write_station(station: Station) -> Row:
    return {
        "reference": station.reference,
        "device": write_record(station.device, []),
        "fields": [list(pair) for pair in station.fields],
        "environment": dict(station.environment),
    }


def _read_station(row: Row) -> Station:
    pairs = tuple((name, text) for name, text in row["fields"])
    _texts(row["reference"], *sum(pairs, ()))
    device = read_record(row["device"], iter(()), Device)
    return Station(row["reference"], device, pairs, dict(row["environment"]))


def write_course(course: Course, blobs: Blobs) -> Row:
    """Give a course as JSON, its constants as blobs."""
    return {
        "takes": course.takes,
        "outputs": course.outputs,
        "places": course.places,
        "constants": [write_value(array, blobs) for array in course.constants],
        "steps": [_write_step(step, blobs) for step in course.steps],
    }


def _write_step(step: Step, blobs: Blobs) -> Row:
    outline = step.outline
    return {
        "edges": _write_edges([(v.name or "", v.type) for v in outline.inputs]),
        "backend": outline.backend,
        "device": write_record(outline.device, []),
        "shapes": outline.shapes,
        "region": outline.digest,
        "inputs": step.inputs,
        "outputs": step.outputs,
        "frees": step.frees,
        "bodies": {name: write_course(body, blobs) for name, body in step.bodies.items()},
    }


def read_course(row: Row, blobs: Iterator[Array]) -> MakeCourse:
    """Read a course; what it gives makes one, given who finds regions that somebody asks for."""
    takes, places = row["takes"], row["places"]
    constants = tuple(read_value(x, blobs) for x in row["constants"])
    outputs = _places(row["outputs"], places)
    steps = [_read_step(step, blobs, places) for step in row["steps"]]
    _places([takes + len(constants)], places + 1)

    def make(find: Find, tell: Tell) -> Course:
        made = (step(_at(find, place), tell) for place, step in enumerate(steps))
        return Course(takes, tuple(made), constants, outputs, places)

    return make


def _read_step(
    row: Row, blobs: Iterator[Array], places: int
) -> Callable[[Callable[[], Step], Tell], Step]:
    shapes: Shapes = row["shapes"]
    _texts(row["backend"], row["region"])
    if shapes not in ("static", "dynamic"):
        raise StoreError("A plan holds what is not of its kind.")
    edges = tuple(Value(type_, name) for name, type_ in _read_edges(row["edges"]))
    device = read_record(row["device"], iter(()), Device)
    inputs, outputs, frees = (_places(row[x], places) for x in ("inputs", "outputs", "frees"))
    bodies = {name: read_course(body, blobs) for name, body in row["bodies"].items()}

    def make(find: Callable[[], Step], tell: Tell) -> Step:
        outline = Outline(
            edges,
            row["backend"],
            device,
            shapes,
            lambda: tell(outline) or _region(find(), outline),
            row["region"],
        )
        made = {name: body(_in(find, name), tell) for name, body in bodies.items()}
        return Step(outline, inputs, outputs, frees, made)

    return make


def _at(find: Find, place: int) -> Callable[[], Step]:
    return lambda: find().steps[place]


def _in(find: Callable[[], Step], name: str) -> Find:
    return lambda: find().bodies[name]


def _region(step: Step, outline: Outline) -> Region:
    """Give the region of a step; what is made of another would be kept under its name."""
    if step.outline.digest != outline.digest:
        raise StoreError(
            f"{outline.backend} plans this model otherwise than before. Compile it anew with "
            "cache=False."
        )
    return step.region


def _unasked() -> Course:
    raise AssertionError("regions are there before they are written down")


def _untold(outline: Outline) -> None:
    _unasked()


def _write_edges(edges: Sequence[tuple[str, Type]]) -> Row:
    return [[name, str(type_)] for name, type_ in edges]


def _read_edges(rows: Row) -> tuple[tuple[str, Type], ...]:
    return tuple((str(name), parse_type(of)) for name, of in rows)


def _places(found: Row, places: int) -> tuple[int, ...]:
    if not all(type(place) is int and 0 <= place < places for place in found):
        raise StoreError("A plan names places that it does not have.")
    return tuple(found)


def _texts(*found: object) -> None:
    if not all(isinstance(text, str) for text in found):
        raise StoreError("A plan holds what is not of its kind.")
