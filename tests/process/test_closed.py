"""A closed child reaches nothing: what works in an open child fails in a closed one."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fusewire.cli.doctor import CHECKS
from fusewire.contract.backend import Config, Device
from fusewire.dtypes import float32
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.elementwise import add
from fusewire.process.closed import FILE_BYTES, weaknesses
from fusewire.process.confinement import Confinement
from fusewire.process.isolate import first_contact, probe
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import ChildPool
from fusewire.testing.escapes import ATTEMPTS, can_be, is_refused, start_attempts
from tests.process import compiling
from tests.process.regions import PATIENT, chaos, contact, made

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


@pytest.mark.skipif(os.getuid() != 0, reason="only root reads what belongs to others")
def test_root_reads_modules_that_belong_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    (folder / "their_backend.py").write_text("from fusewire.testing.chaos import none_at_run")
    os.chown(folder, NOBODY, NOBODY)
    monkeypatch.syspath_prepend(folder)
    with ChildPool() as pool:
        assert isinstance(probe("their_backend:none_at_run", PATIENT, pool=pool)[0], Device)


_LEASE = """
import fcntl, os, sys
from pathlib import Path
from fusewire.process.closed import begin, finish
closing, scratch, home = sys.argv[1:]
begin(closing, scratch)
finish()
own = os.open(f"{scratch}/own", os.O_CREAT | os.O_RDWR)
for attempt in (
    lambda: fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_WRLCK),
    lambda: Path(home, "token").read_text(),
):
    try:
        attempt()
        print("done")
    except PermissionError:
        print("refused")
"""


@pytest.mark.parametrize(("closing", "said"), [("open", "done"), ("run", "refused")])
def test_no_file_is_leased_and_a_home_on_the_path_of_libraries_stays_closed(
    tmp_path: Path, closing: str, said: str
) -> None:
    scratch, home = tmp_path / "scratch", tmp_path / "home"
    scratch.mkdir()
    home.mkdir()
    (home / "token").write_text("secret")
    variables = {**os.environ, "HOME": str(home), "LD_LIBRARY_PATH": f"{home}:{tmp_path}"}
    command = [sys.executable, "-c", _LEASE, closing, str(scratch), str(home)]
    found = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [said, said]


def test_its_folder_is_removed() -> None:
    with ChildPool() as pool:
        made(contact(pool, "none_at_run"))
        pid = pool.pid(chaos("none_at_run"))
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        folder = Path(next(x.removeprefix("TMPDIR=") for x in variables if x.startswith("TMPDIR=")))
        assert folder.is_dir()
    assert not folder.exists()


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_programs_that_are_declared_run_in_compile_children_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Set in this process: the child asks for it, and is started again with it.
    monkeypatch.setenv(compiling.VARIABLE, "yes")
    x = Value(TensorType(float32, (4,)), "x")
    graph, given = Graph([x], [add(x, x)]), np.array([1, 2, 3, 4], np.float32)
    with ChildPool() as pool:
        found = first_contact(
            "tests.process.compiling:CompilingBackend",
            graph,
            Device("cpu", "gcc"),
            Config(),
            [given],
            PATIENT,
            pool=pool,
        )
        # Twice the input, and 1 more for each fact that holds.
        (output,) = made(found).outputs
    np.testing.assert_array_equal(output, [3, 5, 7, 8])
    assert made(found).metrics["compile_seconds"] > 0


def test_a_trial_has_limits() -> None:
    with ChildPool() as pool:
        made(contact(pool, "none_at_run", ChildLimits(30.0)))
        limits = Path(f"/proc/{pool.pid(chaos('none_at_run'))}/limits").read_text()
    soft = dict(re.findall(r"Max ([a-z ]+?) {2,}(\w+)", limits))
    assert 30 < int(soft["cpu time"]) < 30 * (os.cpu_count() or 1) + 30
    assert int(soft["file size"]) == FILE_BYTES
    assert soft["core file size"] == "0"


def test_doctor_says_what_children_are_closed_with() -> None:
    row = CHECKS["closed children"]()
    assert row["state"] == "ready"
    assert row["found"]["seccomp"] == "yes"
    assert row["fix"] == ""


def test_an_open_child_is_a_weakness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWIRE_CHILDREN", "open")
    assert Confinement().is_open
    assert "may do all that you may" in CHECKS["closed children"]()["fix"]


def test_attempts_have_names() -> None:
    assert len(ATTEMPTS) >= ENOUGH
