"""The program of a source that is called with values of its own library, such as a module.

For each structure of arguments it has a program on flat arrays. The source itself answers first,
and whenever an engine may not; what it takes to have an engine answer is done behind the calls.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, final, overload

from fusewire.contract.calling import Arguments, CallForm, Calling, Named, Restore, StateGuard
from fusewire.errors import FusewireError, GraphError, OptionsError, TraceError
from fusewire.ir.graph import Graph
from fusewire.plan.plan import FUNCTION, Plan
from fusewire.process.forks import without_forks
from fusewire.program.entry import Run, State
from fusewire.program.origin import PROGRAMS, Origin
from fusewire.program.program import Program, ProgramPort, Result
from fusewire.show.why import NodeWhy, Why

if TYPE_CHECKING:
    from concurrent.futures import Future

    from fusewire.show.plan_view import PlanView

LOG = logging.getLogger("fusewire")
# Takes the arguments of a call, by position and by name.
Answer: TypeAlias = Callable[[Arguments, Named], Any]
# Makes the program on flat arrays of what a form has as its source; the example may be empty.
Make: TypeAlias = Callable[[Any, Arguments], Program]
# The most keys of calls that a program keeps.
_KEPT = 4096
# Calls in which weights that changed must stay the same before engines get them: after the first
# change, and how many times as many after each further one.
_QUIET_CALLS, _QUIET_GROWTH = 2, 8


@dataclass(frozen=True)
class CallPolicy:
    """How a program treats calls that no engine can answer yet.

    With ``waits``, a call waits for the engine that it needs. With ``raises``, what keeps an engine
    from answering is raised; otherwise the source itself answers. Without ``compares``, nothing
    changes once an engine answers.
    """

    waits: bool = False
    raises: bool = False
    compares: bool = True


@dataclass(frozen=True, eq=False)
class _Call:
    """A call that an engine may answer."""

    key: Hashable
    form: CallForm
    arrays: Arguments
    arguments: Arguments
    named: Named


@dataclass(frozen=True, eq=False)
class _Request:
    """A call that an engine should answer from now on; its arrays are copies."""

    key: Hashable
    form: CallForm
    arrays: Arguments

    @staticmethod
    def of(call: _Call) -> _Request:
        """Copy what a call was given."""
        return _Request(call.key, call.form, tuple([array.copy() for array in call.arrays]))


@final
class _CallState:
    """What is known while the state of a source stays the same: its guard, and its programs.

    Engines are prepared once the state was the same for ``quiet_calls`` calls.
    """

    def __init__(self, calling: Calling, quiet_calls: int = 0) -> None:
        self._calling = calling
        self.quiet_calls = self._calls_left = quiet_calls
        self._lock = threading.Lock()
        self.guard: StateGuard | None = None
        self.programs: dict[CallForm, Program] = {}
        # Why no engine can answer calls of a form, or of a key.
        self.refused: dict[Hashable, str] = {}

    def is_quiet(self) -> bool:
        """Count a call; returns whether the state was the same for long enough."""
        if self._calls_left == 0:
            return True
        if self.guard is None or not self.guard.holds():
            self.guard, self._calls_left = self._calling.guard(), self.quiet_calls
            return False
        self._calls_left -= 1
        return self._calls_left == 0

    def program_of(self, form: CallForm, make: Callable[[CallForm], Program]) -> Program:
        """Return the program of a form; the state is noted before anything is read."""
        with self._lock:
            if self.guard is None:
                self.guard = self._calling.guard()
            if form not in self.programs:
                self.programs[form] = make(form)
            return self.programs[form]

    def refuse(self, request: _Request, problem: str) -> None:
        """Note that no engine can answer a call: no call of its form if none ever could."""
        with self._lock:
            program = self.programs.get(request.form)
            if program is None or not program.signatures:
                self.programs.pop(request.form, None)
                self.refused[request.form] = problem
            self.refused[request.key] = problem

    def close(self) -> None:
        """Close the programs; one that is making an entry is closed once it has."""
        for program in list(self.programs.values()):
            if program.is_busy:
                threading.Thread(target=program.close, daemon=True).start()
            else:
                program.close()


@final
class _EngineAnswer:
    """Answers calls of one key on an engine, as long as the state of the source is the same."""

    def __init__(
        self, program: ModuleProgram, guard: StateGuard, form: CallForm, run: Run, restore: Restore
    ) -> None:
        self._program = weakref.proxy(program)
        self._holds, self._arrays = guard.holds, form.arrays
        self._run, self._restore = run, restore

    @property
    def is_current(self) -> bool:
        """Whether the engine answers."""
        return self._holds()

    def __call__(self, arguments: Arguments, named: Named) -> Any:
        """Run the engine, or have the source answer."""
        if not self._holds():
            return self._program.answer_changed(arguments, named)
        try:
            arrays = self._arrays(arguments, named)
        except ValueError as error:
            return self._program.answer_odd(error, arguments, named)
        try:
            outputs = self._run(arrays)
        except (FusewireError, ValueError) as error:
            return self._program.answer_failed(error, arguments, named)
        return self._restore(outputs, arguments, named)


@final
@dataclass(frozen=True, eq=False)
class _CountedAnswer:
    """Has the source answer while engines are compared behind it: such calls are counted."""

    infer: Answer
    around: Callable[..., Any]

    def __call__(self, arguments: Arguments, named: Named) -> Any:
        """Have the source answer."""
        return self.around(self.infer, arguments, named)


@final
@dataclass(frozen=True)
class _Withdrawal:
    """Withdraws the answers of a program: one of its programs on arrays runs another plan now."""

    program: weakref.ref[ModuleProgram]

    def __call__(self) -> None:
        """Have the next calls look for what answers them."""
        program = self.program()
        if program is not None:
            program.withdraw()


@final
class ModuleProgram:
    """A compiled module; called as the module is, it returns what the module returns.

    Safe to call from several threads if the module is. Results are those of inference: they require
    no gradient, unless an argument does or the module is in training mode, when the module itself
    answers.
    """

    # What it was compiled from.
    origin: Origin | None = None
    # Cancels submitted calls that have not begun, once there were some.
    _cancel_submitted: Callable[[object], None] | None = None

    def __init__(self, calling: Calling, make: Make, policy: CallPolicy = CallPolicy()) -> None:
        self.name = calling.name
        self._calling, self._make, self._policy = calling, make, policy
        self._key = calling.key
        # What answers calls, by their keys: all that a call needs if nothing has changed.
        self._answers: dict[Hashable, Answer] = {}
        self._state = _CallState(calling)
        self._said: set[str] = set()
        self._lock = threading.RLock()
        self._waiting: deque[_Request] = deque()
        self._requested: set[Hashable] = set()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._is_closed = self._is_forked = False
        PROGRAMS.add(self)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call it as the module is called."""
        answer = self._answers.get(self._key(arguments, named))
        if answer is None:
            return self._answered(arguments, named)
        return answer(arguments, named)

    def key(self, arguments: Arguments, named: Named) -> Hashable:
        """Return what calls have in common that are answered in the same way."""
        return self._key(arguments, named)

    def answer(self, key: Hashable) -> Answer | None:
        """Return what answers calls of a key now; None if that must be looked for."""
        return self._answers.get(key)

    def is_source(self, answer: Answer) -> bool:
        """Tell whether an answer is that of the source itself, and nothing else is done."""
        return answer == self._calling.infer

    def _answered(self, arguments: Arguments, named: Named) -> Any:
        """Answer a call of a key that is new, or whose answer was withdrawn."""
        calling = self._calling
        self._check_open()
        problem = calling.mode()
        if self._is_forked:
            problem = "This process was forked, and engines do not survive that."
        if problem is not None:
            self._say(f"{problem} {self.name} itself answers.")
            return calling.call(arguments, named)
        if (problem := calling.refusal(arguments, named)) is not None:
            self._say(f"{problem} {self.name} itself answers.")
            return self._keep(self._key(arguments, named), calling.call)(arguments, named)
        if not self._state.is_quiet():
            self._say_changed()
            return calling.infer(arguments, named)
        form = calling.form(arguments, named)
        try:
            arrays = form.arrays(arguments, named)
        except ValueError as error:
            return self.answer_odd(error, arguments, named)
        call = _Call(self._key(arguments, named), form, arrays, arguments, named)
        if (answer := self._prepared(call)) is not None:
            return answer(arguments, named)
        return self._waited(call) if self._policy.waits else self._begun(call)

    def _waited(self, call: _Call) -> Any:
        """Wait for an engine, and have it answer."""
        infer = self._calling.infer
        try:
            self._prepare(_Request.of(call))
        except TraceError:
            # Arguments that the source itself refuses are no question of engines.
            infer(call.arguments, call.named)
            raise
        return (self._prepared(call) or infer)(call.arguments, call.named)

    def _begun(self, call: _Call) -> Any:
        """Have the source answer, and engines be prepared behind it."""
        calling = self._calling
        if call.key in self._requested:
            return calling.infer(call.arguments, call.named)
        # The call may write to its arguments.
        request = _Request.of(call)
        result = calling.infer(call.arguments, call.named)
        call.form.note(call.arguments, call.named, result)
        # A first call may show that it computes gradients itself.
        if calling.mode() is None:
            self._request(request)
        return result

    def _prepared(self, call: _Call) -> Answer | None:
        """Return what answers a call now, and have calls with its key find it; None if nothing."""
        with self._lock:
            state, infer = self._state, self._calling.infer
            if call.form in state.refused or call.key in state.refused:
                return self._keep(call.key, infer)
            program = state.programs.get(call.form)
            if program is None or not program.is_prepared(call.arrays):
                return None
            entry, run = program.prepared(call.arrays)
            if entry.backend == FUNCTION:
                counted = entry.serving and _CountedAnswer(infer, entry.serving.around)
                return self._keep(call.key, counted or infer)
            assert state.guard is not None, "it was noted before the program was made"
            try:
                restore = call.form.restorer(call.arguments, call.named)
            except TraceError as error:
                state.refused[call.form] = str(error)
                self._say(f"{error} {self.name} itself answers.")
                return self._keep(call.key, infer)
            return self._keep(call.key, _EngineAnswer(self, state.guard, call.form, run, restore))

    def _keep(self, key: Hashable, answer: Answer) -> Answer:
        if len(self._answers) >= _KEPT:
            self._answers.clear()
        self._answers[key] = answer
        return answer

    # What is done behind the calls.

    def _request(self, request: _Request) -> None:
        """Have a thread prepare an engine for a call."""
        with self._lock:
            if request.key in self._requested or self._is_closed:
                return
            self._requested.add(request.key)
            self._waiting.append(request)
            if not self._is_idle.is_set():
                return
            self._is_idle.clear()
        thread = threading.Thread(target=self._work, name="fusewire-module", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # There are too many threads, or the process ends: the call has its answer.
            self._say(f"Engines are not compared: {error}. {self.name} itself answers.")
            self._is_idle.set()

    def _work(self) -> None:
        """Prepare what is requested, one after the other."""
        try:
            while (request := self._next()) is not None:
                with without_forks():
                    self._prepare(request)
                with self._lock:
                    self._requested.discard(request.key)
        finally:
            self._is_idle.set()

    def _next(self) -> _Request | None:
        with self._lock:
            if self._waiting and not self._is_closed:
                return self._waiting.popleft()
            self._waiting.clear()
            # Whoever adds a request from now on starts another thread.
            self._is_idle.set()
            return None

    def _prepare(self, request: _Request) -> None:
        """Have the program of a form prepare the entry for a call, and compare engines."""
        state = self._state
        try:
            program = state.program_of(request.form, self._made)
            entry, _ = program.prepared(request.arrays)
        except FusewireError as error:
            if self._has_moved_on(state) or not threading.main_thread().is_alive():
                # Its weights changed meanwhile, or the process ends.
                return
            if self._policy.raises:
                raise
            state.refuse(request, str(error))
            self._say(f"{self.name} itself answers: {error}", logging.WARNING)
        else:
            if entry.serving is not None:
                # Begins, and does not wait.
                entry.serving.wait(0)
        self._answers.clear()

    def _made(self, form: CallForm, example: Arguments = ()) -> Program:
        program = self._make(form.source, example)
        program.changed = _Withdrawal(weakref.ref(self))
        return program

    def prepare_example(self, arguments: Arguments) -> None:
        """Prepare for calls like an example, whose tensors may be Specs."""
        form = self._calling.form(arguments, {})
        leaves = form.arrays(arguments, {})
        if any(hasattr(leaf, "type") for leaf in leaves):
            self._state.program_of(form, lambda form: self._made(form, leaves))
            return
        key = self._key(arguments, {})
        request = _Request(key, form, tuple([array.copy() for array in leaves]))
        if self._policy.waits:
            self._prepare(request)
        else:
            self._request(request)

    # What the answers need.

    def withdraw(self) -> None:
        """Have the next calls look for what answers them."""
        self._answers.clear()

    def answer_changed(self, arguments: Arguments, named: Named) -> Any:
        """Answer a call for which the source has another state than the engines."""
        self._has_moved_on(self._state)
        return self._answered(arguments, named)

    def _has_moved_on(self, state: _CallState) -> bool:
        """Tell whether a state is no longer that of the source; its engines are let go then."""
        with self._lock:
            guard = state.guard
            if state is not self._state:
                return True
            if guard is None or guard.holds() or guard.is_passing():
                return False
            calls = max(state.quiet_calls * _QUIET_GROWTH, _QUIET_CALLS)
            self._state = _CallState(self._calling, calls)
            self._answers.clear()
            state.close()
            return True

    def answer_odd(self, error: Exception, arguments: Arguments, named: Named) -> Any:
        """Have the source answer a call whose arguments no engine can take."""
        self._say(f"{error} {self.name} itself answers.")
        return self._calling.infer(arguments, named)

    def answer_failed(self, error: Exception, arguments: Arguments, named: Named) -> Any:
        """Have the source answer what an engine could not, or raise."""
        if self._policy.raises or isinstance(error, OptionsError):
            raise error
        self._say(f"{error} {self.name} itself answered.")
        return self._calling.infer(arguments, named)

    def _say_changed(self) -> None:
        self._say(
            f"The state of {self.name} has changed, and it answers itself. Engines get the new "
            f"weights once they stay the same for {self._state.quiet_calls} calls."
        )

    def _say(self, sentence: str, level: int = logging.INFO) -> None:
        """Log a sentence once."""
        if sentence not in self._said:
            self._said.add(sentence)
            LOG.log(level, "%s", sentence)

    def _check_open(self) -> None:
        if self._is_closed:
            raise GraphError(f"The program {self.name} is closed. Compile it again.")

    # What a user may ask.

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        """Have a thread make a call; returns a future at once, as ``Program.submit`` does.

        What the first call takes to compile is done there, too.
        """
        from fusewire.program.submitting import QUEUES

        self._check_open()
        self._cancel_submitted = QUEUES.cancel
        return QUEUES.of(self._device).submit(self, self, arguments, named)

    async def acall(self, *arguments: Any, **named: Any) -> Any:
        """Call it from a coroutine: as ``submit``, and the event loop goes on meanwhile."""
        from fusewire.program.submitting import awaited

        return await awaited(self, arguments, named)

    def submits_at_once(self, arguments: Arguments, named: Named) -> bool:
        """Tell whether to submit a call takes no time: there is room."""
        from fusewire.program.submitting import QUEUES

        return not QUEUES.of(self._device).is_full

    @property
    def _device(self) -> str:
        """The device that submitted calls wait for: the first that is not the processor."""
        programs = list(self._state.programs.values())
        entries = [entry for program in programs for entry in program.all_entries()]
        devices = [entry.device for entry in entries if entry.decide is None]
        return next((device for device in devices if device != "cpu"), "cpu")

    def run(self, *arguments: Any, **named: Any) -> Result:
        """Run, and report the outputs by name too, the time, the bytes, and what ran."""
        start = time.perf_counter()
        result = self(*arguments, **named)
        seconds = time.perf_counter() - start
        by_name = self._calling.results(result)
        size = sum(x.nbytes for x in by_name.values())
        answer = self._answers.get(self._key(arguments, named))
        about: dict[str, Any] = {"backend": FUNCTION}
        if isinstance(answer, _EngineAnswer) and answer.is_current:
            program = self._latest()
            about = {"backend": program.why().backend, "nodes": len(program.graph.nodes)}
        return Result(result, by_name, seconds, size, about)

    @property
    def options(self) -> Any:
        """The options that it was compiled with, as ``Options``; None if it was not compiled."""
        return self.origin and self.origin.options

    @property
    def state(self) -> State:
        """How far the program is: "serving-first", "comparing" or "settled", as of a Program."""
        if not self._policy.compares:
            return "settled"
        if not self._is_idle.is_set():
            return "serving-first"
        state = self._state
        states = {program.state for program in state.programs.values()}
        if "comparing" in states:
            return "comparing"
        is_new = not state.programs and not state.refused
        return "serving-first" if is_new or "serving-first" in states else "settled"

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the program is settled; returns whether it is.

        Waits for what has been called so far, at most ``timeout`` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        self._is_idle.wait(timeout)
        for program in list(self._state.programs.values()):
            program.wait(None if end is None else max(end - time.monotonic(), 0.0))
        return self.state == "settled"

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        weights: bool = False,
        key: str | os.PathLike[str] | None = None,
        generation: int = 0,
        expires: int | None = None,
    ) -> tuple[str, ...]:
        """Write it to a bundle, as ``Program.save`` does.

        What ``fw.open`` makes of it takes and returns arrays, as ``inputs`` and ``outputs`` list
        them. The weights are the module's own, so that they are saved with it: ``weights=True``.
        """
        self._check_open()
        self.wait()
        state, origin = self._state, self.origin
        if origin is None or origin.save is None:
            raise GraphError(f"The program {self.name} was not made by fw.compile.")
        if len(state.programs) > 1:
            raise GraphError(
                f"{self.name} was called with {len(state.programs)} structures of arguments, and a "
                "bundle has one program. Compile it again, and call it in one way."
            )
        program = self._latest()
        if state.guard is None or not state.guard.holds():
            raise GraphError(
                f"{self.name} has changed since it was last called. Call it, then program.wait()."
            )
        how = {"weights": weights, "key": key, "generation": generation, "expires": expires}
        return origin.save(program, path, origin.options, origin.source, how)

    def _latest(self) -> Program:
        """Return the program that was made last."""
        if programs := list(self._state.programs.values()):
            return programs[-1]
        if refused := list(self._state.refused.values()):
            raise GraphError(f"{self.name} has no graph: it answers itself. {refused[-1]}")
        raise GraphError(
            f"The program {self.name} has no graph yet: it has not been called, or is being read. "
            "Call it, then program.wait(), or give an example to fw.compile."
        )

    @property
    def inputs(self) -> tuple[ProgramPort, ...]:
        """Name, dtype and shape of every tensor that it takes; for the latest structure."""
        return self._latest().inputs

    @property
    def outputs(self) -> tuple[ProgramPort, ...]:
        """Name, dtype and shape of every tensor that it returns; for the latest structure."""
        return self._latest().outputs

    @property
    def graph(self) -> Graph:
        """The graph of the latest structure of arguments."""
        return self._latest().graph

    @property
    def plan(self) -> Plan:
        """Which region runs where; for the latest structure of arguments."""
        return self._latest().plan

    @overload
    def why(self) -> Why: ...

    @overload
    def why(self, node: int | str) -> NodeWhy: ...

    def why(self, node: int | str | None = None) -> Why | NodeWhy:
        """Explain why the program, or one node of ``plan.graph`` by its place, runs as it does."""
        return self._latest().why() if node is None else self._latest().why(node)

    def explain(self, *arguments: Any, **named: Any) -> PlanView:
        """Return the plan in a form to look at, as ``Program.explain`` does."""
        if not arguments and not named:
            return self._latest().explain()
        self.wait()
        form = self._calling.form(arguments, named)
        program = self._state.programs.get(form, self._latest())
        return program.explain(*form.arrays(arguments, named))

    def to_torch(self) -> Any:
        """Return a torch.nn.Module that runs this program."""
        from fusewire.registry import REGISTRY

        return REGISTRY.frontends.get("torch").wrapped(self, self.name, takes_arrays=False)

    @property
    def signatures(self) -> list[str]:
        """The types of the tensors of every entry so far."""
        programs = list(self._state.programs.values())
        return [signature for program in programs for signature in program.signatures]

    def __repr__(self) -> str:
        if self._state.refused and not self._state.programs:
            return f"<Program {self.name}: answers itself>"
        if not self._state.programs:
            return f"<Program {self.name}: not called yet>"
        return repr(self._latest())

    def __str__(self) -> str:
        if not self._state.programs:
            return repr(self)
        from fusewire.program.description import program_text

        return program_text(self)

    def _repr_html_(self) -> str:
        """Show inputs, outputs and where it runs in a notebook."""
        from fusewire.program.description import program_html

        return program_html(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse: a pickle of a program names its source, and this one's has no name."""
        raise TypeError(
            f"The program {self.name} cannot be pickled or copied: its source is an object of this "
            "process. Compile the module in each process, which the cache makes quick; threads may "
            "share one program."
        )

    def abandon(self) -> Any:
        """Let go of all engines after a fork, and return them: closing them could hang."""
        engines = self._state, self._answers, self._waiting, self._lock, self._is_idle
        self._state, self._answers = _CallState(self._calling), {}
        self._waiting, self._requested = deque(), set()
        self._lock, self._is_idle = threading.RLock(), threading.Event()
        self._is_idle.set()
        self._is_forked = True
        return engines

    def close(self) -> None:
        """Close all engines, and cancel submitted calls that have not begun.

        Calling the program afterwards is an error.
        """
        with self._lock:
            self._is_closed = True
            self._answers.clear()
            self._state.close()
        if self._cancel_submitted is not None:
            self._cancel_submitted(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
