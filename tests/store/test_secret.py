"""The user's key: where it is, who may read it, and what a cache folder brings of its own."""

import errno
import os
import stat
import warnings
from pathlib import Path

import pytest

from fusewire.errors import StoreWarning
from fusewire.store import files
from fusewire.store.blob import pack
from fusewire.store.disk import Store
from fusewire.store.key import KINDS, Key
from fusewire.store.secret import config_path

KEY = Key.of("artifact", graph="ab")
THEIRS = bytes(32)
IS_ROOT = os.geteuid() == 0


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration folder of the test's own, which does not exist yet."""
    folder = tmp_path / "config"
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(folder))
    return folder


def works(cache: Path) -> bool:
    return Store(cache).put(KEY, b"x") and Store(cache).get(KEY) == b"x"


def said_when_off(cache: Path) -> str:
    """Use a store that is off: nothing is raised, and one warning says why."""
    with pytest.warns(StoreWarning) as caught:  # noqa: PT031 # one for all of it
        store = Store(cache)
        assert store.get(KEY) is None
        assert store.put(KEY, b"x") is False
        assert store.once(KEY, lambda: b"made") == b"made"
        assert store.is_off
    (warning,) = caught
    return str(warning.message)


def test_key_is_in_the_configuration_folder_and_closed(tmp_path: Path, config: Path) -> None:
    assert works(tmp_path / "cache")
    assert not (tmp_path / "cache" / "key").exists()
    assert stat.S_IMODE((config / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(config.stat().st_mode) == 0o700


def test_variables_name_the_configuration_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FUSEWIRE_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert config_path() == Path("/home/me/.config/fusewire")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/xdg")
    assert config_path() == Path("/xdg/fusewire")
    monkeypatch.setenv("FUSEWIRE_CONFIG", "/own")
    assert config_path() == Path("/own")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_entries_under_the_key_that_a_folder_brings_are_misses(
    tmp_path: Path, config: Path, kind: str
) -> None:
    cache, key = tmp_path / "cache", Key.of(kind, graph="ab")
    cache.mkdir(mode=0o700)
    (cache / "key").write_bytes(THEIRS)
    (cache / f"{key.digest}.entry").write_bytes(b"".join(pack(key, b"{}", THEIRS)))
    store = Store(cache)
    with pytest.warns(StoreWarning, match="brought a key of its own, which is removed"):
        assert store.get(key) is None
    assert not list(cache.iterdir())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert works(cache)


@pytest.mark.parametrize("what", ["link", "broken link", "pipe", "empty", "folder"])
def test_whatever_a_cache_calls_key_is_not_read(tmp_path: Path, config: Path, what: str) -> None:
    assert works(tmp_path / "mine")
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    place = cache / "key"
    if what == "pipe":
        os.mkfifo(place)
    elif what == "folder":
        place.mkdir()
    elif what == "empty":
        place.write_bytes(b"")
    else:
        place.symlink_to(config / "key" if what == "link" else tmp_path / "none")
    held = (config / "key").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        assert works(cache)
    assert (config / "key").read_bytes() == held


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o610])
def test_key_that_is_open_to_others_is_refused(tmp_path: Path, config: Path, mode: int) -> None:
    assert works(tmp_path / "cache")
    (config / "key").chmod(mode)
    said = said_when_off(tmp_path / "cache")
    assert f"is open to others (mode {mode:o})" in said
    assert f"chmod 600 {config / 'key'}" in said
    (config / "key").chmod(0o600)
    assert Store(tmp_path / "cache").get(KEY) == b"x"


def test_key_of_another_length_is_replaced(tmp_path: Path, config: Path) -> None:
    for count in (0, 31, 33):
        config.mkdir(exist_ok=True)
        (config / "key").write_bytes(bytes(count))
        (config / "key").chmod(0o600)
        assert works(tmp_path / f"cache of {count}")
        assert len((config / "key").read_bytes()) == 32


