"""A side that does not do what it should, by the name of the graph."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


def faulty(model: Any) -> Any:
    """Crash, raise, or give a wrong answer."""
    name = model.graph.name
    if name == "test_abs":
        ctypes.string_at(0)
    if name == "test_acos":
        raise OSError("no such engine")
    return lambda inputs: [np.zeros_like(inputs[0])]
