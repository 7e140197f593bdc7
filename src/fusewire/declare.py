"""The declaration of ops outside the tree: everything that a package of ops imports, in one place.

>>> from fusewire.declare import OpPackage, TensorType, sample, draw, ulps

Names are loaded on first use, so that importing this module costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusewire.lazy_names import LazyNames

if TYPE_CHECKING:
    # Sorted, every alias would be a statement of its own.
    # isort: off
    from fusewire.contract.extension import (
        Extension as Extension,
    )
    from fusewire.dtypes import (
        FLOATS as FLOATS,
        INTEGERS as INTEGERS,
        NUMERIC as NUMERIC,
        STORED as STORED,
        DType as DType,
        bfloat16 as bfloat16,
        bool_ as bool_,
        float16 as float16,
        float32 as float32,
        float64 as float64,
        int32 as int32,
        int64 as int64,
    )
    from fusewire.ir.graph import (
        Node as Node,
        Value as Value,
    )
    from fusewire.ir.types import (
        TensorType as TensorType,
        Type as Type,
    )
    from fusewire.kernel.outside import (
        Cover as Cover,
        TritonBinary as TritonBinary,
        TritonKernel as TritonKernel,
        WgslKernel as WgslKernel,
    )
    from fusewire.ops.declare import (
        CODES as CODES,
        EXACT as EXACT,
        LINEAR as LINEAR,
        SCALED as SCALED,
        SPREAD as SPREAD,
        CostClass as CostClass,
        Kind as Kind,
        Op as Op,
        Tolerance as Tolerance,
        Trait as Trait,
        ulps as ulps,
    )
    from fusewire.ops.decompose import (
        Decomposition as Decomposition,
        in_both as in_both,
    )
    from fusewire.ops.inference import (
        axis_of as axis_of,
        broadcast_types as broadcast_types,
        require as require,
        same_dtype as same_dtype,
    )
    from fusewire.ops.package import (
        OpPackage as OpPackage,
    )
    from fusewire.ops.sample import (
        bad as bad,
        draw as draw,
        given as given,
        sample as sample,
    )

_NAMES = LazyNames(
    __name__,
    {
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
        "ops.package": ("OpPackage",),
        "ops.sample": (
            "bad",
            "draw",
            "given",
            "sample",
        ),
    },
)
__all__ = _NAMES.names
__getattr__ = _NAMES.load


def __dir__() -> list[str]:
    return __all__
