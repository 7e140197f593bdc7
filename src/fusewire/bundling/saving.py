"""Save a program to a bundle: its plans, their artifacts, its graphs, and its weights if asked."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

from fusewire.choosing.explain import Explanation, FunctionExplanation
from fusewire.contract.backend import Config
from fusewire.contract.frontend import Structure
from fusewire.contract.model_file import known_constants
from fusewire.errors import FormatError, GraphError, OptionsError
from fusewire.ir.graph import Constant, Graph
from fusewire.ir.text import INLINE_BYTES, print_graph
from fusewire.options import BUNDLED, Options
from fusewire.process.codec import write_value
from fusewire.program.entry import Entry
from fusewire.program.program import Program
from fusewire.program.serving import NotedDetails, OpenDecision
from fusewire.records.bundles import (
    CONSTANTS,
    ENDING,
    GRAPH,
    NewSection,
    header_of,
    statement_of,
    write_bundle,
)
from fusewire.records.entries import Records, artifact_of, needs, saved_payload
from fusewire.records.framing import framed
from fusewire.records.keys import bundle_key
from fusewire.records.plans import SavedPlan
from fusewire.records.recall import keep_host_graphs
from fusewire.session.context import reference_target
from fusewire.session.warm_start import RecalledDetails
from fusewire.store.key import Key
from fusewire.store.signing import RELEASE, Signer
from fusewire.store.stamps import file_digest
from fusewire.trials.build import PlanBuilder

# How long to wait for an artifact that is still being recorded, in seconds.
_PATIENCE = 10.0


@dataclass(frozen=True)
class SavingOptions:
    """How to save: with the weights or not, and signed with which key.

    ``expires`` is in seconds since 1970. Readers who saw a higher ``generation`` of the same
    program, by the same signer, refuse this one. With a ``release``, so do those who ask for a
    release of that name, whatever programs it had.
    """

    weights: bool = False
    key: str | os.PathLike[str] | None = None
    generation: int = 0
    expires: int | None = None
    release: str | None = None

    def __post_init__(self) -> None:
        if self.release is not None and self.key is None:
            raise OptionsError(
                f"The release {self.release} was given without a key. It is part of what is "
                "signed: give the private key."
            )


@dataclass(frozen=True, eq=False)
class _Plan:
    """A plan of the program, with what it was built from."""

    saved: SavedPlan
    builder: PlanBuilder
    notes: tuple[str, ...] = ()

    @property
    def graph(self) -> Graph:
        return self.saved.plan.graph


def save_program(
    program: Program,
    path: str | os.PathLike[str],
    options: Options,
    source: Any,
    saving: SavingOptions,
) -> tuple[str, ...]:
    """Write a program to a bundle; returns what whoever opens it should know."""
    if not isinstance(options.backend, str | tuple):
        raise FormatError("A program with a policy of its own cannot be saved: name a backend.")
    if not isinstance(options.accuracy, str | int | float):
        raise FormatError(
            "A program whose accuracy is a function cannot be saved: give a bound, or 'exact'."
        )
    signer = None if saving.key is None else Signer.read(Path(saving.key))
    program.wait()
    plans = [_plan_of(entry, program.name) for entry in program.all_entries()]
    if not plans:
        raise GraphError(f"The program {program.name} has not been called, so it has no plan yet.")
    contents = _Contents(options)
    for plan in plans:
        contents.add(plan)
    sections, constants = contents.sections, contents.constants
    if saving.weights and constants:
        sections[CONSTANTS] = NewSection(CONSTANTS, None, _written(constants))
    about = {
        "fusewire": version("fusewire"),
        "name": program.name,
        "options": {name: _plain(getattr(options, name)) for name in BUNDLED},
        "programs": contents.rows,
        "source": _source(source, path, constants, saving.weights),
    }
    listed = list(sections.values())
    header = header_of(about, listed)
    signature = b"" if signer is None else _signature(signer, header, contents.rows, saving)
    write_bundle(Path(path), header, signature, listed)
    return tuple(note for plan in plans for note in plan.notes)


@final
class _Contents:
    """What a bundle will have: sections by name, the weights, and a row for each plan."""

    def __init__(self, options: Options) -> None:
        self.rows: list[dict[str, Any]] = []
        self.sections: dict[str, NewSection] = {}
        self.constants: dict[str, Constant] = {}
        self._options = options

    def add(self, plan: _Plan) -> None:
        """Add a plan, its graph and its artifacts."""
        text, name = print_graph(plan.graph).encode(), f"{GRAPH}/{len(self.rows)}"
        self.sections[name] = NewSection(name, None, text)
        key = bundle_key(hashlib.sha256(text).hexdigest(), self._options)
        artifacts = _artifacts(plan)
        for entry in ((key, saved_payload(plan.saved)), *artifacts.items()):
            section = NewSection.entry(*entry)
            self.sections[section.name] = section
        self.constants |= _constants(plan, artifacts)
        notes = (*plan.notes, *plan.saved.notes)
        self.rows.append({"plan": key.digest, "graph": name, "notes": list(notes)})


def _signature(
    signer: Signer, header: bytes, rows: list[dict[str, Any]], saving: SavingOptions
) -> bytes:
    digest, plans = hashlib.sha256(header).hexdigest(), [row["plan"] for row in rows]
    versions = {"fusewire": version("fusewire")}
    if saving.release is not None:
        versions[RELEASE] = saving.release
    statement = replace(
        statement_of(digest, plans),
        versions=tuple(sorted(versions.items())),
        generation=saving.generation,
        expires=saving.expires,
    )
    return signer.sign(statement)


def _plan_of(entry: Entry, name: str) -> _Plan:
    """Return the plan of an entry; FormatError or GraphError say why it cannot be saved."""
    # What is used, and not settled, may be saved: nothing more is compared here.
    is_compared = entry.serving is None or isinstance(entry.serving, OpenDecision)
    if entry.decide is not None or not is_compared:
        raise GraphError(
            f"The program {name} has not settled on a plan yet. Call it, and then program.wait()."
        )
    flat = (Structure.LEAF,) * len(entry.inputs)
    results = (Structure.LEAF, (Structure.LEAF,) * len(entry.results.names))
    if entry.arguments.tree != flat or entry.results.tree not in results or entry.updates:
        raise FormatError(
            f"The program {name} cannot be saved: it does not simply take and return arrays. Save "
            "one that does, without containers, other arguments, or arguments that it writes to."
        )
    details = entry.details
    notes: tuple[str, ...] = ()
    while isinstance(details, NotedDetails):
        details = details.details
    if isinstance(details, FunctionExplanation):
        details = details.rejected
        notes = (
            "Here the program runs your own function, which no file can hold: the bundle has the "
            f"best other candidate, {details.builder.first.name}.",
        )
    if not isinstance(details, Explanation | RecalledDetails) or details.saved is None:
        raise FormatError(f"The program {name} has no plan that can be saved.")
    return _Plan(details.saved(), details.builder, notes)


def _artifacts(plan: _Plan) -> dict[Key, bytes]:
    """Return the artifacts that were built for a plan, and the graphs that the host runs."""
    records, fallback = plan.builder.records, reference_target()
    kept = Records(None, most=None)
    keep_host_graphs(kept, plan.saved.plan, fallback.backend, fallback.device, Config())
    found = {key: payload for key, payload in kept.kept() if key.kind == "artifact"}
    for built in list(plan.builder.contacts):
        key = built.key
        if key is None or records is None or key in found or built.contacted.outcome != "ready":
            continue
        if (payload := _recorded(records, key)) is not None:
            found[key] = payload
    # What serves any size may not have been needed here.
    fitted = filter(plan.builder.fits_sizes, plan.saved.plan.regions())
    for key in [plan.builder.key(region, ()) for region in fitted]:
        if records is not None and (payload := records.get(key)) is not None:
            found[key] = payload
    return found


def _recorded(records: Records, key: Key) -> bytes | None:
    """Read an artifact; a large one is recorded after the first answer."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with records.alone(key):
            if (payload := records.get(key)) is not None:
                return payload
        time.sleep(0.02)
    return None


