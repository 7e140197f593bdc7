"""The backend contract: everything that a plugin author imports, in one place.

>>> from fusewire.backend import Artifact, Backend, Device, claim_by_table

Names are loaded on first use, so that importing this module costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusewire.lazy_names import LazyNames

if TYPE_CHECKING:
    # Sorted, every alias would be a statement of its own.
    # isort: off
    from fusewire.contract.artifact_writer import (
        ArtifactWriter as ArtifactWriter,
    )
    from fusewire.contract.backend import (
        API as API,
        EXACT_NODES as EXACT_NODES,
        Artifact as Artifact,
        Backend as Backend,
        BackendInfo as BackendInfo,
        BackendOption as BackendOption,
        Config as Config,
        Device as Device,
        Exchange as Exchange,
        Executable as Executable,
        Fact as Fact,
        Gap as Gap,
        Held as Held,
        Into as Into,
        Offer as Offer,
        Refusal as Refusal,
        Slot as Slot,
        Unavailable as Unavailable,
        fitted_sizes_option as fitted_sizes_option,
        nan_option as nan_option,
    )
    from fusewire.contract.buffer import (
        Buffer as Buffer,
    )
    from fusewire.contract.extension import (
        Extension as Extension,
        attach as attach,
        detach as detach,
    )
    from fusewire.contract.frontend import (
        Document as Document,
        Example as Example,
        Frontend as Frontend,
        Limits as Limits,
        Reading as Reading,
        Spec as Spec,
        Structure as Structure,
    )
    from fusewire.contract.inspection import (
        EngineKernel as EngineKernel,
        Inspector as Inspector,
    )
    from fusewire.contract.model_file import (
        FileReader as FileReader,
        ModelFile as ModelFile,
    )
    from fusewire.contract.region import (
        CrossCompiler as CrossCompiler,
        build as build,
        claim_by_table as claim_by_table,
        edge_slots as edge_slots,
        first_device as first_device,
        nodes_at as nodes_at,
        weight_slots as weight_slots,
    )
    from fusewire.contract.script import (
        Script as Script,
        Scripted as Scripted,
    )
    from fusewire.contract.tuning import (
        Clocked as Clocked,
        Estimate as Estimate,
        Estimator as Estimator,
        Piece as Piece,
        Tuner as Tuner,
    )
    from fusewire.ir.graph import (
        Constant as Constant,
        Graph as Graph,
        Node as Node,
        Value as Value,
    )
    from fusewire.ir.text import (
        INLINE_BYTES as INLINE_BYTES,
        parse_graph as parse_graph,
        print_graph as print_graph,
    )

_NAMES = LazyNames(
    __name__,
    {
        "contract.artifact_writer": ("ArtifactWriter",),
        "contract.backend": (
            "API",
            "EXACT_NODES",
            "Artifact",
            "Backend",
            "BackendInfo",
            "BackendOption",
            "Config",
            "Device",
            "Exchange",
            "Executable",
            "Fact",
            "Gap",
            "Held",
            "Into",
            "Offer",
            "Refusal",
            "Slot",
            "Unavailable",
            "fitted_sizes_option",
            "nan_option",
        ),
        "contract.buffer": ("Buffer",),
        "contract.extension": (
            "Extension",
            "attach",
            "detach",
        ),
        "contract.frontend": (
            "Document",
            "Example",
            "Frontend",
            "Limits",
            "Reading",
            "Spec",
            "Structure",
        ),
        "contract.inspection": (
            "EngineKernel",
            "Inspector",
        ),
        "contract.model_file": (
            "FileReader",
            "ModelFile",
        ),
        "contract.region": (
            "CrossCompiler",
            "build",
            "claim_by_table",
            "edge_slots",
            "first_device",
            "nodes_at",
            "weight_slots",
        ),
        "contract.script": (
            "Script",
            "Scripted",
        ),
        "contract.tuning": (
            "Clocked",
            "Estimate",
            "Estimator",
            "Piece",
            "Tuner",
        ),
        "ir.graph": (
            "Constant",
            "Graph",
            "Node",
            "Value",
        ),
        "ir.text": (
            "INLINE_BYTES",
            "parse_graph",
            "print_graph",
        ),
    },
)
__all__ = _NAMES.names
__getattr__ = _NAMES.load


def __dir__() -> list[str]:
    return __all__
