"""The identity of the PyTorch backend. Must never import the engine."""

from __future__ import annotations

from fusewire.contract.backend import BackendInfo, Config, Fact
from fusewire.errors import OptionsError
from fusewire.process.wheels import installed

INFO = BackendInfo(
    name="torch",
    version=installed("torch") or "none",
    description="PyTorch in eager mode; built once for any input size.",
    vendor="PyTorch Foundation",
    extra="torch",
    # Importing it takes two seconds, so others answer first.
    priority=-1,
    checks_indices=True,
    # It is written as a gather, for which a length below 0 is one of 0.
    unchecked_ops=("reverse_sequence",),
)


def launch_of(config: Config, name: str = INFO.name) -> dict[str, Fact]:
    """Give what an artifact is built and run with."""
    config.checked(name, ())
    if config.threads is None:
        return {}
    if config.threads < 1:
        raise OptionsError(f"threads={config.threads}: at least 1 is needed, or none given.")
    return {"threads": config.threads}
