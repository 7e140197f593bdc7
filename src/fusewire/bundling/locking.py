"""Lock files: what was chosen for each program, as text that people review in a diff.

    [model]
    bundle: model.fw
    engine: onnxruntime
    ...

A stanza is made of a bundle and says nothing else, so that it can be made again and compared.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewire.bundling.opening import BundledPlan, OpenedBundle, opened_bundle
from fusewire.errors import FormatError, FusewireError, visible
from fusewire.records.bundles import CONSTANTS, Section
from fusewire.records.plans import SavedPlan
from fusewire.store.files import plain_file
from fusewire.store.stamps import file_digest

LOCK = "fusewire.lock"
_HEAD = "# What was chosen for each program. `fusewire check` compares it with the bundles.\n"
_MOST_BYTES, _MOST_STANZAS = 2**24, 10_000
_FIELD = re.compile(r"([a-z][a-z0-9-]*):(?: (.*))?")


@dataclass(frozen=True)
class Stanza:
    """What was chosen for one program: fields by name, in order."""

    name: str
    fields: Mapping[str, str]

    def text(self) -> str:
        """Write it as in the file."""
        lines = (f"{field}: {text}".rstrip() for field, text in self.fields.items())
        return "\n".join([f"[{self.name}]", *lines, ""])


@dataclass(frozen=True)
class Drift:
    """A field that is not as it was locked."""

    program: str
    field: str
    locked: str
    found: str


def read_lock(path: str | os.PathLike[str]) -> dict[str, Stanza]:
    """Read a lock file; FormatError names the line that cannot be read."""
    place = Path(path)
    try:
        with plain_file(place.resolve()) as file:
            if file.size > _MOST_BYTES:
                raise FormatError(f"{place} has {file.size:,} bytes, too many for a lock file.")
            text = file.read(0, file.size).decode()
    except (OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"The lock file {place} cannot be read: {error}") from None
    stanzas: dict[str, dict[str, str]] = {}
    fields: dict[str, str] | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line.startswith("#"):
            continue
        is_name = line.startswith("[") and line.endswith("]")
        found = _FIELD.fullmatch(line)
        if is_name and line[1:-1] not in stanzas and len(stanzas) < _MOST_STANZAS:
            fields = stanzas[line[1:-1]] = {}
        elif found is not None and fields is not None and found[1] not in fields:
            fields[found[1]] = found[2] or ""
        else:
            raise FormatError(
                f"{place}, line {number}: expected a new [program], or `field: text` of one."
            )
    return {name: Stanza(name, fields) for name, fields in stanzas.items()}


def write_lock(path: Path, stanzas: Mapping[str, Stanza]) -> None:
    """Write a lock file, in the order of names; atomically."""
    text = "\n".join([_HEAD, *(stanzas[name].text() for name in sorted(stanzas))])
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise FormatError(
            f"The lock file {path} cannot be written: {error.strerror or error}."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def lock_bundle(lock: Path, bundle: Path) -> list[Stanza]:
    """Add the programs of a bundle to a lock file, in place of those of the same bundle."""
    stanzas = read_lock(lock) if lock.exists() else {}
    made = stanzas_of(bundle, lock.parent)
    place = made[0].fields["bundle"]
    rest = {name: x for name, x in stanzas.items() if x.fields.get("bundle") != place}
    if taken := sorted(rest.keys() & {stanza.name for stanza in made}):
        raise FormatError(f"{lock} has a program {taken[0]} of another bundle.")
    write_lock(lock, {**rest, **{stanza.name: stanza for stanza in made}})
    return made


def stanzas_of(bundle: Path, folder: Path) -> list[Stanza]:
    """Make the stanzas of the programs of a bundle; paths are relative to a folder."""
    opened = opened_bundle(bundle)
    opened.bundle.verify()
    place = os.path.relpath(bundle.resolve(), folder.resolve())
    count = len(opened.about.programs)
    names = [opened.about.name, *(f"{opened.about.name} {x}" for x in range(1, count))]
    return [
        Stanza(_line(name), {"bundle": _line(place), **_fields(opened, opened.plan(number))})
        for number, name in enumerate(names)
    ]


def drifts(lock: Path) -> Iterator[Drift]:
    """Yield the fields in which bundles, model files and engines differ from a lock file."""
    stanzas = read_lock(lock)
    by_bundle: dict[str, list[Stanza]] = {}
    for stanza in stanzas.values():
        by_bundle.setdefault(stanza.fields.get("bundle", ""), []).append(stanza)
    for place, locked in by_bundle.items():
        try:
            found = {x.name: x for x in stanzas_of(lock.parent / place, lock.parent)}
        except FusewireError as error:
            yield Drift(locked[0].name, "bundle", place, str(error))
            continue
        for stanza in locked:
            yield from differences(stanza, found.get(stanza.name))
            yield from _here(stanza, lock.parent)
        for name in sorted(found.keys() - {stanza.name for stanza in locked}):
            yield Drift(name, "bundle", "absent", place)


def differences(one: Stanza | None, other: Stanza | None) -> Iterator[Drift]:
    """Yield the fields in which two stanzas differ."""
    first, second = one.fields if one else {}, other.fields if other else {}
    name = one.name if one else other.name if other else ""
    if one is None or other is None:
        yield Drift(name, "program", "absent" if one is None else name, "absent" if one else name)
        return
    for field in dict.fromkeys([*first, *second]):
        pair = first.get(field, "absent"), second.get(field, "absent")
        if pair[0] != pair[1]:
            yield Drift(name, field, *pair)


def _here(stanza: Stanza, folder: Path) -> Iterator[Drift]:
    """Yield what differs on this machine: the version of the engine, and the model file."""
    from fusewire.registry import REGISTRY

    engines, fields = stanza.fields.get("engine", "").split(" + "), stanza.fields
    known = REGISTRY.backends.names()
    versions = [REGISTRY.backends.get(x).info.version if x in known else "none" for x in engines]
    version = " + ".join(versions)
    if version != fields.get("version"):
        found = version.replace("none", "not installed")
        yield Drift(stanza.name, "version", fields.get("version", "absent"), f"{found} here")
    model = fields.get("model", "")
    beside = (folder / fields.get("bundle", "")).parent / Path(model).name
    if model and beside.is_file():
        digest = file_digest(beside)
        if digest != fields.get("model-sha256"):
            locked = fields.get("model-sha256", "absent")
            yield Drift(stanza.name, "model-sha256", locked, f"{digest} here")


def _fields(opened: OpenedBundle, plan: BundledPlan) -> dict[str, str]:
    saved, source = plan.saved, opened.about.source
    if saved.superseded:
        raise FormatError(
            f"The plan in {opened.bundle.path} is not used. {saved.superseded} Save it again."
        )
    host = dict(plan.key.fields)
    places = saved.choice.places
    engines = [dict(saved.targets[x.backend].fields) for x in places]
    fields = {
        "engine": " + ".join(x.backend for x in places),
        "version": " + ".join(engine.get("its_engine", "none") for engine in engines),
        "device": " + ".join(x.device for x in places),
        "device-kind": f"{host.get('processor', '')} ({host.get('features', '')})",
        "form": saved.choice.form,
        "options": json.dumps(dict(saved.choice.options), sort_keys=True, default=str),
        "threads": str(saved.choice.threads or opened.options.threads or "default"),
        "inputs": ", ".join(f"{name} {type_}" for name, type_ in saved.inputs),
        "outputs": ", ".join(saved.outputs),
        "measured-at": "; ".join(map(str, saved.shapes)) or "nothing",
        **_measured(saved),
        "graph-sha256": host.get("file", ""),
        "artifacts-sha256": " ".join(_artifacts(opened, saved)) or "none",
        "weights-sha256": _digest(opened, CONSTANTS),
        "model": source["name"] if source else "",
        "model-sha256": source["sha256"] if source else "",
        "signer": opened.signer or "nobody",
    }
    return {field: _line(text) for field, text in fields.items()}


def _measured(saved: SavedPlan) -> dict[str, str]:
    """Describe how the chosen candidate did: its time with its interval, and its error."""
    rows: list[Mapping[str, Any]] = [row for row in saved.tried if row.get("is_chosen")]
    if not rows:
        return {"time": "not measured", "verdict": "not judged", "error": "not judged"}
    row = rows[0]
    numbers = [row.get(name) for name in ("seconds", "low", "high", "error")]
    if not all(isinstance(x, int | float | None) for x in numbers):
        raise FormatError("A plan in a bundle has a measurement that is not a number.")
    seconds, low, high, error = (None if x is None else float(x) for x in numbers)
    time = "not measured" if seconds is None else f"{_milliseconds(seconds)} ms"
    if low is not None and high is not None:
        time += f" ({_milliseconds(low)} to {_milliseconds(high)})"
    said = "not judged" if error is None else f"{error:.3g} of the tolerance"
    return {"time": time, "verdict": str(row.get("status", "")), "error": said}


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"


def _artifacts(opened: OpenedBundle, saved: SavedPlan) -> list[str]:
    """List the digests of the artifacts of a plan's regions."""
    digests = {region.digest for region in saved.plan.regions()}

    def is_own(section: Section) -> bool:
        key = section.key
        return key is not None and dict(key.fields).get("region") in digests

    return sorted(section.digest for section in opened.bundle.head.sections if is_own(section))


def _digest(opened: OpenedBundle, name: str) -> str:
    sections = opened.bundle.head.sections
    return next((section.digest for section in sections if section.name == name), "not inside")


def _line(text: str) -> str:
    """Put a text of unknown origin on one line that steers nothing."""
    return visible(text).replace("\n", " ").replace("\t", " ").strip()
