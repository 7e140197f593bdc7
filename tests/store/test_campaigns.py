"""The campaigns of benchmarks/store_*.py, small."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def campaign(name: str, *words: str) -> dict[str, Any]:
    """Run a campaign in a process of its own, which forks: it must have one thread."""
    return _campaign(f"store_{name}", *words)


def _campaign(name: str, *words: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--json", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300)
    row: dict[str, Any] = json.loads(done.stdout)
    assert row["problems"] == []
    assert done.returncode == 0
    return row


@pytest.mark.parametrize(("size", "count"), [("2000000", "20"), ("64000", "60")])
def test_killed_writers_leave_nothing_torn(size: str, count: str) -> None:
    row = campaign("kills", "--size", size, "--count", count, "--hits", "3")
    assert row["killed_while_writing"] >= 3
    assert row["left_after_sweep"] == 0


def test_mutants_are_found_and_healed() -> None:
    row = campaign("mutations", "--count", "2000")
    assert row["found"] == row["mutants"] >= 1900
    assert len(row["kinds"]) == 12


@pytest.mark.parametrize("killed", ["0", "0.2"])
def test_processes_make_each_entry_once(killed: str) -> None:
    row = campaign("processes", "--processes", "40", "--killed", killed)
    assert row["entries"] == 5
    assert killed != "0" or set(row["makes"].values()) == {1}


def test_power_that_fails_leaves_what_was_put_or_less() -> None:
    assert campaign("power", "--count", "1000")["distinct"] > 300


def test_failing_disks_change_no_answer() -> None:
    row = campaign("faults", "--step", "20", "--first", "5")
    assert row["reached"] > 100


def can_trace() -> bool:
    """Tell whether strace is here and may do what it does."""
    found = shutil.which("strace")
    command = [str(found), "-o", os.devnull, "true"]
    return found is not None and subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.skipif(not can_trace(), reason="strace is not installed, or not allowed to trace")
def test_failing_system_calls_change_no_answer() -> None:
    row = campaign("faults", "--strace", "--step", "17", "--most", "60")
    assert row["reached"] > 50


@pytest.mark.parametrize("server", ["rclone", "moto"])
def test_killed_writers_leave_nothing_wrong_in_a_shared_store(server: str) -> None:
    row = _campaign("remote_store", "kills", "--server", server, "--count", "20")
    assert row["ends"]["while writing"] >= 10
    assert row["reads"]["right"] >= 8


@pytest.mark.parametrize("server", ["folder", "rclone", "moto"])
def test_mutants_in_a_shared_store_are_refused(server: str) -> None:
    row = _campaign("remote_store", "mutations", "--server", server, "--count", "200")
    assert sum(row["outcomes"].values()) == 200
    assert {name.split(":")[0] for name in row["outcomes"]} >= {"forge", "downgrade", "strip"}


def test_shared_store_that_fails_changes_no_answer() -> None:
    # How late it is says how busy this machine is; the unit test of the tier bounds the wait.
    words = ("faults", "--server", "rclone", "--count", "1", "--most-delay", "5")
    assert set(_campaign("remote_store", *words)["delays"]) > {"down", "slow", "throttles"}


@pytest.mark.parametrize("policy", ["bundle", "lease", "forged"])
def test_fleet_is_ready_with_one_compile_per_key(policy: str) -> None:
    row = _campaign("fleet", "--hosts", "1000", "--policy", policy)
    assert row["outcomes"].get("compiled", 0) == {"bundle": 0, "lease": 1}.get(policy, 997)


@pytest.mark.parametrize(("server", "policy"), [("rclone", "bundle"), ("moto", "lease")])
def test_hosts_of_a_fleet_do_the_same_with_a_real_server(server: str, policy: str) -> None:
    row = _campaign("fleet", "--hosts", "1000", "--policy", policy, "--real", server)
    assert sum(row["outcomes"].values()) == 10
