"""``fusewire cache``: what is kept between runs, whether it is intact, and how to move it."""

from __future__ import annotations

import json
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from fusewire.cli.terminal import Terminal
from fusewire.errors import StoreError, StoreWarning, visible
from fusewire.store.disk import Store, StoreEntry
from fusewire.store.exchange import Moved, export, take
from fusewire.store.key import CODE, DATA, KINDS, apart, nearest, shorten
from fusewire.tables import Column, Sheet

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_AGES = {"s": 1, "min": 60, "h": 3600, "d": 86400}
# What wraps in a table.
_PROSE = ("fields", "this", "nearest")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
_kind = click.Choice(sorted(KINDS))


@click.group()
def command() -> None:
    """List, explain, verify, prune, export or import what is kept between runs."""


@command.command()
@click.argument("kind", type=_kind, required=False)
@_json
def ls(kind: str | None, as_json: bool) -> None:
    """Count entries by kind, or list those of one KIND."""
    store = open_store()
    entries = sorted(store.entries(kind), key=lambda entry: -entry.used)
    if as_json:
        rows = [_row(entry) for entry in entries]
        about = {"folder": str(store.path), "limit": store.limit, "kinds": _kinds(entries)}
        click.echo(json.dumps({**about, "entries": rows}, indent=1))
        return
    console = Terminal()
    if kind is None:
        _print(console, _kinds(entries), size=_size, used=_age)
    else:
        rows = [{**_row(entry), "digest": entry.key.digest[:12]} for entry in entries]
        _print(
            console, [_without(row, "kind") for row in rows], size=_size, used=_age, fields=_fields
        )
    total = sum(entry.size for entry in entries)
    console.print(f"{len(entries)} entries, {_size(total)} of {_size(store.limit)}")
    console.print(str(store.path), soft_wrap=True, markup=False)


@command.command()
@click.argument("digest")
@_json
def why(digest: str, as_json: bool) -> None:
    """Show the key of an entry, and how it differs from the most similar one.

    DIGEST is the beginning of a digest listed by `cache ls KIND`.
    """
    store = open_store()
    entries = sorted(store.entries(), key=lambda entry: -entry.used)
    entry = _only(digest, entries)
    is_right = store.get(entry.key) is not None
    other = nearest(entry.key, (one.key for one in entries))
    report = {**_row(entry), "is_right": is_right, "nearest": other and other.digest}
    report["differs"] = [
        {"field": name, "nearest": theirs, "this": ours}
        for name, theirs, ours in (entry.key.differs(other) if other else ())
    ]
    if as_json:
        click.echo(json.dumps(report, indent=1))
        return
    console = Terminal()
    about = {k: report[k] for k in ("kind", "digest")} | {"size": _size(entry.size)}
    about |= {"used": _age(entry.used), "checked": "intact" if is_right else "damaged, and removed"}
    rows = [*about.items(), *entry.key.fields]
    _print(console, [{"field": name, "this": value} for name, value in rows])
    if other is None:
        console.print(f"There is no other {entry.key.kind}.")
        return
    console.print(f"The nearest {other.kind} is {other.digest[:12]}. It differs in:")
    pairs = [(row["field"], *apart(row["nearest"], row["this"])) for row in report["differs"]]
    _print(console, [dict(zip(("field", "nearest", "this"), pair, strict=True)) for pair in pairs])


@command.command()
@_json
def verify(as_json: bool) -> None:
    """Check every entry, remove damaged ones, and exit with 1 if there were any."""
    found = open_store().verify()
    _say(
        {"good": found.good, "bad": list(found.bad), "swept": found.swept},
        as_json,
        f"{found.good} entries are intact, {len(found.bad)} were damaged and are removed, "
        f"{found.swept} temporary files swept.",
        found.bad,
    )
    sys.exit(1 if found.bad else 0)


@command.command()
@click.option("--to", "limit", required=True, help="The size to prune to: 500MB, 2GiB, 0.")
@_json
def prune(limit: str, as_json: bool) -> None:
    """Remove the least recently used entries until the cache fits the given size."""
    store, most = open_store(), _bytes(limit)
    gone = store.prune(most)
    sizes = [entry.size for entry in store.entries()]
    left = {"removed": gone, "entries": len(sizes), "size": sum(sizes)}
    _say(left, as_json, f"{gone} entries removed, {len(sizes)} left ({_size(sum(sizes))}).")


