"""Virtual environments that hold some of the packages installed here, by links to them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(folder: Path, *packages: str, wheel: Path | None = None) -> Path:
    """Make one with Fusewire, what it needs, and these packages; gives its Python.

    Nothing is downloaded. Without a wheel, Fusewire's files are those of the tree.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    ours = distribution("fusewire")
    for name in _needed(["fusewire", *packages]):
        if name != "fusewire":
            _link(distribution(name), site)
    python = folder / "bin" / "python"
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


def _needed(names: list[str]) -> list[str]:
    """List distributions and what they require, without extras."""
    found: dict[str, None] = {}
    while names:
        name = _plain(names.pop())
        if name in found:
            continue
        try:
            required = distribution(name).requires or []
        except PackageNotFoundError:
            # Required on other platforms only.
            continue
        found[name] = None
        names += [re.split(r"[^\w.-]", line)[0] for line in required if "extra ==" not in line]
    return list(found)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _link(found: Distribution, site: Path) -> None:
    for file in found.files or []:
        top = file.parts[0]
        if top in ("..", "__pycache__") or (site / top).exists():
            continue
        (site / top).symlink_to(Path(str(found.locate_file(top))))
