"""GPUs that kernels can be compiled for, present or not."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fusewire.errors import OptionsError

_KNOWN = "cuda:sm_80, cuda:sm_90, hip:gfx942"


@dataclass(frozen=True)
class Target:
    """A kind of GPU as Triton names it: interface, architecture, threads that run in step."""

    interface: str
    architecture: str
    warp: int

    @staticmethod
    def of(text: str) -> Target:
        """Read what people write: cuda:sm_90, hip:gfx942."""
        if match := re.fullmatch(r"cuda:sm_(\d{2,3})a?", text):
            return Target("cuda", match.group(1), 32)
        if match := re.fullmatch(r"hip:(gfx[0-9a-f]+)", text):
            # AMD's cards for graphics run 32 threads in step, those for computing 64.
            return Target("hip", match.group(1), 64 if match.group(1).startswith("gfx9") else 32)
        raise OptionsError(f"{text!r} is not a target. Targets look like {_KNOWN}.")

    @property
    def triton(self) -> tuple[str, int | str, int]:
        """What Triton calls it."""
        number = self.interface == "cuda"
        return (self.interface, int(self.architecture) if number else self.architecture, self.warp)

    @property
    def suffix(self) -> str:
        """How files of its code end."""
        return "cubin" if self.interface == "cuda" else "hsaco"

    def __str__(self) -> str:
        sign = "sm_" if self.interface == "cuda" else ""
        return f"{self.interface}:{sign}{self.architecture}"
