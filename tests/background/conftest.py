"""What the tests of searches share."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewire.registry import REGISTRY


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the comparers of other processes on this machine."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare few engines."""
    names = ["onnxruntime", "reference"]
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: names)
