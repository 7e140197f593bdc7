"""Do the limits hold when sizes and trip counts come from values?

    python benchmarks/bombs.py [--only NAME] [--engines a,b] [--when first,after,warm] [--json]

Twenty-one models of a few hundred bytes, each of which asks for gigabytes or for 2^62 rounds.
Each runs with ``memory_limit`` 1 GiB and ``deadline`` 5 s and all other options at their defaults,
in a process of its own for each engine: on its *first* call, *after* an honest call, and as the
first call of a *warm* start from the cache that an honest process left. Asked: the process never
holds more than 1.3 GiB over its start and answers within 10 s, with a typed error, and an honest
call works afterwards. Exit 1 if one of them fails.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

ENGINES = ("reference", "onnxruntime", "openvino", "xla", "webgpu", "auto")
WHEN = ("first", "after", "warm")
LIMIT, DEADLINE = 1 << 30, 5.0
MOST_BYTES, MOST_SECONDS = int(1.3 * (1 << 30)), 10.0
# The outer cap, which ends a process and counts as a failure; its seconds include honest calls.
CAP_BYTES, CAP_SECONDS = 3 << 30, 120.0
MANY, ROUNDS = 1 << 31, 1 << 62
INT64, FLOAT, BOOL, STRING = (
    TensorProto.INT64,
    TensorProto.FLOAT,
    TensorProto.BOOL,
    TensorProto.STRING,
)
Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Bomb:
    """A model; ``honest`` inputs do no harm (None: there are none), ``bad`` ones do."""

    make: Callable[[], bytes]
    bad: Inputs
    honest: Inputs | None = None


def info(name: str, kind: int, shape: Sequence[int | str | None]) -> onnx.ValueInfoProto:
    """Describe a tensor at the edge of a graph."""
    return helper.make_tensor_value_info(name, kind, list(shape))


def const(name: str, values: Any, kind: int = INT64) -> onnx.NodeProto:
    """Make a node that gives a constant."""
    array = np.asarray(values)
    tensor = helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())
    return helper.make_node("Constant", [], [name], value=tensor)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    """Make a node; names are separated by blanks, and "-" stands for an absent input."""
    names = ["" if x == "-" else x for x in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attrs)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    functions: Sequence[onnx.FunctionProto] = (),
) -> bytes:
    """Make the bytes of a model file."""
    graph = helper.make_graph(list(nodes), "bomb", list(inputs), list(outputs))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    made = helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=9)
    return bytes(made.SerializeToString())


N = [info("n", INT64, [1])]


def by_size(*nodes: onnx.NodeProto, rank: int = 1, kind: int = FLOAT) -> Callable[[], bytes]:
    """Make a model of nodes that turn ``n`` into ``big``, and of the sum of its exponentials."""
    tail = [node("Cast", "big", "wide", to=FLOAT), node("Exp", "wide", "y")]
    return lambda: model([*nodes, *tail], N, [info("y", FLOAT, [None] * rank)])


def _expand_computed() -> bytes:
    nodes = [
        node("ReduceMax", "x", "largest", keepdims=1),
        node("Cast", "largest", "size", to=INT64),
        const("one", [1.0], FLOAT),
        node("Expand", "one size", "big"),
        node("Exp", "big", "e"),
        const("axis", 0),
        node("CumSum", "e axis", "y"),
    ]
    return model(nodes, [info("x", FLOAT, [2])], [info("y", FLOAT, [None])])


def body(
    nodes: Sequence[onnx.NodeProto],
    carried: Sequence[tuple[str, str, int, Sequence[int | None]]] = (),
    added: Sequence[tuple[str, int, Sequence[int | None]]] = (),
    condition: str = "go",
) -> onnx.GraphProto:
    """Make the body of a loop: ``carried`` are names before and after, with kind and shape."""
    inputs = [info("i", INT64, []), info("go", BOOL, [])]
    inputs += [info(before, kind, shape) for before, _, kind, shape in carried]
    outputs = [info("going", BOOL, [])]
    outputs += [info(after, kind, shape) for _, after, kind, shape in carried]
    outputs += [info(name, kind, shape) for name, kind, shape in added]
    nodes = [node("Identity", condition, "going"), *nodes]
    if condition != "go":
        nodes = [*nodes[1:], nodes[0]]
    return helper.make_graph(list(nodes), "body", inputs, outputs)


COUNT = (const("none", []), node("Reshape", "n none", "count"))


def _loop() -> bytes:
    step = [const("step", 1.0, FLOAT), node("Add", "x step", "x_next")]
    inner = body(step, [("x", "x_next", FLOAT, [])])
    nodes = [*COUNT, const("start", 0.0, FLOAT), node("Loop", "count - start", "y", body=inner)]
    return model(nodes, N, [info("y", FLOAT, [])])


def _loop_constant() -> bytes:
    step = [const("step", 1.0, FLOAT), node("Add", "x step", "x_next")]
    inner = body(step, [("x", "x_next", FLOAT, [])])
    nodes = [const("count", ROUNDS), node("Loop", "count - start", "y", body=inner)]
    return model(nodes, [info("start", FLOAT, [])], [info("y", FLOAT, [])])


def _loop_collect() -> bytes:
    step = [
        const("shape", [1 << 20]),
        node("Cast", "i", "number", to=FLOAT),
        node("Expand", "number shape", "row"),
        node("Exp", "row", "added"),
    ]
    inner = body(step, [], [("added", FLOAT, [1 << 20])])
    nodes = [*COUNT, node("Loop", "count -", "y", body=inner)]
    return model(nodes, N, [info("y", FLOAT, [None, 1 << 20])])


def _while() -> bytes:
    step = [
        const("one", 1),
        node("Add", "at one", "at_next"),
        node("Less", "at_next count", "more"),
    ]
    inner = body(step, [("at", "at_next", INT64, [])], condition="more")
    start = [const("start", 0), const("yes", True, BOOL)]
    nodes = [*COUNT, *start, node("Loop", "- yes start", "y", body=inner)]
    return model(nodes, N, [info("y", INT64, [])])


def _nested() -> bytes:
    step = [
        node("Identity", "inner_go", "inner_going"),
        const("step", 1.0, FLOAT),
        node("Add", "z step", "z_next"),
    ]
    edges = [
        [info("inner_i", INT64, []), info("inner_go", BOOL, []), info("z", FLOAT, [])],
        [info("inner_going", BOOL, []), info("z_next", FLOAT, [])],
    ]
    inner = helper.make_graph(step, "inner", *edges)
    outer = body([node("Loop", "count - x", "x_next", body=inner)], [("x", "x_next", FLOAT, [])])
    start = const("start", 0.0, FLOAT)
    nodes = [*COUNT, start, node("Loop", "count - start", "y", body=outer)]
    return model(nodes, N, [info("y", FLOAT, [])])


def _loop_grow() -> bytes:
    step = [node("Concat", "x x", "x_next", axis=0)]
    inner = body(step, [("x", "x_next", FLOAT, [None])])
    start = const("start", [1.0, 2.0], FLOAT)
    nodes = [*COUNT, start, node("Loop", "count - start", "y", body=inner)]
    return model(nodes, N, [info("y", FLOAT, [None])])


def _loop_sequence() -> bytes:
    kind = helper.make_tensor_sequence_value_info("s", FLOAT, [1 << 20])
    after = helper.make_tensor_sequence_value_info("s_next", FLOAT, [1 << 20])
    step = [
        node("Identity", "go", "going"),
        const("shape", [1 << 20]),
        node("Cast", "i", "number", to=FLOAT),
        node("Expand", "number shape", "wide"),
        node("Exp", "wide", "row"),
        node("SequenceInsert", "s row", "s_next"),
    ]
    edges = [info("i", INT64, []), info("go", BOOL, []), kind], [info("going", BOOL, []), after]
    inner = helper.make_graph(step, "body", *edges)
    nodes = [
        *COUNT,
        node("SequenceEmpty", "", "start", dtype=FLOAT),
        node("Loop", "count - start", "rows", body=inner),
        node("SequenceLength", "rows", "y"),
    ]
    return model(nodes, N, [info("y", INT64, [])])


def _if_branch() -> bytes:
    out = info("out", FLOAT, [None])
    one = helper.make_tensor("one", FLOAT, [1], [1.0])
    big = [
        const("shape", [MANY]),
        node("ConstantOfShape", "shape", "full", value=one),
        node("Exp", "full", "out"),
    ]
    small = [const("few", [1.0, 2.0], FLOAT), node("Exp", "few", "out")]
    branches = {
        "then_branch": helper.make_graph(big, "then", [], [out]),
        "else_branch": helper.make_graph(small, "otherwise", [], [out]),
    }
    nodes = [
        *COUNT,
        const("ten", 10),
        node("Greater", "count ten", "is_big"),
        node("If", "is_big", "y", **branches),
    ]
    return model(nodes, N, [info("y", FLOAT, [None])])


def _strings_loop() -> bytes:
    inner = body([node("StringConcat", "x x", "x_next")], [("x", "x_next", STRING, [1])])
    start = helper.make_tensor("value", STRING, [1], [b"ab"])
    nodes = [
        *COUNT,
        helper.make_node("Constant", [], ["start"], value=start),
        node("Loop", "count - start", "y", body=inner),
    ]
    return model(nodes, N, [info("y", STRING, [1])])


def _strings_chain() -> bytes:
    names = [f"s{i}" for i in range(40)]
    pairs = zip(["s", *names], names, strict=False)
    nodes = [node("StringConcat", f"{x} {x}", y) for x, y in pairs]
    return model(nodes, [info("s", STRING, [1])], [info(names[-1], STRING, [1])])


def _expand_constant() -> bytes:
    nodes = [
        const("shape", [MANY]),
        node("Expand", "x shape", "big"),
        node("Exp", "big", "e"),
        const("axis", 0),
        node("CumSum", "e axis", "y"),
    ]
    return model(nodes, [info("x", FLOAT, [1])], [info("y", FLOAT, [None])])


def _recursion() -> bytes:
    calls = [helper.make_node("again", ["x"], ["y"], domain="own")]
    opsets = [helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "again", ["x"], ["y"], calls, opsets)
    return model(calls, [info("x", FLOAT, [1])], [info("y", FLOAT, [1])], [function])


ONE = const("one", [1.0], FLOAT)
SCALAR = const("scalar", 1.0, FLOAT)
FEW, BAD, OFTEN = np.array([3]), np.array([MANY]), np.array([ROUNDS])
WORDS = np.array(["ab"], object)
X = np.ones(1, np.float32)
VALUE = helper.make_tensor("value", FLOAT, [1], [1.0])
RANGE = (*COUNT, const("low", 0), const("by", 1), node("Range", "low count by", "big"))
PAD = (
    const("zero", [0]),
    node("Concat", "zero n", "widths", axis=0),
    node("Pad", "one widths", "big"),
)
ONE_HOT = (const("at", [0, 1]), const("values", [0.0, 1.0], FLOAT))
RESIZE = (
    const("image", np.ones((1, 1, 2, 2)), FLOAT),
    const("front", [1, 1, 2]),
    node("Concat", "front n", "sizes", axis=0),
    node("Resize", "image - - sizes", "big", mode="nearest"),
)
TOP_K = (ONE, node("Expand", "one n", "wide_x"), node("TopK", "wide_x n", "big places"))
BOMBS: dict[str, Bomb] = {
    "expand": Bomb(by_size(ONE, node("Expand", "one n", "big")), (BAD,), (FEW,)),
    "expand_computed": Bomb(
        _expand_computed, (np.array([1, MANY], np.float32),), (np.array([1, 3], np.float32),)
    ),
    "constant_of_shape": Bomb(
        by_size(node("ConstantOfShape", "n", "big", value=VALUE)), (BAD,), (FEW,)
    ),
    "range": Bomb(by_size(*RANGE), (BAD,), (FEW,)),
    "tile": Bomb(by_size(ONE, node("Tile", "one n", "big")), (BAD,), (FEW,)),
    "pad": Bomb(by_size(ONE, *PAD), (BAD,), (FEW,)),
    "one_hot": Bomb(
        by_size(*ONE_HOT, node("OneHot", "at n values", "big"), rank=2), (BAD,), (FEW,)
    ),
    "top_k": Bomb(by_size(*TOP_K), (BAD,), (FEW,)),
    "resize": Bomb(by_size(*RESIZE, rank=4), (BAD,), (FEW,)),
    "loop": Bomb(_loop, (OFTEN,), (FEW,)),
    "loop_collect": Bomb(_loop_collect, (OFTEN,), (FEW,)),
    "while": Bomb(_while, (OFTEN,), (FEW,)),
    "nested": Bomb(_nested, (np.array([1 << 31]),), (FEW,)),
    "loop_grow": Bomb(_loop_grow, (OFTEN,), (FEW,)),
    "loop_sequence": Bomb(_loop_sequence, (OFTEN,), (FEW,)),
    "if_branch": Bomb(_if_branch, (BAD,), (FEW,)),
    "strings_loop": Bomb(_strings_loop, (OFTEN,), (FEW,)),
    "strings_chain": Bomb(_strings_chain, (WORDS,)),
    "expand_constant": Bomb(_expand_constant, (X,)),
    "loop_constant": Bomb(_loop_constant, (np.float32(0),)),
    "recursion": Bomb(_recursion, (X,)),
}


def high_water() -> int:
    """Return the peak resident bytes of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


