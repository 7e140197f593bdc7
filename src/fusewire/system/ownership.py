"""Whose a file is, and whether it is a link, as far as the system tells.

POSIX systems tell by owner and mode. Windows protects files by access lists, which are not read
here: a folder below the user's profile has one that keeps other users out, and any other place is
the user's own choice. ``KNOWS_OWNERS`` says which of the two this is.
"""

from __future__ import annotations

import os
import stat

KNOWS_OWNERS = hasattr(os, "geteuid")
_REPARSE_POINT = 0x400


def is_mine(about: os.stat_result) -> bool:
    """Tell whether a file belongs to this user; True where the system has no such numbers."""
    return not hasattr(os, "geteuid") or about.st_uid == os.geteuid()


def is_open_to(about: os.stat_result, others: int) -> bool:
    """Tell whether others have some of these permissions, as far as the mode tells."""
    return KNOWS_OWNERS and bool(about.st_mode & others)


def is_link(about: os.stat_result) -> bool:
    """Tell whether what ``lstat`` found is a link: symbolic, or a junction of Windows."""
    attributes: int = getattr(about, "st_file_attributes", 0)
    return stat.S_ISLNK(about.st_mode) or bool(attributes & _REPARSE_POINT)
