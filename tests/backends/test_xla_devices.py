"""Devices of XLA beside the first CPU: several CPUs for real, and platforms that list nothing."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fusewire.backends.xla import client, devices
from fusewire.backends.xla.devices import Place
from fusewire.backends.xla.engine import XlaBackend
from fusewire.backends.xla.resident import ResidentExecutable, XlaBuffer
from fusewire.contract.backend import Device, Unavailable
from fusewire.contract.region import edge_slots
from fusewire.dtypes import float32, float64, int4
from fusewire.errors import UnavailableError
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.elementwise import add, multiply
from fusewire.ops.slicing import flip

FOUR = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
RUNS = """
import json
import numpy as np
import fusewire as fw
from fusewire.registry import REGISTRY
found = REGISTRY.meet("xla").devices
x = np.arange(6, dtype=np.float32)
answers = {}
for device in found:
    program = fw.compile(lambda x: x * 2 + 1, x, backend="xla", device=device.id, cache=False)
    result = program.run(x)
    on = {region.device.id for region in program.plan.regions()}
    answers[device.id] = [result.outputs.tolist(), sorted(on)]
backend = REGISTRY.get("xla")
prints = [backend.fingerprint(device)["device"] for device in found]
from fusewire.backends.xla import client
from fusewire.backends.xla.devices import Place
places = [client.client(Place.of(device)).device.id for device in found]
print(json.dumps([answers, prints, places]))
"""


def _printed(script: str, env: dict[str, str]) -> Any:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_cpu_of_four_runs_programs_of_its_own() -> None:
    answers, prints, places = _printed(RUNS, FOUR)
    ids = ["cpu", "cpu:1", "cpu:2", "cpu:3"]
    wanted = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
    assert answers == {name: [wanted, [name]] for name in ids}
    assert prints == ids
    assert places == [0, 1, 2, 3]


RACES = """
import json
import numpy as np
import fusewire as fw
x = np.ones((64, 64), np.float32)
def raced(**options):
    program = fw.compile(
        lambda x: np.tanh(x @ x), x, start="measured", cache=False, budget_seconds=80, **options
    )
    rows = program.why().tried
    return sorted({row.device for row in rows if row.backend == "xla"})
print(json.dumps([raced(), raced(device="cpu:2")]))
"""


def test_auto_races_one_of_several_devices_that_are_alike() -> None:
    assert _printed(RACES, FOUR) == [["cpu"], ["cpu:2"]]


def test_id_of_a_device_says_platform_and_number() -> None:
    for id_ in ("cpu", "cpu:1", "cuda:0", "metal:1"):
        assert Place.of(Device(id_, "some")).id == id_
    assert Place("metal", 0).jax_platform == "METAL"
    assert not Place("tpu", 0).is_host


def test_device_that_is_gone_is_named() -> None:
    with pytest.raises(UnavailableError, match="cpu:7 was asked for, and XLA has 1 of cpu"):
        client.client(Place("cpu", 7))
    with pytest.raises(UnavailableError, match="cuda:0 was found before, and is not here now"):
        client.client(Place("cuda", 0))


def _graph() -> Graph:
    x, y = (Value(TensorType(float64, (2, 3)), name) for name in "xy")
    return Graph([x, y], [multiply(add(x, y), x), add(x, x)])


def _resident(graph: Graph) -> tuple[ResidentExecutable, Any]:
    """Load a program as for a device that is not the host, with one of jax's own CPUs as such."""
    from fusewire.backends.xla.program import program

    slots = edge_slots(graph)
    inputs = [slot for slot in slots if slot.role == "input"]
    outputs = [slot for slot in slots if slot.role == "output"]
    owner = client.Client(jax.local_devices(backend="cpu")[0])
    payload, _ = owner.compile(program(graph, slots))
    call = client.bind_resident(owner, owner.load(payload, False), [], inputs, outputs)
    return ResidentExecutable(call, "other:0", owner.put, inputs, outputs), owner


def test_outputs_stay_on_a_device_and_enter_the_next_run() -> None:
    executable, _ = _resident(_graph())
    x = np.array([[1.0, 2.0, 1e100], [3.0, -4.0, 0.5]])
    first, second = executable.run([x, x])
    assert isinstance(first, XlaBuffer)
    assert (first.device, first.type) == ("other:0", TensorType(float64, (2, 3)))
    again, _ = executable.run([second, x])
    assert isinstance(again, XlaBuffer)
    assert np.array_equal(again.read(), (2 * x + x) * (2 * x))


