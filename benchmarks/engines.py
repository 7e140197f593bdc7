"""Does Fusewire pick the right engine? 29 workloads and the zoo, against every engine run bare.

    python benchmarks/engines.py --resume                  all rows, going on where it was cut
    python benchmarks/engines.py --only "tiny MLP" mnist   [--seconds 12] [--budget 20] ...
    python benchmarks/engines.py --no-zoo | --zoo          one half of the rows
    python benchmarks/engines.py --compile all             Inductor's packages, and nothing timed
    python benchmarks/engines.py --table                   what is kept, nothing run; also --json
    python benchmarks/engines.py --page                    writes results/engines.md of it

The original of a row is an ONNX file. ONNX Runtime and OpenVINO run that, bare; XLA and NumPy run
the same function written for them, and have none for the zoo; PyTorch runs the steps that we make
of the file, and with --budget 90 or more its compiler too. That takes half a minute for a row, and
twice, bare and for Fusewire: --compile does it beforehand, beside other work if need be, and from
the same checkout, because Fusewire's records are those of its code. What was compiled beforehand is
timed bare whatever the budget; a small one leaves it out of what Fusewire chooses from, as it does
for everybody, and then it is timed beside the others, and not what ours is held against. Fusewire
chooses in an earlier process, with a cache that is empty but for Inductor's library, and a second
process pays for the choice here.
Each contestant is a process (benchmarks/contestants.py) and gives arrays that the caller may keep;
the parent asks them in turns for batches of 10 ms or one call, each when all others have gone
quiet. The best bare engine runs twice: that is A/A. What a row came to is kept in
~/.cache/fusewire-engines, and one that was not clear is run again by --resume.

A row passes at 1.05 times the best bare engine, or inside of the A/A interval; under 0.1 ms, at
1.25 or 4 us more. Exit 1 if one does not, or the geometric mean is over 1.02. Outputs over 32 MB,
against the same engine with new ones for each call, are the question of benchmarks/outputs.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks" / "zoo"), str(ROOT)]

import numpy as np  # noqa: E402 - the path comes first

from benchmarks.contestants import Array, Task  # noqa: E402
from benchmarks.engines_table import page, shown, summary  # noqa: E402
from benchmarks.match import START_SECONDS, Gone, Match, Player, apart, verdict  # noqa: E402
from benchmarks.workloads import WORKLOADS  # noqa: E402
from fusewire.options import LONG_BUDGET  # noqa: E402

zoo: Any = import_module("zoo")
HOME = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fusewire-engines"
PACKAGES = ("fusewire", "numpy", "onnxruntime", "openvino", "jax", "torch")
# Whose answers are this far from those of the others, over their largest number, runs something
# else; benchmarks/zoo.py judges more finely.
APART = 0.05
# Seconds for which a package may be compiled beside other work.
COMPILING = 1800.0
Row = dict[str, Any]


def original(name: str) -> tuple[Path, dict[str, Array]]:
    """Give the ONNX file of a row, and its inputs in the file's order."""
    if name in WORKLOADS:
        path = HOME / "models" / f"{slug(name)}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = WORKLOADS[name].save(path)
        return path, dict(zip(names_in(path), arrays, strict=True))
    zoo.fetch([name])
    path, made = zoo.path(name), zoo.inputs(name)
    return path, {x: made[x] for x in names_in(path)}


def names_in(path: Path) -> list[str]:
    """List the inputs of a file that are not weights."""
    import onnx

    model = onnx.load(path, load_external_data=False).graph
    weights = {x.name for x in model.initializer}
    return [x.name for x in model.input if x.name not in weights]


def slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