def test_mode_of_the_key_says_nothing_where_the_system_has_no_owners(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert works(tmp_path / "cache")
    (config / "key").chmod(0o666)
    monkeypatch.setattr("fusewire.store.secret.KNOWS_OWNERS", False)
    assert Store(tmp_path / "cache").get(KEY) == b"x"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_configuration_folder_that_others_may_write_is_refused(
    tmp_path: Path, config: Path, mode: int
) -> None:
    config.mkdir()
    config.chmod(mode)
    said = said_when_off(tmp_path / "cache")
    assert f"The configuration folder {config} must belong to you" in said
    assert "FUSEWIRE_CONFIG" in said
    config.chmod(0o755)
    assert works(tmp_path / "cache")


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a file away")
def test_key_of_somebody_else_is_replaced(tmp_path: Path, config: Path) -> None:
    assert works(tmp_path / "cache")
    held = (config / "key").read_bytes()
    os.chown(config / "key", 12345, 12345)
    assert Store(tmp_path / "cache").get(KEY) is None
    assert works(tmp_path / "cache")
    assert (config / "key").read_bytes() != held


@pytest.mark.parametrize("held", [b"", b"short", b"x" * 33])
def test_key_of_another_size_is_replaced(tmp_path: Path, config: Path, held: bytes) -> None:
    assert works(tmp_path / "cache")
    (config / "key").write_bytes(held)
    assert Store(tmp_path / "cache").get(KEY) is None
    assert works(tmp_path / "cache")


@pytest.mark.parametrize("what", ["link", "pipe"])
def test_what_is_no_file_is_replaced_by_a_key(tmp_path: Path, config: Path, what: str) -> None:
    config.mkdir(mode=0o700)
    (tmp_path / "planted").write_bytes(THEIRS)
    (tmp_path / "planted").chmod(0o600)
    if what == "pipe":
        os.mkfifo(config / "key")
    else:
        (config / "key").symlink_to(tmp_path / "planted")
    assert works(tmp_path / "cache")
    assert (config / "key").read_bytes() != THEIRS
    assert (tmp_path / "planted").read_bytes() == THEIRS


def test_configuration_in_the_cache_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "cache"))
    assert "may not be in the cache folder" in said_when_off(tmp_path / "cache")


class ReadOnly:
    """The module os on a disk that nobody can write to, but for the cache."""

    def __init__(self, config: Path) -> None:
        self.config = config

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def open(self, path: str, flags: int, *given: int, dir_fd: int | None = None) -> int:
        in_config = dir_fd is not None and os.path.samestat(os.fstat(dir_fd), self.config.stat())
        if in_config and flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return os.open(path, flags, *given, dir_fd=dir_fd)


def test_read_only_configuration_with_a_key_is_used(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert works(tmp_path / "cache")
    monkeypatch.setattr(files, "os", ReadOnly(config))
    assert Store(tmp_path / "cache").get(KEY) == b"x"


def test_read_only_configuration_without_a_key_turns_the_cache_off(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.mkdir(mode=0o700)
    monkeypatch.setattr(files, "os", ReadOnly(config))
    said = said_when_off(tmp_path / "cache")
    assert "Set FUSEWIRE_CONFIG to a folder that can be written." in said
    assert "Everything works without it." in said


def test_configuration_that_cannot_be_made_turns_the_cache_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWIRE_CONFIG", "/proc/fusewire/config")
    assert "The key cannot be read or created in /proc/fusewire/config" in said_when_off(
        tmp_path / "cache"
    )


def test_every_call_that_fails_while_a_key_is_made_leaves_a_cache_that_heals(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Faulty:
        def __init__(self, last: int) -> None:
            self.left = last

        def __getattr__(self, name: str) -> object:
            real = getattr(os, name)
            if name not in ("open", "write", "fsync", "link", "replace", "unlink", "close"):
                return real

            def call(*given: object, **named: object) -> object:
                self.left -= 1
                if self.left == 0:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return real(*given, **named)

            return call

    for last in range(1, 12):
        cache = tmp_path / f"cache{last}"
        monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path / f"config{last}"))
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", StoreWarning)
            patch.setattr(files, "os", Faulty(last))
            Store(cache).put(KEY, b"x")
        assert works(cache)
