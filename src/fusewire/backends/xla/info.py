"""The identity of the XLA backend."""

from __future__ import annotations

from fusewire.contract.backend import BackendInfo
from fusewire.process.wheels import installed

INFO = BackendInfo(
    name="xla",
    version=installed("jax") or "none",
    description="XLA through JAX, on all that jax lists; compiled for each input size.",
    vendor="OpenXLA",
    extra="xla",
    metadata={"jaxlib": installed("jaxlib") or "none"},
    plans_memory=True,
    environment=("XLA_FLAGS", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES"),
)
