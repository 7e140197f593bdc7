"""One PyTorch module: is it right through every door and on every engine, and how fast is it?

Run by `benchmarks/module_doors.py`, in a process of its own for each module.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

import fusewire as fw
from benchmarks.modules.case import Arguments, ModuleCase
from benchmarks.timing import interleaved, ratio
from fusewire.errors import FusewireError
from fusewire.numerics.oracle import Oracle
from fusewire.ops.interpret import Interpreter

DOORS = ("fw.compile", "torch.compile")
ENGINES = ("reference", "onnxruntime", "openvino", "xla", "torch", "inductor")
# How far the float64 run of the graph may be from eager's, over the largest number of an output.
HELD = 1e-9
# The same where a module computes a part in float32, whatever it is given.
HELD_NARROW = 1e-5
# Threads of one engine spin on after a call, and would take a core from the next one's.
_PAUSE = 0.03
# Calls that are shorter than this are timed in a row, as a loop calls them.
_BURST = 0.002
Row = dict[str, Any]


def case_of(name: str) -> ModuleCase:
    """Find a case in the collection, or among the classes of transformers."""
    from benchmarks.modules import collection
    from benchmarks.transformers_models import cases

    return (collection() | cases())[name]


def leaves(answer: Any) -> list[Any]:
    """Flatten an answer to its tensors: dictionaries, lists, tuples, dataclasses."""
    if isinstance(answer, torch.Tensor):
        return [answer]
    if isinstance(answer, dict):
        return [leaf for value in answer.values() for leaf in leaves(value)]
    if isinstance(answer, list | tuple):
        return [leaf for value in answer for leaf in leaves(value)]
    if dataclasses.is_dataclass(answer):
        values = (getattr(answer, field.name) for field in dataclasses.fields(answer))
        return [leaf for value in values for leaf in leaves(value)]
    return []


def arrays(answer: Any) -> list[Any]:
    """Give the tensors of an answer as arrays."""
    return [leaf.detach().numpy() for leaf in leaves(answer)]


def structure(answer: Any) -> Any:
    """Give what is around the tensors of an answer, and the types of these, to be compared."""
    if isinstance(answer, torch.Tensor):
        return ("tensor", str(answer.dtype), tuple(answer.shape))
    if isinstance(answer, dict):
        return (type(answer).__name__, [(key, structure(x)) for key, x in answer.items()])
    if isinstance(answer, list | tuple):
        return (type(answer).__name__, [structure(x) for x in answer])
    if dataclasses.is_dataclass(answer):
        names = [field.name for field in dataclasses.fields(answer)]
        return (type(answer).__name__, [(n, structure(getattr(answer, n))) for n in names])
    return answer


def doubled(given: Arguments) -> Arguments:
    """Give the same arguments in float64."""
    from torch.utils._pytree import tree_map

    def wide(x: Any) -> Any:
        return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    args, kwargs = tree_map(wide, given)
    return args, kwargs


def graph_of(module: Any, given: Arguments) -> tuple[Any, list[Any]]:
    """Convert a module for such arguments; returns the graph and its inputs as arrays."""
    from torch.utils._pytree import tree_flatten, tree_unflatten

    flat, spec = tree_flatten(given)
    places = [i for i, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: Any) -> list[Any]:
        full = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            full[place] = tensor
        args, kwargs = tree_unflatten(full, spec)
        return leaves(module(*args, **kwargs))

    # Named at run time: the frontend is found by entry point.
    flat_call = import_module("fusewire.frontends.torch.flat_call").FlatCall
    names = tuple(f"x{i}" for i in range(len(places)))
    tensors = [flat[place].numpy() for place in places]
    return fw.trace(flat_call(call, module, names), *tensors), tensors


def held(case: ModuleCase) -> Row:
    """Hold the float64 run of the module's graph against eager in float64.

    A module may compute a part in float32 whatever it is given, and a rounding there may move an
    integer: then the graph is held in its stored precision, and the row says so.
    """
    module, given = case.build().double(), doubled(case.example())
    with torch.no_grad():
        expected = arrays(module(*given[0], **given[1]))
    graph, flat = graph_of(module, given)
    row: Row = {"error": apart(Oracle(graph, flat, runs=2).outputs, expected), "by": "oracle"}
    if row["error"] > HELD:
        row = {"error": apart(Interpreter(graph)(flat), expected), "by": "stored"}
    is_narrow = any(v.tensor.dtype.name == "float32" for n in graph.nodes for v in n.outputs)
    limit = HELD_NARROW if is_narrow and row["by"] == "stored" else HELD
    return row | {"ok": row["error"] <= limit, "nodes": len(graph.nodes)}


def apart(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Give the largest difference over the largest number of an output."""
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        if ours.shape != theirs.shape:
            return float("inf")
        left, right = ours.astype(np.float64), theirs.astype(np.float64)
        scale = 1.0 if theirs.dtype.kind in "biu" else float(np.nanmax(np.abs(right), initial=0))
        is_same = (left == right) | (np.isnan(left) & np.isnan(right))
        difference = np.where(is_same, 0, np.abs(left - right))
        worst = max(worst, float(np.max(difference, initial=0)) / max(scale, 1e-30))
    return worst


