"""What holds for all tests of programs in states."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no comparison of others on this machine."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
