"""Is the house in order? Count what each room holds, cycles, doubled names, and a start's imports.

    python benchmarks/house.py [--root PATH] [--static] [--json]

Reads the source tree of this checkout, or of another one with --root, and prints two tables: of the
rooms (a room is a folder below the package, each backend and frontend is one, and the modules at
the root are one; *late* are names imported inside functions, *circles* files in one, *public* names
of modules without an underscore, *wide* functions with more than six parameters), and of the whole.
Files over 600 lines are a warning: ask whether the file still holds one idea.

It ends with exit code 1 if there is an import-time cycle, a cycle through imports in functions that
benchmarks/ceilings.toml does not list, or a room with more lines than its ceiling there. A change
that adds lines finds others to remove; a decision record that names what was looked for raises a
ceiling.

Then it starts a small ONNX model and a function in fresh processes, with an empty cache (cold) and
once more (warm), and counts the modules of the package that were imported between ``fw.compile``
and the first answer. --static leaves that out.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.architecture.source import (  # noqa: E402
    PACKAGE,
    Import,
    Module,
    function_lines,
    functions,
    imports_when_loaded,
    imports_when_run,
    is_within,
    modules,
)

FILE_LINES = 600
FUNCTION_LINES = 40
PARAMETERS = 6
WIDTH = 88
CEILINGS = Path(__file__).with_name("ceilings.toml")
AT_ROOT, WHOLE = "(root)", "(all)"
# Folders whose folders are rooms of their own.
WINGED = ("backends", "frontends")
ENGINES = ("onnxruntime", "reference")
# Iterated over rather than called one after another: ops, rules and passes, importers and tables.
# "formats" is what onnx/ was called before: --root reads such checkouts too.
TABLES = ("ops", "rewrite", "frontends", "formats", "onnx", "backends.*.lowering")

Edges = Mapping[str, set[str]]
Report = dict[str, Any]


# Imports as a graph.


def import_edges(files: list[Module], imports: Callable[[Module], Iterable[Import]]) -> Edges:
    """Map each module to those of the package that it imports."""
    names = {module.name for module in files}
    return {
        module.name: {
            target
            for imported in imports(module)
            if is_within(imported.target, PACKAGE)
            if (target := _module_of(imported.target, names)) is not None
        }
        for module in files
    }


def _module_of(target: str, names: set[str]) -> str | None:
    """Find the module behind an imported name: `a.b.c` may be `c` of the module `a.b`."""
    while target and target not in names:
        target = target.rpartition(".")[0]
    return target or None


def cycles(edges: Edges) -> list[list[str]]:
    """Give the groups of modules that import each other, each group sorted."""
    reached = {name: _reachable(name, edges) for name in edges}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in edges
        if name in reached[name]
    }
    return sorted(map(list, groups))


def _reachable(start: str, edges: Edges) -> set[str]:
    seen: set[str] = set()
    todo = list(edges[start])
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += edges[name]
    return seen


# Rooms.


def room_of(module: Module) -> str:
    """Name the folder below the package that a module is in; `backends.xla` is one."""
    folders = module.path.relative_to(module.root).parts[1:-1]
    return ".".join(folders[: 2 if folders[:1] and folders[0] in WINGED else 1]) or AT_ROOT


def rooms(files: Iterable[Module], circles: Iterable[list[str]]) -> dict[str, Report]:
    """Count what the modules of each room hold, and their files in a circle."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    in_circles = {name for group in circles for name in group}
    for module in files:
        nodes = list(ast.walk(module.tree))
        counts[room_of(module)].update(
            lines=module.text.count("\n"),
            statements=sum(isinstance(node, ast.stmt) for node in nodes),
            files=1,
            late_imports=_late_imports(module),
            in_circles=int(module.name in in_circles),
            classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
            public=len(_public_names(module.tree)),
            wide=sum(_parameters(node) > PARAMETERS for _, node in functions(module.tree)),
        )
    return {name: dict(counts[name]) for name in sorted(counts)}


def _late_imports(module: Module) -> int:
    """Count the names of the package that are imported inside functions."""
    ours = [x for x in imports_when_run(module) if is_within(x.target, PACKAGE)]
    loaded = set(imports_when_loaded(module))
    return sum(imported not in loaded for imported in ours)


