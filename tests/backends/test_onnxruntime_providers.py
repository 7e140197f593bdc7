"""Execution providers of ONNX Runtime: found, proven, never the CPU in another name."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from fusewire.backends.onnxruntime import discovery, engine
from fusewire.backends.onnxruntime.discovery import SUM, open_on, plain
from fusewire.backends.onnxruntime.drivers import bus_ids, missing_library
from fusewire.backends.onnxruntime.engine import OnnxRuntimeBackend
from fusewire.backends.onnxruntime.providers import (
    PROVIDERS,
    Provider,
    launch_options,
    options_of,
    provider_options,
    read_options,
)
from fusewire.backends.onnxruntime.trust import provider_refusal
from fusewire.contract.backend import Config, Device, Offer, Refusal, Unavailable
from fusewire.contract.devices import KINDS, DeviceName
from fusewire.dtypes import bool_, float32, float64
from fusewire.errors import OptionsError, UnavailableError
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.control import cond
from fusewire.ops.elementwise import add
from fusewire.ops.subgraph import subgraph
from fusewire.ops.table import get_op
from fusewire.testing.conformance import cases
from tests.backends.plugins import FOLDER, needs_openvino, run_with

OPENVINO = PROVIDERS["OpenVINOExecutionProvider"]
CUDA = PROVIDERS["CUDAExecutionProvider"]
GPU = Device("cuda:1", "GPU", facts={"provider": CUDA.name})


def openvino_on(kind: str) -> Device:
    return Device(OPENVINO.device_id(kind, 0), "Intel", facts={"provider": OPENVINO.name})


# Names and options


def test_every_provider_has_devices_of_a_known_kind_and_names_of_its_own() -> None:
    ids = [provider.device_id(provider.kind, 0) for provider in PROVIDERS.values()]
    assert len(set(ids)) == len(ids)
    assert {provider.kind for provider in PROVIDERS.values()} <= set(KINDS)
    # The engine's own kernels have this one.
    assert "cpu" not in ids
    assert [str(DeviceName.of(name)) for name in ids] == ids


def test_openvino_is_another_provider_of_the_cpu_and_the_first_of_its_gpus() -> None:
    assert openvino_on("cpu").id == "cpu:openvino"
    assert openvino_on("gpu").id == "gpu:0"
    assert openvino_on("npu").id == "npu:0"


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=lambda provider: provider.name)
def test_precision_is_full_unless_another_is_asked_for(provider: Provider) -> None:
    assert next(iter(provider.precisions)) == "f32"
    (option,) = (x for x in options_of(provider) if x.name == "precision")
    assert option.default == "f32"


def test_pinned_options_reach_the_provider_with_the_number_of_its_device() -> None:
    assert provider_options(CUDA, GPU, Config()) == {"use_tf32": "0", "device_id": "1"}
    fast = provider_options(CUDA, GPU, Config(options={"precision": "tf32"}))
    assert fast["use_tf32"] == "1"
    own = Config(options={"provider.gpu_mem_limit": 1 << 30})
    assert provider_options(CUDA, GPU, own)["gpu_mem_limit"] == str(1 << 30)


def test_openvino_is_told_its_precision_and_threads_beside_what_the_user_gives() -> None:
    given = json.dumps({"CPU": {"NUM_STREAMS": "1"}, "GPU": {"X": "y"}})
    config = Config(threads=3, options={"provider.load_config": given, "precision": "bf16"})
    made = json.loads(provider_options(OPENVINO, openvino_on("cpu"), config)["load_config"])
    expected = {"NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "bf16"}
    assert made == {"CPU": expected | {"INFERENCE_NUM_THREADS": "3"}, "GPU": {"X": "y"}}
    gpu = json.loads(provider_options(OPENVINO, openvino_on("gpu"), Config())["load_config"])
    assert gpu == {"GPU": {"INFERENCE_PRECISION_HINT": "f32"}}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nonsense": 1}, "no option nonsense. Options: precision, provider.cache_dir"),
        (
            {"precision": "f8"},
            "OpenVINOExecutionProvider has no precision='f8'. "
            'It has "f32", "bf16", "f16" and "default".',
        ),
        ({"provider.load_config": "{"}, "load_config is not JSON"),
    ],
)
def test_option_that_is_not_there_is_an_error(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionsError, match=re.escape(said)):
        provider_options(OPENVINO, openvino_on("cpu"), Config(options=options))


def test_cpu_has_no_options_of_a_provider() -> None:
    with pytest.raises(OptionsError, match=r"no option provider\.device_type"):
        provider_options(None, Device("cpu", "x"), Config(options={"provider.device_type": "CPU"}))
    with pytest.raises(OptionsError, match="no precision='bf16'"):
        provider_options(None, Device("cpu", "x"), Config(options={"precision": "bf16"}))


def test_options_are_read_as_they_were_written() -> None:
    options = {"load_config": '{"CPU": {"A": "b=c"}}', "device_id": "0"}
    assert read_options(launch_options(options)) == options


# What cannot run here


def test_driver_that_is_not_there_is_named_quickly() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is an NVIDIA driver")
    start = time.monotonic()
    found = bus_ids("cuda")
    assert found == "NVIDIA's driver (libcuda.so.1) is not installed"
    assert time.monotonic() - start < 1


def test_library_that_lacks_another_is_named(tmp_path: Path) -> None:
    said = missing_library(str(tmp_path / "libnone.so"))
    assert said is not None
    assert "libnone.so" in said


def test_provider_that_the_wheel_lacks_is_not_the_cpu_in_its_name() -> None:
    options = onnxruntime.SessionOptions()
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(UnavailableError, match=r"asked for CUDA\S+ on cuda:1 and made a session"),
    ):
        open_on(SUM, options, GPU, {})


def test_provider_that_is_listed_and_runs_nothing_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine's provider of remote models is in every session, and takes no node."""
    remote = Provider("AzureExecutionProvider", "gpu", "remote")
    monkeypatch.setattr(discovery, "PROVIDERS", {remote.name: remote})
    if remote.name not in onnxruntime.get_available_providers():
        pytest.skip("this wheel has no such provider")
    (found,) = discovery._of_built_in(remote.name)
    assert isinstance(found, Unavailable)
    assert "its node was run by CPUExecutionProvider" in found.reason
    assert found.device == "gpu:0:remote"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ImportError('half installed')", "half installed"),
        ("", "get_library_path"),
        ("def get_library_path(): return '/none/libnone.so'", "/none/libnone.so"),
        ("def get_library_path(): return __file__", "onnxruntime_ep_liar"),
    ],
)
def test_plugin_that_cannot_be_loaded_is_said_with_a_fix(
    source: str, said: str, tmp_path: Path
) -> None:
    package = tmp_path / "onnxruntime_ep_liar"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    found = run_with(tmp_path, PROBE)
    assert [x["id"] for x in found if "id" in x] == ["cpu"]
    (broken,) = (x for x in found if x.get("code") == "broken")
    assert said in broken["reason"]
    assert "pip install --upgrade onnxruntime-ep-liar" in broken["fix"]


