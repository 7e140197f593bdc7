"""Which packages are installed, read from the folders that installers leave.

``importlib.metadata`` handles more kinds of installation, but importing it takes as long as an
engine does: 30 ms. It is used only for packages that are not found here.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from functools import cache

_ENDING = ".dist-info"


def installed(*names: str) -> str:
    """Return the version of the first of these distributions that is installed, or ""."""
    found = _folders()
    for name in names:
        if (version := found.get(_plain(name))) is not None:
            return version
    from importlib import metadata

    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def installed_with(prefix: str) -> dict[str, str]:
    """Map the distributions whose names begin like this to their versions."""
    start = _plain(prefix)
    return {name: version for name, version in _folders().items() if name.startswith(start)}


@cache
def native_libraries(package: str, inside: str = "") -> str:
    """Fingerprint the native libraries in a package's folder, without importing it.

    A digest of all bytes would take as long as loading them. The installer has noted it for every
    file; one that is not as it was installed is known by its size and time.
    """
    spec = importlib.util.find_spec(package)
    start = f"{package}/{inside}/" if inside else f"{package}/"
    listed = []
    for folder in (spec and spec.submodule_search_locations) or ():
        noted, since = _noted(folder, package)
        with contextlib.suppress(OSError), os.scandir(f"{folder}/{inside}") as entries:
            for entry in entries:
                if ".so" in entry.name:
                    about = entry.stat()
                    size = str(about.st_size)
                    digest, noted_size = noted.get(start + entry.name, ("", ""))
                    is_as_installed = noted_size == size and about.st_mtime <= since
                    state = digest if is_as_installed else f"{size} {about.st_mtime_ns}"
                    listed.append(f"{entry.name} {state}")
    return hashlib.sha256("\n".join(sorted(listed)).encode()).hexdigest()[:16]


def wheels_digest(names: Iterable[str]) -> str:
    """Fingerprint installed wheels by version and native libraries, as their installer noted them.

    A name stands also for its variants: onnxruntime for onnxruntime-gpu.
    """
    wanted = tuple(_plain(name) for name in names)
    lines, seen = [], set()
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for entry in sorted(os.listdir(folder or ".")):  # noqa: PTH208 - a third of the time
                name = _plain(entry.partition("-")[0])
                is_wanted = any(x == name or name.startswith(f"{x}_") for x in wanted)
                if not entry.endswith(_ENDING) or not is_wanted or name in seen:
                    continue
                seen.add(name)
                lines.append(entry)
                place = f"{folder}/{entry}/RECORD"
                with contextlib.suppress(OSError), open(place, encoding="utf-8") as file:  # noqa: PTH123 - as above
                    lines += [line for line in file if ".so" in line or ".pyd" in line]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def _noted(folder: str, package: str) -> tuple[dict[str, tuple[str, str]], float]:
    """Read which libraries were installed beside a package, and when: digest and size by path."""
    site, name = os.path.split(folder.rstrip("/"))
    found: dict[str, tuple[str, str]] = {}
    version = _folders().get(_plain(package))
    place = f"{site}/{name}-{version}{_ENDING}/RECORD"
    with contextlib.suppress(OSError, ValueError), open(place, encoding="utf-8") as file:  # noqa: PTH123 - as above
        for line in file:
            if ".so" in line:
                path, digest, size = line.rstrip("\n").rsplit(",", 2)
                found[path] = (digest, size)
        return found, os.fstat(file.fileno()).st_mtime + 1
    return {}, 0.0


@cache
def _folders() -> dict[str, str]:
    """Map names to versions; the first on the path is the one that is imported."""
    found: dict[str, str] = {}
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for entry in os.listdir(folder or "."):  # noqa: PTH208 - a third of the time
                if entry.endswith(_ENDING):
                    name, _, version = entry[: -len(_ENDING)].rpartition("-")
                    found.setdefault(_plain(name), version)
    return found


def _plain(name: str) -> str:
    name = name.replace("-", "_").replace(".", "_").lower()
    return re.sub("__+", "_", name) if "__" in name else name
