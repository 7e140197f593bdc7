"""Memory as WGSL: how elements are read and written, and what is declared for it.

Elements smaller than a word are written by atomics, because others of the word may be another
invocation's; where one invocation makes whole words it gathers them and needs none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusewire.backends.webgpu.scalars import HEAD, combine, cut, storage
from fusewire.kernel.form import Buffer, Store
from fusewire.kernel.index import Index, flatten

if TYPE_CHECKING:
    from fusewire.backends.webgpu.page import Page

_MEMORY = re.compile(r"\bm\d+\b")


def _place(page: Page, buffer: str, index: Sequence[Index]) -> str:
    return page.places.index(flatten(index, page.kernel.buffer(buffer).shape))


def read(page: Page, buffer: str, index: Sequence[Index]) -> str:
    """Print what reads an element."""
    place = _place(page, buffer, index)
    if buffer in page.local:
        return f"{page.local[buffer]}[{place}]"
    stored, memory = page.of(page.kernel.buffer(buffer)), page.memory[buffer]
    if stored.lanes == 1:
        return stored.load.replace("{0}", f"{memory}[{place}]")
    read = stored.read(memory, f"u32({place})")
    if buffer in page.atomic:
        word = f"{memory}[u32({place}) >> {stored.lanes // 2}u]"
        return read.replace(word, f"atomicLoad(&{word})")
    return read


def write(page: Page, store: Store) -> None:
    """Add what writes an element, whatever a guard says."""
    value, of = page.value(store.value), page.kernel.buffer(store.buffer).dtype
    if store.combine is not None:
        code = combine(store.combine, of, page.features).replace("{1}", value)
        code = cut(code.replace("{0}", read(page, store.buffer, store.index)), of)
        value = page.fresh()
        page.line(f"let {value} = {code};")
    place = _place(page, store.buffer, store.index)
    if store.buffer in page.local:
        page.line(f"{page.local[store.buffer]}[{place}] = {value};")
        return
    stored, memory = storage(of, page.features), page.memory[store.buffer]
    bits = stored.store.replace("{0}", value)
    if stored.lanes == 1:
        page.line(f"{memory}[{place}] = {bits};")
    elif store.buffer in page.packed:
        page.line(f"w{memory} |= {bits} << (part * {stored.bits}u);")
    else:
        at, shift = page.fresh("p"), page.fresh("p")
        page.line(f"let {at} = u32({place});")
        page.line(f"let {shift} = ({at} & {stored.lanes - 1}u) * {stored.bits}u;")
        word = f"&{memory}[{at} >> {stored.lanes // 2}u]"
        mask = f"{(1 << stored.bits) - 1}u << {shift}"
        page.line(f"atomicAnd({word}, ~({mask}));")
        page.line(f"atomicOr({word}, {bits} << {shift});")


def used(page: Page) -> list[Buffer]:
    """List the memories that lines name: a device knows of no others."""
    words = set(_MEMORY.findall("\n".join(page.lines)))
    return [buffer for buffer in page.buffers if page.memory[buffer.name] in words]


def declared(page: Page) -> list[str]:
    """Print the bindings: memories in use, in order, then params."""
    written = {b.name for b in page.kernel.writes}
    lines = []
    for place, buffer in enumerate(used(page)):
        word = page.of(buffer).word
        if buffer.name in page.atomic - page.packed:
            word = f"atomic<{word}>"
        mode = "read_write" if buffer.name in written else "read"
        name = page.memory[buffer.name]
        lines.append(f"@group(0) @binding({place}) var<storage, {mode}> {name}: array<{word}>;")
    count = -(-(HEAD + len(page.numbers.words)) // 4)
    lines.append(
        f"@group(0) @binding({len(lines)}) var<uniform> params: array<vec4<u32>, {count}>;"
    )
    for buffer in page.kernel.locals:
        size = max(math.prod(buffer.shape), 1)
        register = page.register(buffer.dtype)
        lines.append(f"var<workgroup> {page.local[buffer.name]}: array<{register}, {size}>;")
    return [*lines, *page.meeting.values()]
