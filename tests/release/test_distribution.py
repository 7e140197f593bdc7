"""What is uploaded: the wheel and the sdist are whole, valid, and work where nothing else is."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.environments import ROOT, environment

SDIST = ("src", "tests", "docs", "examples", "benchmarks", ".ci", "pyproject.toml", "README.md")


def _tool(*words: str, folder: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist from the tree, and the wheel from the sdist, as an upload does."""
    folder = tmp_path_factory.mktemp("built")
    _tool("build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    return folder


def test_both_files_may_be_uploaded(built: Path) -> None:
    files = sorted(built.iterdir())
    assert [file.name.removesuffix(".gz")[-4:] for file in files] == [".whl", ".tar"]
    assert _tool("twine", "check", "--strict", *map(str, files)).count("PASSED") == 2


def test_the_wheel_holds_every_file_of_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("fusewire/")}
    tree = [path for path in (ROOT / "src" / "fusewire").rglob("*") if path.is_file()]
    wanted = {path.relative_to(ROOT / "src").as_posix() for path in tree}
    assert packed == {name for name in wanted if "__pycache__" not in name}


def test_the_sdist_has_no_folder_of_a_developer(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {name for name in SDIST if (ROOT / name).exists()} <= tops
    assert not tops & {".venv", ".git", "build", "dist", ".mypy_cache"}


def test_the_wheel_works_where_nothing_else_is(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    python = environment(tmp_path / "clean", wheel=wheel)
    empty = tmp_path / "empty"
    empty.mkdir()
    code = (
        "import sys, numpy as np, fusewire as fw\n"
        "assert fw.__file__.startswith(sys.prefix), fw.__file__\n"
        f"assert fw.__version__ == {wheel.name.split('-')[1]!r}, fw.__version__\n"
        "print(fw.compile(np.tanh, backend='reference')(np.zeros(2)).tolist())"
    )
    done = subprocess.run(
        [str(python), "-c", code], cwd=empty, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[0.0, 0.0]\n", done.stderr
    command = [str(python.parent / "fusewire"), "backends", "--json"]
    done = subprocess.run(command, cwd=empty, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"reference"' in done.stdout


@pytest.mark.parametrize(
    ("tag", "version"),
    [
        (None, r"0\.1\.dev1\+g\w+"),
        ("v1.2.3", r"1\.2\.3"),
        ("v2.0.0rc1", r"2\.0\.0rc1"),
        ("no git", r"0\.1\.dev0"),
    ],
)
def test_the_version_is_that_of_the_tag(tag: str | None, version: str, tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    if tag != "no git":
        git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
        words = [["init", "-q"], ["add", "."], ["commit", "-qm", "first"]]
        for arguments in [*words, *([["tag", tag]] if tag else [])]:
            subprocess.run([*git, *arguments], cwd=tmp_path, check=True)
    said = _tool("hatchling", "version", folder=tmp_path).strip()
    assert re.fullmatch(version, said), said
