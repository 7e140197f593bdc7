"""Virtual environments that hold some of the packages installed here, by links to them.

    python -m tests.environments FOLDER EXTRA,...

makes one for the tests with all that is installed here but for what these extras bring; ``all`` are
all of them, so that what is left is for developing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
_SCRIPT = """#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


def environment(folder: Path, *packages: str, wheel: Path | None = None) -> Path:
    """Make one with Fusewire, what it needs, and these packages; gives its Python.

    A package may have extras: ``ray[data]``. Nothing is downloaded. Without a wheel, Fusewire's
    files are those of the tree.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    ours = distribution("fusewire")
    python = folder / "bin" / "python"
    for name in _needed(["fusewire", *packages]):
        if name != "fusewire":
            _link(distribution(name), site)
        _add_programs(distribution(name), python)
    if wheel is None:
        metadata = Path(str(ours.locate_file(""))) / f"fusewire-{ours.version}.dist-info"
        (site / metadata.name).symlink_to(metadata)
        (site / "fusewire.pth").write_text(f"{ROOT / 'src'}\n")
    else:
        _install(python, wheel)
    return python


def _install(python: Path, wheel: Path) -> None:
    words = ["--python", str(python), "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)


def without(folder: Path, *extras: str) -> Path:
    """Make one for the tests, with all that is installed here but for what these extras bring."""
    every = {*(distribution("fusewire").metadata.get_all("Provides-Extra") or ())} - {"dev"}
    left_out = every if extras == ("all",) else {*extras}
    if unknown := sorted(left_out - every):
        known = ", ".join(sorted(every))
        raise SystemExit(f"Fusewire has no extra {', '.join(unknown)}. Extras: {known}; or all.")
    names = [f"fusewire[{','.join(['dev', *(every - left_out)])}]"]
    # The backend of tests/plugin runs on PyTorch.
    return environment(folder, *names, *([] if "torch" in left_out else ["fusewire-torch"]))


def _needed(names: list[str]) -> list[str]:
    """List distributions and what they require."""
    found: dict[str, set[str]] = {}
    while names:
        requirement = Requirement(names.pop())
        name, extras = canonicalize_name(requirement.name), requirement.extras
        if name in found and extras <= found[name]:
            continue
        try:
            lines = distribution(name).requires or []
        except PackageNotFoundError:
            # Required on other platforms only.
            continue
        found[name] = extras | found.get(name, set())
        names += [line for line in lines if _holds(Requirement(line), extras)]
    return list(found)


def _holds(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def _link(found: Distribution, site: Path) -> None:
    for file in found.files or []:
        top = file.parts[0]
        if top in ("..", "__pycache__") or (site / top).exists():
            continue
        (site / top).symlink_to(Path(str(found.locate_file(top))))


def _add_programs(found: Distribution, python: Path) -> None:
    """Link programs, and write those that are functions anew: they name their Python."""
    functions = {x.name: x for x in found.entry_points if x.group == "console_scripts"}
    for file in found.files or []:
        program = python.parent / file.name
        if file.parts[0] != ".." or file.parent.name != "bin" or program.exists():
            continue
        if file.name in functions:
            point = functions[file.name]
            program.write_text(
                _SCRIPT.format(python=python, module=point.module, function=point.attr)
            )
            program.chmod(0o755)
        else:
            program.symlink_to(Path(str(found.locate_file(file))).resolve())


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    without(folder, *sys.argv[2].split(","))
