"""The identity of the PyTorch backend. Must never import the engine."""

from __future__ import annotations

from fusewire.contract.backend import BackendInfo
from fusewire.process.wheels import installed

INFO = BackendInfo(
    name="torch",
    version=installed("torch") or "none",
    description="PyTorch in eager mode on the CPU; built once for any input size.",
    vendor="PyTorch Foundation",
    extra="torch",
    # Importing it takes two seconds, so others answer first.
    priority=-1,
    checks_indices=True,
)
