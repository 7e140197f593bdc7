"""A closed child reaches nothing: what works in an open child fails in a closed one."""

import json
import os
import re
from pathlib import Path

import pytest

from fusewire.process.closed import weaknesses
from fusewire.process.confinement import Confinement
from fusewire.process.pool import ChildPool
from fusewire.testing.escapes import ATTEMPTS, can_be, is_refused, start_attempts
from tests.process.regions import chaos, contact, made

NOBODY = 65534
USERS = {"self": None, "nobody": NOBODY}
ENOUGH = 40

pytestmark = pytest.mark.skipif(bool(weaknesses()), reason=" ".join(weaknesses()))
Answers = dict[tuple[str, str], dict[str, int | str]]


@pytest.fixture(scope="module")
def answers() -> Answers:
    """Make all attempts, in an open and in a closed child, as this user and as nobody."""
    users = {name: user for name, user in USERS.items() if user is None or can_be(user)}
    started = {
        (name, closing): start_attempts(closing, user)
        for name, user in users.items()
        for closing in ("open", "run")
    }
    said = {key: process.communicate(timeout=300)[0] for key, process in started.items()}
    return {key: json.loads(text) for key, text in said.items()}


@pytest.mark.parametrize("user", USERS)
def test_every_attempt_fails_in_a_closed_child(answers: Answers, user: str) -> None:
    if (user, "run") not in answers:
        pytest.skip("needs root, and an interpreter that nobody may start")
    control, closed = answers[user, "open"], answers[user, "run"]
    assert len(closed) >= ENOUGH
    assert [name for name in control if is_refused(control[name])] == []
    assert [name for name in closed if not is_refused(closed[name])] == []


def test_every_thread_is_closed_and_has_no_capabilities() -> None:
    with ChildPool() as pool:
        made(contact(pool, "none_at_run"))
        threads = Path(f"/proc/{pool.pid(chaos('none_at_run'))}/task")
        for thread in threads.iterdir():
            status = dict(re.findall(r"(\w+):\s+(\w+)", (thread / "status").read_text()))
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
            assert not int(status["CapPrm"], 16) | int(status["CapEff"], 16)
            if os.getuid() == 0:
                assert not int(status["CapBnd"], 16)


def test_a_child_gets_a_list_of_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "https_proxy", "SSH_AUTH_SOCK", "ENGINE_FLAGS"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    given = Confinement(variables=("ENGINE_FLAGS",)).environment("/scratch")
    assert given["ENGINE_FLAGS"] == "secret"
    assert (given["OMP_NUM_THREADS"], given["TMPDIR"]) == ("2", "/scratch")
    assert not {"AWS_SECRET_ACCESS_KEY", "https_proxy", "SSH_AUTH_SOCK"} & set(given)


def test_its_folder_is_removed() -> None:
    with ChildPool() as pool:
        made(contact(pool, "none_at_run"))
        pid = pool.pid(chaos("none_at_run"))
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        folder = Path(next(x.removeprefix("TMPDIR=") for x in variables if x.startswith("TMPDIR=")))
        assert folder.is_dir()
    assert not folder.exists()


def test_attempts_have_names() -> None:
    assert len(ATTEMPTS) >= ENOUGH
