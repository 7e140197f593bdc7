"""What is installed, read off the folders that installers leave.

``importlib.metadata`` knows more ways to be installed, and takes as long to import as an engine
does: 30 ms. It is asked only for what is not found like this.
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
    """Give the version of the first of these distributions that is there, "" if none is."""
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
    """Tell the native code in a folder of a package from other builds, without importing it.

    By names, sizes and times: a digest of all bytes would take as long as loading them.
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
    """Find versions by name; what comes first on the path is what is imported."""
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