def _public_names(tree: ast.Module) -> set[str]:
    """Give the names that a module defines, without those that begin with an underscore."""
    names = set()
    for node in tree.body:
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
            ):
                names.add(name)
            case ast.Assign(targets=targets):
                bound = (x for target in targets for x in ast.walk(target))
                names |= {x.id for x in bound if isinstance(x, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return {name for name in names if not name.startswith("_")}


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count what a caller may pass by name or position, which is not the object itself."""
    own = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return sum(parameter.arg not in ("self", "cls") for parameter in own)


def ceilings() -> Report:
    """Read how many lines each room may have, and the circles that are known."""
    return tomllib.loads(CEILINGS.read_text(encoding="utf-8"))


def over_ceilings(report: Report, highest: Report) -> list[str]:
    """List the rooms that are over their ceilings, and circles that are not listed."""
    most = highest["rooms"]
    found = {name: room["lines"] for name, room in report["rooms"].items()}
    found[WHOLE] = report["lines"]
    problems = [f"{name} has no ceiling" for name in sorted(found.keys() - most.keys())]
    problems += [f"{name} is gone: drop its ceiling" for name in most.keys() - found.keys()]
    problems += [
        f"{name} has {count:,} lines, {most[name]:,} at most"
        for name, count in found.items()
        if count > most.get(name, count)
    ]
    circles = map(_group, report["late_cycles"])
    unknown = [names for names in circles if names not in highest["circles"]]
    return problems + [f"a new circle: {names}" for names in unknown]


# Names and sizes.


def doubled_classes(files: Iterable[Module]) -> dict[str, list[str]]:
    """Map public class names that several modules outside backends/ use to these modules."""
    places = defaultdict(list)
    for module in files:
        if is_within(module.name, f"{PACKAGE}.backends"):
            continue
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module.name)
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


def survey(source: Path) -> Report:
    """Read the tree below a folder that holds the package."""
    files = modules(source)
    lines = {module.shown: module.text.count("\n") for module in files}
    at_load = cycles(import_edges(files, imports_when_loaded))
    at_any_time = cycles(import_edges(files, imports_when_run))
    return {
        "rooms": rooms(files, at_any_time),
        "lines": sum(lines.values()),
        "files": len(files),
        "long_files": {name: n for name, n in lines.items() if n > FILE_LINES},
        "import_cycles": at_load,
        "late_cycles": [group for group in at_any_time if group not in at_load],
        "doubled_classes": doubled_classes(files),
        "long_functions": {
            f"{module.shown}::{name}": function_lines(node)
            for module in files
            for name, node in functions(module.tree)
            if function_lines(node) > FUNCTION_LINES
        },
    }


# What a start imports.

START = """
import json, sys
import numpy as np
import fusewire as fw
source, engine = sys.argv[1:]
if source == "function":
    def source(x):
        return np.tanh(x) * 2 + x
before = set(sys.modules)
program = fw.compile(source, backend=engine)
program(np.ones((2, 3), np.float32))
ours = [name for name in sys.modules if name.startswith("fusewire.") and name not in before]
print(json.dumps(sorted(ours)))
"""


def starts(root: Path) -> list[Report]:
    """Count the modules that fresh processes import, by source, engine and state of the cache."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_metadata(root, folder)
        write_model(folder / "small.onnx")
        for source in (str(folder / "small.onnx"), "function"):
            for engine in ENGINES:
                cache = folder / f"cache-{engine}-{Path(source).stem}"
                for state in ("cold", "warm"):
                    imported = started(root, folder, source, engine, cache)
                    shown = "function" if source == "function" else "ONNX model"
                    rows.append(_row(shown, engine, state, imported))
    return rows


def started(root: Path, folder: Path, source: str, engine: str, cache: Path) -> list[str]:
    """Compile and run in a fresh process; gives the modules that it imported in between."""
    done = subprocess.run(
        [sys.executable, "-c", START, source, engine],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), str(root / "src")]),
            "FUSEWIRE_CACHE": str(cache),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{source} does not start on {engine}:\n{done.stderr}")
    names: list[str] = json.loads(done.stdout)
    return names


