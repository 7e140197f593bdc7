"""Every command works where engines are missing: a sentence and an exit code, no traceback."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from fusewire.cli import COMMANDS, main
from fusewire.errors import install_advice
from tests.environments import environment
from tests.onnx.models import single

ROOT = Path(__file__).parents[2]
# There is no release yet, so that no index has the name.
ASKING = re.compile(r"""pip install ["']?fusewire""")
ENVIRONMENTS = {"none": (), "onnxruntime": ("onnx", "onnxruntime")}


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with no engine, and of one with ONNX Runtime alone."""
    folder = tmp_path_factory.mktemp("environment") / request.param
    return environment(folder, *ENVIRONMENTS[request.param])


def run(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return execute(python, "from fusewire.cli import main; main()", *words)


def execute(python: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    kept |= {"FUSEWIRE_CACHE": str(python.parents[1] / "cache"), "COLUMNS": "200"}
    return subprocess.run([python, "-c", code, *words], env=kept, capture_output=True, text=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_help(python: Path, name: str) -> None:
    done = run(python, name, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


@pytest.mark.parametrize("name", ["doctor", "backends", "devices"])
def test_lists_say_what_is_missing(python: Path, name: str) -> None:
    done = run(python, name)
    assert done.returncode == 0, done.stderr
    if name != "devices":
        # Rich would take the extra for a style, and leave it out.
        assert 'pip install "wgpu>=' in done.stdout
    assert "reference" in done.stdout
    assert json.loads(run(python, name, "--json").stdout)


def test_backends_that_are_not_there(python: Path) -> None:
    missing = run(python, "conform", "xla")
    assert missing.returncode == 2
    assert 'pip install "jax>=' in missing.stderr
    unknown = run(python, "conform", "onnxrutime")
    assert unknown.returncode == 2
    assert "Did you mean 'onnxruntime'?" in unknown.stderr
    for done in (missing, unknown):
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["run", "show", "bench", "explain", "fuse"])
def test_commands_about_a_model(python: Path, name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    made, _ = single("Exp", 17, [np.zeros(4, np.float32)])
    onnx.save(made, path)
    done = run(python, name, str(path))
    assert "Traceback" not in done.stderr
    if python.parents[1].name == "none":
        assert done.returncode
        assert 'pip install "onnx>=' in done.stderr
    else:
        assert done.returncode == 0, done.stderr


def test_a_function_answers(python: Path) -> None:
    code = (
        "import numpy as np, fusewire as fw\n"
        "print(fw.compile(lambda x: np.exp(x) * 2)(np.zeros(3, np.float32)).tolist())"
    )
    done = execute(python, code)
    assert done.stdout == "[2.0, 2.0, 2.0]\n", done.stderr


def test_every_engine_says_in_one_way_that_it_is_not_installed(python: Path) -> None:
    code = (
        "from fusewire.registry import REGISTRY as r\n"
        "for name in r.backends.names():\n"
        "    if not (met := r.meet(name)).devices: print(met.reasons)"
    )
    lines = execute(python, code).stdout.splitlines()
    packages = {"inductor": "torch", "openvino": "openvino", "torch": "torch", "triton": "triton"}
    packages |= {"webgpu": "wgpu", "xla": "jax"}
    if python.parents[1].name == "none":
        packages["onnxruntime"] = "onnxruntime"
    assert sorted(lines) == [
        f"{name} needs the package {package}, which is not installed. "
        f"{install_advice('torch' if package == 'torch' else name)}"
        for name, package in sorted(packages.items())
    ]


def test_doctor_says_what_a_frontend_lacks(python: Path) -> None:
    checks = json.loads(run(python, "doctor", "--json").stdout)["checks"]
    (row,) = [row for row in checks if row["check"] == "frontends"]
    is_bare = python.parents[1].name == "none"
    assert row["found"] == {"frontends": "trace" if is_bare else "onnx, trace"}
    assert "exported_program and torch need the package torch" in row["fix"]
    assert install_advice("torch") in row["fix"]
    lacks = f"onnx needs the package onnx, which is not installed. {install_advice('onnx')}"
    assert (lacks in row["fix"]) is is_bare


def test_install_lines_name_the_packages_of_an_extra_and_not_fusewire() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra, packages in tomllib.loads(text)["project"]["optional-dependencies"].items():
        words = shlex.split(install_advice(extra).removeprefix("Run: pip install "))
        assert sorted(map(bare, words)) == sorted(map(bare, packages)), extra
    assert install_advice("nothing") == 'Run: pip install ".[nothing]" in a checkout of Fusewire'


def test_nothing_asks_an_index_for_an_extra_of_fusewire() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.py")]
    files = [*(ROOT / "src").rglob("*.py"), *pages]
    asking = [x.name for x in files if ASKING.search(x.read_text(encoding="utf-8"))]
    assert not asking


def bare(requirement: str) -> str:
    """Leave out how a requirement is punctuated."""
    return re.sub(r"""[\s()"']""", "", requirement)


def test_engines_that_are_not_installed_are_not_waited_for(python: Path) -> None:
    code = (
        "from fusewire.planning.policy import TargetFinder\n"
        "from fusewire.registry import REGISTRY\n"
        "print(*TargetFinder(REGISTRY).expected())"
    )
    done = execute(python, code)
    installed = [] if python.parents[1].name == "none" else ["onnxruntime"]
    assert done.stdout.split() == [*installed, "reference"], done.stderr


def test_errors_of_commands_have_exit_codes() -> None:
    assert CliRunner().invoke(main, ["conform", "nosuch"]).exit_code == 2
