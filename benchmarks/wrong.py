"""How many wrong engines does the jury catch, and does it ever blame a right one?

    python benchmarks/wrong.py --graphs 50 --engines onnxruntime openvino xla [--kinds nan ...]

Every kind of wrong engine (fusewire.testing.wrong) is planted in every graph: small models of the
zoo, nets of 12 layers, and random graphs from the op table. Faults with a size are 0.1, 1, 10 and
100 times the oracle's tolerance at the place where they are planted: what the graph gives, or a
node in it. How wrong the engine is, is measured apart from the jury: on inputs that the jury does
not have, against the right answer, in tolerances of what the graph gives. Exit 1 if the reference
was blamed, or if fewer than 99% of those off by ten tolerances or more were called wrong. An engine
that is doubtful is not used either, but it is not banned. Real engines are judged on the same
graphs, where they take all of one: what they are blamed for is listed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent / "zoo"))

import fusewire as fw
from benchmarks.oracle import NETS
from fusewire.choosing.judge import InputSet, Judge, Run
from fusewire.contract.region import build, first_device
from fusewire.errors import FusewireError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.graph import Array, Graph, HostValue, Node
from fusewire.numerics.bound import leaves
from fusewire.numerics.oracle import Oracle
from fusewire.numerics.scale import bindings_of
from fusewire.numerics.spread import Expected, classes
from fusewire.ops.interpret import Interpreter
from fusewire.plan.transfer import to_host
from fusewire.planning.claims import ask
from fusewire.planning.target import Target
from fusewire.registry import REGISTRY
from fusewire.testing.wrong import KINDS, SWAPPED, Spoiler, WrongEngine, swapped
from tests.random_graphs import FromRandom, random_graph

SIZES = (0.1, 1.0, 10.0, 100.0)
# The size of a fault that has none.
AS_IT_IS = -1.0
# Of the zoo: quick on the reference.
ZOO = ("mnist", "silero-vad", "mel-frontend")
BAR = 0.99


@dataclass(frozen=True)
class Subject:
    """A graph to plant faults in."""

    name: str
    graph: Graph
    inputs: list[HostValue]


@dataclass(frozen=True)
class Trial:
    """One wrong engine: how far off it is, in tolerances, and what the jury said.

    ``hidden`` counts elements too that nobody can judge, ``off`` those that are judged alone.
    """

    subject: str
    kind: str
    size: float
    place: str
    off: float
    hidden: float
    status: str
    on: str

    @property
    def bucket(self) -> str:
        if self.off >= 10:
            return "over 10"
        if self.off > 1:
            return "1 to 10"
        return "unjudged" if self.hidden >= 10 else "within"


@dataclass
class Record:
    """All that was found."""

    trials: list[Trial] = field(default_factory=list)
    honest: dict[str, str] = field(default_factory=dict)
    unjudged: dict[str, float] = field(default_factory=dict)
    nothing: Counter[str] = field(default_factory=Counter)
    engines: dict[str, Counter[str]] = field(default_factory=dict)
    blamed: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def share(
        self, bucket: str, kind: str = "", size: float = 0.0, status: str = "wrong"
    ) -> tuple[int, int]:
        """Count those that the jury called so, and all."""
        found = [
            t for t in self.trials
            if t.bucket == bucket and kind in ("", t.kind) and size in (0.0, t.size)
        ]  # fmt: skip
        return sum(t.status == status for t in found), len(found)

    @property
    def alarms(self) -> list[str]:
        return [name for name, status in self.honest.items() if status == "wrong"]

    def passes(self) -> bool:
        caught, count = self.share("over 10")
        return not self.alarms and caught >= BAR * count


def subjects(count: int, zoo_models: int, seed: int) -> Iterator[Subject]:
    """Yield models, nets and random graphs, so many in all."""
    made = 0
    for name in ZOO[: min(zoo_models, count // 4)]:
        zoo: Any = import_module("zoo")
        zoo.fetch([name])
        graph = fw.load(str(zoo.path(name)))
        given = zoo.inputs(name)
        yield Subject(name, graph, [given[str(v.name)] for v in graph.inputs])
        made += 1
    for place in range((count - made) // 4):
        kind, make = list(NETS.items())[place % len(NETS)]
        rng = np.random.default_rng([seed, place])
        net = make(rng)
        yield Subject(f"{kind} {place}", net.graph, [net.draw(rng)])
        made += 1
    number = seed
    while made < count:
        found = random_graph(FromRandom(number), 4 + number % 24)
        number += 1
        if any(_is_spoilable(x) for x in found.outputs):
            yield Subject(f"random {number - 1}", found.graph, found.inputs)
            made += 1


def _is_spoilable(value: HostValue) -> bool:
    return isinstance(value, np.ndarray) and value.size > 0 and value.dtype.kind in "fiub"


class Bench:
    """Plants faults in one graph."""

    def __init__(self, subject: Subject, seed: int) -> None:
        self.subject = subject
        self.graph = subject.graph
        self.jury = Judge(self.graph, subject.inputs, seed=seed)
        self.honest: Run = Interpreter(self.graph)
        given = self.jury.oracle(self.jury.sets[0])
        assert isinstance(given, Oracle)
        self.oracle = given
        self.oracle.values(self.graph.nodes)
        # The jury's inputs are not the user's: the same sizes, drawn anew.
        apart = Judge(self.graph, subject.inputs, seed=seed + 1000)
        pairs = [(s, apart.oracle(s)) for s in apart.sets if s.kind in ("random", "edges")]
        known = [(s, oracle) for s, oracle in pairs if isinstance(oracle, Oracle)]
        self.shown: list[tuple[InputSet, Oracle, list[HostValue]]] = [
            (s, oracle, self.honest(s.values)) for s, oracle in [(self.jury.sets[0], given), *known]
        ]

    def trial(self, kind: str, size: float, rng: np.random.Generator) -> Trial | None:
        """Plant a fault where it does something; None if it does nothing anywhere."""
        for _ in range(8):
            seed = int(rng.integers(2**31))
            place = self._place(kind, rng)
            make = self._maker(kind, size, seed, place)
            if make is None:
                return None
            try:
                off, hidden = self._off(make())
                judged = self.jury.judge(make()) if hidden else None
            except (FusewireError, ValueError, LookupError, ArithmeticError):
                # A size that is wrong stops the engine: no wrong answer.
                continue
            if judged is not None:
                where = "outputs" if place is None else place.op
                return Trial(
                    self.subject.name, kind, size, where, off, hidden, judged.status, judged.kind
                )
        return None

    def _place(self, kind: str, rng: np.random.Generator) -> Node | None:
        """Choose a node that has something to spoil, or what the graph gives."""
        spoiler = None if kind == SWAPPED else Spoiler(kind)
        known = self.oracle.values(self.graph.nodes)
        fit = [
            node for node in self.graph.nodes
            if spoiler and any(spoiler.applies(e.stored) for v in node.outputs for e in known[v])
        ]  # fmt: skip
        return None if rng.random() < 0.5 or not fit else fit[int(rng.integers(len(fit)))]

    def _maker(self, kind: str, size: float, seed: int, place: Node | None) -> Any:
        if kind == SWAPPED:
            graph = swapped(self.graph, seed)
            return None if graph is None else lambda: Interpreter(graph)
        values = self.graph.outputs if place is None else place.outputs
        known = self.oracle.values(values)
        amounts = [size * known[v][0].tolerance if len(known[v]) == 1 else None for v in values]
        return lambda: WrongEngine(self.graph, Spoiler(kind, amounts, seed), place)

    def _off(self, engine: Run) -> tuple[float, float]:
        """Tell how far off an engine is in its worst call, in tolerances: judged elements, all."""
        worst = [0.0, 0.0]
        for inputs, oracle, right in self.shown:
            known = oracle.values(self.graph.outputs)
            expected = [e for v in self.graph.outputs for e in known[v]]
            for _ in range(2):
                got = leaves(self.graph, engine(inputs.values))
                pairs = zip(expected, got, leaves(self.graph, right), strict=False)
                for e, (_, _, x), (_, _, y) in pairs:
                    for place, ratio in enumerate(_ratios(e, x, y)):
                        worst[place] = max(worst[place], ratio)
        return worst[0], worst[1]


def _ratios(expected: Expected, got: Array, right: Array) -> tuple[float, float]:
    if got.dtype == object:
        return 0.0, 0.0
    if got.shape != right.shape or not expected.is_shaped:
        return (np.inf, np.inf) if expected.is_shaped else (0.0, np.inf)
    with np.errstate(all="ignore"):
        if got.dtype.kind in "iub":
            ratio = np.where(got != right, np.inf, 0.0)
        else:
            work = np.complex128 if got.dtype.kind == "c" else np.float64
            apart = np.abs(got.astype(work) - right.astype(work))
            ratio = np.where(apart == 0, 0.0, apart / expected.tolerance)
            ratio = np.where(classes(got) == 0, ratio, 0.0)
            ratio = np.where(classes(got) == classes(right), ratio, np.inf)
    judged = np.where(expected.masked, 0.0, ratio)
    return float(judged.max(initial=0.0)), float(ratio.max(initial=0.0))


def engine_of(name: str, bench: Bench) -> Run | None:
    """Compile a graph on a real engine, in this process; None if it does not take all of it."""
    backend = REGISTRY.backends.get(name)
    device = first_device(backend)
    sizes = dict(bindings_of(bench.graph, bench.subject.inputs))
    claimed = ask(Target(backend, device), bind_symbols(bench.graph, sizes))
    if not claimed.takes_all():
        return None
    executable = build(backend, claimed.graph, device)

    def run(inputs: Sequence[HostValue]) -> list[HostValue]:
        given = [np.array(x, order="C") if isinstance(x, np.ndarray) else x for x in inputs]
        return [to_host(x) for x in executable.run(given)]

    return run


def judge_engine(name: str, bench: Bench, record: Record) -> None:
    """Judge a real engine, and note what it is blamed for."""
    count = record.engines.setdefault(name, Counter())
    try:
        engine = engine_of(name, bench)
        judged = None if engine is None else bench.jury.judge(engine)
    except Exception as error:  # noqa: BLE001 - a bare engine throws anything
        count["raised"] += 1
        record.blamed.append(f"{name} raises on {bench.subject.name}: {str(error)[:200]}")
        return
    count["refused" if judged is None else judged.status] += 1
    if judged is not None and judged.status == "wrong":
        said = f"{name} is wrong about {bench.subject.name} on {judged.kind}: {judged.reason}"
        record.blamed.append(said)


def run(
    graphs: int,
    kinds: Sequence[str],
    zoo_models: int,
    seed: int = 0,
    sizes: Sequence[float] = SIZES,
    engines: Sequence[str] = (),
) -> Record:
    """Plant every kind in so many graphs."""
    record, start = Record(), time.perf_counter()
    for number, subject in enumerate(subjects(graphs, zoo_models, seed)):
        bench = Bench(subject, seed)
        judged = bench.jury.judge(bench.honest)
        record.honest[subject.name] = judged.status
        record.unjudged[subject.name] = judged.unjudged
        for name in engines:
            judge_engine(name, bench, record)
        for place, kind in enumerate(kinds):
            is_sized = kind in KINDS and KINDS[kind].is_sized
            for size in sizes if is_sized else (AS_IT_IS,):
                rng = np.random.default_rng([seed, number, place, abs(int(size * 10))])
                trial = bench.trial(kind, size, rng)
                if trial is None:
                    record.nothing[kind] += 1
                else:
                    record.trials.append(trial)
        print(".", end="", file=sys.stderr, flush=True)
    record.seconds = time.perf_counter() - start
    return record


def table(record: Record, kinds: Sequence[str]) -> str:
    """Print as Markdown: a row for each kind, then one for each size."""
    head = ["", "what is wrong", "off by 10 or more", "wrong", "doubtful"]
    head += ["by 1 to 10", "wrong", "doubtful", "by less", "not judged"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]

    def row(name: str, doc: str, kind: str, size: float = 0.0) -> None:
        cells = [name, doc]
        for bucket in ("over 10", "1 to 10"):
            wrong, count = record.share(bucket, kind, size)
            doubtful, _ = record.share(bucket, kind, size, "doubtful")
            cells.append(f"{count:,}")
            cells += [f"{x / count:.1%}" if count else "" for x in (wrong, doubtful)]
        cells += [f"{record.share(b, kind, size)[1]:,}" for b in ("within", "unjudged")]
        lines.append("| " + " | ".join(cells) + " |")

    for kind in kinds:
        row(kind, KINDS[kind].doc if kind in KINDS else "two operands of a node", kind)
    for size in SIZES:
        row(f"planted {size:g} tolerances", "", "", size)
    row("**all**", "", "")
    return "\n".join(lines)


def summary(record: Record) -> str:
    """Say in words what counts."""
    caught, count = record.share("over 10")
    status = Counter(record.honest.values())
    doubtful, _ = record.share("over 10", status="doubtful")
    missed = [t for t in record.trials if t.bucket == "over 10" and t.status != "wrong"]
    return "\n".join([
        f"{count:,} engines are off by ten tolerances or more: {caught / max(count, 1):.2%} are "
        f"called wrong, {doubtful / max(count, 1):.2%} doubtful. A fault could not be planted "
        f"{record.nothing.total():,} times.",
        f"The reference: {dict(status)}; {len(record.alarms)} false alarms. Share of elements not "
        f"judged: {np.mean(list(record.unjudged.values())):.2%} on average.",
        *(f"{name}: {dict(count)}." for name, count in record.engines.items()),
        *(f"- {said}" for said in record.blamed),
        *(f"- not called wrong: {t}" for t in missed[:20]),
        f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}, "
        f"{record.seconds:.0f} s.",
    ])  # fmt: skip


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--graphs", type=int, default=50)
    parser.add_argument("--zoo", type=int, default=len(ZOO), help="how many models of the zoo")
    parser.add_argument("--kinds", nargs="+", default=[*KINDS, SWAPPED])
    parser.add_argument("--engines", nargs="*", default=[], help="real ones, judged as well")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    record = run(options.graphs, options.kinds, options.zoo, options.seed, engines=options.engines)
    print(f"\n{table(record, options.kinds)}\n\n{summary(record)}")
    if options.json:
        options.json.write_text(json.dumps([asdict(t) for t in record.trials], indent=1))
    return 0 if record.passes() else 1


if __name__ == "__main__":
    sys.exit(main())
