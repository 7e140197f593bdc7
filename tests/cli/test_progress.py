"""Progress is said on standard error, and Ctrl-C loses nothing that was found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fusewire.cli.progress import time_left
from fusewire.example import MODEL


@pytest.mark.parametrize(
    ("elapsed", "share", "said"),
    [(5.0, 0.25, "about 15 s left"), (0.1, 0.0, ""), (20.0, 1.0, "finishing")],
)
def test_time_left_follows_from_the_share(elapsed: float, share: float, said: str) -> None:
    assert time_left(elapsed, share) == said


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT cannot be sent there")
def test_interrupt_prints_what_was_found_and_exits_with_130(tmp_path: Path) -> None:
    words = ["bench", str(MODEL), "--backends", "reference,onnxruntime", "--budget", "30"]
    running = subprocess.Popen(
        [sys.executable, "-m", "fusewire", *words, "--json"],
        env={**os.environ, "FUSEWIRE_CACHE": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert running.stderr is not None
    lines = []
    for line in running.stderr:
        lines.append(line)
        if "timing" in line:
            break
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    report = json.loads(output)
    assert report["is_interrupted"]
    assert {row["backend"] for row in report["rows"]} == {"reference", "onnxruntime"}
    # Without a terminal there is one line per engine, with the time left.
    tried = [line for line in lines if "trying reference" in line]
    assert len(tried) == 1
    assert "left)" in tried[0]
