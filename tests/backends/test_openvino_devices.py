"""Devices of OpenVINO: the CPU for real, and others as a core lists them that runs on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusewire.backends.openvino import devices, engine
from fusewire.backends.openvino.api import openvino
from fusewire.backends.openvino.engine import OpenvinoBackend
from fusewire.contract.backend import Config, Device, Unavailable
from fusewire.contract.region import build, doubled
from fusewire.dtypes import float32
from fusewire.errors import OptionsError
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.contraction import matmul
from fusewire.ops.elementwise import add

CORE = openvino.Core()
PCI = "DEVICE_PCI_INFO"


class Board:
    """A core with a second GPU and an NPU, which the CPU stands in for; the NPU computes in f16."""

    available_devices = ("CPU", "GPU.1", "NPU")

    def __init__(self) -> None:
        self.compiled: list[tuple[str, dict[str, Any]]] = []

    def get_property(self, plugin: str, name: str) -> Any:
        if name == "FULL_DEVICE_NAME":
            return f"the {plugin}"
        if name == "OPTIMIZATION_CAPABILITIES" and plugin == "NPU":
            return ["FP16"]
        if name == "SUPPORTED_PROPERTIES" and plugin != "CPU":
            names = ("PERFORMANCE_HINT", "INFERENCE_PRECISION_HINT", "DEVICE_UUID", PCI)
            return dict.fromkeys(names, "RW")
        told = {"DEVICE_UUID": "0123", PCI: "{domain: 0 bus: 3 device: 0x0a function: 1}"}
        return told[name] if name in told else CORE.get_property("CPU", name)

    def compile_model(self, model: Any, plugin: str, properties: dict[str, Any]) -> Any:
        self.compiled.append((plugin, properties))
        compiled = CORE.compile_model(model, "CPU", properties)
        return Half(compiled) if plugin == "NPU" else compiled

    def import_model(self, blob: Any, plugin: str, properties: dict[str, Any]) -> Any:
        self.compiled.append((plugin, properties))
        return CORE.import_model(blob, "CPU", properties)


class Half:
    """A compiled model that says it computes in half precision."""

    def __init__(self, compiled: Any) -> None:
        self.create_infer_request = compiled.create_infer_request

    def get_property(self, name: str) -> Any:
        return openvino.Type.f16


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    board = Board()
    monkeypatch.setattr(engine, "_core", lambda: board)
    return board


def test_cpu_is_listed_with_what_the_engine_tells() -> None:
    (cpu,) = (x for x in OpenvinoBackend().probe() if isinstance(x, Device))
    assert cpu.id == "cpu"
    assert cpu.name == CORE.get_property("CPU", "FULL_DEVICE_NAME")
    assert cpu.facts["plugin"] == "CPU"
    assert cpu.facts["architecture"] == CORE.get_property("CPU", "DEVICE_ARCHITECTURE")


def test_devices_have_one_id_each() -> None:
    named = {name: devices.id_of(name) for name in ("CPU", "GPU", "GPU.0", "GPU.1", "NPU")}
    ids = ["cpu", "gpu:0", "gpu:0", "gpu:1", "npu:0"]
    assert list(named.values()) == ids


def test_programs_are_compiled_for_the_device_and_in_full_precision(board: Board) -> None:
    backend = OpenvinoBackend()
    gpu = next(x for x in backend.probe() if isinstance(x, Device) and x.id == "gpu:1")
    assert (gpu.name, gpu.facts["uuid"]) == ("the GPU.1", "0123")
    assert gpu.facts["pci_bus_id"] == "0000:03:0a.1"
    board.compiled.clear()
    assert doubled(backend, gpu) == [2.0, 2.0]
    x = Value(TensorType(float32, (64, 64)), "x")
    weights = np.eye(64, dtype=np.float32)
    graph = Graph([x], [add(matmul(x, weights), x)])
    artifact = backend.compile(graph, gpu, Config(threads=2))
    assert artifact.kind == "native"
    (found,) = build(backend, graph, gpu).run([weights])
    assert np.array_equal(np.asarray(found), 2 * weights)
    assert {plugin for plugin, _ in board.compiled} == {"GPU.1"}
    for _, properties in board.compiled:
        assert properties == {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}


def test_artifacts_of_two_devices_differ(board: Board) -> None:
    backend = OpenvinoBackend()
    cpu, gpu = (x for x in backend.probe() if isinstance(x, Device))
    assert backend.fingerprint(cpu) != backend.fingerprint(gpu)
    assert backend.fingerprint(gpu)["device"] == "gpu:1"


def test_device_of_half_precision_is_not_used(board: Board) -> None:
    (npu,) = (x for x in OpenvinoBackend().probe() if isinstance(x, Unavailable))
    assert npu.code == "precision"
    assert "NPU was asked to compute in f32, and computes in f16" in npu.reason
    assert 'device="cpu"' in npu.fix


def test_precision_is_what_the_engine_says_it_computes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices._problem(CORE, "CPU") is None
    monkeypatch.setitem(devices.SETTINGS, "INFERENCE_PRECISION_HINT", "bf16")
    (found,) = devices.listed(CORE)
    assert isinstance(found, Unavailable)
    assert "computes in bf16" in found.reason


def test_gpu_that_the_engine_does_not_list_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = tmp_path / "renderD128" / "device"
    card.mkdir(parents=True)
    _, pattern, fix = devices.UNLISTED["GPU"]
    monkeypatch.setattr(devices, "UNLISTED", {"GPU": (tmp_path, pattern, fix)})
    (card / "vendor").write_text("0x10de\n")
    assert [type(x) for x in devices.listed(CORE)] == [Device]
    (card / "vendor").write_text("0x8086\n")
    _, found = devices.listed(CORE)
    assert isinstance(found, Unavailable)
    assert found.code == "no-device"
    assert f"There is {tmp_path}/renderD128" in found.reason
    # The real plugin, on a machine without OpenCL.
    assert "It says: " in found.reason
    assert "intel-opencl-icd" in found.fix


def _products(size: int = 64) -> tuple[Graph, list[Any]]:
    kind = TensorType(float32, (size, size))
    x, y = Value(kind, "x"), Value(kind, "y")
    graph = Graph([x, y], [matmul(x, y)])
    rng = np.random.default_rng(0)
    return graph, [rng.standard_normal((size, size)).astype(np.float32) for _ in "xy"]


def test_less_precision_is_offered_where_the_device_lists_it() -> None:
    backend, (graph, _) = OpenvinoBackend(), _products()
    fast = Device("cpu", "fast", facts={"abilities": ("FP32", "BF16", "FP16")})
    assert backend.reduced(graph, fast) == [{"precision": "bf16"}, {"precision": "f16"}]
    plain = Device("cpu", "plain", facts={"abilities": ("FP32", "INT8")})
    assert backend.reduced(graph, plain) == []
    x = Value(TensorType(float32, (3,)), "x")
    assert backend.reduced(Graph([x], [add(x, x)]), fast) == []


def test_bf16_is_computed_only_if_asked_for() -> None:
    backend, (graph, inputs) = OpenvinoBackend(), _products()
    device = next(x for x in backend.probe() if isinstance(x, Device))
    exact = inputs[0].astype(np.float64) @ inputs[1].astype(np.float64)

    def error(config: Config) -> float:
        (found,) = build(backend, graph, device, config).run(inputs)
        return float(np.linalg.norm(np.asarray(found) - exact) / np.linalg.norm(exact))

    assert error(Config()) < 1e-6
    assert 1e-4 < error(Config(options={"precision": "bf16"})) < 1e-2
    with pytest.raises(OptionsError, match="no precision='f8'"):
        error(Config(options={"precision": "f8"}))
