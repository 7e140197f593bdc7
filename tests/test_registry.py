"""The registry: lazy, strict about names, and calm about plugins that do not work."""

import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, metadata
from pathlib import Path

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.backend import API, Backend, Config, Device
from fusewire.errors import OptionsError, RegistryError, SourceError
from fusewire.registry import REGISTRY, BackendDevice, Registry
from fusewire.registry.plugins import Plugins

GOOD = "fusewire.backends.reference.engine:ReferenceBackend"


def _plugins(**references: str) -> Plugins[Backend]:
    points = [EntryPoint(name, value, "test") for name, value in references.items()]
    return Plugins("test", Backend, points)  # type: ignore[type-abstract]


def test_instances_are_shared() -> None:
    plugins = _plugins(good=GOOD)
    found: list[Backend] = []
    threads = [threading.Thread(target=lambda: found.append(plugins.get("good"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("no.such.module:Backend", "Give a module that can be imported here"),
        ("fusewire.backends.reference.engine:Missing", "cannot be created"),
        ("fusewire.ir.builder:Builder", "is a Builder, not a Backend"),
    ],
)
def test_plugin_that_does_not_work_is_listed_and_stops_nobody(reference: str, says: str) -> None:
    plugins = _plugins(bad=reference, good=GOOD)
    assert plugins.names() == ["bad", "good"]
    problem = plugins.problem("bad")
    assert problem is not None
    assert says in problem
    assert [backend.info.name for backend in plugins.working()] == ["reference"]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("for_1_0", "was written for version 1.0 of the backend contract; this is version 3.0. In"),
        ("for_4_0", "was written for version 4.0 of the backend contract; this is version 3.0. Up"),
    ],
)
def test_plugin_of_another_contract_is_refused(kind: str, says: str) -> None:
    plugins = _plugins(dated=f"tests.odd:{kind}", good=GOOD)
    problem = plugins.problem("dated")
    assert problem is not None
    assert says in problem
    assert [backend.info.name for backend in plugins.working()] == ["reference"]


def test_plugin_of_this_contract_is_taken_whatever_its_minor_version() -> None:
    assert API[0] == 3
    assert _plugins(dated="tests.odd:for_3_9").get("dated").info.api == (3, 9)


def test_device_is_found_by_its_name() -> None:
    place = fw.device("cpu")
    assert place in fw.devices()
    assert place.device.id == "cpu"
    with pytest.raises(RegistryError, match=r"runs on 'abacus:0'. Devices: .*cpu"):
        fw.device("abacus:0")


def _registry(*devices: Device) -> Registry:
    """Make a registry whose only backend lists these devices."""
    registry = Registry()
    places = [BackendDevice("some", device) for device in devices]
    registry.devices = lambda **_: places  # type: ignore[method-assign] # what is listed
    return registry


def test_best_device_is_of_the_most_preferred_kind() -> None:
    cpu, gpu, hip = (Device(id_, id_) for id_ in ("cpu", "gpu:0", "hip:0"))
    drawn = Device("webgpu:0", "drawn", is_software=True)
    slow = Device("cuda:0", "interpreted", facts={"interprets": True})
    assert _registry(cpu, gpu, hip).best_device().device is hip
    assert _registry(cpu, drawn, slow).best_device().device is cpu
    assert _registry(slow).best_device().device is slow
    with pytest.raises(RegistryError, match="No backend has a device"):
        _registry().best_device()


def test_credits_come_from_the_distribution() -> None:
    found = REGISTRY.backends.credits("torch-eager")
    wanted = metadata("fusewire-torch")
    assert found["summary"] == wanted["Summary"]
    ours = REGISTRY.backends.credits("reference")
    assert {"author", "license", "requires_python"} <= ours.keys()
    assert _plugins(good=GOOD).credits("good") == {}


def test_options_of_a_backend_are_what_it_accepts() -> None:
    for name in ("openvino", "triton", "webgpu"):
        declared = REGISTRY.get(name).options
        assert declared
        assert all(option.meaning.endswith(".") for option in declared)
        filled = Config().checked(name, declared)
        assert filled == {option.name: option.default for option in declared}
        with pytest.raises(OptionsError, match=f"{name} has no option rowz. Options: "):
            Config(options={"rowz": 1}).checked(name, declared)


