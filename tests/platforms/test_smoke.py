"""What must work on every operating system, and is run on each (.github/workflows/tests.yml)."""

import time
from pathlib import Path

import numpy as np
import pytest

import fusewire as fw
from fusewire.cli.doctor import CHECKS
from fusewire.contract.backend import Config, Device, Refusal
from fusewire.dtypes import float32
from fusewire.errors import BundleWarning, IsolationError
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.elementwise import add
from fusewire.process.child import CAN_ISOLATE
from fusewire.process.guarantees import isolation_problem, shortfalls
from fusewire.process.isolate import Contact, first_contact
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import ChildPool
from fusewire.store.disk import Store
from fusewire.store.key import Key
from fusewire.system.folders import user_folder
from fusewire.system.hardware import usable_cores

X = np.linspace(-1, 1, 6, dtype=np.float32)


def contact(fault: str, seconds: float = 60.0) -> Contact | Refusal:
    """Run x + x in a child on an interpreter with a fault."""
    x = Value(TensorType(float32, (6,)), "x")
    region = Graph([x], [add(x, x)], output_names=["y"])
    reference = f"fusewire.testing.chaos:{fault}"
    with ChildPool(closing="open") as pool:
        device, limits = Device("cpu", "test"), ChildLimits(seconds)
        return first_contact(reference, region, device, Config(), [X], limits, pool=pool)


def test_children_start_here() -> None:
    assert CAN_ISOLATE
    assert CHECKS["child processes"]()["state"] == "ready"


def test_first_call_runs_in_a_child_and_is_right() -> None:
    program = fw.compile(lambda x: x + x, X, backend="reference")
    np.testing.assert_array_equal(program(X), X + X)
    found = contact("none_at_run")
    assert isinstance(found, Contact)
    np.testing.assert_array_equal(found.outputs[0], X + X)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_engine_runs_and_is_saved(engine: str, tmp_path: Path) -> None:
    program = fw.compile(lambda x: np.tanh(x) + x, X, backend=engine, isolate="never")
    np.testing.assert_allclose(program(X), np.tanh(X) + X, rtol=1e-6)
    assert program.why().backend == engine
    program.save(tmp_path / "plan.fw")
    with pytest.warns(BundleWarning, match="not signed"):
        opened = fw.open(tmp_path / "plan.fw")
    np.testing.assert_array_equal(opened(X), program(X))


@pytest.mark.parametrize("fault", ["segv_at_run", "exit_at_run", "raise_at_run"])
def test_fault_in_a_child_is_a_refusal(fault: str) -> None:
    found = contact(fault)
    assert isinstance(found, Refusal)
    assert found.reason


@pytest.mark.parametrize("fault", ["hang_at_run", "hang_gil_at_run"])
def test_hang_ends_at_its_deadline(fault: str) -> None:
    start = time.monotonic()
    found = contact(fault, 3.0)
    assert isinstance(found, Refusal)
    assert "3 seconds" in found.reason
    assert time.monotonic() - start < 30


def test_last_words_of_a_child_are_heard() -> None:
    found = contact("quit_at_run")
    assert isinstance(found, Refusal)
    assert "chaos quits" in found.reason


def test_large_inputs_go_to_a_child_and_come_back() -> None:
    x = np.arange(3_000_000, dtype=np.float32)
    program = fw.compile(lambda x: x + x, x, backend="reference", start="measured")
    np.testing.assert_array_equal(program(x), x + x)


def test_entry_is_found_again(tmp_path: Path) -> None:
    key = Key.of("artifact", graph="ab")
    assert Store(tmp_path / "cache").put(key, b"x" * 100_000)
    assert Store(tmp_path / "cache").get(key) == b"x" * 100_000
    assert Store(tmp_path / "cache").once(key, lambda: b"other") == b"x" * 100_000


def test_isolation_is_enforced_or_refused() -> None:
    problem = isolation_problem()
    if problem is None:
        program = fw.compile(lambda x: x + x, X, backend="reference", isolate="always")
        np.testing.assert_array_equal(program(X), X + X)
        return
    with pytest.raises(IsolationError, match="isolate='always' needs"):
        fw.compile(lambda x: x + x, X, backend="reference", isolate="always")
    assert problem in shortfalls()


def test_platform_is_a_row_of_doctor() -> None:
    row = CHECKS["platform"]()
    assert row["state"] == "ready"
    assert row["fix"] == " ".join(shortfalls())
    assert usable_cores() >= 1


@pytest.mark.parametrize(
    ("platform", "cache", "config"),
    [
        ("linux", ".cache/fusewire", ".config/fusewire"),
        ("darwin", "Library/Caches/fusewire", "Library/Application Support/fusewire"),
        ("win32", "Local/fusewire/Cache", "Local/fusewire/Config"),
    ],
)
def test_folders_are_the_platforms_own(
    platform: str, cache: str, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    assert user_folder("cache", platform) == tmp_path / cache
    assert user_folder("config", platform) == tmp_path / config
