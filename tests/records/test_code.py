"""Code is named by its content: the same on every machine, and another after any change."""

import os
import shutil
from pathlib import Path

import pytest

from fusewire.process import wheels
from fusewire.store.code_state import module_state, state_of


def _folder(path: Path, text: str = "x = 1\n") -> Path:
    (path / "inner").mkdir(parents=True)
    (path / "one.py").write_text(text)
    (path / "inner" / "table.json").write_text("{}")
    return path


def _state(path: Path) -> str:
    state_of.cache_clear()
    return state_of(str(path))


def test_the_same_code_is_the_same_elsewhere_and_later(tmp_path: Path) -> None:
    first, second = _folder(tmp_path / "a"), tmp_path / "b"
    found = _state(first)
    shutil.copytree(first, second)
    os.utime(second / "one.py", (1, 1))
    assert _state(second) == found == _state(first)


def test_any_change_is_another_state(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a")
    states = [_state(folder)]
    (folder / "one.py").write_text("x = 2\n")
    states.append(_state(folder))
    (folder / "inner" / "table.json").rename(folder / "inner" / "other.json")
    states.append(_state(folder))
    (folder / "more.py").write_text("")
    states.append(_state(folder))
    assert len(set(states)) == len(states)


def _installed(site: Path, size: int) -> str:
    """Install a package with one library, whose digest the installer noted for 5 bytes."""
    package, about = site / "engine", site / "engine-1.0.dist-info"
    for folder in (package, about):
        folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "lib.so").write_bytes(b"x" * size)
    (about / "RECORD").write_text("engine/lib.so,sha256=abc,5\nengine/__init__.py,sha256=d,0\n")
    return str(site)


def test_libraries_are_named_as_they_were_installed(tmp_path: Path) -> None:
    def seen(site: str) -> str:
        wheels._folders.cache_clear()
        wheels.native_libraries.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(site)
            return wheels.native_libraries("engine")

    one, other = (seen(_installed(tmp_path / name, 5)) for name in ("a", "b"))
    assert one == other
    library = tmp_path / "b" / "engine" / "lib.so"
    os.utime(library, (2e9, 2e9))
    assert seen(str(tmp_path / "b")) != one
    assert seen(_installed(tmp_path / "c", 6)) != one
    wheels._folders.cache_clear()


def test_package_in_a_namespace_is_its_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "fusewire_acme" / "lie"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    (package / "kernel.wgsl").write_text("x * 3")
    monkeypatch.syspath_prepend(tmp_path)

    def found() -> str | None:
        state_of.cache_clear()
        return module_state("fusewire_acme.lie.kernels")

    before = found()
    assert before is not None
    (package / "kernel.wgsl").write_text("x * 5")
    changed = found()
    assert changed not in (None, before)
    # What others have in the namespace says nothing.
    (tmp_path / "fusewire_acme" / "other.py").write_text("y = 1\n")
    assert found() == changed
    assert module_state("no_such_package.kernels") is None
