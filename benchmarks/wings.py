"""Does the rest work without a wing? Deletes each from a copy of HEAD and runs the smoke tests.

    python benchmarks/wings.py [WING ...]

Wings are listed in tests/architecture/test_wings.py. From a copy of what is committed, a wing's
modules go, its entry points, and the tests that import them; then the tests of `just smoke` run
there with the packages of this environment. Exit 1 if a test fails, or none ran.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.house import write_metadata  # noqa: E402
from tests.architecture.source import PACKAGE, is_within  # noqa: E402
from tests.architecture.test_wings import WINGS  # noqa: E402
from tests.needs import imported_names  # noqa: E402

# Tests about all of the package or of the tests, wings among them.
WHOLE = tuple(
    f"tests/architecture/test_{x}.py" for x in ("libraries", "public_names", "rings", "wings")
)


def without(wing: str, folder: Path) -> None:
    """Write a copy of what is committed, without a wing."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
    names = [f"{PACKAGE}.{member}" for member in WINGS[wing]]
    for name in names:
        path = folder / "src" / Path(*name.split("."))
        shutil.rmtree(path) if path.is_dir() else path.with_suffix(".py").unlink()
    for test in needing(names):
        (folder / test).unlink()
    project = folder / "pyproject.toml"
    lines = project.read_text(encoding="utf-8").splitlines(keepends=True)
    entries = re.compile(rf'= "({"|".join(map(re.escape, names))})[.:]')
    project.write_text("".join(x for x in lines if not entries.search(x)), encoding="utf-8")
    write_metadata(folder, folder / "src")


def needing(names: list[str]) -> list[str]:
    """List the files of tests that import one of these modules."""
    files = [x.relative_to(ROOT).as_posix() for x in (ROOT / "tests").rglob("test_*.py")]
    return [
        file
        for file in files
        if file in WHOLE
        or any(is_within(x, name) for x in imported_names(ROOT / file) for name in names)
    ]


def smoke(folder: Path) -> int:
    """Run the tests of `just smoke` in a copy; returns pytest's exit code."""
    task = re.search(
        r"^smoke \*ARGS:\n    pytest (.*?) \{\{ARGS\}\} \\\n(.*?)\n\n",
        (folder / "justfile").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert task is not None, "the justfile has a task smoke"
    words = f"pytest -q -p no:cacheprovider {task[1]} {task[2]}".replace("\\\n", " ")
    # Before what is installed, which is this checkout.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)])}
    return subprocess.run(["bash", "-c", words], cwd=folder, env=env, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wings", nargs="*", metavar="WING", help=", ".join(WINGS))
    failed = []
    for wing in parser.parse_args().wings or WINGS:
        with tempfile.TemporaryDirectory() as name:
            without(wing, Path(name))
            print(f"== without {wing}", flush=True)
            if smoke(Path(name)):
                failed.append(wing)
    print(f"fails without: {', '.join(failed)}" if failed else "the rest works without each")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
