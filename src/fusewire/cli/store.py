"""``fusewire store``: what machines share, and the keys that sign it."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fusewire.cli.cache import open_store
from fusewire.cli.terminal import Terminal
from fusewire.errors import visible
from fusewire.records.keys import fits_this_host
from fusewire.store.brought import forget_others
from fusewire.store.disk import remote_address
from fusewire.store.exchange import Moved
from fusewire.store.key import Key
from fusewire.store.remote import SHARED, RemoteClient
from fusewire.store.secret import config_path
from fusewire.store.sharing import MOST_PUSHED, Release, SharedStore
from fusewire.store.signing import PRIVATE, AllowedSigner, AllowedSigners, Signer, allow
from fusewire.store.transport import open_transport
from fusewire.tables import Column, Sheet

_DAY = 86_400
# A request that fails is made so often, within about a quarter of a minute.
_TRIES = 6
_remote = click.option(
    "--remote",
    metavar="URL",
    help="The shared store: s3://, gs://, az:// or a folder (default: FUSEWIRE_REMOTE).",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


@click.group()
def command() -> None:
    """Share records with other machines, in a bucket or folder, and make the keys that sign."""


@command.command()
@_json
def signers(as_json: bool) -> None:
    """List the signers that you trust: the file allowed_signers, checked."""
    allowed = AllowedSigners.read().signers
    if as_json:
        click.echo(json.dumps({"signers": [asdict(one) for one in allowed]}, indent=1))
        return
    sheet = Sheet("name", Column("public key", "prose"), "state", Column("from generation"))
    for one in allowed:
        state = "revoked" if one.is_revoked else "allowed"
        sheet.add(one.name, one.id, state, str(one.least_generation))
    Terminal().show(sheet)


@command.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The file of the private key (default: {PRIVATE} in the configuration folder).",
)
@click.option("--name", help="Your name in lists of allowed signers (default: that of your login).")
@click.option("--allow", "is_allowed", is_flag=True, help="Believe what this key signs, too.")
@_json
def keygen(output: Path | None, name: str | None, is_allowed: bool, as_json: bool) -> None:
    """Make a key to sign with, and print the line with which others trust it.

    The private key stays with you. Others add the line to the file allowed_signers in their
    configuration folder.
    """
    path = output or config_path() / PRIVATE
    signer = Signer.generate()
    allowed = AllowedSigner(signer.id, name or getpass.getuser())
    # Before anything is written: a line that cannot be read makes a whole list unusable.
    if not allowed.is_readable:
        raise click.UsageError(f"--name {allowed.name!r}: give one word without # and =.")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    signer.write(path)
    place = allow(allowed) if is_allowed else None
    if as_json:
        report = {"private": str(path), "line": allowed.line(), "allowed": place and str(place)}
        click.echo(json.dumps(report, indent=1))
        return
    click.echo(visible(f"The private key is in {path}. Keep it as you would keep a password."))
    if place is not None:
        click.echo(visible(f"It is allowed in {place}."))
    click.echo("Whoever adds this line to allowed_signers trusts what it signs:")
    click.echo(allowed.line())


@command.command()
@_remote
@click.option(
    "--key",
    "private",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"The private key to sign with (default: {PRIVATE} in the configuration folder).",
)
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(sorted(SHARED)), help="Kinds to push."
)
@click.option("--expires", type=float, metavar="DAYS", help="Nobody trusts it after so long.")
@click.option(
    "--most",
    type=click.IntRange(1),
    default=MOST_PUSHED,
    show_default=True,
    help="The largest entry to push, in bytes.",
)
@_json
def push(
    remote: str | None,
    private: Path | None,
    kinds: tuple[str, ...],
    expires: float | None,
    most: int,
    as_json: bool,
) -> None:
    """Sign what this machine has recorded, and write it to the shared store."""
    path = private or config_path() / PRIVATE
    if not path.exists():
        raise click.UsageError(f"There is no key {path}. `fusewire store keygen` makes one.")
    shared = _shared(remote, Signer.read(path))
    moved = shared.push(open_store(), Release.now(expires, most), kinds or SHARED)
    _report_moved(moved, as_json, "pushed")


@command.command()
@_remote
@click.option("--all", "takes_all", is_flag=True, help="Bring what other machines use, too.")
@_json
def pull(remote: str | None, takes_all: bool, as_json: bool) -> None:
    """Bring what fits this machine, and is signed by somebody whom you trust."""
    moved = _shared(remote).pull(open_store(), _fits_any if takes_all else fits_this_host)
    _report_moved(moved, as_json, "pulled")


@command.command()
@_remote
@click.option("--content", is_flag=True, help="Read every payload, too.")
@_json
def verify(remote: str | None, content: bool, as_json: bool) -> None:
    """Check every entry of the shared store, and exit with 1 if one is not to be trusted."""
    found = _shared(remote).verify(reads_all=content)
    said = f"{found.good} entries are sound, {len(found.bad)} are refused."
    _report({"good": found.good, "bad": list(found.bad)}, as_json, said, found.bad)
    sys.exit(1 if found.bad else 0)


@command.command()
@_remote
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(0),
    default=90.0,
    show_default=True,
    metavar="DAYS",
    help="Remove entries that were written so many days ago.",
)
@click.option("--dry-run", is_flag=True, help="Remove nothing.")
@_json
def gc(remote: str | None, days: float, dry_run: bool, as_json: bool) -> None:
    """Remove old entries, forged, expired and revoked ones, and payloads and leases of none."""
    found = _shared(remote).collect(days * _DAY, is_trial=dry_run)
    verb = "would be" if dry_run else "are"
    said = (
        f"{found.pointers} entries, {found.blobs} payloads and {found.leases} leases {verb} "
        f"removed ({found.bytes:,} bytes)."
    )
    _report({**asdict(found), "is_trial": dry_run}, as_json, said)


def _fits_any(key: Key) -> bool:
    return True


def _shared(remote: str | None, signer: Signer | None = None) -> SharedStore:
    """Open the shared store, or end the command with what is missing."""
    address = remote or remote_address()
    if address is None:
        raise click.UsageError("No shared store is named. Give --remote, or set FUSEWIRE_REMOTE.")
    store, signers = open_store(), AllowedSigners.read()
    forget_others(store, signers)
    client = RemoteClient(signers, signer, store, tries=_TRIES)
    return SharedStore(open_transport(address), client)


def _report_moved(moved: Moved, as_json: bool, verb: str) -> None:
    kept = ", ".join(f"{count} {kind}" for kind, count in sorted(moved.kept.items()))
    said = (
        f"{moved.kept.total()} entries {verb}{f' ({kept})' if kept else ''}; "
        f"{moved.present} already present, {len(moved.refused)} refused."
    )
    about = {"kept": dict(moved.kept), "present": moved.present, "refused": moved.refused}
    _report(about, as_json, said, moved.refused)


def _report(about: dict[str, Any], as_json: bool, said: str, lines: Sequence[str] = ()) -> None:
    click.echo(json.dumps(about, indent=1) if as_json else visible("\n".join([said, *lines])))