@pytest.mark.parametrize(
    ("does", "code", "said"),
    [
        ("os.kill(os.getpid(), 11)", "crashed", "that process ended with -11"),
        ("time.sleep(60)", "hung", "gave no answer in 8 s"),
    ],
)
def test_plugin_that_dies_or_hangs_leaves_the_other_devices_alone(
    does: str, code: str, said: str, tmp_path: Path
) -> None:
    for name, body in (("fatal", f"import os, time; {does}"), ("liar", "raise ImportError('no')")):
        package = tmp_path / f"onnxruntime_ep_{name}"
        package.mkdir()
        (package / "__init__.py").write_text(f"def get_library_path(): {body}\n")
    found = run_with(tmp_path, PROBE)
    assert [x["id"] for x in found if "id" in x] == ["cpu"]
    dead, liar = sorted((x for x in found if "code" in x), key=lambda x: x["code"] == "broken")
    assert dead["code"] == code
    assert said in dead["reason"]
    assert "pip uninstall onnxruntime-ep-fatal" in dead["fix"]
    assert "onnxruntime_ep_liar" in liar["reason"]


PROBE = """
import json
from dataclasses import asdict
from fusewire.registry import REGISTRY
print(json.dumps([asdict(x) for x in REGISTRY.meet("onnxruntime").found]))
"""


