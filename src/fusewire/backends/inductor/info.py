"""The identity of the Inductor backend. Must never import the engine."""

from __future__ import annotations

from fusewire.contract.backend import BackendInfo
from fusewire.process.wheels import installed

INFO = BackendInfo(
    name="inductor",
    version=installed("torch") or "none",
    description="PyTorch's compiler on the CPU; half a minute of C++ for each region.",
    vendor="PyTorch Foundation",
    extra="torch",
    priority=-2,
    environment=("CXX",),
    # The C++ compiler, its parts, and what they start.
    programs=("g++", "as", "ld", "/usr/lib/gcc", "/usr/libexec/gcc"),
    compile_seconds=30.0,
)