def detonate(name: str, engine: str, when: str) -> dict[str, Any]:
    """Run one bomb in this process, and say what came of it."""
    import fusewire as fw

    bomb = BOMBS[name]
    results: dict[str, Any] = {"error": "", "message": "", "usable": True}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bomb.onnx"
        path.write_bytes(bomb.make())
        results["bytes"] = path.stat().st_size
        program, expected = None, None
        options: dict[str, Any] = {
            "backend": engine,
            "memory_limit": LIMIT,
            "deadline": DEADLINE,
        }
        if when == "after" and bomb.honest is not None:
            program = fw.compile(path, **options)
            expected = program(*bomb.honest)
        start_bytes, start = high_water(), time.monotonic()
        try:
            program = program or fw.compile(path, **options)
            program(*bomb.bad)
        except fw.FusewireError as error:
            results |= {"error": type(error).__name__, "message": str(error)[:400]}
        except Exception as error:  # noqa: BLE001 - what is not typed is what this looks for
            results |= {"error": f"untyped {type(error).__name__}", "message": str(error)[:400]}
        results["seconds"] = time.monotonic() - start
        results["peak"] = high_water() - start_bytes
        results |= {"usable": is_usable(program, path, bomb, expected)}
    return results


def is_usable(program: Any, path: Path, bomb: Bomb, expected: Any) -> bool:
    """Tell whether an honest call works; of a model that has none, a call of another program."""
    import fusewire as fw

    if program is None or bomb.honest is None:
        return bool(fw.compile(lambda x: x + x, backend="reference")(X)[0] == 2.0)
    from fusewire.ops.interpret import interpret

    if expected is None:
        found = interpret(fw.load(path), list(bomb.honest))
        expected = found[0] if len(found) == 1 else tuple(found)
    answer = program(*bomb.honest)
    if np.asarray(expected).dtype.kind in "OU":
        return bool(np.all(np.asarray(answer) == expected))
    return bool(np.allclose(answer, expected, 1e-4))