def _constants(plan: _Plan, artifacts: Mapping[Key, bytes]) -> dict[str, Constant]:
    """Return the weights by digest: those of the graph, and those that artifacts are loaded with.

    What is small, and no artifact names, is in the text of the graph.
    """
    known = known_constants(plan.graph, None)
    for region in plan.saved.plan.regions():
        known |= known_constants(region.graph, region.file)
    named = {x for payload in artifacts.values() for x in needs(artifact_of(payload))}
    own = known_constants(plan.graph, None)
    return {
        digest: constant
        for digest, constant in known.items()
        if digest in named or (digest in own and _nbytes(constant) > INLINE_BYTES)
    }


def _nbytes(constant: Constant) -> int:
    if constant.type.dtype.kind == "string":
        return INLINE_BYTES + 1
    count = 1
    for dim in constant.type.shape:
        assert isinstance(dim, int), "constants are static"
        count *= dim
    return count * constant.type.dtype.bits // 8


def _written(constants: Mapping[str, Constant]) -> bytes:
    blobs: list[Any] = []
    return framed({x: write_value(one.array, blobs) for x, one in constants.items()}, blobs)


def _source(
    source: Any, path: str | os.PathLike[str], constants: Mapping[str, Constant], weights: bool
) -> dict[str, str] | None:
    """Say which file the weights are in; FormatError if they would be nowhere."""
    if isinstance(source, str | os.PathLike):
        place = Path(os.fsdecode(source))
        digest = file_digest(place)
        if digest is not None and place.suffix != ENDING:
            return {"name": place.name, "path": str(place.absolute()), "sha256": digest}
    if constants and not weights:
        raise FormatError(
            f"{os.fspath(path)} would have no weights, and no model file has them. Save it with "
            "weights=True."
        )
    return None


def _plain(option: Any) -> Any:
    return dict(option) if isinstance(option, Mapping) else option
