"""Batch jobs and tuning, in this process or on a Ray cluster.

Nothing below the commands imports this package. Importing it imports neither Ray nor pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusewire.ray.mapping import map_parquet
    from fusewire.ray.predictor import Predictor
    from fusewire.ray.shared_model import SharedModel
    from fusewire.ray.tuning import TunedModel, tune

_MODULE_OF = {
    "Predictor": "predictor",
    "SharedModel": "shared_model",
    "TunedModel": "tuning",
    "map_parquet": "mapping",
    "tune": "tuning",
}

__all__ = ["Predictor", "SharedModel", "TunedModel", "map_parquet", "tune"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
