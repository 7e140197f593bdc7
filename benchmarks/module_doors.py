"""Do the PyTorch modules run right through every door and on every engine, and how fast?

    python benchmarks/module_doors.py right  [--backends a,b] [--small] [NAME ...]
    python benchmarks/module_doors.py doors  [--small] [NAME ...]
    python benchmarks/module_doors.py time   [--seconds 6] [NAME ...]
    python benchmarks/module_doors.py first  [--times 3] [NAME ...]
    python benchmarks/module_doors.py table  writes results/modules.md from what was found so far

The modules are those of `benchmarks/modules`; ``--transformers`` takes the ten classes of
`benchmarks/transformers_models.py` instead. ``right``: the oracle is held against eager in float64
once, then judges every engine with fallback at every size, and the nodes on fallback are counted.
``doors``: `fw.compile(module)` and `torch.compile(module, backend="fusewire")` against the oracle,
the first call and the settled one, every size, and the graphs that Dynamo compiled. ``time``: the
settled programs beside eager and Inductor, interleaved, with the better of the two run twice.
``first``: the first call in a fresh process with an empty cache, imports apart. Each module has a
process of its own (``--together 10`` saves time where none is measured), and what it found is kept
in ``--json FOLDER``, so that a run can go on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__)
sys.path.insert(0, str(HERE.parents[1]))
HOME = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fusewire-modules"
PARTS = ("right", "doors", "time", "first")
Row = dict[str, Any]


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=[*PARTS, "table"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--models", default="", help="names, with commas between")
    parser.add_argument("--backends", default="", help="engines, with commas between")
    parser.add_argument("--transformers", action="store_true", help="the ten classes")
    parser.add_argument("--small", action="store_true", help="those that tests run")
    parser.add_argument("--networks", action="store_true", help="whole networks alone")
    parser.add_argument("--again", action="store_true", help="also what is kept already")
    parser.add_argument("--seconds", type=float, default=6.0, help="of timing, for each module")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of a comparison")
    parser.add_argument("--times", type=int, default=3, help="fresh processes for each first call")
    parser.add_argument("--together", type=int, default=1, help="modules in one process")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of one module")
    parser.add_argument("--json", type=Path, default=HOME, help="folder of what was found")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_intermixed_args()


def chosen(args: argparse.Namespace) -> list[str]:
    """List the modules that are asked for."""
    if args.transformers:
        from benchmarks.transformers_models import cases
    else:
        from benchmarks.modules import collection as cases
    table = cases()
    names = [*args.names, *filter(None, args.models.split(","))] or list(table)
    if unknown := set(names) - set(table):
        sys.exit(f"{', '.join(unknown)}: not a module. There are {', '.join(table)}.")
    return [
        name
        for name in names
        if (table[name].is_small or not args.small)
        and (table[name].is_network or not args.networks)
    ]


def kept(args: argparse.Namespace, name: str) -> Path:
    """Give the place of what was found of a module."""
    folder: Path = args.json
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{args.part}.{name}.json"


def run_all(args: argparse.Namespace, names: list[str]) -> int:
    """Ask for the modules that are not kept, some in each process; returns how many failed."""
    waiting = [name for name in names if args.again or not kept(args, name).exists()]
    failed = 0
    while waiting:
        group = waiting[: args.together]
        for name, row in run_some(args, group):
            kept(args, name).write_text(json.dumps(row, indent=1))
            failed += not row["ok"]
            waiting.remove(name)
            done = len(names) - len(waiting)
            print(f"{done}/{len(names)} {name}: {row['said']}", flush=True)
    return failed


def run_some(args: argparse.Namespace, group: list[str]) -> Iterator[tuple[str, Row]]:
    """Give the rows of some modules, the last of which may have ended the process."""
    if args.part == "first":
        from benchmarks.module_first import first_calls

        yield group[0], first_calls(group[0], args)
    else:
        yield from fresh(group, args.limit)


def fresh(group: list[str], limit: float) -> Iterator[tuple[str, Row]]:
    """Run this script in a fresh process with an empty cache, and read the rows as it prints."""
    words = [*sys.argv[1:], "--child", ",".join(group)]
    given = 0
    with (
        tempfile.TemporaryDirectory(prefix="modules-") as folder,
        Path(folder, "said").open("w+") as said,
    ):
        env = {**os.environ, "FUSEWIRE_CACHE": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/i"}
        with subprocess.Popen(
            [sys.executable, str(HERE), *words],
            env=env,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process:
            assert process.stdout is not None
            alarm = threading.Timer(limit * len(group), process.kill)
            alarm.start()
            for line in process.stdout:
                if line.startswith("ROW "):
                    yield group[given], json.loads(line[4:])
                    given += 1
            code = process.wait()
            alarm.cancel()
        if given < len(group):
            said.seek(0)
            lines = said.read().strip().splitlines() or ["nothing was said"]
            found = f"ended with {code}: {lines[-1][:300]}"
            yield group[given], {"ok": False, "said": found, "trace": lines[-60:]}


def child(args: argparse.Namespace) -> None:
    """Do the part for some modules, and print their rows."""
    from benchmarks import module_case

    part = {"right": module_case.right, "doors": module_case.doors, "time": module_case.timed}
    for name in args.child.split(","):
        print("ROW " + json.dumps(part[args.part](name, args)), flush=True)
    # Engines that still run threads must not keep the process, or end it with another code.
    os._exit(0)


def main() -> None:
    args = arguments()
    if args.child:
        child(args)
    elif args.part == "table":
        from benchmarks.module_table import write

        write(args.json)
    else:
        sys.exit(1 if run_all(args, chosen(args)) else 0)


if __name__ == "__main__":
    main()
