"""The resources of a compiled kernel: registers, and bytes spilled from them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

_AMD = {"registers": "vgpr_count", "spills": "vgpr_spill_count"}
# How AMD counts spills: registers of 4 bytes.
_REGISTER_BYTES = 4


def of_cubin(binary: bytes) -> dict[str, int]:
    """Ask the tool that comes with Triton's wheel; memory on the stack is what was spilled."""
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        tool = triton.knobs.nvidia.cuobjdump.path
        command = [tool, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", said))
    return {
        "registers": int(found.get("REG", 0)),
        "spill_bytes": int(found.get("STACK", 0)) + int(found.get("LOCAL", 0)),
    }


def of_amdgcn(text: str) -> dict[str, int]:
    """Read the notes of an assembly."""
    counts = {key: re.search(rf"\.{name}:\s*(\d+)", text) for key, name in _AMD.items()}
    registers, spills = (int(m.group(1)) if m else 0 for m in counts.values())
    return {"registers": registers, "spill_bytes": spills * _REGISTER_BYTES}
