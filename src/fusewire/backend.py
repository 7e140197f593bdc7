"""The backend contract: everything that a plugin author imports, in one place.

>>> from fusewire.backend import Artifact, Backend, Device, claim_by_table

Names are loaded on first use, so that importing this module costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusewire.contract.artifact_writer import ArtifactWriter
    from fusewire.contract.backend import (
        API,
        Artifact,
        Backend,
        BackendInfo,
        BackendOption,
        Config,
        Device,
        Done,
        Event,
        Exchange,
        Executable,
        Fact,
        Gap,
        Held,
        Offer,
        Refusal,
        Slot,
        Unavailable,
    )
    from fusewire.contract.buffer import Buffer
    from fusewire.contract.extension import Extension, attach, detach
    from fusewire.contract.frontend import (
        Document,
        Example,
        Frontend,
        Limits,
        Reading,
        Spec,
        Structure,
    )
    from fusewire.contract.inspection import EngineKernel, Inspector
    from fusewire.contract.model_file import FileReader, ModelFile
    from fusewire.contract.region import (
        CrossCompiler,
        build,
        claim_by_table,
        edge_slots,
        first_device,
        weight_slots,
    )
    from fusewire.contract.script import Script, Scripted
    from fusewire.contract.tuning import Clocked, Estimate, Estimator, Piece, Tuner
    from fusewire.ir.graph import Constant, Graph, Node, Value
    from fusewire.ir.text import INLINE_BYTES, parse_graph, print_graph

_MODULES = {
    "contract.artifact_writer": ("ArtifactWriter",),
    "contract.backend": (
        "API", "Artifact", "Backend", "BackendInfo", "BackendOption", "Config",
        "Device", "Done", "Event", "Exchange", "Executable", "Fact", "Gap", "Held", "Offer",
        "Refusal", "Slot", "Unavailable",
    ),
    "contract.buffer": ("Buffer",),
    "contract.extension": ("Extension", "attach", "detach"),
    "contract.frontend": (
        "Document", "Example", "Frontend", "Limits", "Reading", "Spec", "Structure",
    ),
    "contract.inspection": ("EngineKernel", "Inspector"),
    "contract.model_file": ("FileReader", "ModelFile"),
    "contract.region": (
        "CrossCompiler", "build", "claim_by_table", "edge_slots", "first_device", "weight_slots",
    ),
    "contract.script": ("Script", "Scripted"),
    "contract.tuning": ("Clocked", "Estimate", "Estimator", "Piece", "Tuner"),
    "ir.graph": ("Constant", "Graph", "Node", "Value"),
    "ir.text": ("INLINE_BYTES", "parse_graph", "print_graph"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "API",
    "Artifact",
    "Backend",
    "BackendInfo",
    "BackendOption",
    "Buffer",
    "Config",
    "Device",
    "Done",
    "Event",
    "Exchange",
    "Executable",
    "Fact",
    "Gap",
    "Held",
    "Offer",
    "Refusal",
    "Slot",
    "Unavailable",
    "Extension",
    "attach",
    "detach",
    "Document",
    "Example",
    "Frontend",
    "Limits",
    "Reading",
    "Spec",
    "Structure",
    "ArtifactWriter",
    "EngineKernel",
    "Inspector",
    "FileReader",
    "ModelFile",
    "CrossCompiler",
    "build",
    "claim_by_table",
    "edge_slots",
    "first_device",
    "weight_slots",
    "Script",
    "Scripted",
    "Clocked",
    "Estimate",
    "Estimator",
    "Piece",
    "Tuner",
    "Constant",
    "Graph",
    "Node",
    "Value",
    "INLINE_BYTES",
    "parse_graph",
    "print_graph",
]


def __getattr__(name: str) -> Any:
    """Load a name of the contract when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"fusewire.backend has no {name!r}. It has {', '.join(__all__)}.")
    from importlib import import_module

    value = getattr(import_module(f"fusewire.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
