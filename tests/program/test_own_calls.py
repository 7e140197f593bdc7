"""A program that is called from inside of itself: by its function, and by handlers that it calls.

Such a call is answered, or refused in a sentence, whatever is under way; a turn of the function
between calls is in tests/background/test_settling.py. Every cell runs in a process with a limit.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.program.states import environment

# Seconds after which a process that hangs says where, and ends.
LIMIT, SHORT = 60, 8
SCRIPT = """
import faulthandler, logging, sys, threading, warnings

kind, way, limit = sys.argv[1:]
faulthandler.dump_traceback_later(float(limit), exit=True)

import numpy as np
import fusewire as fw
from fusewire.background import process
from fusewire.errors import GraphError
from tests.program.states import X, engines

process.PRIORITY = "normal"

ways = {"first": {}, "measured": {"start": "measured"}, "level 0": {"level": 0}}
options = {"budget_seconds": 0.5, "isolate": "never", "registry": engines(), **ways[way]}
answers, busy = [], threading.local()

def again(x=X):
    if "program" in globals() and not getattr(busy, "is_so", False):
        busy.is_so = True
        try:
            answers.append(program(x))
        except GraphError as error:
            answers.append(str(error))
        finally:
            busy.is_so = False

def plain(x):
    return np.tanh(np.cos(x)) * 3

def calling(x):
    if type(x) is np.ndarray:
        again(x)
    return np.tanh(np.cos(x)) * 3

class Handler(logging.Handler):
    def emit(self, record):
        again()

if kind == "progress":
    options["progress"] = lambda what, share: again()
if kind == "log":
    logging.getLogger("fusewire").addHandler(Handler())
    logging.getLogger("fusewire").setLevel(logging.DEBUG)
if kind == "warning":
    # It takes no cosine, and a warning says so.
    options["registry"].register("tests.flaky:split", "flaky")
    options |= {"backend": "flaky", "fallback": "warn"}
    warnings.simplefilter("always")
    warnings.showwarning = lambda *given: again()

program = fw.compile(calling if kind == "function" else plain, **options)
for _ in range(3):
    np.testing.assert_allclose(program(X), plain(X), rtol=1e-5)
assert program.wait(30)
np.testing.assert_allclose(program(X), plain(X), rtol=1e-5)
assert answers
for answer in answers:
    if isinstance(answer, str):
        assert "while it is compiled" in answer, answer
    else:
        np.testing.assert_allclose(answer, plain(X), rtol=1e-5)
program.close()
print("right")
"""
CELLS = [
    ("function", "first"),
    ("progress", "first"),
    ("log", "first"),
    ("function", "measured"),
    ("progress", "measured"),
    ("warning", "level 0"),
]
# A call that makes an entry holds the lock of the program, and its thread waits for itself.
HANGING = {("function", "measured"), ("progress", "measured"), ("warning", "level 0")}
HANGS = pytest.mark.xfail(strict=True, reason="it waits for itself: the lock is its own")


@pytest.fixture(scope="module")
def processes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[tuple[str, str], subprocess.Popen[str]]]:
    """Run all cells at once: those that hang take no time of others."""
    started = {}
    for cell in CELLS:
        limit = SHORT if cell in HANGING else LIMIT
        started[cell] = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SCRIPT, *cell, str(limit)],
            env=environment(tmp_path_factory.mktemp("own")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("kind", "way"),
    [pytest.param(*cell, marks=HANGS) if cell in HANGING else cell for cell in CELLS],
)
def test_program_that_is_called_from_inside_answers(
    kind: str, way: str, processes: dict[tuple[str, str], subprocess.Popen[str]]
) -> None:
    out, error = processes[kind, way].communicate(timeout=2 * LIMIT)
    assert out == "right\n", error
