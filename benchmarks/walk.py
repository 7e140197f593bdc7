"""How far does a reader go who follows a decision through the middle of the package?

    python benchmarks/walk.py [--json]

Compiles a small file with ``start="measured"`` for ONNX Runtime and the reference, calls it, and
lists the functions of the middle that were entered from another module, each once, in the order in
which they were first entered, on every thread. A module counts when one of them is its own, and a
return when the list comes back to a module that it had left. What children do is not followed, and
ir, ops, rewrite, planning, numerics and contract do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import fusewire as fw

ENGINES = ("onnxruntime", "reference")
PACKAGE = Path(fw.__file__).parent
ROOMS = (
    "background",
    "bundling",
    "choosing",
    "compiler",
    "plan",
    "program",
    "records",
    "session",
    "show",
    "trials",
)


def decide(folder: Path) -> None:
    """Take a decision anew, and call what was chosen."""
    graph = fw.trace(lambda x: np.tanh(x @ np.ones((8, 8), np.float32)), fw.Spec((3, 8), "float32"))
    fw.save_onnx(graph, folder / "model.onnx")
    with fw.Registry() as registry:
        for name in registry.backends.names():
            if name not in ENGINES:
                registry.unregister(name)
        program = fw.compile(folder / "model.onnx", registry=registry, start="measured")
        program(np.ones((3, 8), np.float32))
        program.wait(60)


def entered_functions() -> list[tuple[str, str]]:
    """List the modules and functions that a decision enters."""
    entered: dict[tuple[str, str], None] = {}

    def watch(frame: FrameType, event: str, _: Any) -> None:
        name, function = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if event != "call" or not name.startswith("fusewire.") or "<" in function:
            return
        module = name.removeprefix("fusewire.")
        caller = frame.f_back and frame.f_back.f_globals.get("__name__")
        if module.split(".")[0] in ROOMS and caller != name:
            entered.setdefault((module, function))

    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSEWIRE_CACHE"] = str(Path(folder) / "cache")
        threading.setprofile(watch)
        sys.setprofile(watch)
        try:
            decide(Path(folder))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return list(entered)


def walk() -> dict[str, Any]:
    """Count modules, returns and lines of a decision."""
    entered = entered_functions()
    visits = [module for module, _ in groupby(module for module, _ in entered)]
    lines = {
        module: len((PACKAGE / f"{module.replace('.', '/')}.py").read_bytes().splitlines())
        for module in sorted(set(visits))
    }
    return {
        "modules": len(lines),
        "returns": len(visits) - len(lines),
        "functions": len(entered),
        "lines": lines,
        "entered": [".".join(names) for names in entered],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = walk()
    if options.json:
        print(json.dumps(found))
        return
    for number, name in enumerate(found["entered"], 1):
        print(f"{number:3}. {name}")
    print("\nlines  module")
    for module, lines in sorted(found["lines"].items(), key=lambda item: -item[1]):
        print(f"{lines:5}  {module}")
    counts = ", ".join(f"{found[name]} {name}" for name in ("modules", "returns", "functions"))
    print(f"\n{counts}")


if __name__ == "__main__":
    main()
