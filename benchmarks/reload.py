"""What is an artifact worth: how long from its bytes to the first answer, in another process?

    python benchmarks/reload.py [--backends xla,openvino] [--times 5] [--json]

Cold: compile, load and run once, in a fresh process whose engine is ready. Reload: load and run
once from the artifact's bytes and the weights, in another fresh process. A driver that keeps
compiled shaders on disk (Mesa) starts with an empty folder, but for the last column.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fusewire import ops
from fusewire.contract.backend import Artifact, Config
from fusewire.contract.buffer import Buffer
from fusewire.contract.region import first_device, weights_of
from fusewire.dtypes import float32
from fusewire.ir.builder import constant
from fusewire.ir.graph import Graph, Value
from fusewire.ir.text import constants_of
from fusewire.ir.types import TensorType
from fusewire.planning.claims import ask
from fusewire.planning.target import Target
from fusewire.process.codec import read_record, write_record
from fusewire.registry import REGISTRY

RNG = np.random.default_rng(7)


def weight(*shape: int) -> Value:
    scale = np.sqrt(2 / np.prod(shape[1:]))
    return constant((RNG.standard_normal(shape) * scale).astype(np.float32))


def chain(x: Value) -> Value:
    """Forty elementwise nodes."""
    for _ in range(10):
        x = ops.multiply(ops.tanh(ops.add(ops.abs_(x), 0.25)), 1.5)
    return x


def mlp(x: Value) -> Value:
    """Two small layers."""
    h = ops.relu(ops.linear(x, weight(32, 16), weight(32)))
    found: Value = ops.linear(h, weight(4, 32), weight(4))
    return found


def convnet(x: Value) -> Value:
    """Sixteen convolutions of 64 channels, and a classifier."""
    for place in range(16):
        filters = weight(64, 64 if place else 3, 3, 3)
        x = ops.relu(ops.conv(x, filters, weight(64), padding=((1, 1), (1, 1))))
    pooled = ops.reshape(ops.global_average_pool(x), shape=(1, 64))
    found: Value = ops.linear(pooled, weight(10, 64), weight(10))
    return found


def encoder(x: Value) -> Value:
    """Four blocks of a transformer, 256 wide."""
    for _ in range(4):
        h = ops.layer_norm(x, weight(256), weight(256))
        q, k, v = (ops.linear(h, weight(256, 256), weight(256)) for _ in range(3))
        x = ops.add(x, ops.linear(ops.attention(q, k, v), weight(256, 256), weight(256)))
        h = ops.linear(ops.layer_norm(x, weight(256), weight(256)), weight(1024, 256), weight(1024))
        x = ops.add(x, ops.linear(ops.gelu(h), weight(256, 1024), weight(256)))
    return x


MODELS: dict[str, tuple[tuple[int, ...], Callable[[Value], Value]]] = {
    "chain": ((64, 1024), chain),
    "mlp": ((1, 16), mlp),
    "convnet": ((1, 3, 64, 64), convnet),
    "encoder": ((1, 1, 64, 256), encoder),
}


def graph_of(model: str) -> Graph:
    shape, make = MODELS[model]
    x = Value(TensorType(float32, shape), "x")
    return Graph([x], [make(x)], name=model)


def write(artifact: Artifact, path: Path) -> None:
    blobs: list[Any] = []
    row = json.dumps([write_record(artifact, blobs), [blob.nbytes for blob in blobs]])
    path.write_bytes(row.encode() + b"\n" + b"".join(blob.tobytes() for blob in blobs))


def read(path: Path) -> Artifact:
    row, held = path.read_bytes().split(b"\n", 1)
    record, sizes = json.loads(row)
    ends = np.cumsum(sizes)[:-1]
    found: Artifact = read_record(
        record, iter(np.split(np.frombuffer(held, np.uint8), ends)), Artifact
    )
    return found


def child(name: str, model: str, path: Path, is_cold: bool) -> dict[str, Any]:
    """Get the engine ready, then compile or read, load, and run once."""
    begin = time.perf_counter()
    backend = REGISTRY.backends.get(name)
    device = first_device(backend)
    ready = time.perf_counter() - begin
    claimed = ask(Target(backend, device), graph_of(model))
    if claimed.refusals:
        return {"refused": next(iter(claimed.refusals.values())).reason}
    held = constants_of(claimed.graph)
    given = [np.ones(MODELS[model][0], np.float32)]
    start = time.perf_counter()
    artifact = backend.compile(claimed.graph, device, Config()) if is_cold else read(path)
    executable = backend.load(artifact, device, weights_of(artifact, held))
    for value in executable.run(given):
        if isinstance(value, Buffer):
            value.read()
    seconds = time.perf_counter() - start
    if is_cold:
        write(artifact, path)
    own = 0 if artifact.weights is None else artifact.weights.nbytes
    sizes = {
        "bytes": len(artifact.payload) + own,
        "weights": sum(c.array.nbytes for c in held.values()),
    }
    driven = device.kind != "cpu"
    return {"seconds": seconds, "ready": ready, "kind": artifact.kind, "is_driven": driven, **sizes}


def fresh(name: str, model: str, path: Path, is_cold: bool, cache: Path) -> dict[str, Any]:
    """Have it done by a new process."""
    words = [sys.executable, __file__, "--child", name, model, str(path), str(int(is_cold))]
    env = {**os.environ, "MESA_SHADER_CACHE_DIR": str(cache)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str, model: str, times: int) -> dict[str, Any]:
    """Interleave cold and reload; give the least of each, as other work only adds to it."""
    rows: dict[str, list[float]] = {"ready": [], "cold": [], "reload": [], "driver": []}
    cold: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "artifact"
        for place in range(times):
            caches = [Path(folder) / f"{kind}{place}" for kind in ("cold", "reload")]
            cold = fresh(name, model, path, True, caches[0])
            if "refused" in cold:
                return {"backend": name, "model": model, **cold}
            rows["ready"].append(cold["ready"])
            rows["cold"].append(cold["seconds"])
            rows["reload"].append(fresh(name, model, path, False, caches[1])["seconds"])
            if cold["is_driven"]:
                kept = fresh(name, model, path, False, caches[0])["seconds"]
                rows["driver"].append(kept)
    least = {key: min(found) * 1000 for key, found in rows.items() if found}
    return {
        "backend": name,
        "engine": REGISTRY.backends.get(name).info.version,
        "model": model,
        "artifact": cold["kind"],
        "bytes": f"{cold['bytes']:,}",
        "bytes of weights": f"{cold['weights']:,}",
        "engine ready, ms": round(least["ready"]),
        "cold, ms": f"{least['cold']:.1f}",
        "reload, ms": f"{least['reload']:.1f}",
        "reload / cold": f"{least['reload'] / least['cold']:.2f}",
        "with the driver's cache, ms": f"{least['driver']:.1f}" if "driver" in least else "-",
    }


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        name, model, path, is_cold = sys.argv[2:]
        print(json.dumps(child(name, model, Path(path), is_cold == "1")))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", default="onnxruntime,openvino,xla,webgpu")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [
        measure(name, model, given.times)
        for name in given.backends.split(",")
        for model in given.models.split(",")
    ]
    if given.json:
        print(json.dumps(rows, indent=1))
        return 0
    print(f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}\n")
    shown = [row for row in rows if "refused" not in row]
    print(f"| {' | '.join(shown[0])} |\n|{'---|' * len(shown[0])}")
    for row in shown:
        print(f"| {' | '.join(map(str, row.values()))} |")
    for row in rows:
        if "refused" in row:
            print(f"\n{row['backend']} refuses {row['model']}: {row['refused']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
