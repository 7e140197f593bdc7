"""Names of devices: one scheme for all backends, and one device however it is reached."""

from __future__ import annotations

import pytest

from fusewire.contract.backend import Device
from fusewire.contract.devices import (
    KINDS,
    DeviceName,
    answers_to,
    hardware,
    is_alike,
    on_device,
    same_hardware,
)

DEVICES = [
    Device(name, name, is_software=name == "webgpu:1", facts={"power": "high"})
    for name in (
        "cpu",
        "cpu:openvino",
        "cpu:3",
        "cuda:0",
        "cuda:0:tensorrt",
        "cuda:1",
        "hip:0",
        "gpu:0",
        "webgpu:0",
        "webgpu:1",
        "npu:0",
        "npu:0:qnn",
    )
]


@pytest.mark.parametrize(
    ("text", "parts", "shown"),
    [
        ("cpu", ("cpu", 0, ""), "cpu"),
        ("cpu:0", ("cpu", 0, ""), "cpu"),
        ("CPU:1", ("cpu", 1, ""), "cpu:1"),
        ("cpu:openvino", ("cpu", 0, "openvino"), "cpu:openvino"),
        ("cuda", ("cuda", 0, ""), "cuda:0"),
        ("cuda:12:tensorrt", ("cuda", 12, "tensorrt"), "cuda:12:tensorrt"),
        ("hip:1", ("rocm", 1, ""), "rocm:1"),
        ("dml:0", ("directml", 0, ""), "directml:0"),
    ],
)
def test_id_is_read_and_written(text: str, parts: tuple[str, int, str], shown: str) -> None:
    name = DeviceName.of(text)
    assert (name.kind, name.number, name.provider) == parts
    assert str(name) == shown
    assert DeviceName.of(shown) == name


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        (None, [device.id for device in DEVICES]),
        ("cpu", ["cpu", "cpu:openvino", "cpu:3"]),
        ("cpu:0", ["cpu", "cpu:openvino"]),
        ("cpu:openvino", ["cpu:openvino"]),
        ("cpu:3", ["cpu:3"]),
        ("cpu:none", []),
        ("cuda", ["cuda:0", "cuda:0:tensorrt", "cuda:1"]),
        ("cuda:0", ["cuda:0", "cuda:0:tensorrt"]),
        ("cuda:0:tensorrt", ["cuda:0:tensorrt"]),
        ("cuda:2", []),
        ("rocm", ["hip:0"]),
        ("hip", ["hip:0"]),
        ("rocm:0", ["hip:0"]),
        ("gpu", ["cuda:0", "cuda:0:tensorrt", "cuda:1", "hip:0", "gpu:0", "webgpu:0"]),
        ("gpu:0", ["gpu:0"]),
        ("webgpu:high", ["webgpu:0", "webgpu:1"]),
        ("webgpu:low", []),
        ("npu:0", ["npu:0", "npu:0:qnn"]),
    ],
)
def test_name_means_these_devices(name: str | None, meant: list[str]) -> None:
    assert [device.id for device in DEVICES if answers_to(device, name)] == meant


def test_kind_has_one_name() -> None:
    assert Device("hip:0", "x").kind == "rocm"
    assert "rocm" in KINDS
    assert "hip" not in KINDS


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({"pci_bus_id": "0000:65:00.0"}, {"pci_bus_id": "00000000:65:00.0"}, True),
        ({"pci_bus_id": "65:00.0"}, {"pci_bus_id": "0000:65:00.0"}, True),
        ({"pci_bus_id": "0000:65:00.0"}, {"pci_bus_id": "0000:b3:00.0"}, False),
        ({"pci_bus_id": "0001:65:00.0"}, {"pci_bus_id": "0000:65:00.0"}, False),
        ({"uuid": "GPU-3f2A-99"}, {"uuid": "3f2a99", "pci_bus_id": "0000:01:00.0"}, True),
        ({}, {}, False),
        ({"pci_bus_id": "0000:65:00.0"}, {}, False),
    ],
)
def test_hardware_is_told_by_its_facts(
    one: dict[str, str], other: dict[str, str], is_same: bool
) -> None:
    cuda, webgpu = Device("cuda:0", "a", facts=one), Device("webgpu:3", "b", facts=other)
    assert same_hardware(cuda, webgpu) is is_same


def test_processor_is_one_however_it_is_reached() -> None:
    emulated = Device("webgpu:0", "llvmpipe", is_software=True)
    assert hardware(Device("cpu:openvino", "x")) == hardware(Device("cpu", "y"))
    assert same_hardware(emulated, Device("cpu:2", "y"))


def test_name_means_the_hardware_whichever_library_reaches_it() -> None:
    bus, other = {"pci_bus_id": "0000:65:00.0"}, {"pci_bus_id": "0000:66:00.0"}
    devices = [
        Device("webgpu:0", "Vulkan", facts=bus),
        Device("webgpu:1", "Vulkan", facts=other),
        Device("cuda:0", "CUDA", facts=bus),
        Device("cuda:0", "another backend", facts=bus),
        Device("gpu:0", "OpenCL", facts=bus),
        Device("cpu", "host"),
    ]
    found = on_device(devices, "cuda", lambda device: device)
    assert [x.name for x in found] == ["CUDA", "Vulkan", "another backend", "OpenCL"]


def test_sharing_the_processor_is_no_reason_to_be_meant() -> None:
    devices = [Device("webgpu:0", "llvmpipe", is_software=True), Device("cpu", "host")]
    assert [x.id for x in on_device(devices, "cpu", lambda x: x)] == ["cpu"]


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (Device("cpu", "x"), Device("cpu:3", "x"), True),
        (Device("cpu", "x"), Device("cpu:openvino", "x"), False),
        (Device("cpu", "x"), Device("cpu:1", "y"), False),
        (
            Device("cuda:0", "H", facts={"memory_bytes": 8, "uuid": "1"}),
            Device("cuda:1", "H", facts={"memory_bytes": 8, "uuid": "2"}),
            True,
        ),
        (
            Device("cuda:0", "H", facts={"memory_bytes": 8}),
            Device("cuda:1", "H", facts={"memory_bytes": 4}),
            False,
        ),
        (Device("webgpu:0", "x"), Device("webgpu:1", "x", is_software=True), False),
    ],
)
def test_devices_are_alike_if_only_numbers_and_addresses_differ(
    one: Device, other: Device, alike: bool
) -> None:
    assert is_alike(one, other) is alike
