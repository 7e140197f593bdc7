"""The user's key, under which every entry carries its MAC.

It is in the user's configuration folder, never in the cache: an archive, an image layer or the
cache of a CI job may bring a cache folder, and with the key inside, it would vouch for itself.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fusewire.errors import StoreError
from fusewire.store.files import Folder
from fusewire.system.folders import user_folder
from fusewire.system.ownership import KNOWS_OWNERS

_NAME = "key"
# In the same folder: who else may sign what this user takes from elsewhere.
ALLOWED_SIGNERS = "allowed_signers"
_SIZE = 32
# Whoever may write to the folder could replace the key.
_WRITERS, _OTHERS = 0o022, 0o077


def config_path() -> Path:
    """Return the folder of the key: FUSEWIRE_CONFIG, or fusewire in the user's configuration."""
    given = os.environ.get("FUSEWIRE_CONFIG")
    return Path(given) if given else user_folder("config")


def user_secret(cache: Folder) -> bytes:
    """Read the user's key, or create it; StoreError says why there is none."""
    path = config_path()
    try:
        folder = Folder(path, "configuration folder", "FUSEWIRE_CONFIG", _WRITERS)
        if folder == cache:
            raise StoreError(f"The key may not be in the cache folder, and FUSEWIRE_CONFIG={path}.")
        for _ in range(2):
            if (held := _read(folder, path)) is not None:
                return held
            folder.write_once(_NAME, os.urandom(_SIZE))
    except OSError as error:
        raise StoreError(
            f"The key cannot be read or created in {path} ({error}). Set FUSEWIRE_CONFIG to a "
            "folder that can be written."
        ) from None
    raise StoreError(f"There is no key, and none can be created: remove {path / _NAME}.")


def disown(cache: Folder) -> bool:
    """Remove the key that a cache folder brought, and tell whether it brought one."""
    return cache.remove(_NAME)


def _read(folder: Folder, path: Path) -> bytes | None:
    """Return the key; None if there is none. What cannot be a key of this user is removed."""
    try:
        with folder.open(_NAME) as file:
            mode, held = file.mode, file.read(0, _SIZE + 1)
    except FileNotFoundError:
        return None
    except StoreError:
        folder.remove(_NAME)
        return None
    if KNOWS_OWNERS and mode & _OTHERS:
        place = path / _NAME
        raise StoreError(
            f"The key {place} is open to others (mode {stat.S_IMODE(mode):o}). Remove it; or, if "
            f"nobody else can have read it, run `chmod 600 {place}`."
        )
    if len(held) == _SIZE:
        return held
    folder.remove(_NAME)
    return None
