"""Fusewire on systems that lack what Linux has, as far as they can be resembled on Linux.

What is missing is taken away before anything is imported, in every process (``sitecustomize``).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MISSING = Path(__file__).parent / "missing"
SYSTEMS = ("bare", "windows")
EXAMPLES = (
    "numpy_function.py",
    "onnx_in_an_app.py",
    "own_backend.py",
    "reading_why.py",
    "web_server.py",
)


def run(system: str, folder: Path, *command: str, seconds: float = 240) -> tuple[str, list[str]]:
    """Run Python on a system; gives its output and the command of each process that was started."""
    log = folder / "processes.txt"
    path = os.pathsep.join([str(MISSING), str(ROOT / "src"), *filter(None, [_given_path()])])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "FUSEWIRE_CACHE": str(folder / "cache"),
            "FUSEWIRE_CONFIG": str(folder / "config"),
            "FUSEWIRE_TEST_SYSTEM": system,
            "FUSEWIRE_TEST_LOG": str(log),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout, log.read_text().splitlines()


def _given_path() -> str:
    return os.environ.get("PYTHONPATH", "")


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_readme_runs(system: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    (tmp_path / "readme.py").write_text("\n".join([*blocks, 'print("the end")']))
    said, started = run(system, tmp_path, "-W", "error", str(tmp_path / "readme.py"))
    assert said.endswith("the end\n")
    assert any("fusewire.process.start" in line for line in started), "no child was started"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("system", SYSTEMS)
def test_example_runs(system: str, name: str, tmp_path: Path) -> None:
    said, _ = run(system, tmp_path, "-W", "error", str(ROOT / "examples" / name))
    assert said.strip()


IMPORTS = """
import importlib
import pkgutil
import fusewire

linux_only = {"fusewire.process.supervisor", "fusewire.testing.escapes"}
names = [x.name for x in pkgutil.walk_packages(fusewire.__path__, "fusewire.")]
for name in set(names) - linux_only - {"fusewire.__main__"}:
    importlib.import_module(name)
print(len(names))
"""


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_module_is_imported(system: str, tmp_path: Path) -> None:
    said, _ = run(system, tmp_path, "-c", IMPORTS)
    assert int(said.split()[-1]) > 600


FIRST_CALL = """
import numpy as np
import fusewire as fw
x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
program = fw.compile(lambda x: np.tanh(x) @ x.T, x, backend="onnxruntime", start="measured")
got, expected = program(x), np.tanh(x) @ x.T
assert np.allclose(got, expected, rtol=1e-5, atol=1e-5), got
print(program.why().backend)
"""


@pytest.mark.parametrize("system", SYSTEMS)
def test_first_call_is_in_a_child_and_right(system: str, tmp_path: Path) -> None:
    # The second time, from the cache.
    for _ in range(2):
        (tmp_path / "script.py").write_text(FIRST_CALL)
        said, started = run(system, tmp_path, str(tmp_path / "script.py"))
        assert said.strip() == "onnxruntime"
        assert any("fusewire.process.start" in line for line in started)


ALWAYS = """
from fusewire.errors import IsolationError
import numpy as np
import fusewire as fw
try:
    fw.compile(lambda x: x + x, np.ones(3), backend="reference", isolate="always")
except IsolationError as error:
    print(error)
"""


@pytest.mark.parametrize("system", SYSTEMS)
def test_isolation_that_cannot_be_enforced_is_an_error(system: str, tmp_path: Path) -> None:
    said, _ = run(system, tmp_path, "-c", ALWAYS)
    assert "isolate='always' needs" in said
    assert "a child cannot shrink" in said
    assert "how much memory a child uses" in said
    assert "Pass isolate='first'" in said


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_what_must_work_everywhere_works(system: str, tmp_path: Path) -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT))
    said, started = run(system, tmp_path, *words, str(Path(__file__).parent / "test_smoke.py"))
    assert " passed" in said
    assert sum("fusewire.process.start" in line for line in started) >= 8


@pytest.mark.parametrize("system", SYSTEMS)
def test_doctor_says_in_sentences_what_is_missing(system: str, tmp_path: Path) -> None:
    said, _ = run(system, tmp_path, "-m", "fusewire", "doctor", "--json")
    rows = {row["check"]: row for row in json.loads(said)["checks"]}
    assert rows["platform"]["state"] == "ready"
    told = rows["platform"]["fix"]
    assert "The memory limit of a child is not enforced" in told
    assert "Files cannot be locked" in told
    assert "limits assume 4 GiB" in told
    assert ("Models with external data are refused" in told) == (system == "windows")
    assert ("Who may read the cache" in told) == (system == "windows")
    assert rows["child processes"]["state"] == "ready"
