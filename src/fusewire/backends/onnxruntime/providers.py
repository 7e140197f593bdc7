"""The execution providers of ONNX Runtime: what each runs on, and its options. Imports no engine.

Names of devices are fixed here, so that they do not depend on what else is installed. A provider
that computes in fewer digits than the model says unless it is told otherwise is told otherwise:
``precision`` is f32 wherever there is a choice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from fusewire.backends.onnxruntime.info import INFO
from fusewire.contract.backend import (
    CALIBRATED,
    EXACT_NODES,
    INT8,
    PRECISION,
    BackendOption,
    Config,
    Device,
    Shapes,
    fitted_sizes_option,
    nan_option,
)
from fusewire.contract.devices import CPU, DeviceName
from fusewire.errors import OptionsError

CPU_PROVIDER = "CPUExecutionProvider"
FULL = "f32"
CPU_PRECISIONS = (FULL, INT8)
# Whether threads wait for the next call by spinning, for about 50 ms.
SPINNING = "spinning"
ARENA = "arena"
# Optimizers that are off: of a quantized model of opset 21 this one makes one that the engine's own
# type rules refuse (1.31.1).
DISABLED = ("QDQPropagationTransformer",)
# Whether fused products of codes are computed so that they do not saturate.
EXACT_CODES = "exact_codes"
# Prefix of options that are handed to the provider as they are.
OWN = "provider."
_FITTED, _NAN = fitted_sizes_option(), nan_option()
# Runs ops of its own on a server; no device of this machine.
REMOTE = ("AzureExecutionProvider",)


class Provider(NamedTuple):
    """An execution provider.

    ``kind`` is that of its devices; a plugin's are as its library lists them. ``suffix`` tells it
    from the provider that has such devices by default, which it is itself for ``plain`` kinds.
    ``precisions`` has its own options for each
    precision that it can compute in; the first is the default. ``options`` are those of its own
    that users may set, with their meaning. ``numbered_by`` is the option that chooses among several
    devices. ``library`` is the part of the name of the library that the wheel loads for it.
    """

    name: str
    kind: str
    suffix: str = ""
    plain: tuple[str, ...] = ()
    wheel: str = ""
    needs: str = ""
    precisions: Mapping[str, Mapping[str, str]] = MappingProxyType({FULL: {}})
    options: Mapping[str, str] = MappingProxyType({})
    numbered_by: str = ""
    library: str = ""
    fixed: Mapping[str, str] = MappingProxyType({})
    shapes: Shapes = "dynamic"

    def device_id(self, kind: str, number: int) -> str:
        """Name one of its devices."""
        return str(DeviceName(kind, number, "" if kind in self.plain else self.suffix))


_NVIDIA = "an NVIDIA driver, CUDA and cuDNN"
_CUDA_MEMORY = "bytes of device memory that the arena may take"
PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider(
            "CUDAExecutionProvider",
            "cuda",
            wheel="onnxruntime-gpu",
            needs=_NVIDIA,
            # Its default computes products of float32 in 10 bits.
            precisions={FULL: {"use_tf32": "0"}, "tf32": {"use_tf32": "1"}},
            options={
                "gpu_mem_limit": _CUDA_MEMORY,
                "arena_extend_strategy": "kNextPowerOfTwo or kSameAsRequested",
                "cudnn_conv_algo_search": "EXHAUSTIVE, HEURISTIC or DEFAULT",
                "enable_cuda_graph": "1 records a graph and replays it",
                "prefer_nhwc": "1 runs convolutions in NHWC",
            },
            numbered_by="device_id",
            library="cuda",
        ),
        Provider(
            "TensorrtExecutionProvider",
            "cuda",
            "tensorrt",
            wheel="onnxruntime-gpu",
            needs=f"{_NVIDIA}, and TensorRT",
            precisions={
                FULL: {"trt_fp16_enable": "False", "trt_int8_enable": "False"},
                "f16": {"trt_fp16_enable": "True"},
            },
            options={
                "trt_max_workspace_size": "bytes of device memory for building",
                "trt_engine_cache_enable": "True keeps what it builds",
                "trt_engine_cache_path": "folder of what it keeps",
                "trt_builder_optimization_level": "0 to 5",
            },
            numbered_by="device_id",
            library="tensorrt",
            shapes="static",
        ),
        Provider(
            "NvTensorRTRTXExecutionProvider",
            "cuda",
            "tensorrt-rtx",
            needs=f"{_NVIDIA}, and TensorRT for RTX",
            numbered_by="device_id",
            library="nv_tensorrt_rtx",
            shapes="static",
        ),
        Provider(
            "ROCMExecutionProvider",
            "rocm",
            wheel="onnxruntime-rocm",
            needs="an AMD driver and ROCm",
            options={"gpu_mem_limit": _CUDA_MEMORY},
            numbered_by="device_id",
            library="rocm",
        ),
        Provider(
            "MIGraphXExecutionProvider",
            "rocm",
            "migraphx",
            wheel="onnxruntime-migraphx",
            needs="an AMD driver, ROCm and MIGraphX",
            precisions={
                FULL: {"migraphx_fp16_enable": "0"},
                "f16": {"migraphx_fp16_enable": "1"},
            },
            options={"migraphx_exhaustive_tune": "1 searches longer for kernels"},
            numbered_by="device_id",
            library="migraphx",
            shapes="static",
        ),
        Provider(
            "DmlExecutionProvider",
            "directml",
            wheel="onnxruntime-directml",
            needs="Windows with DirectX 12, and the driver of a GPU",
            numbered_by="device_id",
        ),
        Provider(
            "CoreMLExecutionProvider",
            "coreml",
            wheel="onnxruntime",
            needs="macOS 12 or later",
            # The neural engine computes in float16 whatever a model says.
            precisions={
                FULL: {
                    "MLComputeUnits": "CPUAndGPU",
                    "AllowLowPrecisionAccumulationOnGPU": "0",
                    "ModelFormat": "MLProgram",
                },
                "f16": {"MLComputeUnits": "ALL", "ModelFormat": "MLProgram"},
            },
            options={"ModelCacheDirectory": "folder of what it keeps"},
            shapes="static",
        ),
        Provider(
            "OpenVINOExecutionProvider",
            "gpu",
            "openvino",
            ("gpu", "npu"),
            wheel="onnxruntime-ep-openvino",
            needs="an Intel processor, GPU or NPU with its driver",
            # Its own default is bf16 on a processor that has it, and f16 on a GPU.
            precisions={FULL: {}, "bf16": {}, "f16": {}, "default": {}},
            options={
                "load_config": "properties of OpenVINO by device, as JSON",
                "cache_dir": "folder of what it keeps",
            },
            library="openvino",
        ),
        Provider(
            "WebGpuExecutionProvider",
            "webgpu",
            wheel="onnxruntime-ep-webgpu",
            needs="a GPU with a driver of Vulkan, Metal or Direct3D 12",
            options={"preferredLayout": "NCHW or NHWC", "dawnBackendType": "Vulkan or D3D12"},
        ),
        Provider(
            "QNNExecutionProvider",
            "npu",
            "qnn",
            wheel="onnxruntime-qnn",
            needs="a Qualcomm processor with an NPU and its driver",
            # It computes float32 in float16 unless it is told otherwise.
            precisions={
                FULL: {"enable_htp_fp16_precision": "0"},
                "f16": {"enable_htp_fp16_precision": "1"},
            },
            options={"htp_performance_mode": "burst, balanced, default ..."},
            fixed={"backend_type": "htp"},
            shapes="static",
        ),
        Provider("VitisAIExecutionProvider", "npu", "vitisai", needs="an AMD NPU", shapes="static"),
        Provider("XnnpackExecutionProvider", CPU, "xnnpack"),
        Provider("DnnlExecutionProvider", CPU, "dnnl"),
        Provider("ACLExecutionProvider", CPU, "acl"),
    )
}
# The property that pins the precision of each of OpenVINO's devices.
_HINT = "INFERENCE_PRECISION_HINT"
_OPENVINO_DEVICES = {CPU: "CPU", "gpu": "GPU", "npu": "NPU"}


def short(name: str) -> str:
    """Shorten the name of a provider: "openvino" for OpenVINOExecutionProvider."""
    return name.removesuffix("ExecutionProvider").lower()


def provider_of(device: Device) -> Provider | None:
    """Return the provider of a device; None for the engine's own kernels on the CPU."""
    name = device.facts.get("provider")
    if name is None or name == CPU_PROVIDER:
        return None
    return described(str(name), device.kind)


