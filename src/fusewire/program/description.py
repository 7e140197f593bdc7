"""A program as text and as HTML: its inputs and outputs, and where it runs."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from fusewire.errors import visible
from fusewire.show.report import summary
from fusewire.tables import Sheet

if TYPE_CHECKING:
    from fusewire.program.module_program import ModuleProgram
    from fusewire.program.program import Program, ProgramPort


def program_html(program: Program | ModuleProgram) -> str:
    """Show the inputs and outputs of a program, and where it runs."""
    name = escape(visible(program.name))
    if not program.signatures:
        return f"<div><p>Program <b>{name}</b>: not called yet</p></div>"
    where = escape(visible(summary(program.why())))
    return f"<div><p>Program <b>{name}</b> on {where}</p>{_ports(program).to_html()}</div>"


def program_text(program: Program | ModuleProgram) -> str:
    """Write the inputs and outputs of a program, and where it runs, as plain text."""
    name, count = visible(program.name), len(program.signatures)
    if not count:
        return f"Program {name}: not called yet"
    lines = [f"Program {name} on {visible(summary(program.why()))}", _ports(program).to_text()]
    if count > 1:
        lines.append(f"The latest of {count} signatures; program.signatures lists all.")
    return "\n".join(lines)


def _ports(program: Program | ModuleProgram) -> Sheet:
    sheet = Sheet("", "name", "dtype", "shape")
    for side, ports in (("input", program.inputs), ("output", program.outputs)):
        for port in ports:
            sheet.add(side, port.name, port.dtype, _shape(port))
    sheet.has_option = False
    return sheet


def _shape(port: ProgramPort) -> str:
    return f"[{', '.join(map(str, port.shape))}]"
