"""The kernels of a fused graph one by one: each as a graph of its own that becomes that kernel."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fusewire.errors import RefusedError
from fusewire.fusion.grouping import Fusion, body_of
from fusewire.ir.graph import Graph
from fusewire.ir.hash import structural_hash
from fusewire.kernel.form import Kernel, Repeat
from fusewire.kernel.lower.region import lower_fusion
from fusewire.kernel.text import print_kernel

_BUFFER = re.compile(r"\w+(?=[\[{:])")


@dataclass(frozen=True, eq=False)
class Part:
    """A group of a fused graph: what it computes, the kernel that does, how often it is run."""

    key: str
    name: str
    graph: Graph
    kernel: Kernel
    count: int


def key_of(kernel: Kernel) -> str:
    """Tell a kernel from others, whatever it and its buffers are called."""
    buffers = dict.fromkeys((*kernel.reads, *kernel.writes, *kernel.locals))
    names = {buffer.name: f"b{place}" for place, buffer in enumerate(buffers)}
    types = [f"{buffer.dtype.name}{list(buffer.shape)}" for buffer in buffers]
    text = print_kernel(kernel).partition(" for ")[2]
    body = _BUFFER.sub(lambda found: names.get(found[0], found[0]), text)
    said = "\n".join([*types, str(len(kernel.reads)), str(len(kernel.locals)), body])
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def parts_of(fusion: Fusion, fused: Callable[[Graph], Fusion]) -> Iterator[Part]:
    """Yield each distinct kernel that a group becomes, alone as in the whole.

    ``fused`` fuses a graph as the whole was. Groups of several kernels, and those in loops of the
    host, have none.
    """
    whole = lower_fusion(fusion)
    counts = Counter(key_of(step) for step in whole.steps if not isinstance(step, Repeat))
    seen: set[str] = set()
    for group in fusion.groups:
        body, _ = body_of(group)
        if (hashed := structural_hash(body)) in seen:
            continue
        seen.add(hashed)
        try:
            alone = lower_fusion(fused(body)).steps
        except RefusedError:
            continue
        if len(alone) != 1 or isinstance(alone[0], Repeat):
            continue
        key = key_of(alone[0])
        if key in counts:
            name = f"{group.pattern} {', '.join(str(v.type) for v in body.outputs)}"
            yield Part(key, name, body, alone[0], counts.pop(key))
