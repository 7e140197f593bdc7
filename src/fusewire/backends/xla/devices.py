"""The devices of XLA: CPUs of a client of our own, and what jax's other platforms list.

A platform is a plugin of jax. A probe starts those that are installed in a process of its own, and
only a program for one of their devices does so again: whoever runs on the CPU has nothing to do
with them.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fusewire.contract.backend import Device, Fact, Unavailable
from fusewire.contract.devices import CPU, DeviceName
from fusewire.errors import UnavailableError
from fusewire.process.apart import SECONDS, Fallen, devices_apart

# Platforms of jax whose plugins we know by name, what to say if they list nothing.
_ADVICE: Mapping[str, str] = {
    "cuda": "Install the NVIDIA driver, so that `nvidia-smi` lists a GPU, and CUDA's libraries: "
    'pip install "jax[cuda12]".',
    "rocm": "Install AMD's driver and ROCm, so that `rocminfo` lists a GPU.",
    "metal": "It needs a Mac with a GPU, and the jax that jax-metal was built for.",
    "tpu": 'It needs a machine with a TPU, and the libtpu of this jax: pip install "jax[tpu]".',
}
_REMOVE = "To do without it, uninstall {plugin}."
# Where the driver of a platform shows itself on Linux.
_DRIVERS: Mapping[str, tuple[str, ...]] = {
    "cuda": ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"),
    "rocm": ("/dev/kfd", "/dev/dxg"),
}
# jax would take three quarters of a GPU's memory at once.
_MODEST = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@dataclass(frozen=True)
class Place:
    """A device by platform and number: ``cpu`` is the first CPU, ``cuda:1`` the second GPU."""

    platform: str
    number: int

    @staticmethod
    def of(device: Device) -> Place:
        """Read the id of a device."""
        name = DeviceName.of(device.id)
        return Place(name.kind, name.number)

    @property
    def id(self) -> str:
        """The id that users know."""
        return str(DeviceName(self.platform, self.number))

    @property
    def is_host(self) -> bool:
        """Whether its memory is the host's."""
        return self.platform == CPU

    @property
    def jax_platform(self) -> str:
        """The name under which jax knows the platform."""
        return "METAL" if self.platform == "metal" else self.platform


@contextmanager
def assigned(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that an engine reads in this moment, and no other time."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


def plugins() -> dict[str, str]:
    """Map the platforms whose plugins are installed to the plugin; imports nothing."""
    found: dict[str, str] = {}
    spec = importlib.util.find_spec("jax_plugins")
    for folder in (spec and spec.submodule_search_locations) or ():
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 - every probe does this
            known = next((x for x in _ADVICE if x in name.lower()), None)
            if known is not None:
                found.setdefault(known, _distribution(known, name))
    if importlib.util.find_spec("libtpu") is not None:
        found["tpu"] = "libtpu"
    return found


def _distribution(platform: str, module: str) -> str:
    """Name what to uninstall: jax_plugins/xla_cuda12 is of jax-cuda12-plugin."""
    version = re.search(r"\d+", module)
    return f"jax-{platform}{version[0] if version else ''}-plugin"


def asked_apart(
    platforms: Mapping[str, str], seconds: float = SECONDS
) -> list[Device | Unavailable]:
    """Have a process of its own start the platforms: one that dies there takes no CPU with it."""
    found = devices_apart(f"{__package__}.engine", "tell()", seconds)
    return _fallen(platforms, found) if isinstance(found, Fallen) else found


def _fallen(platforms: Mapping[str, str], end: Fallen) -> list[Device | Unavailable]:
    return [
        Unavailable(
            end.code,
            f"Starting jax's platform {name} ({plugin}) {end.how}.",
            f"{_ADVICE[name]} {_REMOVE.format(plugin=plugin)}",
            name,
        )
        for name, plugin in platforms.items()
    ]


def others(platforms: Mapping[str, str]) -> list[tuple[Place, Any] | Unavailable]:
    """Start the platforms of jax, and list devices that are not CPUs, or why there are none."""
    from jax.extend.backend import backends

    with assigned(_MODEST), _heard() as problems:
        try:
            started = backends()
        except RuntimeError as error:
            # jax gives up on all platforms then, its CPU too; ours is a client of our own.
            problems.append(str(error))
            started = {}
    found: list[tuple[Place, Any] | Unavailable] = []
    for name, client in started.items():
        if name != "cpu":
            numbered = enumerate(client.local_devices())
            found += [(Place(name.lower(), number), device) for number, device in numbered]
    seen = {name.lower() for name in started}
    lacking = {name: plugin for name, plugin in platforms.items() if name not in seen}
    return found + [_missing(name, plugin, problems) for name, plugin in lacking.items()]


def _missing(platform: str, plugin: str, problems: Sequence[str]) -> Unavailable:
    """Say why an installed platform lists no device."""
    paths = _DRIVERS.get(platform, ()) if sys.platform == "linux" else ()
    has_driver = not paths or any(map(os.path.exists, paths))
    why = [f"{plugin} is installed, and jax lists no device of {platform}."]
    if not has_driver:
        why.append(f"There is no driver: none of {', '.join(paths)} is there.")
    why += [f"jax says: {problem}" for problem in problems]
    fix = f"{_ADVICE[platform]} {_REMOVE.format(plugin=plugin)}"
    is_fault = has_driver and bool(problems)
    code = "broken" if is_fault else "no-device"
    return Unavailable(code, " ".join(why), fix, platform)


class _Listener(logging.Handler):
    """Keeps what jax only logs: the errors of plugins."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._problems = problems

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        said = record.getMessage() if error is None else str(error)
        cause = error.__cause__ if error is not None else None
        self._problems.append(said if cause is None else f"{said} ({cause})")


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Collect what jax logs about platforms, in place of stderr."""
    logger, problems = logging.getLogger("jax._src.xla_bridge"), list[str]()
    listener, propagates = _Listener(problems), logger.propagate
    logger.addHandler(listener)
    logger.propagate = False
    try:
        yield problems
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagates


def jax_device(place: Place) -> Any:
    """Return jax's own device; UnavailableError if it is gone since it was probed."""
    import jax

    try:
        with assigned(_MODEST):
            listed = jax.local_devices(backend=place.jax_platform)
    except RuntimeError as error:
        raise UnavailableError(
            f"{place.id} was found before, and is not here now: {error}"
        ) from error
    return at(listed, place)


def at(listed: Sequence[Any], place: Place) -> Any:
    """Return the device of a number; UnavailableError if there are fewer."""
    if place.number < len(listed):
        return listed[place.number]
    raise UnavailableError(
        f"{place.id} was asked for, and XLA has {len(listed)} of {place.platform} in this process. "
        "Start it with the XLA_FLAGS and the visible devices that it was probed with."
    )


def facts_of(device: Any) -> dict[str, Fact]:
    """Ask jax what it knows about a device; plugins differ in what they tell."""
    facts: dict[str, Fact] = {"platform_version": str(device.client.platform_version)}
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        facts["memory_bytes"] = int(stats["bytes_limit"])
    attributes = {"compute_capability": "architecture", "core_count": "compute_units"}
    for theirs, ours in attributes.items():
        # Attributes are the plugin's own: absent for other platforms.
        value = getattr(device, theirs, None)
        if isinstance(value, str | int):
            facts[ours] = value
    return facts
