"""Is what is reported as fused what the engines run? Ten patterns, every engine, its own dump.

    python benchmarks/fusing.py [--report F]

``fusion_backend.fused(graph)`` reports the kernels of a graph. For each pattern's sample, the same
graph is compiled again, the way programs are, and the engine itself is asked what it runs: XLA by
its dump after all passes (--xla_dump_to), ONNX Runtime by the events of its profiler in a run,
OpenVINO by the nodes that its profiler saw executed, WebGPU and Triton by the launches in the
artifact. The kinds of kernels must be the same, one by one. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import fusewire as fw
from fusewire.contract.backend import Backend, Config, Device
from fusewire.contract.inspection import EngineKernel
from fusewire.contract.region import first_device, weights_of
from fusewire.fusing.fuse import not_one_kernel
from fusewire.fusion.samples import SAMPLES, sample
from fusewire.ir.graph import Graph
from fusewire.ir.text import constants_of
from fusewire.planning.claims import ask
from fusewire.planning.target import Target
from fusewire.registry import REGISTRY

# What the entry computation of a dump has beside kernels.
NAMES = "parameter|constant|tuple|get-tuple-element|bitcast|after-all"

ABOUT = """*One kernel* is what `refusal` says, and `find` goes by. Reported are the kernels of
`fused(graph)`, with the nodes of the sample behind each; a kernel of no node only moves data. The
dump is the engine's own, of the same graph compiled the way programs are: XLA's text after all
passes, the events of ONNX Runtime's profiler in a run, the nodes that OpenVINO's profiler saw
executed, and the grids of the launches in the artifacts of WebGPU and Triton, which are our own
code's account twice. Inductor and PyTorch's eager mode do not tell, so that `find` never names
them.

Compared are the kernels: how many, of which kind or implementation. Which of our nodes stand behind
a kernel rests on the names that the engine kept, and no second account of that was found. The first
run disagreed in 7 cases, all of OpenVINO. In two, a Reshape of a constant was reported as a kernel,
and never ran: that was ours, and is mended. In five, the profiler calls a node ReduceSum that the
runtime model calls Reduce: since then names and implementations are compared, which both have."""


def region_of(backend: Backend, device: Device, pattern: str) -> Graph:
    """Give a sample in the ops that a backend takes."""
    return ask(Target(backend, device), sample(pattern)).graph


def inputs_of(graph: Graph) -> list[Any]:
    """Make inputs of the right types."""
    return [np.ones(v.tensor.shape, v.tensor.dtype.numpy) for v in graph.inputs]


def xla_dump(pattern: str) -> Counter[str]:
    """Compile in a process with a dump, and count instructions of the entry computation."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from benchmarks.fusing import compiled; "
        "compiled('xla', sys.argv[2])"
    )
    root = str(Path(__file__).parents[1])
    with TemporaryDirectory() as folder:
        flags = {**os.environ, "XLA_FLAGS": f"--xla_dump_to={folder}"}
        subprocess.run([sys.executable, "-c", code, root, pattern], env=flags, check=True)
        files = sorted(Path(folder).glob("*jit_function*cpu_after_optimizations.txt"))
        text = files[-1].read_text(encoding="utf-8")
    return _counted(text, text[text.index("\nENTRY") :])


def _counted(text: str, body: str) -> Counter[str]:
    """Count the instructions of a computation; those that it calls are counted in its place."""
    found: Counter[str] = Counter()
    for line in body[: body.index("\n}")].splitlines():
        match = re.search(rf" (?!(?:{NAMES})\()([a-z][\w-]*)\(", line.partition(" = ")[2])
        if match is None:
            continue
        if match[1] != "call":
            found[match[1]] += 1
            continue
        callee = re.search(r"to_apply=(%?[\w.\-]+)", line)
        assert callee is not None, line
        found += _counted(text, text[text.index(f"\n{callee[1]} ") :])
    return found


def compiled(name: str, pattern: str) -> Any:
    """Compile a sample as a program does, in this process."""
    backend = REGISTRY.get(name)
    device = first_device(backend)
    region = region_of(backend, device, pattern)
    return backend, device, region, backend.compile(region, device, Config())


def onnxruntime_dump(pattern: str) -> Counter[str]:
    """Run under the engine's profiler, and count the nodes of the run by their op."""
    from fusewire.backends.onnxruntime.executable import Edges, bound, session_of, settings

    backend: Any = REGISTRY.get("onnxruntime")
    device = first_device(backend)
    region = region_of(backend, device, pattern)
    artifact = backend.write_artifact(region, device, Config())
    options, weights = settings(artifact.launch), weights_of(artifact, constants_of(region))
    held = [(slot, weights[slot.digest or ""]) for slot in artifact.slots if slot.role == "weight"]
    kept = bound(options, held)
    with TemporaryDirectory() as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "run"))
        session = session_of(artifact.payload, options)
        names = [name for name, _ in Edges.of(artifact).inputs]
        session.run(None, dict(zip(names, inputs_of(region), strict=True)))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    del kept
    ran = (x for x in events if x.get("cat") == "Node" and x["name"].endswith("_kernel_time"))
    return Counter(x["args"]["op_name"] for x in ran)


