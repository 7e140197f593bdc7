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


@cache
def native_libraries(package: str, inside: str = "") -> str:
    """Fingerprint the native libraries in a package's folder, without importing it.

    Uses names, sizes and times: a digest of all bytes would take as long as loading them.
    """
    spec = importlib.util.find_spec(package)
    listed = []
    for folder in (spec and spec.submodule_search_locations) or ():
        with contextlib.suppress(OSError), os.scandir(f"{folder}/{inside}") as entries:
            for entry in entries:
                if ".so" in entry.name:
                    about = entry.stat()
                    listed.append(f"{entry.name} {about.st_size} {about.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(listed)).encode()).hexdigest()[:16]


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
    return re.sub(r"[-_.]+", "_", name).lower()