def described(name: str, kind: str) -> Provider:
    """Describe a provider that the table has, or one that only its library knows."""
    return PROVIDERS.get(name) or Provider(name, kind, short(name))


_TRUTH = (True, False)
_SPINNING = BackendOption(
    SPINNING,
    True,
    "whether its threads wait for the next call by spinning, for about 50 ms",
    _TRUTH,
)
_OWN_KERNELS = (
    _SPINNING,
    BackendOption(
        ARENA,
        True,
        "on the CPU, whether the memory of a call is kept for the next; to give it back is slower",
        _TRUTH,
    ),
    BackendOption(
        PRECISION,
        FULL,
        "what a provider computes in, where it can do otherwise; on the CPU, int8 rounds weights "
        "of matrix products, and what they are multiplied with",
        CPU_PRECISIONS,
    ),
    BackendOption(CALIBRATED, (), "ranges of layers in int8, on the CPU; calibrate writes it"),
    BackendOption(
        EXACT_NODES,
        "",
        "places of the matrix products that stay exact with int8 on the CPU, such as 3,7-9",
    ),
    replace(_FITTED, meaning=f"on the CPU. {_FITTED.meaning}"),
    replace(_NAN, meaning=f"on the CPU. {_NAN.meaning}"),
)


def options_of(provider: Provider | None) -> Sequence[BackendOption]:
    """List the options of a provider, or of the kernels on the CPU; "" leaves one to it."""
    if provider is None:
        return _OWN_KERNELS
    precisions = tuple(provider.precisions)
    own = (
        BackendOption(f"{OWN}{name}", "", f"{meaning}; handed to {provider.name}")
        for name, meaning in sorted(provider.options.items())
    )
    return [
        _SPINNING,
        BackendOption(PRECISION, precisions[0], "what the provider computes in", precisions),
        *own,
    ]