def outside(name: str, engine: str, when: str) -> dict[str, Any]:
    """Run one bomb in a process of its own, under the outer cap."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "FUSEWIRE_CACHE": cache}
        if when == "warm":
            watch(name, engine, "honest", environment)
        return watch(name, engine, when, environment)


def watch(name: str, engine: str, when: str, environment: dict[str, str]) -> dict[str, Any]:
    """Start a process for one bomb, and end it at the cap."""
    command = [sys.executable, __file__, "--one", name, engine, when]
    started = time.monotonic()
    with subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        statm = Path(f"/proc/{process.pid}/statm")
        reason = ""
        while process.poll() is None and not reason:
            time.sleep(0.02)
            try:
                held = int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            except (OSError, IndexError):
                continue
            if held > CAP_BYTES:
                reason = f"capped at {held >> 20} MiB"
            elif time.monotonic() - started > CAP_SECONDS:
                reason = f"capped at {CAP_SECONDS:g} s"
        if reason:
            os.killpg(process.pid, signal.SIGKILL)
        told, noise = process.communicate()
    if reason or process.returncode:
        tail = noise.decode(errors="replace").strip().splitlines()[-1:]
        reason = reason or f"exit {process.returncode}: {' '.join(tail)[:300]}"
        return {
            "error": "",
            "message": reason,
            "seconds": CAP_SECONDS,
            "peak": CAP_BYTES,
            "usable": False,
        }
    return dict(json.loads(told.decode().splitlines()[-1]))


def problems(found: dict[str, Any]) -> list[str]:
    """Say what is not as it was asked."""
    wrong = []
    if found["peak"] > MOST_BYTES:
        wrong.append("memory")
    if found["seconds"] > MOST_SECONDS:
        wrong.append("time")
    if not found["error"] or found["error"].startswith("untyped"):
        wrong.append("error")
    if not found["usable"]:
        wrong.append("usable")
    return wrong


def one(name: str, engine: str, when: str) -> None:
    """Run one bomb here and print the result as JSON."""
    warnings.simplefilter("ignore")
    if when == "honest":
        import fusewire as fw

        bomb = BOMBS[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bomb.onnx"
            path.write_bytes(bomb.make())
            if bomb.honest is not None:
                program = fw.compile(path, backend=engine, memory_limit=LIMIT, deadline=DEADLINE)
                program(*bomb.honest)
        print(json.dumps({"error": "", "peak": 0, "seconds": 0, "usable": True}))
    else:
        print(json.dumps(detonate(name, engine, when)))
    sys.stdout.flush()
    # A daemon thread may still be computing.
    os._exit(0)


def campaign(names: Sequence[str], engines: Sequence[str], moments: Sequence[str]) -> list[Any]:
    """Run the bombs one after another, and print a row for each."""
    rows = []
    for name in names:
        for engine in engines:
            for when in moments:
                if when != "first" and BOMBS[name].honest is None:
                    continue
                found = outside(name, engine, when)
                wrong = problems(found)
                rows.append({"bomb": name, "engine": engine, "when": when, "wrong": wrong, **found})
                print(
                    f"{name:18}{engine:12}{when:6}{found['peak'] / (1 << 20):8.0f} MiB"
                    f"{found['seconds']:7.1f} s  {found['error'] or '-':22}"
                    f"{'ok' if not wrong else 'FAILS: ' + ', '.join(wrong)}"
                    f"{'  ' + found['message'][:160] if wrong else ''}",
                    file=sys.stderr,
                    flush=True,
                )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="names of bombs, separated by commas")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--when", default=",".join(WHEN))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("BOMB", "ENGINE", "WHEN"))
    arguments = parser.parse_args()
    if arguments.one:
        one(*arguments.one)
    names = arguments.only.split(",") if arguments.only else list(BOMBS)
    rows = campaign(names, arguments.engines.split(","), arguments.when.split(","))
    failed = [row for row in rows if row["wrong"]]
    if arguments.json:
        print(json.dumps(rows, indent=1))
    worst = max((row["peak"] for row in rows), default=0) / (1 << 30)
    slowest = max((row["seconds"] for row in rows), default=0.0)
    print(f"{len(rows)} runs, {len(failed)} failed; at most {worst:.2f} GiB and {slowest:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
