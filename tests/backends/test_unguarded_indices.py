"""Which engines check indices is seen with guards off, and compared with what they declare."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fusewire.registry import REGISTRY

SCRIPT = Path(__file__).with_name("unguarded.py")
ENGINES = ("onnxruntime", "openvino", "torch", "xla", "webgpu", "triton")


@pytest.mark.parametrize("engine", ENGINES)
def test_engine_raises_for_what_it_says_it_checks_and_survives_the_rest(engine: str) -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPT), engine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    rows: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) > 250
    assert [row for row in rows if row["strange"]] == []
    info = REGISTRY.backends.get(engine).info
    believed = [row for row in rows if not row["is_allowed"] and info.checks(row["op"])]
    assert [row for row in believed if not row["raised"]] == []
    assert [row for row in rows if row["is_allowed"] and row["raised"]] == []
