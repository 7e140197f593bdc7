"""The server under load, kills, a long run and hostile requests. Each is one command:

    python benchmarks/serving.py throughput [--seconds 3 --rounds 2 --models mlp,minilm-l3]
    python benchmarks/serving.py peer       [--python PYTHON] the same, as JSON, beside LitServe
    python benchmarks/serving.py kills      [--seconds 60 --rate 100]
    python benchmarks/serving.py soak       [--count 1000000]
    python benchmarks/serving.py hostile    [--count 5000 --calls 5000 --seed 0 --clients 16]
    python benchmarks/serving.py batched    [--models ...]   batched answers against unbatched ones

LitServe is not installed with Fusewire: `--python` names an interpreter that has it and ONNX
Runtime. `--json FILE` writes the figures. Everything listens on 127.0.0.1, and only processes that
were started here are killed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import fusewire as fw

HERE = Path(__file__).parent
# The zoo folder first: there is a script of the same name here.
sys.path[:0] = [str(HERE / "zoo"), str(HERE)]
zoo: Any = import_module("zoo")
client: Any = import_module("serving_load")

MODELS = ("mlp", "minilm-l3", "ppocr-rec")
CONNECTIONS = (1, 8, 64, 256)
Inputs = dict[str, np.ndarray]


def mlp_file(folder: Path) -> Path:
    """Write the small MLP of the comparison: 256-512-512-16."""
    rng = np.random.default_rng(0)
    sizes = ((256, 512), (512, 512), (512, 16))
    a, b, c = [rng.standard_normal(shape).astype(np.float32) * 0.05 for shape in sizes]

    def mlp(x: Any) -> Any:
        return np.maximum(np.maximum(x @ a, 0) @ b, 0) @ c

    path = folder / "mlp.onnx"
    fw.save_onnx(mlp, path, fw.Spec(("n", 256), "float32"))
    return path


def model_file(name: str, folder: Path) -> Path:
    if name == "mlp":
        return mlp_file(folder)
    zoo.fetch([name])
    return Path(zoo.path(name))


def inputs_of(name: str, seed: int = 0) -> Inputs:
    if name == "mlp":
        x = np.random.default_rng(seed).standard_normal((1, 256)).astype(np.float32)
        return {"x": x}
    found: Inputs = zoo.inputs(name, seed=seed)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass
class Served:
    """A server process and where it listens."""

    process: subprocess.Popen[bytes]
    port: int
    grpc_port: int

    def memory(self) -> float:
        """Return the resident memory of the server and its children, in MB."""
        pids = [self.process.pid, *children(self.process.pid)]
        return sum(map(resident, pids))


def resident(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


def children(pid: int) -> list[int]:
    """List the descendants of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *children(int(child))]
    return found


@contextlib.contextmanager
def serving(
    command: list[str], environment: dict[str, str] | None = None, health: str = "/v2/health/ready"
) -> Iterator[Served]:
    port, grpc_port = free_port(), free_port()
    command = [*command, "--port", str(port), "--grpc-port", str(grpc_port)]
    given = {**os.environ, **(environment or {})}
    process = subprocess.Popen(command, env=given, start_new_session=True)
    try:
        wait_ready(port, process, health)
        yield Served(process, port, grpc_port)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # LitServe leaves its workers behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def wait_ready(
    port: int, process: subprocess.Popen[bytes], health: str, seconds: float = 120.0
) -> None:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and process.poll() is None:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{port}{health}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        time.sleep(0.1)
    raise SystemExit(f"no server on port {port}")


def ours(path: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "fusewire", "serve", str(path), "--log-level", "warning", *more]


def bare(path: Path, *more: str) -> list[str]:
    return [sys.executable, str(HERE / "bare_server.py"), str(path), *more]