def write_metadata(root: Path, folder: Path) -> None:
    """Describe the checkout as an installed distribution: plugins are found by entry point."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = folder / "fusewire-0.dist-info"
    about.mkdir()
    lines = "Metadata-Version: 2.1\nName: fusewire\nVersion: 0\n"
    (about / "METADATA").write_text(lines, encoding="utf-8")
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (about / "entry_points.txt").write_text("\n".join(points), encoding="utf-8")


def write_model(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Tanh", ["x"], ["h"]),
        helper.make_node("Add", ["h", "x"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    graph = helper.make_graph(nodes, "small", [x], [y])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


def _row(source: str, engine: str, state: str, imported: list[str]) -> Report:
    return {
        "source": source,
        "engine": engine,
        "cache": state,
        "modules": len(imported),
        "without_tables": sum(not _is_table(name) for name in imported),
        "imported": imported,
    }


def _is_table(name: str) -> bool:
    parts = name.split(".")[1:]
    wanted = [table.split(".") for table in TABLES]
    return any(
        len(parts) >= len(table)
        and all(word in ("*", part) for word, part in zip(table, parts, strict=False))
        for table in wanted
    )


# The table.


def shown(report: Report, highest: Report) -> str:
    most = highest["rooms"]
    lines = [
        f"{'room':<21}{'lines':>8}{'ceiling':>8}{'statements':>11}{'files':>6}{'late':>5}"
        f"{'circles':>8}{'classes':>8}{'public':>7}{'wide':>5}",
        *(_room_line(name, room, most.get(name)) for name, room in report["rooms"].items()),
        "",
        f"lines in src, and at most                   {report['lines']:>8,}  {most.get(WHOLE):,}",
        f"files in src                                {report['files']:>8,}",
        *_listed(f"files over {FILE_LINES} lines (a warning)", _sized(report["long_files"])),
        *_listed("import-time cycles (must be 0)", map(_group, report["import_cycles"])),
        *_listed("cycles through imports in functions", map(_group, report["late_cycles"])),
        *_listed(
            "class names used twice (must be 0)",
            [f"{name}: {_group(where)}" for name, where in report["doubled_classes"].items()],
        ),
        *_listed(f"functions over {FUNCTION_LINES} lines", _sized(report["long_functions"])),
    ]
    if report.get("starts"):
        lines += ["modules imported from fw.compile to the first answer (without tables*)"]
        lines += map(_start_line, _paired(report["starts"]))
        lines += [f"  * {', '.join(TABLES)}"]
    return "\n".join(line for text in lines for line in _wrapped(text))


def _room_line(name: str, room: Report, most: int | None) -> str:
    ceiling = "none" if most is None else f"{most:,}"
    return (
        f"{name:<21}{room['lines']:>8,}{ceiling:>8}{room['statements']:>11,}{room['files']:>6}"
        f"{room['late_imports']:>5}{room['in_circles']:>8}{room['classes']:>8}{room['public']:>7}"
        f"{room['wide']:>5}"
    )


def _listed(title: str, items: Iterable[str]) -> list[str]:
    listed = list(items)
    return [f"{title:<44}{len(listed):>8,}", *(f"  {item}" for item in listed)]


def _sized(sizes: Mapping[str, int]) -> list[str]:
    return [
        f"{n:>5} {name.removeprefix(PACKAGE + '/')}"
        for name, n in sorted(sizes.items(), key=lambda pair: -pair[1])
    ]


def _group(names: Iterable[str]) -> str:
    return ", ".join(name.removeprefix(PACKAGE + ".") for name in names)


def _paired(rows: list[Report]) -> list[tuple[Report, Report]]:
    return list(zip(rows[::2], rows[1::2], strict=True))


def _start_line(pair: tuple[Report, Report]) -> str:
    first = pair[0]
    counts = (f"{row['cache']} {row['modules']:>4} ({row['without_tables']:>3})" for row in pair)
    return f"  {first['source']:<11} on {first['engine']:<12} {'   '.join(counts)}"


def _wrapped(text: str) -> list[str]:
    lines = []
    while len(text) > WIDTH:
        cut = text.rfind(" ", 8, WIDTH + 1)
        cut = WIDTH if cut < 0 else cut
        lines.append(text[:cut])
        text = "        " + text[cut:].lstrip()
    return [*lines, text]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to look at")
    parser.add_argument("--static", action="store_true", help="start nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    root = options.root.resolve()
    report = survey(root / "src")
    highest = ceilings()
    report["problems"] = over_ceilings(report, highest) if root == ROOT else []
    if not options.static:
        report["starts"] = starts(root)
    print(json.dumps(report, indent=2) if options.json else shown(report, highest))
    for problem in report["problems"]:
        print(problem, file=sys.stderr)
    raise SystemExit(1 if report["import_cycles"] or report["problems"] else 0)


if __name__ == "__main__":
    main()