def test_two_wheels_at_once_are_named_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.several_wheels() == []
    folder = tmp_path / "onnxruntime_gpu-1.30.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: onnxruntime-gpu\nVersion: 1.30.0\n")
    assert Distribution.at(folder).version == "1.30.0"
    found = run_with(tmp_path, PROBE)
    (two,) = (x for x in found if x.get("code") == "broken")
    assert "onnxruntime-gpu 1.30.0 are installed" in two["reason"]
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in two["fix"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "/onnxruntime_src/onnxruntime/core/x.cc:65 f(int) status == Success was false. "
            "Failed to get a WebGPU adapter: No supported adapters\n",
            "Failed to get a WebGPU adapter: No supported adapters",
        ),
        ("[ONNXRuntimeError] : 1 : FAIL : No device.", "No device"),
        ("", "ValueError"),
    ],
)
def test_what_an_engine_says_is_shortened_to_what_is_wrong(text: str, shown: str) -> None:
    assert plain(ValueError(text)) == shown


# The OpenVINO provider, which runs on this processor


@needs_openvino
def test_openvino_provider_is_a_second_device_of_the_cpu() -> None:
    found = run_with(FOLDER, PROBE)
    assert [x["id"] for x in found] == ["cpu", "cpu:openvino"]
    assert found[1]["facts"]["provider"] == OPENVINO.name
    assert found[1]["facts"]["package"] == "onnxruntime_ep_openvino"


RUN = """
import json, sys
import numpy as np
import fusewire as fw

rng = np.random.default_rng(0)
w = [rng.standard_normal((64, 64), np.float32) / 8 for _ in range(3)]
x = rng.standard_normal((4, 64), np.float32)

def net(x):
    for one in w:
        x = np.tanh(x @ one)
    return x

device, level, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
settings = dict(backend="onnxruntime", device=device, backend_config=options)
try:
    program = fw.compile(net, x, start="measured", level=level, fallback="error", **settings)
    error = float(np.abs(program(x) - net(x)).max())
    why = program.why()
    rows = [[row.name, row.device, row.status] for row in why.tried]
    contact = dict(why.contacts[0].metrics)
    print(json.dumps({"device": why.device, "rows": rows, "error": error, "contact": contact}))
except fw.errors.FusewireError as error:
    rows = [[row.name, row.device, row.status] for row in getattr(error, "tried", ())]
    print(json.dumps({"raised": type(error).__name__, "said": str(error), "rows": rows}))
"""


def ran(device: str, level: int, **options: str) -> Any:
    return run_with(FOLDER, RUN, device, str(level), json.dumps(options))


@needs_openvino
def test_openvino_provider_computes_in_full_precision_and_counts_its_nodes() -> None:
    found = ran("cpu:openvino", 0)
    assert found["device"] == "cpu:openvino"
    assert found["error"] < 1e-5
    assert found["contact"]["device_nodes"] >= 1
    assert found["contact"]["host_nodes"] == 0


@needs_openvino
def test_plain_name_of_the_cpu_is_the_provider_of_the_engine() -> None:
    assert ran("cpu", 0)["device"] == "cpu"


@needs_openvino
def test_provider_in_half_precision_is_judged_wrong() -> None:
    found = ran("cpu:openvino", 1, precision="bf16")
    assert found.get("raised") == "NoneRightError" or found["error"] < 1e-5, found
    statuses = {name: status for name, _, status in found["rows"] if "openvino" in name}
    assert statuses
    assert "right" not in statuses.values()


@needs_openvino
def test_device_that_disappeared_is_an_error_that_says_so() -> None:
    code = """
import json
import numpy as np
from dataclasses import replace
from fusewire.backend import build
from fusewire.backends.onnxruntime.engine import OnnxRuntimeBackend
from fusewire.contract.region import doubled
from fusewire.errors import UnavailableError
backend = OnnxRuntimeBackend()
device = next(x for x in backend.probe() if getattr(x, "id", "") == "cpu:openvino")
assert doubled(backend, device) == [2.0, 2.0]
try:
    doubled(backend, replace(device, id="cpu:5:openvino"))
except UnavailableError as error:
    print(json.dumps(str(error)))
"""
    said = run_with(FOLDER, code)
    assert "has no device cpu:5:openvino any more" in said
    assert "use another device" in said


