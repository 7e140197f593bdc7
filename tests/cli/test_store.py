"""``fusewire store``: two users on two folders share one bucket."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import fusewire as fw
from benchmarks.object_servers import is_installed, serve

# Compiles and calls a model, and says what was loaded for it.
ANSWER = """
import json, sys
import numpy as np
import fusewire as fw

level = "recall" if sys.argv[2:] else None
program = fw.compile(sys.argv[1], level=level, start="measured", budget_seconds=3)
answer = program(np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8))
measuring = [name for name in sys.modules if name.startswith("fusewire.choosing")]
print(json.dumps({"answer": np.asarray(answer).tolist(), "measuring": measuring}))
"""


@dataclass(frozen=True)
class User:
    """Somebody with a cache and a configuration of their own."""

    folder: Path
    variables: dict[str, str]

    def runs(self, *words: str, **more: str) -> Any:
        """Run a command of Python in a process, and return what it prints as JSON."""
        own = {
            name: str(self.folder / name.lower()) for name in ("FUSEWIRE_CACHE", "FUSEWIRE_CONFIG")
        }
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, **self.variables, **own, **more},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def believe(self, line: str) -> None:
        """Add a line to the list of allowed signers."""
        config = self.folder / "fusewire_config"
        config.mkdir(mode=0o700, parents=True)
        (config / "allowed_signers").write_text(line + "\n")
        (config / "allowed_signers").chmod(0o600)

    def command(self, *words: str, **more: str) -> Any:
        """Run a command of fusewire."""
        return self.runs("-m", "fusewire", *words, "--json", **more)


@dataclass(frozen=True)
class Builder:
    """A user, the line that makes others believe them, and what the model answered."""

    user: User
    line: str
    answer: Any


@pytest.fixture(params=["rclone", "moto", "folder"])
def variables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    if request.param == "folder":
        yield {"FUSEWIRE_REMOTE": str(tmp_path / "shared")}
        return
    if not is_installed(request.param):
        pytest.skip(f"{request.param} is not installed")
    with serve(request.param, tmp_path) as server:
        yield {**server.variables, "FUSEWIRE_REMOTE": server.url}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy as np

    weights = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    graph = fw.trace(lambda x: np.tanh(x @ weights) @ weights, fw.Spec((4, 8), "float32"))
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    fw.save_onnx(graph, path)
    return path


@pytest.fixture(scope="module")
def builder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """Somebody who has measured, and has a key."""
    user = User(tmp_path_factory.mktemp("builder"), {})
    line = user.command("store", "keygen", "--name", "builder", "--allow")["line"]
    alone = user.runs("-c", ANSWER, str(model))
    assert alone["measuring"]
    return Builder(user, line, alone["answer"])


def test_second_user_measures_nothing(
    builder: Builder, variables: dict[str, str], model: Path, tmp_path: Path
) -> None:
    first, second = replace(builder.user, variables=variables), User(tmp_path / "own", variables)
    pushed = first.command("store", "push")
    assert pushed["kept"]["plan"] >= 1
    assert pushed["refused"] == []
    assert first.command("store", "verify", "--content")["good"] == sum(pushed["kept"].values())
    second.believe(builder.line)
    recalled = second.runs("-c", ANSWER, str(model), "recall")
    assert recalled == {"answer": builder.answer, "measuring": []}
    # From now on without the bucket.
    gone = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    assert second.runs("-c", ANSWER, str(model), **gone)["measuring"] == []
    assert "artifact" not in second.command("store", "pull")["kept"]
    assert not second.command("store", "pull")["kept"]


def test_user_who_believes_nobody_measures(builder: Builder, model: Path, tmp_path: Path) -> None:
    variables = {"FUSEWIRE_REMOTE": str(tmp_path / "shared")}
    first, second = replace(builder.user, variables=variables), User(tmp_path / "own", variables)
    count = sum(first.command("store", "push")["kept"].values())
    pulled = second.command("store", "pull")
    assert not pulled["kept"]
    assert len(pulled["refused"]) == count
    assert second.runs("-c", ANSWER, str(model))["measuring"]


def test_without_an_address_the_command_says_what_to_give(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fusewire", "store", "verify"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "FUSEWIRE_REMOTE" in done.stderr