@dataclass(frozen=True)
class Work:
    """The folder of a row while it is measured, and what its contestants are given."""

    name: str
    folder: Path
    path: Path
    args: argparse.Namespace

    @staticmethod
    def begin(name: str, args: argparse.Namespace) -> Work:
        """Empty the folder, and write the inputs."""
        folder = HOME / "work" / slug(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        path, inputs = original(name)
        np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type] # names are the file's
        return Work(name, folder, path, args)

    @property
    def package(self) -> Path:
        """Where the package of Inductor, run bare, is."""
        return packages(self.name) / f"{version('torch')}-{self.args.threads}.pt2"

    def player(
        self, engine: str, who: str, cache: Path | None = None, patience: float = START_SECONDS
    ) -> Player:
        """Start a contestant; its cache is that of the row, if no other is given."""
        args, folder = self.args, self.folder
        packages(self.name).mkdir(parents=True, exist_ok=True, mode=0o700)
        task = Task(
            engine,
            self.name,
            str(self.path),
            str(folder / "inputs.npz"),
            str(folder / f"{who}.npz"),
            args.threads,
            args.align,
            args.budget,
            str(self.package),
        )
        settings = {
            "FUSEWIRE_CACHE": str(cache or folder / "plans"),
            "NPROC": str(args.threads),
            "OPENBLAS_NUM_THREADS": str(args.threads),
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        }
        return Player(asdict(task), settings, patience)


def packages(name: str) -> Path:
    """Give the folder of what Inductor compiled for a row."""
    return HOME / "packages" / slug(name)


def compile_all(names: Sequence[str], args: argparse.Namespace) -> None:
    """Have Inductor compile each row, bare and for Fusewire; what is there is only loaded."""
    for place, name in enumerate(names, 1):
        start, work = time.monotonic(), Work.begin(name, args)
        came = {}
        for engine in ("inductor", "compiled")[: 1 if args.compile == "bare" else 2]:
            with work.player(engine, engine, packages(name) / "store", COMPILING) as one:
                came[engine] = str(one.ready.get("refused", "ready"))
        if came["inductor"] != "ready":
            # It would take as long to fail again.
            work.package.with_suffix(".refused").write_text(came["inductor"])
        shutil.rmtree(work.folder, ignore_errors=True)
        seconds = time.monotonic() - start
        said = "; ".join(f"{engine} {what:.120}" for engine, what in came.items())
        print(f"[{place}/{len(names)}] {name}: {said}, {seconds:.0f} s", flush=True)


def measure(name: str, args: argparse.Namespace) -> Row:
    """Let Fusewire choose, then time all of a row."""
    work = Work.begin(name, args)
    folder, player = work.folder, work.player
    if (packages(name) / "store").is_dir() and args.budget >= LONG_BUDGET:
        shutil.copytree(packages(name) / "store", folder / "plans")
    else:
        (folder / "plans").mkdir(mode=0o700)
    load = os.getloadavg()[0]
    with player("fusewire", "choice") as chooser:
        choice = chooser.ready
    engines = ["onnxruntime", "openvino", "torch"]
    engines += ["inductor"] if args.budget >= LONG_BUDGET or work.package.exists() else []
    engines += ["xla", "numpy"] if name in WORKLOADS else []
    players = {who: player(who, who) for who in (*engines, "fusewire")}
    try:
        beside = ["inductor"] if args.budget < LONG_BUDGET else []
        row = timed(name, players, player, folder, args.seconds, beside)
    except Gone as error:
        row = {
            "name": name,
            "is_zoo": name not in WORKLOADS,
            "verdict": "fail",
            "because": f"a contestant ended: {error}",
        }
    finally:
        for one in players.values():
            one.close()
        shutil.rmtree(folder, ignore_errors=True)
    if not is_recalled(row) and row["verdict"] == "pass":
        row |= {"verdict": "unclear", "because": "the choice was not recalled: its code changed"}
    return {
        **row,
        "choice": choice,
        "load": load,
        "budget": args.budget,
        "threads": args.threads,
        "align": args.align,
        "versions": {x: version(x) for x in PACKAGES},
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
    }


def is_recalled(row: Row) -> bool:
    """Tell whether who pays is not who chose: all that was tried comes from the cache."""
    tried = row.get("ready", {}).get("fusewire", {}).get("tried", ())
    return all(way["cache"] == "hit" for way in tried)


def machine() -> str:
    said = Path("/proc/cpuinfo").read_text().split("model name\t: ")[-1].splitlines()[0]
    return f"{said}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


