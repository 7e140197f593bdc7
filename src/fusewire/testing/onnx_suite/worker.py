"""The child, ``python -m fusewire.testing.onnx_suite.worker``: runs one case after another."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from fusewire.errors import EngineError, FusewireError, RefusedError
from fusewire.process.frames import VERSION, Frame, Incoming, Outgoing
from fusewire.process.guard import guarded
from fusewire.process.worker import away, settle
from fusewire.testing.onnx_suite.cases import Prepare, Suite
from fusewire.testing.onnx_suite.sides import prepare_of

_LONGEST_REASON = 1000
_MOST_BYTES = 1 << 20


def _outcome(suite: Suite, side: str, prepare: Prepare, case: str, home: str) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        status, reason = guarded(side, "run", case, _result, suite, prepare, case, home)
    except EngineError as error:
        status, reason = "failed", error.reason
    seconds = round(time.perf_counter() - start, 3)
    reason = " ".join(reason.split())[:_LONGEST_REASON]
    return {"status": status, "reason": reason, "seconds": seconds}


def _result(suite: Suite, prepare: Prepare, case: str, home: str) -> tuple[str, str]:
    try:
        suite.run(case, prepare, home)
    except AssertionError as error:
        return "failed", f"Wrong: {error}"
    except RefusedError as error:
        return "refused", str(error)
    except FusewireError as error:
        public = next(x for x in type(error).__mro__ if not x.__name__.startswith("_"))
        return "failed", f"{public.__name__}: {error}"
    return "passed", ""


def main(side: str, requests: int, replies: int, life: int) -> None:
    """Serve until the parent is gone."""
    settle(away(life))
    incoming, out = Incoming(away(requests), _MOST_BYTES), away(replies)
    suite = Suite()
    prepare = guarded(side, "import", "", prepare_of, side)

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
                answer = _outcome(suite, side, prepare, asked["case"], asked["home"])
            say({"job": asked["job"], **answer})


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
