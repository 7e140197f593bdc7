"""Run the conformance suite as programs: what a backend refuses runs on the reference.

Here every op must be right, including sequences and strings: that is what fallback is for.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.compiler import compile as compile_program
from fusewire.contract.backend import Backend, Device
from fusewire.errors import FusewireError
from fusewire.ir.graph import HostValue
from fusewire.planning.claims import ask
from fusewire.planning.target import Target
from fusewire.testing.conformance import Case
from fusewire.testing.suite import CaseResult, OpReport, Ready, Status, judge, merge, reported


def reports_with_fallback(
    backend: Backend, device: Device, found: Sequence[Case]
) -> tuple[list[OpReport], list[str]]:
    """Run cases as programs of many cases each; also return failures that are not gaps."""
    name = backend.info.name
    results: dict[Case, CaseResult] = {}
    ready: list[Ready[Case]] = []
    for case in found:
        graph, inputs = case.make()
        try:
            claimed = ask(Target(backend, device), graph)
        except FusewireError as error:
            results[case] = CaseResult("failed", str(error))
            continue
        status: Status = "expanded" if claimed.expanded else "native"
        status = status if claimed.takes_all() else "helped"
        ready.append(Ready(case, graph, graph, inputs, status))

    def answers(
        part: Sequence[Ready[Case]], calls: Sequence[Sequence[HostValue]]
    ) -> list[list[HostValue]]:
        merged = merge([item.legal for item in part])
        with compile_program(merged, backend=name, device=device.id, fallback="allow") as program:
            found = [program(*inputs) for inputs in calls]
        return [[got] if len(merged.outputs) == 1 else list(got) for got in found]

    judge(name, ready, answers, results)
    return reported(backend, device, found, results)
