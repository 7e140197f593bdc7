"""``fusewire store``: what machines share, and the keys that sign it."""

from __future__ import annotations

import getpass
import json
from dataclasses import asdict
from pathlib import Path

import click

from fusewire.cli.terminal import Terminal
from fusewire.errors import visible
from fusewire.store.secret import config_path
from fusewire.store.signing import PRIVATE, AllowedSigner, AllowedSigners, Signer, allow
from fusewire.tables import Column, Sheet

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


@click.group()
def command() -> None:
    """Make the key that signs what you share with other machines, and list whom you believe."""


@command.command()
@_json
def signers(as_json: bool) -> None:
    """List the signers whom you believe: the file allowed_signers, checked."""
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
    """Make a key to sign with, and print the line that makes others believe it.

    The private key stays with you. Others add the line to the file allowed_signers in their
    configuration folder.
    """
    path = output or config_path() / PRIVATE
    signer = Signer.generate()
    allowed = AllowedSigner(signer.id, name or getpass.getuser())
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
    click.echo("Whoever adds this line to allowed_signers believes what it signs:")
    click.echo(allowed.line())
