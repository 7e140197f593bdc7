"""The identity of the XLA backend."""

from __future__ import annotations

from fusewire.contract.backend import BackendInfo
from fusewire.process.wheels import installed

INFO = BackendInfo(
    name="xla",
    version=installed("jax") or "none",
    description="XLA through JAX, on the CPU; compiled for each input size.",
    vendor="OpenXLA",
    extra="xla",
    metadata={"jaxlib": installed("jaxlib") or "none"},
    environment=("XLA_FLAGS",),
)
