"""Print kernels for people to read. Two kernels that print alike do the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fusewire.kernel.form import (
    Buffer,
    Compute,
    Fold,
    Guard,
    Holds,
    Kernel,
    Literal,
    Load,
    Loop,
    Lowered,
    Place,
    Repeat,
    Scalar,
    Statement,
    Store,
)
from fusewire.kernel.index import Axis, Index


def print_lowered(region: Lowered) -> str:
    """Print a region: what its buffers are for, then its kernels in order."""
    given = dict.fromkeys(region.inputs, "input")
    given |= dict.fromkeys(region.constants, "constant")
    given |= dict.fromkeys(region.outputs, "output")
    lines = [f"region {region.name}"]
    for name, buffer in region.buffers.items():
        lines.append(f"  {given.get(name, 'temporary')} {_buffer(buffer)}")
    for step in region.steps:
        if isinstance(step, Repeat):
            lines.append(f"  repeat {_axes([step.step])}")
            for kernel in step.kernels:
                lines += _indented(print_kernel(kernel).splitlines(), "    ")
        else:
            lines += _indented(print_kernel(step).splitlines())
    return "\n".join(lines)


def print_kernel(kernel: Kernel) -> str:
    """Print one kernel."""
    head = f"kernel {kernel.name} for {_axes(kernel.axes) or 'one point'}"
    lines = [head]
    lines += [f"  local {_buffer(buffer)}" for buffer in kernel.locals]
    return "\n".join([*lines, *_indented(_body(kernel.body))])


def _body(body: Sequence[Statement]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, Fold):
            yield f"{', '.join(statement.names)} = {statement.combine} over {_axes(statement.axes)}"
            yield from _indented(_body(statement.body))
            yield f"  give {', '.join(statement.values)}"
        elif isinstance(statement, Loop):
            order = "in order " if statement.ordered or statement.carries else ""
            yield f"for {order}{_axes(statement.axes)}"
            yield from (f"  carry {c.name} = {c.start}, then {c.next}" for c in statement.carries)
            yield from _indented(_body(statement.body))
        else:
            yield _line(statement)


def _line(statement: Scalar | Store) -> str:
    if isinstance(statement, Store):
        sign = "=" if statement.combine is None else f"={statement.combine}"
        place = f"{statement.buffer}[{_index(statement.index)}]"
        return f"{place} {sign} {statement.value}{_guard(statement.guard)}"
    return f"{statement.name}: {statement.dtype.name} = {_made(statement)}"


def _made(statement: Scalar) -> str:
    match statement:
        case Load(buffer=buffer, index=index, guard=guard):
            return f"{buffer}[{_index(index)}]{_guard(guard)}"
        case Literal(value=value):
            return repr(value)
        case Place(index=index):
            return str(index)
        case Holds(guard=guard):
            return _guard(guard).removeprefix(" if ") or "true"
        case Compute(op=op, operands=operands, attrs=attrs):
            named = [f"{key}={value}" for key, value in attrs]
            return f"{op}({', '.join([*operands, *named])})"


def _index(index: Sequence[Index]) -> str:
    return ", ".join(map(str, index))


def _guard(guard: Guard) -> str:
    bounds = " and ".join(f"{b.low} <= {b.index} < {b.high}" for b in guard)
    return f" if {bounds}" if bounds else ""


def _axes(axes: Sequence[Axis]) -> str:
    return ", ".join(f"{axis.name} < {axis.extent}" for axis in axes)


def _buffer(buffer: Buffer) -> str:
    return f"{buffer.name}: {buffer.dtype.name}[{', '.join(map(str, buffer.shape))}]"


def _indented(lines: Iterator[str] | Sequence[str], by: str = "  ") -> list[str]:
    return [by + line for line in lines]
