"""The identity of the reference backend."""

from __future__ import annotations

import numpy as np

from fusewire.contract.backend import BackendInfo

INFO = BackendInfo(
    name="reference",
    version=np.__version__,
    description="NumPy, op by op; it defines what every op means.",
    vendor="Fusewire",
    priority=-100,
    trusted=True,
    checks_indices=True,
)
