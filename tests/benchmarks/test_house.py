"""The table of the house: faults planted in a small tree are listed, and cycles fail it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.house import WIDTH, ceilings, over_ceilings, shown, survey

ROOT = Path(__file__).parents[2]
TREE = {
    "ir/graph.py": "class Graph: ...\n",
    "ops/table.py": "from fusewire.ir.graph import Graph\nclass Table: ...\n",
    "backends/one/engine.py": "class Graph: ...\n",
}


def planted(folder: Path, changes: dict[str, str]) -> Path:
    """Write a small tree with some files added or replaced; gives the root of the checkout."""
    for path, text in {**TREE, **changes}.items():
        file = folder / "src" / "fusewire" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def command(root: Path) -> subprocess.CompletedProcess[str]:
    words = ["benchmarks/house.py", "--static", "--json", "--root", str(root)]
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_tree_in_order_has_nothing_listed(tmp_path: Path) -> None:
    done = command(planted(tmp_path, {}))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    same = {"files": 1, "late_imports": 0, "in_circles": 0, "classes": 1, "public": 1, "wide": 0}
    assert report.pop("rooms") == {
        "backends.one": {"lines": 1, "statements": 2, **same},
        "ir": {"lines": 1, "statements": 2, **same},
        "ops": {"lines": 2, "statements": 3, **same},
    }
    assert report == {
        "lines": 4,
        "files": 3,
        "long_files": {},
        "import_cycles": [],
        "late_cycles": [],
        "doubled_classes": {},
        "long_functions": {},
        "problems": [],
    }


@pytest.mark.parametrize(
    "text",
    [
        "from fusewire.ops.table import Table\n",
        "from ..ops import table\n",
        "try:\n    import fusewire.ops.table\nexcept ImportError: ...\n",
        "class Late:\n    from fusewire.ops import table\n",
    ],
)
def test_planted_cycle_fails(tmp_path: Path, text: str) -> None:
    done = command(planted(tmp_path, {"ir/graph.py": text}))
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["import_cycles"] == [["fusewire.ir.graph", "fusewire.ops.table"]]


def test_cycle_through_a_function_is_listed_apart(tmp_path: Path) -> None:
    text = "def later():\n    from fusewire.ops.table import Table\n"
    done = command(planted(tmp_path, {"ir/graph.py": text}))
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert report["late_cycles"] == [["fusewire.ir.graph", "fusewire.ops.table"]]
    assert not report["import_cycles"]


def test_import_for_type_checkers_is_not_a_cycle(tmp_path: Path) -> None:
    text = "if TYPE_CHECKING:\n    from fusewire.ops.table import Table\n"
    report = survey(planted(tmp_path, {"ir/graph.py": text}) / "src")
    assert not report["import_cycles"]
    assert not report["late_cycles"]


def test_doubled_class_is_listed(tmp_path: Path) -> None:
    changes = {"ops/other.py": "class Table: ...\nclass _Graph: ...\n"}
    report = survey(planted(tmp_path, changes) / "src")
    assert report["doubled_classes"] == {"Table": ["fusewire.ops.other", "fusewire.ops.table"]}


def test_long_file_and_function_are_listed(tmp_path: Path) -> None:
    text = "def long():\n" + "    x = 1\n" * 601
    report = survey(planted(tmp_path, {"ir/long.py": text}) / "src")
    assert report["long_files"] == {"fusewire/ir/long.py": 602}
    assert report["long_functions"] == {"fusewire/ir/long.py::long": 602}


@pytest.mark.parametrize(
    ("text", "classes", "public", "wide"),
    [
        ("class _Own:\n    class Inner: ...\n", 2, 0, 0),
        ("A, _b = c = 1, 2\nD: int = 3\nasync def e(): ...\n", 0, 4, 0),
        ("def f(a, b, c, d, e, /, f, *, g): ...\ndef h(a, b, c, d, e, f, *g): ...\n", 0, 2, 1),
        ("class A:\n    def f(self, a, b, c, d, e, f): ...\n", 1, 1, 0),
        ("class A:\n    def f(self, a, b, c, d, e, f, g): ...\n", 1, 1, 1),
    ],
)
def test_what_a_room_shows_is_counted(
    tmp_path: Path, text: str, classes: int, public: int, wide: int
) -> None:
    room = survey(planted(tmp_path, {"ir/graph.py": text}) / "src")["rooms"]["ir"]
    assert (room["classes"], room["public"], room["wide"]) == (classes, public, wide)


def test_room_over_its_ceiling_is_a_problem(tmp_path: Path) -> None:
    report = survey(planted(tmp_path, {}) / "src")
    highest = {"(all)": 4, "backends.one": 1, "ir": 1, "ops": 2}
    assert over_ceilings(report, {"rooms": highest, "circles": []}) == []
    for name, count in highest.items():
        (problem,) = over_ceilings(report, {"rooms": highest | {name: count - 1}, "circles": []})
        assert problem == f"{name} has {count} lines, {count - 1} at most"


def test_room_without_ceiling_and_ceiling_without_room_are_problems(tmp_path: Path) -> None:
    report = survey(planted(tmp_path, {}) / "src")
    highest = {"(all)": 4, "backends.one": 1, "ir": 1, "attic": 2}
    assert over_ceilings(report, {"rooms": highest, "circles": []}) == [
        "ops has no ceiling",
        "attic is gone: drop its ceiling",
    ]


def test_new_circle_is_a_problem(tmp_path: Path) -> None:
    text = "def later():\n    from fusewire.ops.table import Table\n"
    report = survey(planted(tmp_path, {"ir/graph.py": text}) / "src")
    highest = {"(all)": 9, "backends.one": 9, "ir": 9, "ops": 9}
    (problem,) = over_ceilings(report, {"rooms": highest, "circles": []})
    assert problem == "a new circle: ir.graph, ops.table"
    known = {"rooms": highest, "circles": ["ir.graph, ops.table"]}
    assert over_ceilings(report, known) == []


def test_table_fits_a_terminal() -> None:
    table = shown(survey(ROOT / "src"), ceilings())
    assert max(map(len, table.splitlines())) <= WIDTH
