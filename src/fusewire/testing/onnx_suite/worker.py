"""The child, ``python -m fusewire.testing.onnx_suite.worker``: runs one case after another."""

from __future__ import annotations

import functools
import os
import time
from typing import Any

from fusewire.errors import EngineError, FusewireError, RefusedError
from fusewire.process.frames import VERSION, Frame, Incoming, Outgoing
from fusewire.process.guard import guarded
from fusewire.process.lifeline import watch
from fusewire.process.worker import away, settle
from fusewire.testing.onnx_suite.cases import Suite
from fusewire.testing.onnx_suite.sides import Side

_LONGEST_REASON = 1000
_MOST_BYTES = 1 << 20
_side = functools.cache(Side)


def _outcome(suite: Suite, name: str, case: str, home: str) -> dict[str, Any]:
    side = _side(name)
    start = time.perf_counter()
    try:
        status, reason = guarded(name, "run", case, _result, suite, side, case, home)
    except EngineError as error:
        status, reason = "failed", error.reason
    seconds = round(time.perf_counter() - start, 3)
    reason = " ".join(reason.split())[:_LONGEST_REASON]
    elsewhere = side.elsewhere() if status == "passed" else 0
    return {"status": status, "reason": reason, "seconds": seconds, "elsewhere": elsewhere}


def _result(suite: Suite, side: Side, case: str, home: str) -> tuple[str, str]:
    try:
        suite.run(case, side.prepare, home)
    except AssertionError as error:
        return "failed", f"Wrong: {error}"
    except RefusedError as error:
        # What was offered and then not done is a failure.
        is_failure = isinstance(error.__cause__, EngineError)
        return "failed" if is_failure else "refused", str(error)
    except FusewireError as error:
        public = next(x for x in type(error).__mro__ if not x.__name__.startswith("_"))
        return "failed", f"{public.__name__}: {error}"
    return "passed", ""


def main(_: str, requests: int, replies: int, life: int) -> None:
    """Serve until the parent is gone."""
    settle()
    watch(away(life))
    incoming, out = Incoming(away(requests), _MOST_BYTES), away(replies)
    suite = Suite()

    def say(header: dict[str, Any]) -> None:
        Outgoing(out, Frame(header, [])).write()

    say({"hello": VERSION})
    while True:
        try:
            frame = incoming.read()
        except EOFError:
            os._exit(0)
        if frame is not None:
            asked, answer = frame.header, {"names": suite.names}
            if "case" in asked:
                answer = _outcome(suite, asked["side"], asked["case"], asked["home"])
            say({"job": asked["job"], **answer})