def measured(
    served: Served, protocol: str, request: bytes, connections: int, seconds: float
) -> Any:
    load = client.load_rest if protocol == "rest" else client.load_grpc
    port = served.port if protocol == "rest" else served.grpc_port
    uvloop = import_module("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load(port, request, connections, seconds))


def prepared(given: argparse.Namespace) -> Iterator[tuple[str, Path, list[str], list[str]]]:
    """Write each model; yield its name and file, our command, and the options of any server."""
    batching = ["--batch", str(given.batch), "--delay", str(given.delay)]
    options = [*batching, "--threads", str(given.threads)]
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models.split(","):
            path, inputs = model_file(name, Path(folder)), inputs_of(name)
            sizes = [f"--shape={k}={','.join(map(str, x.shape))}" for k, x in inputs.items()]
            own = ours(path, "--backend", "onnxruntime", *options, *sizes)
            yield name, path, own, options


def throughput(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Requests per second and latency, beside the bare batcher, in turns."""
    rows = []
    for name, path, command, options in prepared(given):
        with serving(command) as own, serving(bare(path, *options)) as other:
            rows += compared(name, path.stem, own, other, given)
    return rows


def compared(
    name: str, model: str, own: Served, other: Served, given: argparse.Namespace
) -> list[dict[str, Any]]:
    inputs = inputs_of(name)
    requests = {
        "rest": client.rest_request(model, inputs),
        "grpc": client.grpc_request(model, inputs),
    }
    rows = []
    for protocol in given.protocols.split(","):
        sides = {side: (served, requests[protocol]) for side, served in _sides(own, other, "bare")}
        rows += in_turns(name, protocol, sides, given)
    return rows


def _sides(own: Served, other: Served, name: str) -> list[tuple[str, Served]]:
    return [("fusewire", own), (name, other), ("again", other)]


def in_turns(
    name: str,
    protocol: str,
    sides: dict[str, tuple[Served, bytes]],
    given: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Load servers in turns, the second of them twice (A/A), at each number of connections."""
    rows = []
    for connections in map(int, given.connections.split(",")):
        cells: dict[str, list[Any]] = {side: [] for side in sides}
        for served, request in sides.values():
            measured(served, protocol, request, connections, 0.3)
        for turn in range(given.rounds):
            for side in list(sides)[:: 1 if turn % 2 else -1]:
                served, request = sides[side]
                cells[side].append(measured(served, protocol, request, connections, given.seconds))
        row: dict[str, Any] = {"model": name, "protocol": protocol, "connections": connections}
        for side, found in cells.items():
            row[side] = max(found, key=lambda figures: figures.rate).row()
        (_, a), (beside, b), (_, again) = [(side, row[side]) for side in sides]
        row["ratio"] = round(a["per_second"] / b["per_second"], 3)
        row["aa"] = round(again["per_second"] / b["per_second"], 3)
        rows.append(row)
        print(
            f"{name:10} {protocol} {connections:4}: {a['per_second']:8.1f}/s "
            f"p50 {a['p50_ms']:7.2f} p99 {a['p99_ms']:7.2f}  {beside} {b['per_second']:8.1f}/s "
            f"p50 {b['p50_ms']:7.2f} p99 {b['p99_ms']:7.2f}  ratio {row['ratio']:.2f} "
            f"A/A {row['aa']:.2f} {a['errors'] or ''}{b['errors'] or ''}",
            flush=True,
        )
    return rows


def peer(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Requests per second and latency of JSON requests, beside LitServe, in turns."""
    rows = []
    for name, path, command, options in prepared(given):
        inputs = inputs_of(name)
        other = [given.python, str(HERE / "peer_server.py"), str(path), *options]
        listed = [
            {
                "name": k,
                "datatype": client.NAMES[str(x.dtype)],
                "shape": x.shape,
                "data": x.tolist(),
            }
            for k, x in inputs.items()
        ]
        ask = client.json_request(f"/v2/models/{path.stem}/infer", listed)
        theirs = client.json_request("/predict", {k: x.tolist() for k, x in inputs.items()})
        with serving(command) as own, serving(other, health="/health") as litserve:
            sides = {
                side: (served, ask if served is own else theirs)
                for side, served in _sides(own, litserve, "litserve")
            }
            rows += in_turns(name, "rest", sides, given)
    return rows


class Connection:
    """A connection that sends whole requests and reads whole answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the answer."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next(int(x[15:]) for x in lines if x.startswith(b"content-length:"))
            return int(lines[0].split()[1]), await reader.readexactly(length)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


POISONED = """
import sys
from pathlib import Path
import fusewire as fw
from fusewire.options import Options
from fusewire.serve.model import ModelConfig
from fusewire.serve.server import ServerConfig, serve

fw.register("fusewire.testing.chaos:asked_at_row")
options = Options("chaos", isolate="always", deadline=10.0, fallback="allow")
config = ModelConfig("mlp", Path(sys.argv[1]), options, 2, 8, 8)
serve([config], ServerConfig(port=int(sys.argv[3]), grpc_port=int(sys.argv[5])))
"""


def kills(given: argparse.Namespace) -> dict[str, Any]:
    """A replica killed again and again, and an engine that some requests crash."""
    with tempfile.TemporaryDirectory() as folder:
        path = mlp_file(Path(folder))
        command = [sys.executable, "-c", POISONED, str(path)]
        with serving(command) as served:
            figures = asyncio.run(_kills(served, given))
            with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics") as answer:
                lines = answer.read().decode().splitlines()
            figures["deaths"] = next(
                float(x.split()[1]) for x in lines if x.startswith("fusewire_replica_deaths_total")
            )
    print(figures, flush=True)
    return figures


async def _kills(served: Served, given: argparse.Namespace) -> dict[str, Any]:
    from fusewire.testing.chaos import asking_for

    good = client.rest_request("mlp", inputs_of("mlp"))
    poison = {"x": inputs_of("mlp")["x"].copy()}
    poison["x"][0, 0] = asking_for("segv")
    bad = client.rest_request("mlp", poison)
    idle: list[Connection] = [Connection(served.port)]
    status, expected = await idle[0].ask(good)
    assert status == 200
    count = int(given.rate * given.seconds)
    outcomes: dict[str, int] = {}
    times: list[float] = []

    async def one(number: int) -> None:
        is_poison = number % given.poison == given.poison - 1
        connection = idle.pop() if idle else Connection(served.port)
        start = time.perf_counter()
        try:
            status, body = await connection.ask(bad if is_poison else good)
        except (OSError, asyncio.IncompleteReadError) as error:
            outcomes["lost"] = outcomes.get("lost", 0) + 1
            print(f"{number}: {error!r}")
            return
        idle.append(connection)
        times.append(time.perf_counter() - start)
        if is_poison:
            is_typed = status == 500 and json.loads(body)["code"] == "BackendCrashed"
            outcome = "poisoned, typed" if is_typed else f"poisoned, {status} {body[:200]!r}"
        elif status == 200:
            # Everything but the number of the model's rows is the same each time.
            same = np.allclose(_tail(body), _tail(expected), rtol=1e-4, atol=1e-5)
            outcome = "right" if same else "wrong"
        else:
            outcome = f"{status} {body[:200]!r}"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    start, tasks, killed = time.perf_counter(), [], 0
    for number in range(count):
        due = start + number / given.rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(number)))
        if number and number % int(given.rate * given.every) == 0:
            killed += kill_one(served, killed)
    await asyncio.gather(*tasks)
    for connection in idle:
        connection.close()
    return {
        "requests": count,
        "killed": killed,
        "outcomes": outcomes,
        "p50_ms": round(float(np.percentile(times, 50)) * 1e3, 2),
        "p99_ms": round(float(np.percentile(times, 99)) * 1e3, 2),
        "most_ms": round(max(times) * 1e3, 2),
    }


def _tail(body: bytes) -> np.ndarray:
    return np.frombuffer(body[-64:], np.float32)


def kill_one(served: Served, turn: int) -> int:
    """Kill the process of one engine; returns how many were killed."""
    engines = [
        pid for pid in children(served.process.pid)
        if b"fusewire.process.serving" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]  # fmt: skip
    if not engines:
        return 0
    os.kill(engines[turn % len(engines)], signal.SIGKILL)
    return 1


def soak(given: argparse.Namespace) -> dict[str, Any]:
    """Memory after many requests, against that after a tenth of them."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = mlp_file(Path(folder))
        engine = ["--backend", "onnxruntime", "--threads", "1", "--batch", "32"]
        with serving(ours(path, *engine)) as served:
            request = client.rest_request("mlp", inputs_of("mlp"))
            done, errors = 0, 0
            for share in (0.1, 0.4, 0.7, 1.0):
                while done < given.count * share:
                    figures = measured(
                        served, "rest", request, 64, 2.0 if given.count > 20000 else 0.2
                    )
                    done += len(figures.times)
                    errors += sum(figures.errors.values())
                rows.append({"requests": done, "mb": round(served.memory(), 1)})
                print(rows[-1], flush=True)
    growth = round(rows[-1]["mb"] - rows[0]["mb"], 1)
    return {"rows": rows, "errors": errors, "growth_mb": growth}


# A server that notes how long its event loop does nothing else.
WATCHED = """
import asyncio, json, sys
from pathlib import Path
from fusewire.options import Options
from fusewire.serve.logs import start_logging
from fusewire.serve.model import ModelConfig
from fusewire.serve.server import ServerConfig, serve

tasks = []

async def watch(path, tick=0.002):
    loop, gaps, written = asyncio.get_running_loop(), [], 0.0
    while True:
        start = loop.time()
        await asyncio.sleep(tick)
        gaps.append(loop.time() - start - tick)
        if loop.time() - written > 1:
            written = loop.time()
            last = sorted(gaps)
            row = {"samples": len(last), "p99": last[int(len(last) * 0.99)],
                   "p999": last[int(len(last) * 0.999)], "most": last[-1]}
            Path(path).write_text(json.dumps(row))

def started(server):
    tasks.append(asyncio.get_running_loop().create_task(watch(sys.argv[2])))

start_logging("error")
options = Options("onnxruntime", isolate="always", deadline=10.0, fallback="allow")
config = ModelConfig("mlp", Path(sys.argv[1]), options, 1, 8, 8)
serve([config], ServerConfig(port=int(sys.argv[4]), grpc_port=int(sys.argv[6])), started=started)
"""


@dataclass
class Watched:
    """What a server does while others attack it: the answers of one honest client, and memory."""

    served: Served
    good: bytes
    expected: str
    ask: Any
    is_over: bool = False

    def __post_init__(self) -> None:
        self.times: list[float] = []
        self.wrong = 0
        self.start_mb = resident(self.served.process.pid)
        self.most_mb = self.most_children_mb = 0.0

    def honest(self) -> None:
        """Ask again and again, each time over a new connection."""
        while not self.is_over:
            start = time.perf_counter()
            self.wrong += self.ask(self.served.port, self.good, 30.0) != self.expected
            self.times.append(time.perf_counter() - start)
            time.sleep(0.02)

    def memory(self) -> None:
        """Look at the memory of the server, and of its children, again and again."""
        pid = self.served.process.pid
        while not self.is_over:
            self.most_mb = max(self.most_mb, resident(pid))
            self.most_children_mb = max(self.most_children_mb, *map(resident, children(pid)), 0.0)
            time.sleep(0.005)

    def row(self) -> dict[str, Any]:
        return {
            "honest": len(self.times),
            "honest_wrong": self.wrong,
            "honest_p50_ms": round(float(np.percentile(self.times, 50)) * 1e3, 1),
            "honest_p99_ms": round(float(np.percentile(self.times, 99)) * 1e3, 1),
            "honest_most_ms": round(max(self.times) * 1e3, 1),
            "start_mb": round(self.start_mb, 1),
            "grew_at_most_mb": round(self.most_mb - self.start_mb, 1),
            "child_at_most_mb": round(self.most_children_mb, 1),
        }


def hostile(given: argparse.Namespace) -> dict[str, Any]:
    """Malformed and hostile requests from several clients: each must be refused."""
    attack: Any = import_module("serving_hostile")
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path, gaps = mlp_file(Path(folder)), Path(folder) / "gaps"
        with serving([sys.executable, "-c", WATCHED, str(path), str(gaps)]) as served:
            good = attack.post(attack.said([attack.tensor()]))
            watched = Watched(served, good, attack.ask(served.port, good), attack.ask)
            own = [threading.Thread(target=x) for x in (watched.honest, watched.memory)]
            for thread in own:
                thread.start()
            shares = [
                threading.Thread(target=_attack, args=(served, given, place, outcomes, failures))
                for place in range(given.clients)
            ]
            start = time.perf_counter()
            for thread in shares:
                thread.start()
            for thread in shares:
                thread.join()
            seconds = time.perf_counter() - start
            watched.is_over = True
            for thread in own:
                thread.join()
            still = attack.ask(served.port, good)
            time.sleep(1.5)
            loop = {name: round(x * 1e3, 1) for name, x in json.loads(gaps.read_text()).items()}
            after = resident(served.process.pid)
    for failure in failures[:20]:
        print(failure)
    loop["samples"] /= 1e3
    figures = {
        "requests": given.count,
        "calls": given.calls,
        "clients": given.clients,
        "seconds": round(seconds, 1),
        "outcomes": dict(outcomes),
        "failures": len(failures),
        "still_answers": still == watched.expected and still.startswith("200"),
        **watched.row(),
        "grew_mb": round(after - watched.start_mb, 1),
        "loop_gap_ms": loop,
    }
    print(figures, flush=True)
    return figures


def _attack(
    served: Served,
    given: argparse.Namespace,
    place: int,
    outcomes: Counter[str],
    failures: list[str],
) -> None:
    """Send the share of one client."""
    attack: Any = import_module("serving_hostile")
    requests = attack.hostile_requests(given.count, given.seed)
    for kind, request in islice(requests, place, None, given.clients):
        outcome = attack.ask(served.port, request, 30.0, ends=kind in attack.UNFINISHED)
        outcomes[outcome[:3]] += 1
        if outcome != "closed" and not outcome.startswith("4"):
            failures.append(f"{kind}: {outcome[:200]} for {request[:200]!r}")
    share = given.calls // given.clients
    outcomes.update(hostile_calls(served.grpc_port, share, given.seed + place, failures))


def hostile_calls(port: int, count: int, seed: int, failures: list[str]) -> dict[str, int]:
    """Count what hostile gRPC calls end with, and collect what should not be."""
    attack: Any = import_module("serving_hostile_grpc")
    grpc: Any = import_module("grpc")
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    outcomes: dict[str, int] = {}
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        for kind, path, request in attack.hostile_calls(count, seed):
            outcome = attack.ask(channel, path, request)
            code = outcome.partition(" ")[0]
            outcomes[code] = outcomes.get(code, 0) + 1
            if not attack.is_refused(outcome, kind, path):
                failures.append(f"gRPC {kind}: {outcome[:200]} for {request[:200]!r}")
    return outcomes


def batched(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Answers of a batch against the exact ones for each request alone, by the judge."""
    from fusewire.compiler import Session
    from fusewire.errors import FusewireError
    from fusewire.planning.rows import prove_rows

    rows = []
    for name in given.models.split(",") if given.models else zoo.MODELS:
        zoo.fetch([name])
        try:
            graph = fw.load(str(zoo.path(name)))
            proof = prove_rows(Session().rewrite(graph))
        except FusewireError as error:
            rows.append({"model": name, "refusal": str(error)[:100]})
        else:
            row = {"model": name, "refusal": proof.refusal}
            if proof.is_proven:
                row |= _judged(name, graph, proof, given.rows)
            rows.append(row)
        print(rows[-1], flush=True)
    return rows


def _judged(name: str, graph: Any, proof: Any, count: int) -> dict[str, Any]:
    from fusewire.numerics.oracle import Oracle

    names = [str(value.name) for value in graph.inputs]
    singles = [[zoo.inputs(name, seed=seed)[key] for key in names] for seed in range(count)]
    joined = [
        arrays[0] if axis is None else np.concatenate(arrays, axis)
        for axis, arrays in zip(proof.inputs, zip(*singles, strict=True), strict=True)
    ]
    with fw.compile(str(zoo.path(name)), backend="onnxruntime", fallback="allow") as program:
        found = program(*joined)
    outputs = found if isinstance(found, tuple) else (found,)
    verdicts = []
    for place, single in enumerate(singles):
        rows = single[0].shape[proof.inputs[0] or 0]
        parts = [
            output.take(range(place * rows, (place + 1) * rows), axis)
            for output, axis in zip(outputs, proof.outputs, strict=True)
        ]
        verdicts.append(Oracle(graph, single, runs=4).judge(parts))
    return {"verdicts": [v.status for v in verdicts], "reasons": [v.reason for v in verdicts][:1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about[0].__doc__)
        for option, default in about[1].items():
            kind = type(default) if default is not None else str
            command.add_argument(f"--{option}", type=kind, default=default)
        command.add_argument("--json", type=Path)
    given = parser.parse_args()
    figures = COMMANDS[given.command][0](given)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1))
    else:
        print(json.dumps(figures if isinstance(figures, dict) else {"rows": len(figures)}))


COMMANDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "throughput": (
        throughput,
        {
            "seconds": 3.0,
            "rounds": 2,
            "models": ",".join(MODELS),
            "protocols": "rest,grpc",
            "connections": ",".join(map(str, CONNECTIONS)),
            "batch": 32,
            "delay": 2.0,
            "threads": 1,
        },
    ),
    "peer": (
        peer,
        {
            "python": sys.executable,
            "seconds": 3.0,
            "rounds": 2,
            "models": "mlp,minilm-l3",
            "connections": "1,8,64",
            "batch": 32,
            "delay": 2.0,
            "threads": 1,
        },
    ),
    "kills": (kills, {"seconds": 60.0, "rate": 100.0, "every": 5.0, "poison": 1000}),
    "soak": (soak, {"count": 1_000_000}),
    "hostile": (hostile, {"count": 5000, "calls": 5000, "seed": 0, "clients": 16}),
    "batched": (batched, {"models": "", "rows": 2}),
}

if __name__ == "__main__":
    random.seed(0)
    main()