def test_part_of_a_buffer_is_read_and_written() -> None:
    executable, _ = _resident(_graph())
    x = np.arange(6.0).reshape(2, 3)
    _, doubled = executable.run([x, x])
    assert isinstance(doubled, XlaBuffer)
    assert doubled.read(2, 3).tolist() == [4.0, 6.0, 8.0]
    doubled.write(np.array([-1.0, -2.0]), 1)
    assert doubled.read().tolist() == [[0.0, -1.0, -2.0], [6.0, 8.0, 10.0]]


def test_narrow_elements_come_back_from_a_device() -> None:
    x = Value(TensorType(int4, (3,)), "x")
    executable, _ = _resident(Graph([x], [flip(x, axes=(0,))]))
    given = np.array([-4, 1, 3], int4.numpy)
    (found,) = executable.run([given])
    assert isinstance(found, XlaBuffer)
    assert found.read().dtype == int4.numpy
    assert found.read().astype(int).tolist() == [3, 1, -4]
    (back,) = executable.run([found])
    assert isinstance(back, XlaBuffer)
    assert back.read().astype(int).tolist() == [-4, 1, 3]
    found.write(np.array([-8], int4.numpy), 2)
    assert found.read().astype(int).tolist() == [3, 1, -8]


def test_devices_that_are_not_cpus_have_a_memory_of_their_own() -> None:
    backend = XlaBackend()
    assert backend.exchange_on(Device("cpu:1", "some")).memory == "host"
    assert backend.exchange_on(Device("cuda:1", "some")).memory == "cuda:1"


def _plugin(folder: Path, name: str, initialize: str) -> dict[str, str]:
    """Write a plugin of jax; the path comes first, as an installed package would."""
    package = folder / "jax_plugins" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"def initialize():\n    {initialize}\n")
    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PYTHONPATH": path}


PROBES = """
import json, time
from dataclasses import asdict
from fusewire.registry import REGISTRY
start = time.perf_counter()
found = REGISTRY.meet("xla").found
print(json.dumps([[asdict(x) for x in found], time.perf_counter() - start]))
"""


@pytest.mark.timing
@pytest.mark.parametrize(
    ("name", "initialize", "says"),
    [
        ("xla_cuda12", "raise RuntimeError('Unable to load CUDA.')", "jax says: Unable to load CU"),
        ("xla_rocm7", "pass", "jax-rocm7-plugin is installed, and jax lists no device of rocm."),
    ],
)
def test_plugin_without_a_device_says_what_is_missing(
    tmp_path: Path, name: str, initialize: str, says: str
) -> None:
    rows, seconds = _printed(PROBES, _plugin(tmp_path, name, initialize))
    cpu, missing = rows
    assert cpu["id"] == "cpu"
    assert says in missing["reason"]
    assert missing["code"] == "no-device"
    assert "Install" in missing["fix"]
    assert f"uninstall jax-{name[4:]}-plugin" in missing["fix"]
    # Half a second beside what importing jax takes here.
    assert seconds < 60


@pytest.mark.timing
@pytest.mark.parametrize(
    ("initialize", "code", "says"),
    [
        ("import os; os.kill(os.getpid(), 11)", "crashed", "ended with -11"),
        ("import time; time.sleep(60)", "hung", "gave no answer in 8 s"),
    ],
)
def test_plugin_that_dies_or_hangs_leaves_the_cpu_alone(
    tmp_path: Path, initialize: str, code: str, says: str
) -> None:
    rows, seconds = _printed(PROBES, _plugin(tmp_path, "xla_cuda12", initialize))
    cpu, cuda = rows
    assert cpu["id"] == "cpu"
    assert (cuda["code"], cuda["device"]) == (code, "cuda")
    assert says in cuda["reason"]
    assert "uninstall jax-cuda12-plugin" in cuda["fix"]
    # Beside starting the child and importing jax.
    assert seconds < 40


def test_platforms_are_found_without_importing_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.plugins() == {}
    monkeypatch.setitem(sys.modules, "libtpu", types.ModuleType("libtpu"))
    sys.modules["libtpu"].__spec__ = types.SimpleNamespace()  # type: ignore[assignment] # enough
    assert devices.plugins() == {"tpu": "libtpu"}


def test_user_keeps_the_variables_that_are_set_for_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    with devices.assigned({"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "NPROC": "1"}):
        assert os.environ["NPROC"] == "1"
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
    assert "NPROC" not in os.environ


def test_probe_lists_devices_and_reasons_once() -> None:
    backend = XlaBackend()
    found = backend.probe()
    assert found == backend.probe()
    assert not any(isinstance(x, Unavailable) for x in found)
    x = Value(TensorType(float32, (2,)), "x")
    artifact = backend.compile(Graph([x], [add(x, x)]), found[0], _config())  # type: ignore[arg-type]
    assert artifact.key["device"] == "cpu"


def _config() -> Any:
    from fusewire.contract.backend import Config

    return Config()
