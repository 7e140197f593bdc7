"""The walk of a model in docs/architecture.md is the one that a model really takes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fusewire as fw
from tests.architecture.source import PROJECT

PAGE = PROJECT / "docs" / "architecture.md"
# What the recipe iterates over: the importer, passes with their rules, and ops.
ITERATED = ("onnx", "rewrite", "ops", "ir")
MOST_MODULES = 20
# What benchmarks/walk.py counts: lower them when a decision gets simpler. What threads do first
# differs by two from run to run.
MOST_IN_A_DECISION = {"modules": 53, "returns": 113}
# Runs in a process of its own, and prints the functions that are on the stack whenever one of the
# milestones is reached, each once, in the order of their first appearance.
WALK = """
import sys
import numpy as np
import fusewire as fw

MILESTONES = {
    "onnx.read.document.OnnxDocument.convert",
    "rewrite.pipeline.run_pipeline",
    "planning.target.Target.claim",
    "process.child.Child.ask",
    "planning.partition.partition",
    "records.entries.Records.saved_plan",
    "records.entries.Records.keep_saved_plan",
    "records.entries.Records.artifact",
    "plan.execute.PlanRunner.__init__",
    "backends.onnxruntime.engine.OnnxRuntimeBackend.load",
    "backends.onnxruntime.executable.PlainSession.run",
}
walk = {}


def name_of(frame):
    return f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}"


def watch(frame, event, argument):
    if event == "call" and name_of(frame).removeprefix("fusewire.") in MILESTONES:
        names = []
        while frame is not None:
            names.append(name_of(frame))
            frame = frame.f_back
        ours = [x.removeprefix("fusewire.") for x in reversed(names) if x.startswith("fusewire.")]
        walk.update(dict.fromkeys(x for x in ours if "<" not in x))


sys.setprofile(watch)
program = fw.compile(sys.argv[1], backend="onnxruntime")
for _ in range(2):
    program(np.ones((3, 8), np.float32))
sys.setprofile(None)
print(*walk, sep="\\n")
"""


def documented(heading: str) -> list[str]:
    """Read the functions that the page lists under a heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"### {heading}", 1)[1].split("\n#", 1)[0]
    return re.findall(r"^\d+\. `([\w.]+)`", section, re.MULTILINE)


def module_of(function: str) -> str:
    """Give the module of a function: class names begin with a capital, or one behind a dash."""
    *names, _ = function.split(".")
    return ".".join(name for name in names if name.islower())


def walk(model: Path, cache: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", WALK, str(model)],
        env={**os.environ, "FUSEWIRE_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("walk")
    model = folder / "model.onnx"
    graph = fw.trace(lambda x: np.tanh(x), fw.Spec(("n", 8), "float32"))
    fw.save_onnx(graph, model)
    return {name: walk(model, folder / "cache") for name in ("Cold", "Warm")}


@pytest.mark.parametrize("name", ["Cold", "Warm"])
def test_the_documented_walk_is_the_real_one(walks: dict[str, list[str]], name: str) -> None:
    assert documented(name) == walks[name]


def test_a_cold_walk_crosses_few_modules(walks: dict[str, list[str]]) -> None:
    modules = {module_of(function) for function in walks["Cold"]}
    ours = {module for module in modules if module.split(".")[0] not in ITERATED}
    assert len(ours) < MOST_MODULES, sorted(ours)


def test_a_decision_crosses_no_more_modules_than_before() -> None:
    script = PROJECT / "benchmarks" / "walk.py"
    done = subprocess.run(
        [sys.executable, str(script), "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    listed = "\n".join(found["entered"])
    for name, most in MOST_IN_A_DECISION.items():
        assert found[name] <= most, f"{name}: {found[name]}, at most {most}:\n{listed}"
