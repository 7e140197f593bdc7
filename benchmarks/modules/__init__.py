"""The collection of PyTorch modules: layers with their options, and networks written by hand.

``collection()`` gives all cases by name. Nothing here needs more than torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.modules.case import ModuleCase

FAMILIES = (
    "convolution",
    "pooling",
    "normalization",
    "recurrent",
    "attention",
    "elementwise",
    "resampling",
    "tensors",
    "vision",
    "language",
    "mixed",
)


def collection() -> dict[str, ModuleCase]:
    """Collect the cases of every family by name, in the order of the families."""
    cases: dict[str, ModuleCase] = {}
    for family in FAMILIES:
        for case in import_module(f"benchmarks.modules.{family}").MODULES:
            assert case.name not in cases, f"two modules are called {case.name}"
            cases[case.name] = case
    return cases
