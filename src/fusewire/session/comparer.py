"""The comparer: a process that compares engines behind a program, and records the result.

``python -m fusewire.session.comparer PRIORITY BUDGET REQUESTS REPLIES LIFE PAGE``: "idle" or
"normal", seconds, then the descriptors of pipes, and of the page in which the program counts its
calls. It does what a first call with ``start="measured"`` does, one on a machine at a time, and
ends with its parent. Imports nothing heavy before its priority is low.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusewire.background.job import ComparisonJob
    from fusewire.process.frames import Frame

_ANY_SIZE = 1 << 62
# Calls may leave no quiet moment for this many times the budget, and others wait for as long.
_PATIENCE = 2.0


def main(priority: str, budget: float, requests: int, replies: int, life: int, page: int) -> None:
    """Answer one question, and end."""
    from fusewire.system.processes import take_what_is_left

    _end_with_parent(life)
    if priority == "idle":
        take_what_is_left()
    from fusewire.background.turns import one_on_this_machine
    from fusewire.errors import NoQuietError
    from fusewire.process.frames import Frame, Outgoing

    def say(**header: Any) -> None:
        Outgoing(replies, Frame(header, [])).write()

    try:
        with one_on_this_machine(_PATIENCE * budget):
            say(**_answer(_received(requests), page, say))
    except NoQuietError as error:
        # The parent listens when it has sent all.
        _received(requests)
        say(stopped=str(error))


def _end_with_parent(life: int) -> None:
    """End, with all that this process starts, when the parent closes its end of the pipe."""
    from fusewire.process.lifeline import HAS_LIFELINES, watch

    if sys.platform == "linux" and HAS_LIFELINES:
        from fusewire.process.supervisor import supervise

        supervise(life)
    else:
        watch(life)


def _received(requests: int) -> Frame:
    from fusewire.process.frames import Incoming

    incoming = Incoming(requests, _ANY_SIZE)
    while (frame := incoming.read()) is None:
        continue
    return frame


def _answer(frame: Frame, page: int, say: Callable[..., None]) -> dict[str, Any]:
    from dataclasses import asdict, replace

    from fusewire.background.job import apply_registry, read_job
    from fusewire.errors import FusewireError, NoneRightError, NoQuietError

    job = read_job(frame)
    apply_registry(frame.header["registry"])
    options = replace(job.options, progress=lambda what, share: say(progress=what, share=share))
    try:
        _compare(replace(job, options=options), page)
    except NoneRightError as error:
        return {"none_right": str(error), "tried": [asdict(row) for row in error.tried]}
    except NoQuietError as error:
        return {"stopped": str(error)}
    except FusewireError as error:
        return {"failed": str(error)}
    return {"done": True}


def _compare(job: ComparisonJob, page: int) -> None:
    """Do what ``start="measured"`` does, and record it."""
    from fusewire.background.job import FileSource
    from fusewire.choosing.quiet import CallWatch
    from fusewire.errors import FormatError
    from fusewire.process.calls import CallPage
    from fusewire.rewrite.pipeline import run_pipeline
    from fusewire.session.context import CompileContext
    from fusewire.session.decider import Decider
    from fusewire.session.model_source import ModelSource

    watch = CallWatch(CallPage(page), _PATIENCE * job.options.budget_seconds)
    decider = Decider(CompileContext(job.options, job.store, watch))
    asked = job.model
    # What is put into quarantine names the model.
    model = ModelSource(asked.path if isinstance(asked, FileSource) else asked)
    decider.records.model = model.name
    if not isinstance(asked, FileSource):
        decider.decide(decider.question(asked, job.inputs))
        return
    example = tuple(job.inputs) if asked.has_example else ()
    reading = model.read(example, is_open=asked.is_open)
    model.release()
    if reading.digest != asked.digest:
        raise FormatError(f"{asked.path} has changed since it was compiled. Compile it again.")
    graph = run_pipeline(reading.graph).graph
    decider.decide(decider.question(graph, job.inputs, reading.file))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:]))
