"""A backend that runs a compiler: a C function that it loads, and what it can do besides."""

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Gap,
    Held,
    Into,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.region import claim_by_table, edge_slots
from fusewire.ir.graph import Array, Graph

CODE = "float twice(float x) { return x + x; }"
VARIABLE = "ENGINE_FLAGS_OF_A_TEST"


def refusal_of(command: list[str]) -> str:
    """Start a program, and return the name of the error, or "" if it started."""
    try:
        subprocess.run(command, check=True, capture_output=True)
    except OSError as error:
        return type(error).__name__
    return ""


class Twice(Executable):
    """Calls the function that was compiled; its second output says what else worked."""

    is_reentrant = True

    def __init__(self, library: bytes, compiled: str) -> None:
        path = Path(tempfile.mkdtemp(), "twice.so")
        path.write_bytes(library)
        self._function = ctypes.CDLL(str(path)).twice
        self._function.restype, self._function.argtypes = ctypes.c_float, [ctypes.c_float]
        self._facts = [
            # In the compile child, programs that are not declared did not start.
            compiled == "PermissionError",
            # Here, not even those that are.
            refusal_of(["gcc", "--version"]) == "PermissionError",
            os.environ.get(VARIABLE) == "yes",
        ]

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Double each element, and add the facts."""
        (x,) = inputs
        assert isinstance(x, np.ndarray)
        doubled = np.array([self._function(value) for value in x], np.float32)
        doubled[: len(self._facts)] += self._facts
        return [doubled]


class CompilingBackend(Backend):
    """Compiles with gcc."""

    info = BackendInfo(
        "compiling",
        "1",
        "Runs a compiler.",
        "Fusewire",
        environment=(VARIABLE,),
        programs=("gcc", "as", "ld", "/usr/lib/gcc", "/usr/libexec/gcc"),
    )
    gaps: Sequence[Gap] = ()
    exchange = Exchange()

    def probe(self) -> list[Device | Unavailable]:
        """The host."""
        return [Device("cpu", "gcc")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Take all of it."""
        return claim_by_table(graph, lambda node: None)

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Compile, and try another program."""
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "twice.c"), Path(folder, "twice.so")
            source.write_text(CODE)
            command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(source)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr)
            launch = {"other": refusal_of(["/bin/true"])}
            return Artifact(
                "native", library.read_bytes(), tuple(edge_slots(region)), launch=launch
            )

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Load the function."""
        return Twice(artifact.payload, str(artifact.launch["other"]))
