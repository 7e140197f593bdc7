"""Folders that a child left are removed, whatever it made of them."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusewire.process.child import _remove

DESCRIPTORS = Path("/proc/self/fd")


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "scratch"
    folder.mkdir()
    yield folder
    # Whoever removes it later may recurse.
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def _nest(folder: Path, depth: int) -> None:
    """Make folders in folders, deeper than any path may be long."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("inner", dir_fd=at)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
        at, outer = os.open("inner", os.O_RDONLY, dir_fd=at), at
        os.close(outer)
    os.close(at)


def test_folders_nested_deeper_than_python_recurses_are_removed(scratch: Path) -> None:
    _nest(scratch, 3000)
    before = len(list(DESCRIPTORS.iterdir()))
    _remove(str(scratch), os.getpid())
    assert not scratch.exists()
    assert len(list(DESCRIPTORS.iterdir())) == before


def test_links_are_not_followed_and_closed_folders_are_opened(
    scratch: Path, tmp_path: Path
) -> None:
    ours = tmp_path / "ours"
    (scratch / "a" / "b" / "c").mkdir(parents=True)
    ours.mkdir()
    (ours / "kept").touch()
    ours.chmod(0o750)
    (scratch / "a" / "b" / "link").symlink_to(ours)
    (scratch / "link").symlink_to(ours)
    for name in ("a/b/c", "a/b", "a", "."):
        (scratch / name).chmod(0)
    _remove(str(scratch), os.getpid())
    assert not scratch.exists()
    assert (ours / "kept").exists()
    assert ours.stat().st_mode & 0o777 == 0o750


def test_a_folder_that_is_gone_or_became_a_link_raises_nothing(tmp_path: Path) -> None:
    _remove(str(tmp_path / "gone"), os.getpid())
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "kept").touch()
    (tmp_path / "link").symlink_to(ours)
    _remove(str(tmp_path / "link"), os.getpid())
    assert (ours / "kept").exists()
