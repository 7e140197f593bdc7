"""Print one elementwise kernel: where elements are read, the expression, where it is written.

Words of ``params``: how many elements, a zero that no compiler knows, the dims of the merged
axes but the first, then start and steps of every operand that is walked by steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewire.backends.webgpu.indexing import Access, Ints, Walk
from fusewire.backends.webgpu.library import needed
from fusewire.backends.webgpu.storage import Storage

_HEAD = 2


@dataclass(frozen=True)
class Kernel:
    """What a kernel's text depends on; shapes are not in it."""

    code: str
    operands: tuple[Storage, ...]
    result: Storage
    walks: tuple[Walk, ...]
    rank: int

    def wgsl(self, workgroup: int) -> str:
        """Print it as a module with the entry point ``main``."""
        element = self._element()
        main = _main(self.result, workgroup)
        declared = [
            f"@group(0) @binding({place}) var<storage, read> m{place}: array<{operand.word}>;"
            for place, operand in enumerate(self.operands)
        ]
        last = len(self.operands)
        declared += [
            f"@group(0) @binding({last}) var<storage, read_write> result: "
            f"array<{self.result.word}>;",
            f"@group(0) @binding({last + 1}) var<uniform> params: "
            f"array<vec4<u32>, {self._words() // 4}>;",
        ]
        return "\n".join([*declared, *needed(element + main), element, main])

    def params(self, count: int, dims: Ints, found: Sequence[Access]) -> list[int]:
        """Give the words for one use of it."""
        words = [count, 0, *dims[1 : self.rank]]
        for access, walk in zip(found, self.walks, strict=True):
            if walk == "strided":
                # Steps back are large steps forward: words wrap around.
                words += [access.start, *(step % 2**32 for step in access.steps)]
        return words + [0] * (self._words() - len(words))

    def _words(self) -> int:
        count = _HEAD + max(self.rank - 1, 0) + self.walks.count("strided") * (1 + self.rank)
        return -(-count // 4) * 4

    def _element(self) -> str:
        """Print the function that computes the element at a place of the output."""
        lines = []
        if "strided" in self.walks:
            lines += _coordinates(self.rank)
        at = _HEAD + max(self.rank - 1, 0)
        for place, (operand, walk) in enumerate(zip(self.operands, self.walks, strict=True)):
            index = {"same": "i", "first": "0u"}.get(walk)
            if index is None:
                index = f"i{place}"
                terms = [f"c{axis} * {_word(at + 1 + axis)}" for axis in range(self.rank)]
                lines.append(f"  let {index} = {' + '.join([_word(at), *terms])};")
                at += 1 + self.rank
            lines.append(f"  let x{place} = {operand.read(f'm{place}', index)};")
        names = [f"x{place}" for place in range(len(self.operands))]
        value = self.code.format(*names, t=self.operands[0].register)
        head = f"fn element(i: u32) -> {self.result.register} {{"
        return "\n".join([head, *lines, f"  return {value};", "}"])


def _word(place: int) -> str:
    return f"params[{place // 4}].{'xyzw'[place % 4]}"


def _coordinates(rank: int) -> list[str]:
    """Print how a place becomes one coordinate per axis, the last one first."""
    lines = []
    rest = "i"
    for axis in range(rank - 1, 0, -1):
        dim = _word(_HEAD + axis - 1)
        lines.append(f"  let r{axis} = {rest} / {dim};")
        lines.append(f"  let c{axis} = {rest} - r{axis} * {dim};")
        rest = f"r{axis}"
    return [*lines, f"  let c0 = {rest};"]


def _main(result: Storage, workgroup: int) -> str:
    body = f"""  if (at < params[0].x) {{
    result[at] = {result.store.format("element(at)")};
  }}"""
    if result.lanes > 1:
        stored = result.store.format("element(i)")
        body = f"""  let first = at * {result.lanes}u;
  if (first >= params[0].x) {{ return; }}
  var word = 0u;
  for (var lane = 0u; lane < {result.lanes}u; lane++) {{
    let i = first + lane;
    if (i < params[0].x) {{ word |= {stored} << (lane * {result.bits}u); }}
  }}
  result[at] = word;"""
    return f"""@compute @workgroup_size({workgroup})
fn main(@builtin(global_invocation_id) id: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>) {{
  let at = id.x + id.y * groups.x * {workgroup}u;
{body}
}}
"""


def grid(invocations: int, workgroup: int, widest: int) -> tuple[int, int]:
    """Spread workgroups over two dimensions: one holds ``widest`` at most."""
    count = -(-invocations // workgroup)
    rows = -(-count // widest)
    return -(-count // rows), rows
