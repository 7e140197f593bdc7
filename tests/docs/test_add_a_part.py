"""What one idea costs, carried out on a copy: a backend is one folder and one line, a command one
file and one line. Nothing else is edited, and the suite takes both in."""

import json
import shutil
from pathlib import Path

from benchmarks.house import write_metadata
from tests.docs.copies import copied, passes, run

HERE = Path(__file__).parent
QUIET = ("pytest", "-q", "-p", "no:cacheprovider")
# Which rules of the house a new file could break; types and style are checked where it lies.
RULES = [f"tests/architecture/test_{name}.py" for name in ("layers", "libraries", "sizes")]
CLI = "from fusewire.cli import main; main()"


def _add_line(file: Path, after: str, line: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(after) == 1, after
    file.write_text(text.replace(after, after + line), encoding="utf-8")


def test_a_command_is_one_file_and_one_line(tmp_path: Path) -> None:
    root = copied(tmp_path)
    folder = root / "src" / "fusewire" / "cli"
    shutil.copy(HERE / "greet_command.py", folder / "greet.py")
    _add_line(folder / "__init__.py", "COMMANDS = {\n", '    "greet": "Say hello.",\n')
    assert "Say hello." in passes(root, "-c", CLI, "--help")
    assert json.loads(passes(root, "-c", CLI, "greet", "--json")) == {"hello": "world"}
    done = passes(root, *QUIET, "tests/cli/test_commands.py", "-k", "greet or help")
    assert "2 passed" in done, done
    # The tables of commands are generated: nobody writes a row.
    assert "fusewire greet" in run(root, "docs/generate.py").stdout
    passes(root, "docs/generate.py", "--check")
    passes(root, *QUIET, *RULES)


def test_a_backend_is_one_folder_and_one_line(tmp_path: Path) -> None:
    root = copied(tmp_path)
    folder = root / "src" / "fusewire" / "backends" / "abacus"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Adds and negates."""\n', encoding="utf-8")
    shutil.copy(HERE / "abacus_engine.py", folder / "engine.py")
    _add_line(
        root / "pyproject.toml",
        '[project.entry-points."fusewire.backends"]\n',
        'abacus = "fusewire.backends.abacus.engine:AbacusBackend"\n',
    )
    # As installing it would do.
    write_metadata(root, root / "src")
    listed = {row["name"]: row for row in json.loads(passes(root, "-c", CLI, "backends", "--json"))}
    assert listed["abacus"]["state"] == "ready"
    words = ("conform", "abacus", "--op", "add", "--op", "negative", "--op", "exp")
    rows = json.loads(passes(root, "-c", CLI, *words, "--json"))["ops"]
    statuses = {row["op"]: row["status"] for row in rows}
    assert statuses == {"add": "proven", "negative": "proven", "exp": "refused"}
    ran = passes(
        root,
        "-c",
        "import fusewire as fw, numpy as np\n"
        "f = fw.compile(lambda x: np.exp(-(x + x)), backend='abacus', fallback='allow')\n"
        "print(f(np.zeros(2, np.float32)), [region.backend for region in f.why().regions])",
    )
    assert ran.startswith("[1. 1.]")
    assert "abacus" in ran
    # The tables of backends are generated: nobody writes a row.
    assert "`abacus`" in run(root, "docs/generate.py").stdout
    passes(root, "docs/generate.py", "--check")
    passes(root, *QUIET, *RULES)
