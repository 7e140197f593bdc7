"""Devices of PyTorch beside the CPU. There is no GPU here, so none was run.

Where tensors are is proven with PyTorch's fake ones: they are on a device of their own, compute
nothing, and raise if a step mixes devices. What crosses the host is proven with PyTorch's CPU in
the place of a GPU.
"""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from fusewire.backends.torch import devices, storage
from fusewire.backends.torch.devices import facts_of, listed, place_of
from fusewire.backends.torch.engine import TorchBackend
from fusewire.backends.torch.program import Program
from fusewire.backends.torch.resident import ResidentTorchExecutable, TorchBuffer
from fusewire.backends.torch.storage import entrance, quiet_about_read_only
from fusewire.contract.backend import Device, Offer, Refusal, Unavailable
from fusewire.contract.buffer import counted_traffic
from fusewire.contract.devices import same_hardware
from fusewire.dtypes import bfloat16, float32, float64, int4, int64, uint16
from fusewire.errors import UnavailableError
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.elementwise import add, multiply
from fusewire.ops.indexing import gather
from fusewire.ops.table import all_ops
from fusewire.planning.claims import ask
from fusewire.planning.planner import checks
from fusewire.planning.target import Target
from fusewire.testing.conformance import first_cases
from fusewire.testing.suite import is_tensor_op

GPU = Device("cuda:0", "a GPU")
# PyTorch's device of tensors without elements: indexing on a fake GPU needs a build for one.
PLACE = torch.device("meta")
# What only real elements can tell: sizes, and which branch to take.
NEEDS_ELEMENTS = (DataDependentOutputException, DynamicOutputShapeException)


