"""How long do clients of object stores take for one object: obstore beside boto3?

    python benchmarks/object_clients.py --count 300

Reads and writes objects of a few sizes on both local servers, the clients in turn, and prints the
medians in milliseconds, with the time of importing each client in a new process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.object_servers import BUCKET, ObjectServer, serve
from fusewire.store.transport import open_transport

SIZES = {"1 kB": 10**3, "100 kB": 10**5, "2 MB": 2 * 10**6}
IMPORTS = {"obstore": "import obstore, obstore.store", "boto3": "import boto3; boto3.client('s3')"}


def calls(server: ObjectServer, size: int) -> dict[str, Callable[[], object]]:
    """Return what is timed: get and put of each client."""
    import boto3

    payload, path = os.urandom(size), f"cas/00/{size}"
    ours = open_transport(server.url)
    theirs: Any = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1")
    name = f"shared/{path}"
    ours.put(path, payload)
    return {
        "obstore get": lambda: ours.get(path, size),
        "boto3 get": lambda: theirs.get_object(Bucket=BUCKET, Key=name)["Body"].read(),
        "obstore put": lambda: ours.put(path, payload),
        "boto3 put": lambda: theirs.put_object(Bucket=BUCKET, Key=name, Body=payload),
        "obstore miss": lambda: ours.get("cas/00/none", size),
    }


def medians(timed: dict[str, Callable[[], object]], count: int) -> dict[str, float]:
    """Call each in turn; returns milliseconds."""
    samples: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(count):
        for name, call in timed.items():
            start = time.perf_counter()
            call()
            samples[name].append(1e3 * (time.perf_counter() - start))
    return {name: round(statistics.median(found), 2) for name, found in samples.items()}


def importing(script: str) -> float:
    """Time a new process, less one that does nothing, in milliseconds."""
    spans = []
    for words in (script, "pass"):
        found = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", words], check=True)
            found.append(time.perf_counter() - start)
        spans.append(min(found))
    return round(1e3 * (spans[0] - spans[1]), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    for name in ("rclone", "moto"):
        with tempfile.TemporaryDirectory() as folder, serve(name, Path(folder)) as server:
            os.environ.update(server.variables)
            for size, count in SIZES.items():
                rows.append(
                    {"server": name, "size": size, **medians(calls(server, count), args.count)}
                )
    report = {"rows": rows, "import": {name: importing(x) for name, x in IMPORTS.items()}}
    print(json.dumps(report, indent=None if args.json else 1))


if __name__ == "__main__":
    main()
