"""The campaign of benchmarks/stranger_cache.py, small."""

import json
import subprocess
import sys
from pathlib import Path

CAMPAIGN = Path(__file__).parents[2] / "benchmarks" / "stranger_cache.py"


def test_cache_of_a_stranger_executes_nothing_and_makes_nothing_wrong() -> None:
    words = ["--json", "--count", "8", "--control", "2", "--backends", "onnxruntime"]
    done = subprocess.run(
        [sys.executable, str(CAMPAIGN), *words], stdout=subprocess.PIPE, text=True, timeout=300
    )
    row = json.loads(done.stdout)
    assert row["problems"] == []
    assert row["variants"] == 8
    # Under the stranger's own key the same changes do harm.
    assert row["control"]["swap_alike: wrong answers"] == 1
    assert row["control"]["plant_in_plans: executed"] == 1
    assert done.returncode == 0