@pytest.mark.parametrize(
    ("name", "option", "listed"),
    [
        ("onnxruntime", "sizes", '"open" and "fitted"'),
        ("openvino", "sizes", '"open" and "fitted"'),
        ("openvino", "precision", '"f32", "bf16", "f16" and "int8"'),
    ],
)
def test_value_that_an_option_does_not_list_is_refused(name: str, option: str, listed: str) -> None:
    graph = fw.trace(np.negative, fw.Spec((3,), "float32"))
    with pytest.raises(OptionsError, match=f"{name} has no {option}='round'. It has {listed}"):
        fw.compile(graph, backend=name, backend_config={option: "round"})(np.ones(3, "float32"))


def test_name_is_taken_once() -> None:
    plugins = _plugins(good=GOOD)
    with pytest.raises(RegistryError, match="is taken by"):
        plugins.register("good", GOOD)
    plugins.register("mine", GOOD)
    assert plugins.describe("mine").distribution == "registered here"
    plugins.unregister("mine")
    assert plugins.names() == ["good"]


def test_two_packages_with_one_name_are_refused() -> None:
    twice = [EntryPoint("same", GOOD, "test"), EntryPoint("same", "other:Thing", "test")]
    with pytest.raises(RegistryError, match="Two plugins"):
        Plugins("test", Backend, twice).names()  # type: ignore[type-abstract]


def test_wrong_name_lists_the_right_ones() -> None:
    with pytest.raises(RegistryError, match="Did you mean 'reference'"):
        REGISTRY.backends.get("referense")


def test_unread_source_says_what_is_read() -> None:
    with pytest.raises(SourceError, match="No frontend reads a int"):
        REGISTRY.frontend_for(3)


def test_default_stands_for_auto() -> None:
    registry = Registry()
    assert registry.default == "auto"
    registry.set_default("reference")
    assert registry.default == "reference"
    with pytest.raises(RegistryError):
        registry.set_default("nothing")


def test_backends_are_found_by_device_and_by_graph() -> None:
    graph = fw.trace(lambda x: np.sin(x), np.ones(3, np.float32))
    assert "reference" in [b.info.name for b in REGISTRY.on_device("cpu")]
    assert "reference" in [b.info.name for b in REGISTRY.that_run(graph)]


CHAOS = "fusewire.testing.chaos:"


@pytest.fixture
def chaos() -> Iterator[Callable[[str], str]]:
    """Register a backend with a fault under the one name that it has."""
    yield lambda fault: fw.register(CHAOS + fault, "chaos")
    fw.unregister("chaos")


def test_backend_is_registered_by_reference_and_forgotten() -> None:
    assert fw.register(CHAOS + "none_at_run") == "chaos"
    assert "chaos" in fw.list_backends()
    assert fw.get("chaos") is fw.get("chaos")
    with pytest.raises(RegistryError, match="is taken by"):
        fw.register(CHAOS + "none_at_run")
    fw.unregister("chaos")
    assert "chaos" not in fw.list_backends()
    with pytest.raises(RegistryError, match="has no 'chaos'"):
        fw.get("chaos")


def test_backend_under_the_name_of_another_says_so() -> None:
    fw.register(CHAOS + "none_at_run", "order")
    try:
        with pytest.raises(RegistryError, match="'order' calls itself 'chaos'"):
            fw.get("order")
    finally:
        fw.unregister("order")


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("segv_at_import", "SIGSEGV"),
        ("raise_at_import", "chaos was asked for"),
        ("exit_at_probe", "exit"),
        ("garbage_at_import", "is not a Backend"),
        ("garbage_at_probe", "broke the backend contract"),
    ],
)
def test_backend_that_cannot_start_stops_nobody(
    chaos: Callable[[str], str], fault: str, says: str
) -> None:
    chaos(fault)
    assert "chaos" not in {place.backend for place in fw.devices()}
    met = REGISTRY.meet("chaos")
    assert met.is_broken
    assert says in met.reasons
    with pytest.raises(RegistryError, match=says):
        fw.get("chaos")


def test_devices_are_listed_with_the_reference_last() -> None:
    places = fw.devices()
    assert places[-1].backend == "reference"
    assert len(places) >= len({place.backend for place in places})


def test_plugin_of_an_older_contract_is_told_which_module_is_gone(tmp_path: Path) -> None:
    (tmp_path / "old_plugin.py").write_text("from fusewire.region import claim_by_table\n")
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(RegistryError, match=r"imports fusewire\.region.*fusewire\.backend"):
            _plugins(old="old_plugin:Backend").get("old")
    finally:
        sys.path.remove(str(tmp_path))


def test_a_reference_to_no_module_says_what_to_give() -> None:
    registry = Registry()
    registry.register("nonexistent_module:Backend", name="absent")
    with pytest.raises(RegistryError, match=r"nonexistent_module.*Give a module"):
        registry.backends.get("absent")