def timed(
    name: str,
    players: dict[str, Player],
    player: Any,
    folder: Path,
    seconds: float,
    beside: Sequence[str],
) -> Row:
    """Check that all say the same, find the best bare engine, and time rounds.

    Those beside are timed too, and not among the engines that Fusewire chooses from.
    """
    row: Row = {"name": name, "is_zoo": name not in WORKLOADS, "bare": {}, "ready": {}}
    ready = {who: one.ready for who, one in players.items()}
    row["ready"] = ready
    if "refused" in ready["fusewire"] or "refused" in ready["onnxruntime"]:
        return {
            **row,
            "verdict": "fail",
            "because": ready["fusewire"].get("refused", "no original"),
        }
    far = apart(folder, [who for who, said in ready.items() if "refused" not in said])
    row["apart"] = far
    able = [w for w, said in ready.items() if "refused" not in said and far[w] <= APART]
    bare = [who for who in able if who != "fusewire"]
    if "fusewire" not in able:
        return {**row, "verdict": "fail", "because": f"answers are {far['fusewire']:.2g} apart"}
    match = Match({who: players[who] for who in able}, beside)
    match.heats(bare)
    best = min((who for who in bare if who not in beside), key=match.median)
    players["again"] = player(best, "again")
    match.final(best, players["again"], seconds)
    return {**row, **match.found(), **verdict(match)}


def kept(name: str) -> Path:
    return HOME / "rows" / f"{slug(name)}.json"


def wanted(args: argparse.Namespace) -> list[str]:
    names = [*([] if args.zoo else WORKLOADS), *([] if args.no_zoo else zoo.MODELS)]
    known = [*WORKLOADS, *zoo.MODELS]
    if unknown := [name for name in args.only if name not in known]:
        raise SystemExit(f"No row is called {', '.join(unknown)}. There are: {', '.join(known)}.")
    return args.only or names


def run(names: Sequence[str], args: argparse.Namespace) -> None:
    """Measure rows one after the other, and keep each."""
    kept("").parent.mkdir(parents=True, exist_ok=True)
    for place, name in enumerate(names, 1):
        path = kept(name)
        if args.resume and path.exists() and json.loads(path.read_text())["verdict"] != "unclear":
            continue
        start = time.monotonic()
        row = measure(name, args)
        row["seconds"] = time.monotonic() - start
        path.write_text(json.dumps(row, indent=1))
        said = (
            f"{row['because']}"
            if "ratio" not in row
            else (f"{row['choice']['backend']} {row['ratio']:.3f} {row['verdict']}")
        )
        print(
            f"[{place}/{len(names)}] {name}: {said}, {row['seconds']:.0f} s",
            file=sys.stderr,
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--zoo", action="store_true", help="the zoo alone")
    half.add_argument("--no-zoo", action="store_true", help="the workloads alone")
    parser.add_argument("--seconds", type=float, default=12.0, help="of rounds, for a row")
    parser.add_argument("--budget", type=float, default=20.0, help="in which Fusewire chooses")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--align", type=int, default=64, help="bytes, of the inputs")
    parser.add_argument("--resume", action="store_true", help="leave what is clear already")
    parser.add_argument("--compile", choices=["bare", "all"], help="with Inductor, not timed")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    names = wanted(args)
    if args.compile:
        compile_all(names, args)
        return
    if not (args.table or args.page):
        run(names, args)
    rows: list[Mapping[str, Any]] = [
        json.loads(kept(name).read_text()) for name in names if kept(name).exists()
    ]
    if not any("ratio" in row for row in rows):
        raise SystemExit("No row was timed. Run some, without --table and --page.")
    found = summary(rows)
    if args.page:
        (ROOT / "benchmarks" / "results" / "engines.md").write_text(page(rows, found))
    if args.json:
        print(json.dumps({"rows": rows, "summary": found}, indent=1))
    else:
        shown(rows, found)
    sys.exit(0 if found["passes"] else 1)


if __name__ == "__main__":
    main()
