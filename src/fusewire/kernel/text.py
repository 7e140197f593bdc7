"""Print kernels for people to read. Kernels with equal text do the same.

An element is ``x[row, column]`` by its index, or ``x{place}`` by its row-major place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fusewire.kernel.form import (
    BufferLoad,
    BufferStore,
    Compute,
    Fold,
    Guard,
    Holds,
    Kernel,
    KernelBuffer,
    Literal,
    Loop,
    Lowered,
    OutsideCall,
    Place,
    Repeat,
    Scalar,
    Statement,
)
from fusewire.kernel.index import Axis, flatten, has_division


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
    if kernel.call is not None:
        return "\n".join([head, *_indented([_called(kernel.call)])])
    lines = [head]
    lines += [f"  local {_buffer(buffer)}" for buffer in kernel.locals]
    return "\n".join([*lines, *_indented(_body(kernel, kernel.body))])


def _called(call: OutsideCall) -> str:
    made, given = (
        [f"{b.name}[{', '.join(map(str, b.shape))}]" for b in buffers]
        for buffers in (call.results, call.operands)
    )
    named = [f"{key}={value}" for key, value in call.attrs]
    return f"{', '.join(made)} = {call.op} {call.digest}({', '.join([*given, *named])})"


def _body(kernel: Kernel, body: Sequence[Statement]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, Fold):
            yield f"{', '.join(statement.names)} = {statement.combine} over {_axes(statement.axes)}"
            yield from _indented(_body(kernel, statement.body))
            yield f"  give {', '.join(statement.values)}"
        elif isinstance(statement, Loop):
            order = "in order " if statement.ordered or statement.carries else ""
            yield f"for {order}{_axes(statement.axes)}"
            yield from (f"  carry {c.name} = {c.start}, then {c.next}" for c in statement.carries)
            yield from _indented(_body(kernel, statement.body))
        else:
            yield _line(kernel, statement)


def _line(kernel: Kernel, statement: Scalar | BufferStore) -> str:
    if isinstance(statement, BufferStore):
        sign = "=" if statement.combine is None else f"={statement.combine}"
        return f"{_access(kernel, statement)} {sign} {statement.value}{_guard(statement.guard)}"
    if isinstance(statement, BufferLoad):
        made = f"{_access(kernel, statement)}{_guard(statement.guard)}"
    else:
        made = _made(statement)
    return f"{statement.name}: {statement.dtype.name} = {made}"


def _access(kernel: Kernel, access: BufferLoad | BufferStore) -> str:
    """Print an element by its index, or by its row-major place where that is simpler."""
    place = flatten(access.index, kernel.buffer(access.buffer).shape)
    if has_division(place) or not any(map(has_division, access.index)):
        return f"{access.buffer}[{', '.join(map(str, access.index))}]"
    return f"{access.buffer}{{{place}}}"


def _made(statement: Literal | Place | Holds | Compute) -> str:
    match statement:
        case Literal(value=value):
            return repr(value)
        case Place(index=index):
            return str(index)
        case Holds(guard=guard):
            return _guard(guard).removeprefix(" if ") or "true"
        case Compute(op=op, operands=operands, attrs=attrs):
            named = [f"{key}={value}" for key, value in attrs]
            return f"{op}({', '.join([*operands, *named])})"


def _guard(guard: Guard) -> str:
    bounds = " and ".join(f"{b.low} <= {b.index} < {b.high}" for b in guard)
    return f" if {bounds}" if bounds else ""


def _axes(axes: Sequence[Axis]) -> str:
    return ", ".join(f"{axis.name} < {axis.extent}" for axis in axes)


def _buffer(buffer: KernelBuffer) -> str:
    return f"{buffer.name}: {buffer.dtype.name}[{', '.join(map(str, buffer.shape))}]"


def _indented(lines: Iterator[str] | Sequence[str], by: str = "  ") -> list[str]:
    return [by + line for line in lines]
