"""Folders of a test's own, and a key whose signatures are believed there."""

from pathlib import Path

import pytest

from fusewire.store.disk import Store
from fusewire.store.signing import AllowedSigner, Signer, allow

SIGNER = Signer.generate()


@pytest.fixture
def own_folders(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "config"))


@pytest.fixture
def key(own_folders: None, tmp_path: Path) -> Path:
    """A private key whose signatures are believed."""
    SIGNER.write(tmp_path / "signing.pem")
    allow(AllowedSigner(SIGNER.id, "me"))
    return tmp_path / "signing.pem"