def right(name: str, args: argparse.Namespace) -> Row:
    """Hold the oracle against eager, and have it judge every engine with fallback."""
    warnings.simplefilter("ignore")
    case = case_of(name)
    row: Row = {"held": held(case), "engines": {}}
    graph, flat = graph_of(case.build(), case.example())
    oracle = Oracle(graph, flat)
    row["nodes"] = len(graph.nodes)
    with torch.no_grad():
        answer = case.build()(*case.example()[0], **case.example()[1])
    row["eager"] = oracle.verdict(arrays(answer)).status
    for engine in [x for x in args.backends.split(",") if x] or ENGINES:
        row["engines"][engine] = _judged(graph, flat, oracle, engine)
    wrong = [e for e, x in row["engines"].items() if x["status"] not in ("right", "not here")]
    row["ok"] = not wrong and row["held"]["ok"]
    left = {e: x["fallback"] for e, x in row["engines"].items() if x.get("fallback")}
    row["said"] = (
        f"held {row['held']['error']:.1e}, {row['nodes']} nodes, "
        f"{'right' if not wrong else 'not right: ' + _reasons(row, wrong)}, fallback {left or 0}"
    )
    return row


def _reasons(row: Row, wrong: list[str]) -> str:
    return "; ".join(
        f"{e} {row['engines'][e]['status']}: {row['engines'][e]['reason']}" for e in wrong
    )


def _judged(graph: Any, flat: list[Any], oracle: Oracle, engine: str) -> Row:
    if engine not in fw.list_backends():
        return {"status": "not here", "reason": ""}
    start = time.perf_counter()
    try:
        program = fw.compile(
            graph, backend=engine, fallback="allow", level=0, isolate=False, deadline=600.0
        )
        outputs = program(*flat)
    except FusewireError as error:
        return {"status": "refused", "reason": str(error)[:400]}
    took = time.perf_counter() - start
    outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    verdict = oracle.verdict(outputs)
    regions = program.plan.regions()
    others = [r for r in regions if r.backend != engine]
    ops = sorted({node.op for r in others for node in r.graph.nodes})
    return {
        "status": verdict.status,
        "error": verdict.error,
        "reason": verdict.reason,
        "regions": len(regions),
        "fallback": sum(len(r.graph.nodes) for r in others),
        "ops": ops,
        "seconds": took,
    }


