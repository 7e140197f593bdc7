"""Who this backend is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fusewire.backend import BackendInfo


def installed(package: str) -> str:
    """Give the version of an installed package, or "none"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


INFO = BackendInfo(
    name="xla",
    version=installed("jax"),
    description="XLA through jax: a region becomes one program, compiled for its shapes.",
    vendor="OpenXLA",
    extra="xla",
    metadata={"jaxlib": installed("jaxlib")},
    environment=("XLA_FLAGS",),
)