def _outcome(graph: Graph, inputs: list[Any]) -> str:
    """Run a graph on tensors that are not on the CPU."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        program = Program(graph, PLACE)
        types = [value.tensor.dtype for value in graph.inputs]
        given = [
            mode.from_tensor(entrance(of)(np.array(x, order="C"))).to(PLACE)
            for of, x in zip(types, inputs, strict=True)
        ]
        try:
            found = program(given)
        except NEEDS_ELEMENTS:
            return "needs elements"
    return "there" if all(x.device == PLACE for x in found) else "elsewhere"


def test_every_step_stays_on_the_device_of_its_operands(request: pytest.FixtureRequest) -> None:
    # Tables that are made meanwhile have no elements.
    quiet_about_read_only()
    request.addfinalizer(storage._tables.cache_clear)
    storage._tables.cache_clear()
    backend, outcomes, wrong = TorchBackend(), Counter[str](), []
    for op in filter(is_tensor_op, all_ops().values()):
        for case in first_cases(op)[::4]:
            graph, inputs = case.make()
            claimed = ask(Target(backend, Device("cpu", "")), graph)
            if claimed.refusals or not claimed.graph.nodes:
                continue
            try:
                outcome = _outcome(claimed.graph, list(inputs))
            except (RuntimeError, NotImplementedError) as error:
                outcome = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            outcomes[outcome] += 1
            if outcome not in ("there", "needs elements"):
                wrong.append(f"{case.id}: {outcome}")
    assert not wrong, "\n".join(wrong)
    assert outcomes["there"] > 10 * outcomes["needs elements"]
    assert outcomes["there"] > 300


def _held(x: Any) -> TorchBuffer:
    assert isinstance(x, TorchBuffer)
    return x


def _program() -> ResidentTorchExecutable:
    x = Value(TensorType(float32, (2, 3)), "x")
    doubled = add(x, x)
    graph = Graph([x], [multiply(doubled, x), doubled, x], name="three")
    return ResidentTorchExecutable(graph, "cuda:0", torch.device("cpu"))


def test_outputs_stay_and_go_on_without_the_host() -> None:
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    with counted_traffic() as traffic:
        first = [_held(x) for x in _program().run([given])]
        assert traffic.total == given.nbytes
        second = [_held(x) for x in _program().run([first[1]])]
        assert traffic.total == given.nbytes
    assert [x.device for x in second] == ["cuda:0"] * 3
    np.testing.assert_array_equal(second[0].numpy(), 8 * given**2)
    np.testing.assert_array_equal(second[1].numpy(), 4 * given)
    # The third output is the input of that run, and no other name for it.
    first[1].write(np.zeros(6, np.float32))
    np.testing.assert_array_equal(second[2].numpy(), 2 * given)


def test_an_array_may_change_as_soon_as_a_run_has_begun() -> None:
    given = np.ones((2, 3), np.float32)
    found = _program().run([given])
    given[:] = 7
    np.testing.assert_array_equal(_held(found[2]).numpy(), np.ones((2, 3)))


@pytest.mark.parametrize("of", [float32, bfloat16, uint16, int4], ids=str)
def test_a_buffer_is_read_and_written_in_parts(of: Any) -> None:
    buffer = TorchBuffer.zeros("cuda:0", TensorType(of, (2, 3)), torch.device("cpu"))
    buffer.write(np.array([1, 2, 3], of.numpy), offset=2)
    assert buffer.numpy().dtype == of.numpy
    assert buffer.numpy().astype(int).tolist() == [[0, 0, 1], [2, 3, 0]]
    assert buffer.read(3, 2).astype(int).tolist() == [2, 3]
    assert buffer.copy_within(buffer, start=2, count=3, offset=3)
    assert buffer.numpy().astype(int).tolist() == [[0, 0, 1], [1, 2, 3]]
    buffer.write(np.array([2, 3, 0], of.numpy), offset=3)
    other = TorchBuffer.zeros("cuda:0", TensorType(of, (4,)), torch.device("cpu"))
    assert other.copy_within(buffer, start=2, count=3, offset=1)
    part = other.extracted(1, TensorType(of, (3,)))
    other.write(np.zeros(4, of.numpy))
    assert part is not None
    assert part.numpy().astype(int).tolist() == [1, 2, 3]


def test_a_buffer_is_shared_where_its_elements_are_as_they_are_carried() -> None:
    own = TorchBuffer.zeros("cpu", TensorType(float32, (3,)), torch.device("cpu"))
    assert torch.from_dlpack(own).data_ptr() == own.tensor.data_ptr()
    wide = TorchBuffer.zeros("cpu", TensorType(uint16, (3,)), torch.device("cpu"))
    assert wide.exporter() is None


def test_a_build_for_a_gpu_that_is_not_here_says_what_to_do() -> None:
    (row,) = listed("cuda")
    assert isinstance(row, Unavailable)
    assert row.code == "no-device"
    assert "finds no such GPU" in row.reason
    assert "nvidia-smi" in row.fix
    with pytest.raises(UnavailableError, match=r"cuda:3 was asked for, and PyTorch has 0 of cuda"):
        place_of(Device("cuda:3", ""))


def test_probing_looks_for_the_gpus_of_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [x.id for x in TorchBackend().probe() if isinstance(x, Device)] == ["cpu"]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert devices.built_for() == "cuda"
    # The process that looks has a build for the CPU, and lists nothing.
    assert len(TorchBackend().probe()) == 1
    (fallen,) = devices.asked_apart("cuda", seconds=0.0)
    assert isinstance(fallen, Unavailable)
    assert fallen.device == "cuda"


def test_runs_at_the_same_time_share_full_precision(request: pytest.FixtureRequest) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    for setting in (matmul, cudnn):
        request.addfinalizer(partial(setattr, setting, "allow_tf32", setting.allow_tf32))
        setting.allow_tf32 = True
    first, second = (devices.full_precision(torch.device("cuda")) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, False)
    second.__exit__(None, None, None)
    assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, True)


class _Properties:
    """What PyTorch 2.13 tells about a GPU of NVIDIA's."""

    name = "NVIDIA L4"
    total_memory = 23_000_000_000
    major, minor = 8, 9
    multi_processor_count = 58
    uuid = "3F2A0000-0000-0000-0000-000000000001"
    pci_domain_id, pci_bus_id, pci_device_id = 0, 3, 0


def test_a_gpu_is_known_by_what_other_engines_call_it() -> None:
    facts = facts_of(_Properties())
    assert facts["pci_bus_id"] == "0000:03:00.0"
    assert (facts["architecture"], facts["memory_bytes"]) == ("8.9", 23_000_000_000)
    other = Device("cuda:0", "L4", facts={"uuid": "GPU-3f2a0000-0000-0000-0000-000000000001"})
    assert same_hardware(Device("cuda:0", "NVIDIA L4", facts=facts), other)


def test_apples_gpus_are_not_offered_what_they_lack() -> None:
    x = Value(TensorType(float64, (2,)), "x")
    graph = Graph([x], [add(x, x)], name="wide")
    backend = TorchBackend()
    (refusal,) = backend.claim(graph, Device("metal:0", ""))
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "PyTorch has no float64 on metal."
    (offer,) = backend.claim(graph, GPU)
    assert isinstance(offer, Offer)


def test_only_the_cpu_is_believed_to_check_indices() -> None:
    x, at = (Value(TensorType(of, (2,)), name) for of, name in ((float32, "x"), (int64, "at")))
    node = gather(x, at, axis=0).node
    assert node is not None
    backend = TorchBackend()
    believed = [checks(Target(backend, Device(id_, "")), node) for id_ in ("cpu", "cuda:0")]
    assert believed == [True, False]