@needs_openvino
def test_keys_tell_providers_of_one_processor_apart() -> None:
    backend = OnnxRuntimeBackend()
    plain_cpu, other = Device("cpu", "x"), openvino_on("cpu")
    assert backend.fingerprint(plain_cpu) != backend.fingerprint(other)


def test_devices_of_the_engine_come_before_others_of_the_processor() -> None:
    found = OnnxRuntimeBackend().probe()
    assert isinstance(found[0], Device)
    assert found[0].id == "cpu"
    assert np.asarray([x.id for x in found if isinstance(x, Device)]).size >= 1


# What the provider gets wrong


def test_dtype_that_a_provider_computes_in_another_is_refused() -> None:
    backend = OnnxRuntimeBackend()
    for dtype, is_taken in ((float32, True), (float64, False)):
        x = Value(TensorType(dtype, (2,)), "x")
        (answer,) = backend.claim(Graph([x], [add(x, x)]), openvino_on("cpu"))
        assert isinstance(answer, Offer) is is_taken
        if isinstance(answer, Refusal):
            assert "computes float64 in float32" in answer.reason
        assert isinstance(backend.claim(Graph([x], [add(x, x)]), Device("cpu", "x"))[0], Offer)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("compress-0-float32", "is not right for compress"),
        ("scan-26-float32", "is not right for scan"),
        ("boolean_mask-3-float32", None),
        ("loop-0-int64", None),
        ("loop-4-int64", "does not run loop where a tensor has no elements"),
        ("remainder-4-float32", "is not right for remainder"),
        ("gather_elements-0-float32", "wants an index for each element"),
        ("gather_elements-1-float32", None),
        ("dynamic_slice-0-float32", "slices without steps"),
        ("resize-4-float32", None),
        ("resize-14-float32", "includes what is outside"),
        ("resize-15-float32", "does not resize with antialiasing"),
        ("roi_align-0-float32", None),
        ("roi_align-1-float32", "the mode max"),
        ("top_k-0-float32", None),
        ("top_k-0-int64", "puts equal elements in another order"),
        ("rnn-5-float32", "does not have these activations"),
        ("lstm-2-float32", None),
        ("lstm-5-float32", "does not couple input and forget gates"),
        ("lstm-7-float32", "does not have peepholes"),
    ],
)
def test_what_a_provider_gets_wrong_for_shapes_or_attributes_is_refused(
    case: str, said: str | None
) -> None:
    op = get_op(case.partition("-")[0])
    graph, _ = next(x for x in cases([op]) if x.id == case).make()
    found = provider_refusal(OPENVINO, graph.nodes[0])
    assert found is None if said is None else found is not None and said in found


def test_branch_that_returns_what_it_is_given_is_refused() -> None:
    x = Value(TensorType(float32, (2,)), "x")
    flag = Value(TensorType(bool_, ()), "flag")

    def of(otherwise: Callable[[Value], Value]) -> str | None:
        (made,) = cond(
            flag,
            x,
            then=subgraph(lambda y: [add(y, y)], x.type),
            otherwise=subgraph(lambda y: [otherwise(y)], x.type),
        )
        return provider_refusal(OPENVINO, Graph([flag, x], [made]).nodes[0])

    assert of(lambda y: add(y, 1.0)) is None
    assert "does not return what a branch is given" in (of(lambda y: y) or "")


@needs_openvino
def test_commands_show_every_provider() -> None:
    code = "from fusewire.cli import main; main()"
    rows = run_with(FOLDER, code, "devices", "--backend", "onnxruntime", "--json")
    assert [row["id"] for row in rows] == ["cpu", "cpu:openvino"]
    words = ("conform", "onnxruntime", "--device", "cpu:openvino", "--op", "add", "--json")
    report = run_with(FOLDER, code, *words)
    assert report["device_id"] == "cpu:openvino"
    (row,) = report["ops"]
    assert row["status"] == "proven"
    assert {"float32", "int64"} <= set(row["proven"])
    assert row["cases"]["native"] > 20
    assert "failed" not in row["cases"]
    assert "computes float64 in float32" in row["reason"]
