"""``fusewire doctor``: what is installed, what is broken, and how to fix it."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import click

from fusewire.cli.backends import COLOURS, describe_all, table
from fusewire.cli.terminal import Terminal, wide_option
from fusewire.contract.frontend import Frontend
from fusewire.errors import IsolationError, RegistryError, install_advice
from fusewire.ops.outside import OUTSIDE
from fusewire.process.child import Child
from fusewire.process.closed import weaknesses
from fusewire.process.guarantees import isolation_problem, shortfalls
from fusewire.process.machine import machine
from fusewire.process.sandbox import has_seccomp, landlock_version
from fusewire.registry import REGISTRY
from fusewire.system.hardware import usable_cores
from fusewire.tables import Column, Sheet, styled

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "XLA_FLAGS")
_START_SECONDS = 60.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@wide_option
def command(as_json: bool, is_wide: bool) -> None:
    """Check the machine, the packages and every backend.

    Exits with 1 if something that is installed is broken.
    """
    report: dict[str, Any] = {
        "checks": [{"check": name, **check()} for name, check in CHECKS.items()],
        "backends": describe_all(),
    }
    report["ok"] = not any(row["state"] == "broken" for rows in report.values() for row in rows)
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        _print(report, is_wide)
    sys.exit(0 if report["ok"] else 1)


def _print(report: dict[str, Any], is_wide: bool) -> None:
    console = Terminal()
    sheet = Sheet("check", "state", Column("found, or what to do", "prose"), title="Checks")
    for row in report["checks"]:
        found = ", ".join(f"{key} {value}" for key, value in row["found"].items())
        state = styled(row["state"], COLOURS[row["state"]])
        sheet.add(row["check"], state, "\n".join(filter(None, (found, row["fix"]))))
    console.show(sheet)
    console.print()
    console.show(table(report["backends"], is_wide=is_wide))
    console.print()
    rows = [row for rows in (report["checks"], report["backends"]) for row in rows]
    broken = [row.get("check") or row["name"] for row in rows if row["state"] == "broken"]
    if broken:
        console.show(styled(f"Broken: {', '.join(broken)}.", "red"))
    else:
        console.show(styled("Everything that is installed works.", "green"))


def _row(found: Mapping[str, Any], problem: str = "") -> dict[str, Any]:
    state = "broken" if problem else "ready"
    return {"state": state, "found": dict(found), "fix": problem}


def _packages() -> dict[str, Any]:
    names = ("fusewire", "numpy", "ml_dtypes", "click", "rich")
    return _row({"python": platform.python_version(), **{name: version(name) for name in names}})


def _threads() -> dict[str, Any]:
    usable = usable_cores()
    said = {name: os.environ[name] for name in _THREADS if name in os.environ}
    return _row({"cpus": os.cpu_count(), "usable": usable, **said})


def _memory() -> dict[str, Any]:
    names = {"GiB": "memory_bytes", "free GiB": "memory_free_bytes"}
    facts = {key: machine().get(name) for key, name in names.items()}
    known = {key: round(int(str(size)) / 2**30, 1) for key, size in facts.items() if size}
    return _row(known)


def _child() -> dict[str, Any]:
    """Start a child process and wait for its greeting, as first contact does."""
    start = time.perf_counter()
    try:
        child = Child("none:none")
        try:
            child.greet(_START_SECONDS)
        finally:
            child.end()
    except IsolationError as error:
        return _row({}, str(error))
    return _row({"seconds": round(time.perf_counter() - start, 3)})


def _closed() -> dict[str, Any]:
    """Say what child processes are closed with, and what they are not closed against."""
    found = {"Landlock": landlock_version() or "none", "seccomp": "yes" if has_seccomp() else "no"}
    return {**_row(found), "fix": " ".join(weaknesses())}


def _platform() -> dict[str, Any]:
    """Say what holds on other systems and not on this one; that is not a fault of the user's."""
    found = {"system": platform.system() or sys.platform, "processor": platform.machine()}
    found["isolate"] = "first, never" if isolation_problem() else "always, first, never"
    return {**_row(found), "fix": " ".join(shortfalls())}


def _folder() -> dict[str, Any]:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"fusewire")
    except OSError as error:
        return _row(
            {"folder": folder}, f"Cannot write to this folder: {error}. Set TMPDIR to another one."
        )
    return _row({"folder": folder})


def _frontends() -> dict[str, Any]:
    names = REGISTRY.frontends.names()
    problems = [REGISTRY.frontends.problem(name) for name in names]
    if any(problems):
        return _row({"frontends": ", ".join(names)}, " ".join(filter(None, problems)))
    missing = {name: lacks for name in names if (lacks := _missing(REGISTRY.frontends.get(name)))}
    row = _row({"frontends": ", ".join(name for name in names if name not in missing)})
    says = (_needed(package, missing) for package in dict.fromkeys(missing.values()))
    return {**row, "fix": " ".join(says)}


def _needed(package: str, missing: Mapping[str, str]) -> str:
    """Say which frontends need a package, whose extra has its name."""
    names = [name for name, lacks in missing.items() if lacks == package]
    verb = "needs" if len(names) == 1 else "need"
    said = f"{' and '.join(names)} {verb} the package {package}, which is not installed."
    return f"{said} {install_advice(package)}"


def _missing(frontend: Frontend) -> str | None:
    package = frontend.package
    return None if package is None or find_spec(package) else package


def _orphans() -> dict[str, Any]:
    """List extensions; one whose backend is not installed does nothing."""
    found = {}
    try:
        known = REGISTRY.backends.names()
        for label in REGISTRY.extensions.names():
            backend = label.partition(".")[0]
            found[label] = (
                "installed" if backend in known else f"for {backend}, which is not installed"
            )
    except RegistryError as error:
        return _row(found, str(error))
    return _row(found)


def _outside() -> dict[str, Any]:
    """List installed packages that declare ops; one that cannot be imported has none."""
    return _importable(OUTSIDE.packages, OUTSIDE.problem)


def _searches() -> dict[str, Any]:
    """List the searches after a race; one that cannot be imported is left out."""
    return _importable(REGISTRY.searches.names, REGISTRY.searches.problem)


def _importable(
    names: Callable[[], Iterable[str]], problem: Callable[[str], str | None]
) -> dict[str, Any]:
    try:
        problems = {name: problem(name) for name in names()}
    except RegistryError as error:
        return _row({}, str(error))
    found = {name: "installed" for name, said in problems.items() if said is None}
    return _row(found, " ".join(filter(None, problems.values())))


CHECKS: dict[str, Callable[[], dict[str, Any]]] = {
    "packages": _packages,
    "platform": _platform,
    "threads": _threads,
    "memory": _memory,
    "child processes": _child,
    "closed children": _closed,
    "temporary files": _folder,
    "frontends": _frontends,
    "extensions": _orphans,
    "ops of packages": _outside,
    "searches": _searches,
}
