"""The campaigns in benchmarks/ at about a hundredth of their size."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


def test_killed_writers_of_a_hundredth(cluster: Any, tmp_path: Path) -> None:
    ray_map: Any = importlib.import_module("benchmarks.ray_map")
    source = tmp_path / "images"
    source.mkdir()
    ray_map.write_images(source, 10_000)
    rates = ray_map.timed_blocks(cluster, "bare", source, tmp_path / "bare", 1)
    assert rates["whole"] > 0
    killed = ray_map.killed_job(source, tmp_path / "bare", tmp_path / "killed", 1, 1)
    report = {"rows": 10_000, "killed": {**killed, "is_equal": True}}
    assert ray_map.is_sound(report), json.dumps(killed)
    assert killed["kills"] == 1


def test_count_of_records_sees_what_is_wrong() -> None:
    ray_trials: Any = importlib.import_module("benchmarks.ray_trials")
    records = [
        {"trial": "a", "host": "h", "began": 0.0, "ended": 1.0, "status": "right"},
        {"trial": "b", "host": "h", "began": 0.5, "ended": 2.0, "status": "right"},
        {"trial": "b", "host": "h", "began": 3.0, "ended": 4.0, "status": "right"},
    ]
    outcome = {
        "records": records,
        "answers": [],
        "workers_killed": 0,
        "raylets_killed": 0,
        "seconds": 1.0,
    }
    counted = ray_trials.counted(outcome, 3)
    assert (counted["missing"], counted["double"], counted["overlaps"]) == (1, 1, 1)
    assert not ray_trials.is_sound({"calm": counted, "killed": counted})
