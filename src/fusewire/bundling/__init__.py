"""Programs as files: save them to bundles, open them elsewhere, and lock what was chosen."""

from __future__ import annotations

import os
from typing import Any


def save(
    program: Any, path: str | os.PathLike[str], options: Any, source: Any, how: dict[str, Any]
) -> tuple[str, ...]:
    """Save a program to a bundle, as ``Program.save`` says; saving is imported when it is used."""
    from fusewire.bundling.saving import SavingOptions, save_program

    return save_program(program, path, options, source, SavingOptions(**how))
