"""Find the execution providers of ONNX Runtime, and the devices of each, proven by a run.

A provider is built into the engine's wheel, or comes in a wheel of its own whose library is
registered. Of either, the engine may list one that cannot run here, and then runs on the CPU in
its name. So a device is listed only if a session has the provider, its node was assigned to it, and
the sum is right.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from fusewire.backends.onnxruntime.drivers import DRIVERS, bus_ids, missing_library
from fusewire.backends.onnxruntime.info import INFO, PLUGINS
from fusewire.backends.onnxruntime.providers import (
    CPU_PROVIDER,
    DISABLED,
    PROVIDERS,
    REMOTE,
    Provider,
    described,
    provider_of,
    provider_options,
    read_options,
)
from fusewire.contract.backend import Config, Device, Fact, Unavailable
from fusewire.contract.devices import CPU, GPUS, DeviceName
from fusewire.errors import UnavailableError
from fusewire.process.apart import Fallen, devices_apart, say_devices, say_ready
from fusewire.process.wheels import installed

# The model y = x + x for three floats, opset 18: a probe should not import all of ONNX.
SUM = bytes.fromhex(
    "080912003a370a0e0a01780a01781201792203416464120373756d5a0f0a0178120a0a08080112040a020803620f0a"
    "0179120a0a08080112040a02080342040a001012"
)
# Asked before any library is registered: the engine lists plugins as if they were built in.
BUILT_IN = tuple(
    name
    for name in onnxruntime.get_available_providers()
    if name != CPU_PROVIDER and name not in REMOTE
)
RECORD = "session.record_ep_graph_assignment_info"
# Packages that hold the library of a provider, beside those whose names say so.
_OTHERS = ("onnxruntime_qnn",)
_HARDWARE = {"CPU": CPU, "GPU": "gpu", "NPU": "npu"}
# Facts that tell hardware apart, by the names under which libraries give them.
_IDENTITY = {
    "pci_bus_id": "pci_bus_id",
    "pcibusid": "pci_bus_id",
    "luid": "luid",
    "device_luid": "luid",
    "device_uuid": "uuid",
    "uuid": "uuid",
}
_WARNING, _FATAL = 2, 4
# The engine's own errors have no class in common.
_NATIVE: list[type[Exception]] = [
    x for x in vars(native).values() if isinstance(x, type) and issubclass(x, Exception)
]
_ERRORS: tuple[type[Exception], ...] = (*_NATIVE, OSError, RuntimeError, ValueError)
_IMPORT_ERRORS: tuple[type[Exception], ...] = (*_ERRORS, ImportError, AttributeError)
_OPEN_ERRORS: tuple[type[Exception], ...] = (*_ERRORS, UnavailableError)
# What libraries put around the sentence that tells what is wrong.
_NOISE = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : |^/\S+:\d+ .*(?:false\. |\) )", re.DOTALL
)


def other_devices() -> Iterator[Device | Unavailable]:
    """List the devices of all providers but that of the CPU, and why others have none."""
    onnxruntime.set_default_logger_severity(_FATAL)
    try:
        for name in BUILT_IN:
            yield from _of_built_in(name)
    finally:
        onnxruntime.set_default_logger_severity(_WARNING)
    packages = plugin_packages()
    with ThreadPoolExecutor(max(1, len(packages))) as threads:
        for found in threads.map(_apart, packages):
            yield from found


# Plugins


def plugin_packages() -> list[str]:
    """List the installed packages that hold the library of a provider."""
    names: set[str] = set()
    for folder in sys.path:
        with contextlib.suppress(OSError):
            names |= {
                entry
                for entry in os.listdir(folder or ".")  # noqa: PTH208 - a third of the time
                if entry.isidentifier() and (entry.startswith(PLUGINS) or entry in _OTHERS)
            }
    return sorted(names)


@cache
def registered(package: str) -> ModuleType:
    """Register the library of a plugin with the engine, once; UnavailableError if it cannot be."""
    try:
        module = importlib.import_module(package)
        onnxruntime.register_execution_provider_library(package, module.get_library_path())
    except _IMPORT_ERRORS as error:
        raise UnavailableError(
            f"ONNX Runtime {INFO.version} cannot load {package}: {plain(error)}"
        ) from error
    return module


def _apart(package: str) -> list[Device | Unavailable]:
    """Have a process of its own register a plugin: a library may crash as it is loaded."""
    found = devices_apart(__name__, f"tell({package!r})")
    if not isinstance(found, Fallen):
        return found
    wheel = package.replace("_", "-")
    reason = f"ONNX Runtime {INFO.version} loads {wheel} {installed(wheel)}: that process"
    fix = f"Run: pip install --upgrade {wheel} {INFO.name}; or pip uninstall {wheel}"
    return [Unavailable(found.code, f"{reason} {found.how}.", fix)]


def tell(package: str) -> None:
    """Say what devices a plugin has, proven, and why it has no other."""
    say_ready()
    onnxruntime.set_default_logger_severity(_FATAL)
    say_devices(_of_plugin(package))


def _of_plugin(package: str) -> Iterator[Device | Unavailable]:
    wheel = package.replace("_", "-")
    version = installed(wheel)
    try:
        module = registered(package)
    except UnavailableError as error:
        fix = f"Run: pip install --upgrade {wheel} {INFO.name}"
        yield Unavailable("broken", str(error), fix)
        return
    found = [x for x in onnxruntime.get_ep_devices() if x.ep_name in _names(module)]
    if not found:
        provider = described(_names(module)[0], CPU)
        reason = f"{wheel} {version} was registered and lists no device."
        needs = f"It needs {provider.needs}." if provider.needs else ""
        yield Unavailable("no-device", reason, needs, provider.device_id(provider.kind, 0))
        return
    counts: dict[str, int] = {}
    for listed in found:
        provider = described(listed.ep_name, _kind(listed))
        kind = _kind(listed)
        number = counts[kind] = counts.get(kind, -1) + 1
        facts = _plugin_facts(listed, package, version)
        name = str(listed.ep_metadata.get("FULL_DEVICE_NAME") or listed.device.vendor)
        device = Device(provider.device_id(kind, number), f"{name}, {wheel}", facts=facts)
        yield _proven(provider, device)


def _names(module: ModuleType) -> list[str]:
    """List the providers in the library of a plugin; aliases such as X.AUTO are left out."""
    names = getattr(module, "get_ep_names", None)
    return list(names()) if names is not None else [module.get_ep_name()]


def _kind(listed: Any) -> str:
    """Name the kind of a device: what its provider is made for, or what the hardware is."""
    hardware = _HARDWARE.get(listed.device.type.name, CPU)
    known = PROVIDERS.get(listed.ep_name)
    return (
        known.kind if known is not None and hardware == "gpu" and known.kind in GPUS else hardware
    )


def _plugin_facts(listed: Any, package: str, version: str) -> dict[str, Fact]:
    given = {**listed.device.metadata, **listed.ep_metadata}
    identity = {
        _IDENTITY[key.lower()]: value for key, value in given.items() if key.lower() in _IDENTITY
    }
    abilities = str(given.get("OPTIMIZATION_CAPABILITIES", "")).split()
    return {
        "provider": listed.ep_name,
        "package": package,
        "provider_version": version,
        "vendor": listed.device.vendor,
        **({"abilities": tuple(abilities)} if abilities else {}),
        **identity,
    }


# Providers that the engine's wheel has


def _of_built_in(name: str) -> Iterator[Device | Unavailable]:
    provider = PROVIDERS.get(name)
    if provider is None:
        reason = f"ONNX Runtime lists {name}, and nobody has said here what that runs on."
        yield Unavailable("no-device", reason, "Use another provider.")
        return
    kind = CPU if provider.name == "OpenVINOExecutionProvider" else provider.kind
    buses = bus_ids(kind) if kind in DRIVERS else [""]
    if isinstance(buses, str):
        yield _lacking(provider, kind, buses)
        return
    for number, bus in enumerate(buses):
        facts: dict[str, Fact] = {"provider": name, **({"pci_bus_id": bus} if bus else {})}
        yield _proven(provider, Device(provider.device_id(kind, number), name, facts=facts))


def _lacking(provider: Provider, kind: str, because: str) -> Unavailable:
    """Say what a provider of the engine's wheel lacks, its libraries included."""
    folder = Path(onnxruntime.__file__).parent / "capi"
    library = folder / f"libonnxruntime_providers_{provider.library}.so"
    missing = missing_library(str(library)) if provider.library and library.is_file() else None
    reasons = [because, *([f", and {missing}"] if missing else [])]
    return Unavailable(
        "no-device",
        f"{provider.name} cannot run: {''.join(reasons)}.",
        _fix(provider),
        provider.device_id(kind, 0),
    )