@command.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--kind", "kinds", multiple=True, type=_kind, help="Kinds to export (default: all data)."
)
@click.option("--with-code", is_flag=True, help="Export compiled code too; only you can import it.")
@_json
def export_(file: Path, kinds: tuple[str, ...], with_code: bool, as_json: bool) -> None:
    """Write measurements, quarantine, tuning records, plans and verdicts to one FILE."""
    if not with_code and CODE & set(kinds):
        raise click.UsageError("Compiled code is exported only with --with-code.")
    wanted = set(kinds) or (DATA | CODE if with_code else DATA)
    _moved(lambda store: export(store, file, wanted), as_json, f"written to {file}")


@command.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_json
def import_(file: Path, as_json: bool) -> None:
    """Import an exported FILE, checking every entry; existing entries stay as they are.

    Code, plans and verdicts written by another user are refused, and made again when needed.
    """
    _moved(lambda store: take(store, file), as_json, f"imported from {file}")


def _moved(move: Callable[[Store], Moved], as_json: bool, said: str) -> None:
    """Move entries and report them; a failure exits with 1."""
    try:
        moved = move(open_store())
    except (StoreError, OSError) as error:
        raise click.ClickException(str(error)) from None
    kept = ", ".join(f"{count} {kind}" for kind, count in sorted(moved.kept.items()))
    _say(
        {"kept": dict(moved.kept), "present": moved.present, "refused": moved.refused},
        as_json,
        f"{moved.kept.total()} entries {said}{f' ({kept})' if kept else ''}; "
        f"{moved.present} already present, {len(moved.refused)} refused.",
        moved.refused,
    )


def open_store() -> Store:
    """Open the user's store, or end the command with the reason why it cannot be used."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StoreWarning)
        store = Store()
        if store.is_off:
            raise click.ClickException(" ".join(str(one.message) for one in caught))
    return store


def _say(report: dict[str, Any], as_json: bool, said: str, lines: Iterable[str] = ()) -> None:
    click.echo(json.dumps(report, indent=1) if as_json else visible("\n".join([said, *lines])))


def _only(digest: str, entries: list[StoreEntry]) -> StoreEntry:
    found = [entry for entry in entries if entry.key.digest.startswith(digest.lower())]
    if len(found) != 1:
        some = ", ".join(entry.key.digest[:12] for entry in found[:5])
        said = f"{len(found)} entries match: {some}" if found else "No entry matches"
        raise click.UsageError(f"{digest!r}: {said}. `fusewire cache ls KIND` lists digests.")
    return found[0]


def _row(entry: StoreEntry) -> dict[str, Any]:
    return {
        "digest": entry.key.digest,
        "kind": entry.key.kind,
        "size": entry.size,
        "used": entry.used,
        "fields": dict(entry.key.fields),
    }


def _without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


def _kinds(entries: list[StoreEntry]) -> list[dict[str, Any]]:
    rows = []
    for kind in sorted(KINDS):
        found = [entry for entry in entries if entry.key.kind == kind]
        used = max((entry.used for entry in found), default=None)
        size = sum(entry.size for entry in found)
        rows.append({"kind": kind, "entries": len(found), "size": size, "used": used})
    return rows


def _print(console: Terminal, rows: list[dict[str, Any]], **forms: Callable[[Any], str]) -> None:
    names = list(rows[0] if rows else ("empty",))
    sheet = Sheet(*(Column(name, "prose" if name in _PROSE else "key") for name in names))
    for row in rows:
        sheet.add(*(_plain(forms.get(name, str)(value)) for name, value in row.items()))
    console.show(sheet)


def _plain(text: str) -> str:
    """Escape a text of unknown origin, so that it cannot move the cursor."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _fields(fields: dict[str, str]) -> str:
    return ", ".join(f"{name} {shorten(value)}" for name, value in fields.items())


def _size(size: int) -> str:
    unit = next((u for u in ("G", "M", "K") if size >= _UNITS[u]), "")
    return f"{size / _UNITS[unit]:.1f} {unit.replace('K', 'k')}B" if unit else f"{size} B"


def _age(used: float | None) -> str:
    if used is None:
        return "-"
    seconds = max(time.time() - used, 0.0)
    unit = next((u for u in ("d", "h", "min") if seconds >= _AGES[u]), "s")
    return f"{seconds / _AGES[unit]:.0f} {unit} ago"


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]I?|)B?", text.strip().upper())
    if found is None:
        raise click.UsageError(f"{text!r} is not a size. Sizes look like 500MB, 2GiB or 0.")
    return int(float(found[1]) * _UNITS[found[2]])
