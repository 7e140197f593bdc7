"""Run a tensor program on the best engine for each part of it.

>>> import fusewire as fw
>>> import numpy as np
>>> f = fw.compile(lambda x: np.exp(x) / np.sum(np.exp(x)))
>>> f(np.zeros(4, np.float32))
array([0.25, 0.25, 0.25, 0.25], dtype=float32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from fusewire import ops
    from fusewire.buffers.buffers import asarray, empty, from_dlpack, state
    from fusewire.buffers.memory import collect, memory, on_memory_pressure
    from fusewire.bundling.opening import open
    from fusewire.capturing import capture
    from fusewire.compiler import compile, load, run, save_onnx, trace
    from fusewire.contract.buffer import Buffer
    from fusewire.contract.frontend import Limits, Spec
    from fusewire.errors import FallbackWarning, FusewireError
    from fusewire.fusing.fuse import fuse, fusion_backends
    from fusewire.ir.graph import Graph
    from fusewire.ops.outside import register_op
    from fusewire.options import Options
    from fusewire.planning.support import supports
    from fusewire.profiling.profiling import profile
    from fusewire.program.program import Program, Result
    from fusewire.registry import (
        Registry,
        best_device,
        close,
        device,
        devices,
        get,
        list_backends,
        register,
        set_default,
        unregister,
    )

_MODULE_OF = {
    "compile": "compiler",
    "capture": "capturing",
    "load": "compiler",
    "open": "bundling.opening",
    "trace": "compiler",
    "run": "compiler",
    "Options": "options",
    "fuse": "fusing.fuse",
    "fusion_backends": "fusing.fuse",
    "Program": "program.program",
    "Result": "program.program",
    "Buffer": "contract.buffer",
    "asarray": "buffers.buffers",
    "empty": "buffers.buffers",
    "from_dlpack": "buffers.buffers",
    "state": "buffers.buffers",
    "memory": "buffers.memory",
    "collect": "buffers.memory",
    "on_memory_pressure": "buffers.memory",
    "profile": "profiling.profiling",
    "save_onnx": "compiler",
    "Spec": "contract.frontend",
    "Limits": "contract.frontend",
    "Graph": "ir.graph",
    "Registry": "registry",
    "register": "registry",
    "register_op": "ops.outside",
    "unregister": "registry",
    "get": "registry",
    "list_backends": "registry",
    "devices": "registry",
    "device": "registry",
    "best_device": "registry",
    "supports": "planning.support",
    "set_default": "registry",
    "close": "registry",
    "FusewireError": "errors",
    "FallbackWarning": "errors",
    "ops": "",
}

__all__ = [
    "Buffer",
    "FallbackWarning",
    "FusewireError",
    "Graph",
    "Limits",
    "Options",
    "Program",
    "Registry",
    "Result",
    "Spec",
    "asarray",
    "best_device",
    "close",
    "collect",
    "capture",
    "compile",
    "device",
    "devices",
    "empty",
    "from_dlpack",
    "fuse",
    "fusion_backends",
    "get",
    "list_backends",
    "load",
    "memory",
    "on_memory_pressure",
    "open",
    "ops",
    "profile",
    "register",
    "register_op",
    "run",
    "save_onnx",
    "set_default",
    "state",
    "supports",
    "trace",
    "unregister",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name == "__version__":
        from importlib.metadata import version

        return version("fusewire")
    if name not in _MODULE_OF:
        raise AttributeError(f"fusewire has no {name!r}. It has {', '.join(__all__)}.")
    from importlib import import_module

    module = _MODULE_OF[name]
    if not module:
        return import_module(f"fusewire.{name}")
    found = getattr(import_module(f"fusewire.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
