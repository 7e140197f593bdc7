"""Wheels of ONNX Runtime's providers that are not in the environment of the tests.

Another provider takes part in every race, so `.ci/setup` puts them into a folder of their own;
tests that want them start a Python that sees it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(sys.prefix) / "plugins" / "site-packages"
OPENVINO = "onnxruntime_ep_openvino"

needs_openvino = pytest.mark.skipif(
    not (FOLDER / OPENVINO).is_dir(),
    reason=f"onnxruntime-ep-openvino is not in {FOLDER}: .ci/setup puts it there",
)


def run_with(folder: Path, code: str, *words: str) -> Any:
    """Run code in a Python that sees the packages of a folder; gives the JSON that it prints."""
    env = os.environ | {"PYTHONPATH": str(folder), "FUSEWIRE_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