def all_options() -> list[BackendOption]:
    """List the options of all providers; a device takes those of its own."""
    listed = {x.name: x for provider in PROVIDERS.values() for x in options_of(provider)}
    known = {option.name: option for option in _OWN_KERNELS}
    # Providers compute in others, and each checks its own.
    known[PRECISION] = replace(known[PRECISION], values=())
    return [*known.values(), *(listed[name] for name in sorted({*listed} - {*known}))]


def provider_options(provider: Provider | None, device: Device, config: Config) -> dict[str, str]:
    """Give what a provider is opened with; OptionsError for an option it does not have."""
    backend = INFO.name if provider is None else provider.name
    options = config.checked(backend, options_of(provider))
    if provider is None:
        return {}
    own = {
        name.removeprefix(OWN): str(value)
        for name, value in options.items()
        if name.startswith(OWN) and value != ""
    }
    precision = str(options[PRECISION])
    pinned = {**provider.fixed, **provider.precisions[precision], **own}
    if provider.name == "OpenVINOExecutionProvider":
        pinned["load_config"] = _load_config(own.get("load_config"), device, precision, config)
    if provider.numbered_by:
        pinned[provider.numbered_by] = str(DeviceName.of(device.id).number)
    return pinned


def _load_config(given: str | None, device: Device, precision: str, config: Config) -> str:
    """Write OpenVINO's properties of a device: what the user gives, over ours."""
    try:
        properties = json.loads(given or "{}")
    except ValueError as error:
        raise OptionsError(f"{OWN}load_config is not JSON: {error}.") from error
    place = _OPENVINO_DEVICES[device.kind]
    own: dict[str, str] = {}
    if precision != "default":
        own[_HINT] = precision
    if config.threads is not None and device.kind == CPU:
        own["INFERENCE_NUM_THREADS"] = str(config.threads)
    return json.dumps({**properties, place: {**own, **properties.get(place, {})}})


def launch_options(options: Mapping[str, str]) -> tuple[str, ...]:
    """Write options of a provider as what an artifact carries."""
    return tuple(f"{name}={value}" for name, value in sorted(options.items()))


def read_options(lines: Sequence[str]) -> dict[str, str]:
    """Read what ``launch_options`` wrote."""
    return {name: value for name, _, value in (line.partition("=") for line in lines)}