def openvino_dump(pattern: str) -> Counter[str]:
    """Run with performance counters, and count what was executed by name and implementation."""
    from fusewire.backends.openvino.building import model_of
    from fusewire.backends.openvino.devices import settings
    from fusewire.backends.openvino.engine import _core
    from fusewire.backends.openvino.refusal import held

    *_, region, _ = compiled("openvino", pattern)
    core = _core()
    model, kept = model_of(held(region), True)
    built = core.compile_model(model, "CPU", {**settings(core, "CPU", {}), "PERF_COUNT": True})
    request = built.create_infer_request()
    request.infer(inputs_of(region))
    del kept
    ran = (x for x in request.get_profiling_info() if str(x.status).endswith("EXECUTED"))
    return Counter(_plain(f"{x.node_name} {x.exec_type}") for x in ran)


def _plain(name: str) -> str:
    """Leave out what differs between two compilations: the numbers of nodes, and our names."""
    name, _, implementation = re.sub(r"fusewire_node_\d+/", "", name).rpartition(" ")
    return f"{re.sub(r'_[0-9]+', '', name)} {implementation}"


def webgpu_dump(pattern: str) -> Counter[str]:
    """Count the dispatches of the artifact, by their grid."""
    from fusewire.backends.webgpu.program import Program

    artifact = compiled("webgpu", pattern)[-1]
    launches = Program.from_bytes(artifact.payload).schedule.turns()
    return Counter(str(launch.grid) for launch, _ in launches)


def triton_dump(pattern: str) -> Counter[str]:
    """Count the launches of the artifact, by their grid."""
    from fusewire.backends.triton.program import Program

    artifact = compiled("triton", pattern)[-1]
    return Counter(str(launch.grid) for launch, _ in Program.from_bytes(artifact.payload).turns())


def _first_word(kernel: EngineKernel) -> str:
    return kernel.kind.partition(" ")[0]


def _implementation(kernel: EngineKernel) -> str:
    return _plain(f"{kernel.name} {kernel.kind.partition(' ')[2]}")


def _op(kernel: EngineKernel) -> str:
    return kernel.kind.rpartition(".")[2]


def _grid(kernel: EngineKernel) -> str:
    return str(kernel.grid)


# Of each engine: its own dump, and what of a reported kernel to compare with it.
ENGINES: Mapping[str, tuple[Callable[[str], Counter[str]], Callable[[EngineKernel], str]]] = {
    "xla": (xla_dump, _first_word),
    "onnxruntime": (onnxruntime_dump, _op),
    "openvino": (openvino_dump, _implementation),
    "webgpu": (webgpu_dump, _grid),
    "triton": (triton_dump, _grid),
}


def compared(engine: str, pattern: str) -> tuple[tuple[EngineKernel, ...], Counter[str], bool]:
    """Give the reported kernels, the engine's own dump, and whether they agree."""
    dump, seen = ENGINES[engine]
    kernels = fw.fusion_backends.get(engine).fused(sample(pattern))
    own = dump(pattern)
    return kernels, own, Counter(map(seen, kernels)) == own


def report() -> tuple[str, int]:
    """Lay out all patterns and engines; count the disagreements."""
    lines, wrong = [], 0
    for pattern in SAMPLES:
        graph = sample(pattern)
        for engine in ENGINES:
            kernels, own, agrees = compared(engine, pattern)
            wrong += not agrees
            one = "yes" if not_one_kernel(engine, graph, kernels) is None else "no"
            named = "; ".join(f"{x.name} ({_nodes(graph, x)})" for x in kernels)
            dumped = ", ".join(f"{count} {kind}" for kind, count in own.items())
            agreed = "agrees" if agrees else "**differs**"
            lines.append(f"| {pattern} | {engine} | {one} | {named} | {dumped} | {agreed} |")
    return "\n".join(lines), wrong


def _nodes(graph: Graph, kernel: EngineKernel) -> str:
    return ", ".join(graph.nodes[place].op for place in kernel.nodes) or "no node"


def main() -> int:
    """Print or write the page; exit 1 if something disagrees."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--report", type=Path, help="The page to write.")
    arguments = parser.parse_args()
    rows, wrong = report()
    versions = ", ".join(f"{name} {REGISTRY.get(name).info.version}" for name in ENGINES)
    page = f"""# Fusing: what is reported, against the engines' own dumps

`python benchmarks/fusing.py`, {datetime.now(UTC):%Y-%m-%d}. {versions}. Nothing is timed.

{len(SAMPLES) * len(ENGINES)} cases, {wrong} disagreements. {ABOUT}

| Pattern | Engine | One kernel | Reported | Dump | |
|---|---|---|---|---|---|
{rows}
"""
    if arguments.report is None:
        print(page)
    else:
        arguments.report.write_text(page, encoding="utf-8")
    print(f"{wrong} disagreements", file=sys.stderr)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())
