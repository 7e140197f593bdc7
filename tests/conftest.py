"""What holds for all tests."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from fusewire.background import process
from fusewire.store.disk import Store

if TYPE_CHECKING:
    from tests.counting import Counts

pytest_plugins = ["tests.needs", "tests.clocks"]

# Triton's LLVM crashes when it is loaded after that of Mesa, which WebGPU's software driver brings;
# some files of tests look for adapters as they are imported, and others import torch._dynamo.
with contextlib.suppress(ImportError):
    importlib.import_module("triton")

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Say what else tests fail of: entry points are read as they were when this was installed."""
    project = Path(__file__).parents[1] / "pyproject.toml"
    groups = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["entry-points"]
    for group, named in groups.items():
        installed = {(point.name, point.value) for point in entry_points(group=group)}
        if exitstatus and not named.items() <= installed:
            said = f"Not all of {group} in pyproject.toml is installed: run .ci/setup"
            terminalreporter.write_line(said, red=True)


# What an earlier run left behind decides nothing; tests of the store bring a folder of their own.
os.environ["FUSEWIRE_CACHE"] = "off"
# Nor is the user's own key; children of this process see this one.
_CONFIG = tempfile.TemporaryDirectory(prefix="fusewire-config-")
os.environ["FUSEWIRE_CONFIG"] = _CONFIG.name
# Nor do comparisons of another process of tests, which would be waited for.
_RUNTIME = tempfile.TemporaryDirectory(prefix="fusewire-runtime-")
os.environ["XDG_RUNTIME_DIR"] = _RUNTIME.name

# The file whose tests are running.
_FILE: list[Path] = []


def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Leave to the collector what tests of one file make: all of torch and jax takes it seconds."""
    if [item.path] != _FILE:
        _FILE[:] = [item.path]
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def priority(monkeypatch: pytest.MonkeyPatch) -> str:
    """Have comparers take their share of the cores, which tests fill; returns their priority."""
    own = process.PRIORITY
    monkeypatch.setattr(process, "PRIORITY", "normal")
    return own


@pytest.fixture(autouse=True)
def failed_engines_are_tried_again() -> Iterator[None]:
    """Forget that an engine did not start: other tests would fail because of what one did."""
    yield
    # Not imported here: tests of the layers run on source that cannot be imported.
    if (module := sys.modules.get("fusewire.registry")) is None:
        return
    for name in module.REGISTRY.backends.names():
        met = module.REGISTRY.known(name)
        if met is not None and met.is_broken and not met.devices:
            module.REGISTRY.close(name)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store of the test's own, in place of the user's."""
    own = Store(tmp_path / "cache")
    monkeypatch.setattr("fusewire.session.context.shared_store", lambda: own)
    yield own
    own.close()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Count descriptors, buffers, closes, copies and listings."""
    # Imports backends, which most tests do not need.
    from tests.counting import counting

    return counting(monkeypatch)