def doors(name: str, args: argparse.Namespace) -> Row:
    """Call the module through both doors, at every size, first and settled."""
    warnings.simplefilter("ignore")
    case = case_of(name)
    row: Row = {}
    for door in DOORS:
        try:
            row[door] = _door(case, door, args.budget)
        except (FusewireError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            row[door] = {"ok": False, "said": f"{type(error).__name__}: {error}"[:400]}
    row["ok"] = all(row[door]["ok"] for door in DOORS)
    row["said"] = "; ".join(f"{d}: {row[d]['said']}" for d in DOORS)
    return row


class Door:
    """A way to call a module through Fusewire; ``settle`` waits until engines were compared."""

    def __init__(self, kind: str, module: Any, **options: Any) -> None:
        self._kind, self._graphs = kind, list[Any]()
        if kind == "fw.compile":
            self.program = fw.compile(module, options=fw.Options.of(None, options))
        else:
            self.program = torch.compile(module, backend=self._noted, options=options)

    def _noted(self, graph: Any, example: Any, **named: Any) -> Any:
        from fusewire.dynamo import compile_graph

        self._graphs.append(compile_graph(graph, example, **named))
        return self._graphs[-1]

    def programs(self) -> list[Any]:
        """List the programs behind the door."""
        if self._kind == "fw.compile":
            return [self.program]
        return [program for graph in self._graphs for program in graph.programs]

    def settle(self) -> bool:
        return all(program.wait(600) for program in self.programs())


def _door(case: ModuleCase, kind: str, budget: float) -> Row:
    """Ask for every size, with the module answering first and with engines compared before."""
    steps: list[Row] = []
    frames: list[int] = []
    chosen: set[str] = set()
    for start in ("now", "measured"):
        module = case.build()
        door = Door(kind, module, budget_seconds=budget, start=start)
        for size in case.sizes:
            args, kwargs = case.example(size)
            with torch.no_grad():
                answer = door.program(*args, **kwargs)
                expected = module(*args, **kwargs)
            frames.append(_frames())
            steps.append(_compared(case, size, answer, expected) | {"start": start})
        if start == "measured":
            chosen |= {str(program.why().backend) for program in door.programs()}
        torch._dynamo.reset()
    bad = [step for step in steps if step["status"] not in ("right", "cannot say")]
    said = f"{bad[0]['status']} at {bad[0]['size']}: {bad[0]['reason']}" if bad else "right"
    said = f"{said} on {', '.join(filter(None, sorted(chosen))) or 'your module'}"
    return {"ok": not bad, "said": said, "steps": steps, "graphs": frames}


def _frames() -> int:
    """Count the graphs that Dynamo has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _compared(case: ModuleCase, size: int, answer: Any, expected: Any) -> Row:
    if structure(answer) != structure(expected):
        said = f"{structure(answer)} and not {structure(expected)}"[:300]
        return {"size": size, "status": "another structure", "reason": said}
    graph, flat = graph_of(case.build(), case.example(size))
    verdict = Oracle(graph, flat, runs=4).verdict(arrays(answer))
    return {"size": size, "status": verdict.status, "reason": verdict.reason}


def timed(name: str, args: argparse.Namespace) -> Row:
    """Time the settled programs beside eager and Inductor, interleaved."""
    warnings.simplefilter("ignore")
    case = case_of(name)
    given, keywords = case.example()
    row: Row = {}
    with torch.no_grad():
        ways: dict[str, Any] = {"eager": case.build(), "inductor": torch.compile(case.build())}
        # What Dynamo takes for itself, before and after each call of a graph.
        ways["dynamo"] = torch.compile(case.build(), backend="eager")
        doors = {kind: Door(kind, case.build(), budget_seconds=args.budget) for kind in DOORS}
        ways |= {kind: door.program for kind, door in doors.items()}
        for way in list(ways):
            try:
                ways[way](*given, **keywords)
            except (FusewireError, RuntimeError, TypeError, ValueError) as error:
                row[f"{way} failed"] = f"{type(error).__name__}: {error}"[:300]
                del ways[way]
        # A comparison is a process of its own: nothing is timed before the last one has ended.
        row["settled"] = all(door.settle() for door in doors.values())
        ways |= {f"{way} again": ways[way] for way in ("eager", "inductor") if way in ways}
        calls = {way: _call(ways[way], given, keywords) for way in ways}
        times = interleaved(calls, seconds=args.seconds, pause=_PAUSE, burst=_BURST)
    settled_on = {
        kind: [_backend(program) for program in door.programs()] for kind, door in doors.items()
    }
    return row | _timings(times) | {"settled on": settled_on}


def _backend(program: Any) -> str:
    """Name what answers; a module that was refused has no plan to ask."""
    try:
        return str(program.why().backend)
    except FusewireError:
        return "refused"


def _call(way: Any, given: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return lambda: way(*given, **keywords)


def _timings(times: dict[str, Any]) -> Row:
    bare = [way for way in ("eager", "inductor") if way in times]
    best = min(bare, key=lambda way: times[way].median)
    row: Row = {"medians": {way: t.median for way, t in times.items()}, "best": best}
    row["spread"] = times[best].spread
    row["rounds"] = len(times[best].samples)
    row["noise"] = ratio(times[f"{best} again"], times[best])
    row["ratios"] = {way: ratio(times[way], times[best]) for way in DOORS if way in times}
    row["ok"] = len(row["ratios"]) == 2
    row["said"] = (
        f"{best} {times[best].median * 1e3:.2f} ms, {row['ratios']}, A/A {row['noise']:.3f}"
    )
    return row
