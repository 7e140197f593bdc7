"""Forks and ends of a process with a program in every state.

Engines after a fork are in test_fork.py, and sizes that are fitted while a process ends in
tests/plan/test_fitting.py. One process forks in all states, and another one forks for each end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.program.states import STATES, environment

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
# Seconds after which what hangs says where, and ends: nothing else takes as long.
LIMIT = 120
# What both scripts begin with: programs of the registry of all, which has few engines.
BEGIN = """
import faulthandler, gc, json, os, signal, sys
from contextlib import ExitStack
from pathlib import Path
from fusewire.background import process
from fusewire.registry import REGISTRY
from tests.comparers import comparers, is_running
from tests.program import states

folder, limit, cells = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])

def engines(**others):
    for name in REGISTRY.backends.names():
        if name != "reference":
            REGISTRY.unregister(name)
    for name, reference in others.items():
        REGISTRY.register(reference, name)
    # A program with a registry of its own is not made again after a fork.
    return None

def watched():
    # A signal: a thread would not be there in a forked process, and waited for at its end.
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(limit)

states.engines, states.ISOLATE = engines, "first"
process.PRIORITY = "normal"
"""
FORKS = """
def said_by(case):
    case.call()
    # What was under way belongs to the parent.
    word = "right" if case.program.wait(0) == (case.program.state == "settled") else "odd"
    case.program = None
    gc.collect()
    return word

for kind, state in cells:
    watched()
    with states.in_state(state, states.Source(kind, folder)) as case:
        case.call()
        running, word = comparers(), case.program.state
        read, write = os.pipe()
        if not (child := os.fork()):
            watched()
            try:
                said = said_by(case)
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(write, said.encode())
            # It ends as any process does, and takes all that it was given along.
            sys.exit()
        os.close(write)
        said = os.read(read, 4096).decode()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        case.call()
        ended = [pid for pid in running if not is_running(pid)]
        print(json.dumps([said, code, ended, case.program.state == word]), flush=True)

# In the midst of a call of the function, both go on.
watched()
source, children = states.Source("function", folder), []
with states.in_state("waiting", source) as case:

    def fork():
        if not children:
            children.append(os.fork())

    source.during.append(fork)
    case.call()
    if not children[0]:
        watched()
        case.call()
        os._exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
    case.call()
    print(json.dumps([code, case.program.state]))
"""
EXITS = """
for number, (kind, state, way) in enumerate(cells, 2):
    read, write = os.pipe()
    if not (child := os.fork()):
        watched()
        os.dup2(write, 2)
        stack = ExitStack()
        # A number each: what one of them records, another would recall.
        source = states.Source(kind, folder, number)
        case = stack.enter_context(states.in_state(state, source))
        if way == "called":
            case.call()
        # It ends here, with all that is under way.
        break
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([code, said, comparers()]), flush=True)
"""
# Who makes an engine compile for ever, or has slow ones come late, needs no function.
LONG = ("comparing", "late", "late comparing")
FORKED = [("graph", state) for state in STATES]
FORKED += [("function", "serving"), ("function", "waiting")]
MIDST = ("function", "in the midst of a call")
ENDED = [("function", state, "called") for state in ("undecided", "serving", "waiting", "settled")]
ENDED += [("graph", state, "called") for state in LONG]
ENDED += [("graph", "serving", "not called"), ("file", "waiting", "called")]


class Rows:
    """What a process prints of each cell, in their order."""

    def __init__(self, script: str, cells: list[Any], extra: list[Any], folder: Path) -> None:
        command = [sys.executable, "-c", BEGIN + script, str(folder), str(LIMIT), json.dumps(cells)]
        done = subprocess.run(
            command,
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=LIMIT * 5,
        )
        rows = map(json.loads, done.stdout.splitlines())
        self._rows = dict(zip([*cells, *extra], rows, strict=False))
        self._error = f"{done.returncode}: {done.stderr}"

    def row(self, cell: Any) -> Any:
        # After a cell that hangs, there are no others.
        assert cell in self._rows, self._error
        return self._rows[cell]


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Fork with a program of each source in each state."""
    return Rows(FORKS, FORKED, [MIDST], tmp_path_factory.mktemp("forks"))


@pytest.fixture(scope="module")
def exits(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """End a process with a program in each state."""
    return Rows(EXITS, ENDED, [], tmp_path_factory.mktemp("exits"))


@pytest.mark.parametrize("cell", FORKED, ids=" ".join)
def test_forked_process_answers_and_leaves_its_parent_alone(forks: Rows, cell: Any) -> None:
    said, code, ended, is_same = forks.row(cell)
    assert (said, code) == ("right", 0)
    assert not ended
    assert is_same


def test_function_may_fork_in_the_midst_of_a_call(forks: Rows) -> None:
    assert forks.row(MIDST) == [7, "comparing"]


@pytest.mark.parametrize("cell", ENDED, ids=" ".join)
def test_process_ends_quietly_in_every_state(exits: Rows, cell: Any) -> None:
    code, said, left = exits.row(cell)
    assert (code, said) == (0, "")
    assert not left
