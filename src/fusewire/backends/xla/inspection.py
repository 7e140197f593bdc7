"""The kernels of an optimised program, read from the text that XLA prints of it.

An instruction of the entry computation is a kernel, unless it only names data. What is inside of a
fusion has in its metadata the node that it was traced for; loops and calls are gone into.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fusewire.backends.xla.program import Program, program
from fusewire.contract.backend import Slot
from fusewire.contract.inspection import EngineKernel
from fusewire.ir.graph import Graph

# These name data, and run nothing.
_NAMES = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
# These run the kernels of other computations.
_GOES_INTO = {"call", "while", "conditional", "async-start"}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?([\w.\-]+) = (\((?:[^()]|\([^()]*\))*\)|\S+) ([\w\-]+)\((.*)$"
)
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:branch|called)_computations=\{([^}]*)\}")
_KIND = re.compile(r"kind=(\w+)|custom_call_target=\"([^\"]*)\"")
_PARTS = re.compile(r"\"outer_dimension_partitions\":\[([^\]]*)\]")
_LABEL = re.compile(r"fusewire_node_(\d+)(?!\d)")


@dataclass
class _Instruction:
    name: str
    type: str
    op: str
    rest: str
    called: tuple[str, ...]


@dataclass
class _Module:
    """Computations by name, each a list of instructions."""

    entry: str = ""
    computations: dict[str, list[_Instruction]] = field(default_factory=dict)


def hlo_kernels(
    region: Graph, slots: Sequence[Slot], optimised_text: Callable[[Program], str]
) -> list[EngineKernel]:
    """Compile a region with named nodes, and read what XLA runs."""
    labels = {node: f"fusewire_node_{i}" for i, node in enumerate(region.nodes)}
    module = read_module(optimised_text(program(region, slots, labels)))
    return list(_kernels(module, module.entry))


def read_module(text: str) -> _Module:
    """Read the computations of a module as XLA prints it."""
    module, lines = _Module(), list[_Instruction]()
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            lines = module.computations[head[2]] = []
            module.entry = head[2] if head[1] else module.entry
        elif found := _INSTRUCTION.match(line):
            name, of, op, rest = found.groups()
            branches = (x.strip(" %") for x in ",".join(_BRANCHES.findall(rest)).split(","))
            called = (*_CALLED.findall(rest), *filter(None, branches))
            lines.append(_Instruction(name, of, op, rest, called))
    return module


def _kernels(module: _Module, computation: str) -> Iterator[EngineKernel]:
    instructions = module.computations[computation]
    types = {x.name: x.type for x in instructions}
    for x in instructions:
        if x.op in _GOES_INTO:
            for name in x.called:
                yield from _kernels(module, name)
        elif x.op not in _NAMES:
            about = _KIND.search(x.rest)
            kind = f"{x.op} {about[1] or about[2]}" if about else x.op
            nodes = tuple(sorted({*map(int, _labels(module, x))}))
            parts = _PARTS.search(x.rest)
            grid = tuple(int(n) for n in re.findall(r"\d+", parts[1])) if parts else ()
            given = _operands(x, types)
            yield EngineKernel(x.name, kind, nodes, grid=grid or (1,), parameters=given)


def _labels(module: _Module, instruction: _Instruction) -> Iterator[str]:
    """Yield the numbers of the nodes behind an instruction and all that it calls."""
    yield from _LABEL.findall(instruction.rest)
    for name in instruction.called:
        for inner in module.computations[name]:
            yield from _labels(module, inner)


def _operands(instruction: _Instruction, types: Mapping[str, str]) -> tuple[str, ...]:
    """List the types of operands, without their layouts."""
    names = re.findall(r"%?([\w.\-]+)", instruction.rest.partition(")")[0])
    return tuple(types[name].partition("{")[0] for name in names if name in types)
