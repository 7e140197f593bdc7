"""The declaration of ops outside the tree: everything that a package of ops imports, in one place.

>>> from fusewire.declare import OpPackage, TensorType, sample, draw, ulps

Names are loaded on first use, so that importing this module costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusewire.contract.extension import Extension
    from fusewire.dtypes import (
        FLOATS,
        INTEGERS,
        NUMERIC,
        STORED,
        DType,
        bfloat16,
        bool_,
        float16,
        float32,
        float64,
        int32,
        int64,
    )
    from fusewire.ir.graph import Node, Value
    from fusewire.ir.types import TensorType, Type
    from fusewire.kernel.outside import Cover, TritonBinary, TritonKernel, WgslKernel
    from fusewire.ops.declare import (
        CODES,
        EXACT,
        LINEAR,
        SCALED,
        SPREAD,
        CostClass,
        Kind,
        Op,
        Tolerance,
        Trait,
        ulps,
    )
    from fusewire.ops.decompose import Decomposition, in_both
    from fusewire.ops.inference import axis_of, broadcast_types, require, same_dtype
    from fusewire.ops.outside import OpPackage
    from fusewire.ops.sample import bad, draw, given, sample

_MODULES = {
    "contract.extension": ("Extension",),
    "dtypes": (
        "DType",
        "FLOATS",
        "INTEGERS",
        "NUMERIC",
        "STORED",
        "bool_",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int32",
        "int64",
    ),
    "ir.graph": (
        "Node",
        "Value",
    ),
    "ir.types": (
        "TensorType",
        "Type",
    ),
    "kernel.outside": (
        "Cover",
        "TritonBinary",
        "TritonKernel",
        "WgslKernel",
    ),
    "ops.declare": (
        "CODES",
        "EXACT",
        "LINEAR",
        "SCALED",
        "SPREAD",
        "CostClass",
        "Kind",
        "Op",
        "Tolerance",
        "Trait",
        "ulps",
    ),
    "ops.decompose": (
        "Decomposition",
        "in_both",
    ),
    "ops.inference": (
        "axis_of",
        "broadcast_types",
        "require",
        "same_dtype",
    ),
    "ops.outside": ("OpPackage",),
    "ops.sample": (
        "bad",
        "draw",
        "given",
        "sample",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Extension",
    "DType",
    "FLOATS",
    "INTEGERS",
    "NUMERIC",
    "STORED",
    "bool_",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int32",
    "int64",
    "Node",
    "Value",
    "TensorType",
    "Type",
    "Cover",
    "TritonBinary",
    "TritonKernel",
    "WgslKernel",
    "CODES",
    "EXACT",
    "LINEAR",
    "SCALED",
    "SPREAD",
    "CostClass",
    "Kind",
    "Op",
    "Tolerance",
    "Trait",
    "ulps",
    "Decomposition",
    "in_both",
    "axis_of",
    "broadcast_types",
    "require",
    "same_dtype",
    "OpPackage",
    "bad",
    "draw",
    "given",
    "sample",
]


def __getattr__(name: str) -> Any:
    """Load a name when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"fusewire.declare has no {name!r}. It has {', '.join(__all__)}.")
    from importlib import import_module

    value = getattr(import_module(f"fusewire.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
