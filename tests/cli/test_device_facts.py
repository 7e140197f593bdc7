"""What is known of devices: read, asked or measured, and which of them is best."""

from dataclasses import replace

import pytest

from fusewire.cli.device_facts import FIGURES, HINTS, Measured, Sizes, best, known, measure
from fusewire.contract.backend import Device
from fusewire.planning.policy import TargetFinder
from fusewire.planning.target import Target
from fusewire.process.machine import machine, memory_latency
from fusewire.registry import REGISTRY
from tests.toy import picky_backend

SMALL = Sizes(seconds=0.002, elements=1 << 14, side=64)


def _target(name: str) -> Target:
    return TargetFinder(REGISTRY).targets(name)[0]


def test_machine_tells_cores_caches_and_memory() -> None:
    found = machine()
    assert found["compute_units"] >= 1  # type: ignore[operator] # a number
    assert found["l1d_bytes"] < found["l2_bytes"] < found["memory_bytes"]  # type: ignore[operator]
    assert memory_latency() > 0


@pytest.mark.parametrize("name", ["reference", "onnxruntime", "webgpu"])
def test_every_fact_is_measured_or_has_a_reason(name: str) -> None:
    found = measure(_target(name), SMALL)
    facts = found.device.facts
    assert facts.keys() >= _target(name).device.facts.keys()
    assert {*facts, *found.hints, *found.missing} >= {*FIGURES, *HINTS}
    assert not {*facts, *found.hints} & found.missing.keys()
    for figure in ("bandwidth_gb_s", "gflops", "call_us", "max_dims"):
        assert facts[figure] > 0  # type: ignore[operator] # a number
    # Of one that starts work and leaves, so little work is not told apart from none.
    assert facts["is_async"] is False or name == "webgpu"
    assert {"vectorize", "use_async"} <= found.hints.keys()
    assert facts["sub_buffers"] is True
    assert "float32" in facts["dtypes"]  # type: ignore[operator] # a tuple


def test_what_is_refused_is_measured_otherwise_or_said() -> None:
    picky = picky_backend("picky", ["matmul"])
    found = measure(Target(picky, Device("cpu", "test")), SMALL)
    assert found.device.facts["gflops_of"] == "multiply and add"
    assert "does not run matmul" in found.missing["batch"]
    assert len(picky.compiled) >= len(FIGURES)


def test_dtypes_are_what_the_backend_offers() -> None:
    taken = known(_target("torch-eager")).facts["dtypes"]
    assert taken == ("float32", "float64", "int32", "int64")


def test_no_figure_is_begun_when_the_time_is_over() -> None:
    found = measure(_target("reference"), SMALL, seconds=0.0)
    assert found.missing.keys() == {*FIGURES, *HINTS}
    assert found.missing["gflops"] == "It was not measured: 0 s were over."


def test_best_device_is_chosen_by_kind_and_then_by_throughput() -> None:
    def item(id_: str, gflops: float, is_software: bool = False) -> Measured:
        return Measured(id_, Device(id_, id_, is_software, {"gflops": gflops}))

    cpu, slower = item("cpu", 50.0), replace(item("cpu", 40.0), backend="slower")
    assert best([slower, cpu]) is cpu
    assert best([cpu, item("webgpu:0", 1.0, is_software=True)]) is cpu
    gpu = item("webgpu:0", 1.0)
    assert best([cpu, gpu]) is gpu
    cuda = item("cuda:0", 0.5)
    assert best([gpu, cpu, cuda]) is cuda
