"""Where this user's files are kept: the folders that each platform has for caches and settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

Purpose = Literal["cache", "config"]
# The variable that names the folder, which counts on all platforms, and the folders below the home.
_VARIABLES: dict[Purpose, str] = {"cache": "XDG_CACHE_HOME", "config": "XDG_CONFIG_HOME"}
_UNIX: dict[Purpose, str] = {"cache": ".cache", "config": ".config"}
_DARWIN: dict[Purpose, str] = {
    "cache": "Library/Caches",
    "config": "Library/Application Support",
}
# %LOCALAPPDATA% does not roam, and its access list names the user, SYSTEM and administrators.
_WINDOWS: dict[Purpose, str] = {"cache": "Cache", "config": "Config"}


def user_folder(purpose: Purpose, platform: str = sys.platform) -> Path:
    """Return the folder fusewire among this user's folders; the null device without a home."""
    try:
        if given := os.environ.get(_VARIABLES[purpose]):
            return Path(given) / "fusewire"
        if platform == "win32":
            local = os.environ.get("LOCALAPPDATA")
            parent = Path(local) if local else Path.home() / "AppData" / "Local"
            # One folder of the program, with a folder for each purpose: they must differ.
            return parent / "fusewire" / _WINDOWS[purpose]
        below = _DARWIN if platform == "darwin" else _UNIX
        return Path.home() / below[purpose] / "fusewire"
    except RuntimeError:
        # A user without a home has no folder; opening it reports that.
        return Path(os.devnull)


def user_name() -> str:
    """Return what tells this user from others in a folder that is shared: a number, or a name."""
    if hasattr(os, "geteuid"):
        return str(os.geteuid())
    return os.environ.get("USERNAME", "user")
