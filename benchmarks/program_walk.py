"""Does any order of calls, searches, profiles, forks and ends break a program, or hang?

    python benchmarks/program_walk.py --seconds 3600 --delays 2>walk.log
    python benchmarks/program_walk.py --steps 100 --seed 7

Takes random steps, from a seed, among a few programs of functions, graphs and files: it compiles,
calls in every form and from several threads, asks for plans and states, begins and ends profiles,
interrupts functions, forks, collects garbage, copies, closes and drops. Now and then comparisons
have to wait for their turn, decisions are recorded beside programs that serve, and slow compilers
come late. Every answer is checked, a state never falls back from "settled" for the signatures that
it was said of, a closed program refuses, and nothing is left running at the end. Standard error has
every step before it is taken; a step that takes minutes is the end, with the stacks of all threads.
The same seed takes the same steps; what runs behind them has times of its own. ``--delays`` has
functions of the package wait for some milliseconds, now and then, in every thread: what is between
two locks takes long. Exit 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import gc
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

import fusewire as fw
from fusewire.errors import GraphError
from tests.comparers import comparers
from tests.program.calls import FORMS
from tests.program.states import SLOW, SOURCES, Source, X, engines, eventually, held_turn

# How long a step may take, in seconds: only what hangs takes as long, even on cores that are busy.
LIMIT = 600.0
# How long closing a program may take, which waits for nobody.
MOMENT = 10.0
# Seconds of a comparison, and how many programs there are at a time.
BUDGET, MOST = 0.3, 4
# How often a function waits with ``--delays``, and for how many seconds at most.
RARE, DELAY = 0.002, 0.02


@dataclass(eq=False)
class Walked:
    """A program on the walk, and what it was seen to be."""

    program: Any
    source: Any
    registry: fw.Registry
    is_closed: bool = False
    was_settled: bool = False


@dataclass
class Walk:
    """A walk from a seed."""

    seed: int
    folder: Path
    programs: list[Walked] = field(default_factory=list)
    steps: Counter[str] = field(default_factory=Counter)
    turn: ExitStack = field(default_factory=ExitStack)
    profile: ExitStack | None = None
    is_held: bool = False

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def go(self, most: float, seconds: float) -> None:
        """Take so many steps, or for a time; each is told before it is taken."""
        end = time.monotonic() + seconds
        for number in count():
            if number >= most or time.monotonic() > end:
                break
            step = self.chance.choice(STEPS if self.programs else STEPS[:1])
            self.steps[step.__name__] += 1
            print(number, step.__name__, file=sys.stderr, flush=True)
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            step(self)
            faulthandler.cancel_dump_traceback_later()
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        self.end()
        faulthandler.cancel_dump_traceback_later()

    def any(self) -> Walked:
        return self.chance.choice(self.programs)

    def end(self) -> None:
        """Close everything; what runs behind programs ends with them."""
        self.turn.close()
        if self.profile is not None:
            self.profile.close()
        for walked in self.programs:
            walked.program.close()
        # Programs that were dropped in a circle are not closed before it is found.
        gc.collect()
        if not eventually(lambda: not comparers()):
            raise AssertionError("a comparison goes on behind programs that were closed")

    def answers(self, walked: Walked, call: Callable[[Any], Any]) -> None:
        """Make a call, and check the answer: a program that is closed refuses."""
        try:
            found = np.asarray(call(walked.program))
        except GraphError as error:
            if not (walked.is_closed and "is closed" in str(error)):
                raise
            return
        if walked.is_closed:
            raise AssertionError("a closed program answered")
        wanted = walked.source.expected
        if found.shape != X.shape or not np.allclose(found, wanted, rtol=1e-4):
            raise AssertionError(f"an answer is wrong: {found} in place of {wanted}")


def compiling(walk: Walk) -> None:
    """Compile a program, in place of the oldest if there are many."""
    source = Source(walk.chance.choice(SOURCES), walk.folder)
    registry = engines(**(SLOW if walk.chance.random() < 0.3 else {}))
    example = (X,) if walk.chance.random() < 0.6 else ()
    way: dict[str, Any] = walk.chance.choice([{}, {}, {}, {"level": 0}, {"start": "measured"}])
    program = source.compiled(*example, registry=registry, budget_seconds=BUDGET, **way)
    walk.programs.append(Walked(program, source, registry))
    if len(walk.programs) > MOST:
        oldest = walk.programs.pop(0)
        if walk.chance.random() < 0.5:
            oldest.program.close()


def calling(walk: Walk) -> None:
    """Call a program in some form."""
    form = walk.chance.choice([*FORMS, lambda program: program(X)])
    walk.answers(walk.any(), form)


def running(walk: Walk) -> None:
    """Ask for a result with its figures."""
    walk.answers(walk.any(), lambda program: program.run(X).outputs)


def submitting(walk: Walk) -> None:
    """Have a thread make the call."""
    walk.answers(walk.any(), lambda program: program.submit(X).result())


def crowding(walk: Walk) -> None:
    """Call a program from several threads."""
    walked = walk.any()

    def work() -> None:
        for _ in range(3):
            walk.answers(walked, lambda program: program(X))

    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(work) for _ in range(4)]:
            future.result()


def asking(walk: Walk) -> None:
    """Ask for the state; what was settled stays so."""
    walked = walk.any()
    state = walked.program.state
    if walked.was_settled and not walked.is_closed and state != "settled":
        raise AssertionError(f"it was settled, and is {state}")
    walked.was_settled = state == "settled" and bool(walked.program.signatures)


def waiting(walk: Walk) -> None:
    """Wait for a moment."""
    walk.any().program.wait(walk.chance.choice([0.0, 0.01, 0.5]))


def explaining(walk: Walk) -> None:
    """Ask for everything that explains a program."""
    walked = walk.any()
    str(walked.program), repr(walked.program), walked.program.signatures
    try:
        why, plan = walked.program.why(), walked.program.plan
    except GraphError:
        # It has no graph: nobody has called it, or it is closed.
        return
    str(why), len(plan.regions())


def recording(walk: Walk) -> None:
    """Record a decision beside a program that may serve."""
    walked = walk.any()
    walked.source.decide(walked.registry, budget_seconds=BUDGET)


def holding(walk: Walk) -> None:
    """Have comparisons wait for their turn, or no longer."""
    if walk.is_held:
        walk.turn.close()
        walk.is_held = False
    elif not any(walked.program.state == "comparing" for walked in walk.programs):
        walk.turn.enter_context(held_turn())
        walk.is_held = True


def profiling(walk: Walk) -> None:
    """Begin a profile, or end it."""
    if walk.profile is None:
        walk.profile = ExitStack()
        walk.profile.enter_context(fw.profile())
    else:
        walk.profile.close()
        walk.profile = None


def interrupting(walk: Walk) -> None:
    """Have a function raise in the midst of a call."""
    walked = walk.any()

    def interrupt() -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    walked.source.during.append(interrupt)
    try:
        walk.answers(walked, lambda program: program(X))
    except KeyboardInterrupt:
        pass
    finally:
        walked.source.during.clear()


def forking(walk: Walk) -> None:
    """Fork: the child may be refused, as engines with a registry are, and never hangs."""
    walked = walk.any()
    if not (child := os.fork()):
        # The watchdog is a thread of the parent.
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(int(LIMIT) // 2)
        code = 1
        try:
            for other in walk.programs:
                other.program.wait(0)
            walked.program(X)
            code = 0
        except GraphError:
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise AssertionError(f"a forked child ended with {code}")


def collecting(walk: Walk) -> None:
    """Collect garbage."""
    gc.collect()


def copying(walk: Walk) -> None:
    """Copy a program, or be told why not."""
    for copied in (copy.copy, pickle.dumps):
        try:
            copied(walk.any().program)
        except (TypeError, GraphError):
            continue


def closing(walk: Walk) -> None:
    """Close a program."""
    walked = walk.any()
    start = time.monotonic()
    walked.program.close()
    if (seconds := time.monotonic() - start) > MOMENT:
        raise AssertionError(f"closing took {seconds:.0f} seconds")
    walked.is_closed = True


def dropping(walk: Walk) -> None:
    """Forget a program."""
    walk.programs.remove(walk.any())


# The first is the one that needs no program.
STEPS: list[Callable[[Walk], None]] = [
    compiling,
    *[calling] * 6,
    *[running] * 2,
    submitting,
    crowding,
    *[asking] * 2,
    *[waiting] * 2,
    explaining,
    recording,
    holding,
    profiling,
    interrupting,
    forking,
    collecting,
    copying,
    closing,
    dropping,
]


def delay(chance: random.Random) -> None:
    """Have every thread wait, now and then, where it calls a function of the package."""
    package = str(Path(fw.__file__).parent)

    def wait(frame: Any, event: str, argument: object) -> None:
        is_rare = event == "call" and chance.random() < RARE
        if is_rare and frame.f_code.co_filename.startswith(package):
            time.sleep(chance.random() * DELAY)

    threading.setprofile(wait)
    sys.setprofile(wait)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--steps", type=int, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--delays", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.delays:
        delay(random.Random(given.seed))
    with tempfile.TemporaryDirectory(prefix="fusewire-walk-") as name:
        folder = Path(name)
        # Comparisons of others are not waited for, and what was recorded before decides nothing.
        os.environ |= {"XDG_RUNTIME_DIR": name, "FUSEWIRE_CACHE": str(folder / "cache")}
        walk = Walk(given.seed, folder)
        walk.go(given.steps, given.seconds)
    print(f"seed {given.seed}: {sum(walk.steps.values())} steps, nothing wrong")
    for step, taken in sorted(walk.steps.items()):
        print(f"  {step} {taken}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