def _fix(provider: Provider) -> str:
    needs = f"It needs {provider.needs}. " if provider.needs else ""
    return f"{needs}Without them, ONNX Runtime runs on the CPU."


# Both


def _proven(provider: Provider, device: Device) -> Device | Unavailable:
    """Have a device double three ones, and give it if it was that device that did."""
    try:
        options = provider_options(provider, device, Config())
        session = open_on(SUM, onnxruntime.SessionOptions(), device, options)
        counts = assigned(session)
        (sums,) = session.run(None, {"x": np.ones(3, np.float32)})
    except _OPEN_ERRORS as error:
        return _lacking(provider, device.kind, plain(error))
    if counts and not counts.get(provider.name):
        runs = ", ".join(counts)
        return _lacking(provider, device.kind, f"its node was run by {runs}")
    if sums.tolist() != [2.0, 2.0, 2.0]:
        reason = f"{provider.name} added 1 and 1 to {sums.tolist()}."
        return Unavailable("wrong", reason, f"Reinstall {provider.wheel}.", device.id)
    return device


def plain(error: BaseException) -> str:
    """Shorten what an engine says to the sentence that tells what is wrong."""
    lines = [line.strip() for line in _NOISE.sub("", str(error)).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Exception from", "EP Error"))]
    return (told or lines or [type(error).__name__])[-1].rstrip(".")


def open_on(
    model: bytes, options: Any, device: Device, own: Mapping[str, str], disabled: Any = ()
) -> Any:
    """Make a session with the provider of a device; UnavailableError if it runs without it.

    The engine itself would print a few lines and go on with the CPU.
    """
    options.log_severity_level = _FATAL
    options.add_session_config_entry(RECORD, "1")
    provider = provider_of(device)
    assert provider is not None
    given: dict[str, Any] = {"enable_fallback": 0, "disabled_optimizers": disabled}
    if package := device.facts.get("package"):
        registered(str(package))
        options.add_provider_for_devices([_listed(provider, device)], dict(own))
    else:
        given["providers"] = [(provider.name, dict(own)), CPU_PROVIDER]
    session = onnxruntime.InferenceSession(model, options, **given)
    if provider.name not in session.get_providers():
        raise UnavailableError(
            f"ONNX Runtime was asked for {provider.name} on {device.id} and made a session with "
            f"{', '.join(session.get_providers())}."
        )
    return session


def _listed(provider: Provider, device: Device) -> Any:
    """Find a device of a plugin again, in this process."""
    found = [
        listed
        for listed in onnxruntime.get_ep_devices()
        if listed.ep_name == provider.name and _kind(listed) == device.kind
    ]
    number = DeviceName.of(device.id).number
    if number >= len(found):
        raise UnavailableError(
            f"{provider.name} has no device {device.id} any more: it lists {len(found)} of that "
            "kind. Close the backend, so that it is probed again, or use another device."
        )
    return found[number]


def assigned(session: Any) -> dict[str, int]:
    """Count the nodes that each provider of a session runs; nothing where 1.23 cannot tell."""
    ask = getattr(session, "get_provider_graph_assignment_info", None)
    counts: dict[str, int] = {}
    for part in ask() if ask is not None else ():
        counts[part.ep_name] = counts.get(part.ep_name, 0) + len(part.get_nodes())
    return counts


def session_on(model: bytes, options: Any, device: Device, launch: Mapping[str, Fact]) -> Any:
    """Make a session on a device with the options that its artifact carries."""
    lines: Any = launch.get("provider_options", ())
    return open_on(model, options, device, read_options(lines), DISABLED)
