"""The one frozen object that says how to compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import Parameter, Signature, signature
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, get_args

from fusewire.contract.backend import Config, Fact
from fusewire.errors import IsolationError, OptionsError
from fusewire.ops.limits import RunLimits
from fusewire.process.limits import ChildLimits

# What to do with nodes that a backend refuses.
Fallback = Literal["error", "warn", "allow"]
# When the engines are compared: behind the first calls, or before the first answer.
Start = Literal["now", "measured"]
# Which NaN and infinities no engine may lose: those of inputs, or also those that arise inside.
Nan = Literal["inputs", "exact"]
# When engines run in a child process; True is "first", False is "never".
Isolation = Literal["first", "always", "never"]
# The backend that runs every graph and is always installed.
FALLBACK = "reference"
# A budget of so many seconds has time for engines that compile for half a minute.
LONG_BUDGET = 90.0
# The budget of a search for such engines behind a program that is settled.
LATE_BUDGET = 120.0


@dataclass(frozen=True)
class ForDevice:
    """Prefer backends that run on a device: ``ForDevice("webgpu:0")`` or a kind of device."""

    device: str


@dataclass(frozen=True)
class FirstWith:
    """Prefer the first backend that takes all of these ops whole.

    With ``capabilities``, it must also hold these flags of ``capability.FLAGS``.
    """

    ops: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


# A name, several in order, "auto", one of the policies above, or a function from targets and a
# graph to a target.
Chooser: TypeAlias = Callable[[Sequence[Any], Any], Any]
Policy: TypeAlias = "str | Sequence[str] | ForDevice | FirstWith | Chooser"

# A function of the right outputs and of those of a candidate: it returns whether they will do, or
# a score if it comes with the least score that will do.
Acceptance: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], Any]
# "exact" for the model's own dtypes, a bound on the relative error of each output, or a function.
Accuracy: TypeAlias = "Literal['exact'] | float | Acceptance | tuple[Acceptance, float]"
EXACT: Literal["exact"] = "exact"

# The unit of each numeric option, and its smallest meaningful value.
_LEAST = (
    ("budget_seconds", 0, "seconds"),
    ("canary", 0, "a number of calls"),
    ("deadline", 0.001, "seconds"),
    ("memory_limit", 1, "bytes"),
    ("max_crossings", 0, "a number of tensors"),
    ("max_fallback_share", 0, "a share of the time, such as 0.01"),
    ("seed", 0, "a number"),
    ("threads", 1, "a number of threads"),
)


# What decides how a saved program runs; the rest is about this process.
BUNDLED = (
    "backend",
    "device",
    "level",
    "fallback",
    "max_crossings",
    "max_fallback_share",
    "budget_seconds",
    "accuracy",
    "nan",
    "threads",
    "memory_limit",
    "deterministic",
    "cast",
    "backend_config",
)


@dataclass(frozen=True)
class Options:
    """How to compile.

    ``backend`` is a name, "auto", several names in order, or a policy: ``ForDevice``, ``FirstWith``
    or a function that picks a target. Of several names, the first that takes a node runs it;
    ``device`` and ``backend_config`` are for the first. ``level`` 0 measures nothing; 1 compares
    the engines within ``budget_seconds`` and takes the fastest right one, which "auto" does and a
    named backend does only if asked to; 2 also compares engines that compile for long, and every
    form of all; 3 also tunes kernels, on backends that allow it; "recall" uses the plan that an
    earlier process settled on, or raises NotRecalledError. With
    ``start="now"`` the first call is answered at once, by what is quickest to start, and the
    engines are compared behind it; with "measured" it waits for the comparison. ``deterministic``
    waits too: its answers come from one plan. ``fallback`` decides what happens to nodes that all
    named backends refuse: "error" raises, "warn" and "allow" run them on the reference, unless more
    than ``max_crossings`` tensors would cross between backends: then all of it runs there. With
    ``max_fallback_share``, a plan that is measured to spend more than this share of its time
    outside of the backends that were asked for is refused, and the first call waits for the
    measurement.
    ``accuracy`` is "exact" to compute in the model's own dtypes; a bound on the error of each
    output, or a function that accepts outputs, lets the comparison use reduced precision where that
    is faster. Level 0 stays exact. ``calibrate`` has samples of inputs, as a sequence of tuples or
    dicts of arrays or an .npz file: with them int8 with fixed scales takes part, and reduced
    precision is judged on half of them. A digest, "sha256:...", recalls what was decided with them.
    An engine compiles and runs each region first in a child process,
    unless ``isolate`` is "never"; a region that crashes there, takes longer than ``deadline``
    seconds, or needs more than
    ``memory_limit`` bytes (None: a quarter of the machine's memory, besides weights) counts as
    refused. With "always" it stays in a child, so that every call has these limits. The same limits
    hold for what the host runs of each call: sizes and rounds that values decide, the fallback, and
    the checks of answers; beyond them, a call raises BudgetError. An engine in this process is not
    asked for sizes beyond ``memory_limit`` that an earlier step found, but it is not timed.
    Artifacts, plans and measurements are recorded, unless ``cache`` is off; what is missing there
    is asked of ``remote``, a store that machines share. One call in ``canary`` is checked again
    while the program runs; 0 checks none. With ``cast="same_kind"``, arrays of another dtype of the
    same kind are cast to that of the input. ``seed`` is the seed for generated inputs.
    ``backend_config`` holds the backend's own options. ``progress`` is called with the current step
    and the share of the budget that is used.
    """

    backend: Policy = "auto"
    device: str | None = None
    level: int | Literal["recall"] | None = None
    fallback: Fallback = "warn"
    max_crossings: int | None = None
    max_fallback_share: float | None = None
    budget_seconds: float = 20.0
    accuracy: Accuracy = EXACT
    nan: Nan = "inputs"
    calibrate: Any = None
    threads: int | None = None
    memory_limit: int | None = None
    deadline: float = 60.0
    isolate: bool | Isolation = "first"
    cache: bool = True
    remote: str | None = None
    deterministic: bool = False
    canary: int = 0
    seed: int = 0
    start: Start = "now"
    cast: Literal["same_kind"] | None = None
    backend_config: Mapping[str, Fact] = field(default_factory=dict)
    progress: Callable[[str, float], None] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.level not in (None, 0, 1, 2, 3, "recall"):
            raise OptionsError(f"level={self.level!r}: levels are 0, 1, 2, 3 and 'recall'.")
        if self.start not in get_args(Start):
            raise OptionsError(f"start={self.start!r}: give 'now' or 'measured'.")
        if self.fallback not in ("error", "warn", "allow"):
            raise OptionsError(f"fallback={self.fallback!r}: give 'error', 'warn' or 'allow'.")
        if self.isolate not in (True, False, *get_args(Isolation)):
            raise OptionsError(
                f"isolate={self.isolate!r}: give 'first', 'always' or 'never'; True is 'first', "
                "False is 'never'."
            )
        if isinstance(self.isolate, bool):
            object.__setattr__(self, "isolate", "first" if self.isolate else "never")
        if self.isolate == "always":
            _check_isolation()
        self._settle_backend()
        _check_config(self.backend_config)
        if self.backend == FALLBACK:
            self.config.checked(FALLBACK, ())
        _check_accuracy(self.accuracy)
        if self.calibrate is not None:
            from fusewire.calibration import Calibration

            object.__setattr__(self, "calibrate", Calibration.of(self.calibrate))
        self._check_nan()
        if self.cast not in (None, "same_kind"):
            raise OptionsError(f"cast={self.cast!r}: give 'same_kind', or None to refuse casts.")
        for name, least, unit in _LEAST:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value >= least):
                raise OptionsError(f"{name}={value!r}: give {unit}, at least {least}.")
        self._check_share()

    def _check_nan(self) -> None:
        """Raise OptionsError for an unknown promise, or one that the backend's options break."""
        if self.nan not in get_args(Nan):
            raise OptionsError(f"nan={self.nan!r}: give 'inputs' or 'exact'.")
        if self.keeps_nan and self.config.loses_nan:
            raise OptionsError(
                "nan='exact': backend_config asks for the engine's own nodes or for int8, which "
                "may lose NaN. Leave one of them out."
            )

    def _check_share(self) -> None:
        """Raise OptionsError for a share of the time that is none, or that nobody would measure."""
        share = self.max_fallback_share
        if share is None:
            return
        asked = f"max_fallback_share={share!r}"
        if not share < 1:
            raise OptionsError(f"{asked}: give a share of the time below 1, such as 0.01.")
        if self.level == 0 or self.budget_seconds == 0:
            raise OptionsError(
                f"{asked}: level=0 and a budget of 0 s measure no times. Leave the level out, or "
                "give fallback='error' to allow none at all."
            )

    def _settle_backend(self) -> None:
        """Check the backend; of a list, leave a tuple of two names or more, or the only one."""
        if isinstance(self.backend, list | tuple):
            names = _checked_order(self.backend)
            if len(names) > 1 and names[-1] == FALLBACK:
                # Whoever lists it allows it.
                names = names[:-1]
                object.__setattr__(self, "fallback", "allow")
            object.__setattr__(self, "backend", names if len(names) > 1 else names[0])
        elif not (isinstance(self.backend, str | ForDevice | FirstWith) or callable(self.backend)):
            raise OptionsError(
                f"backend={self.backend!r}: give a name, a list of names, 'auto' or a policy."
            )

    @staticmethod
    def of(options: Options | None, given: Mapping[str, Any]) -> Options:
        """Change some options; OptionsError for an unknown one."""
        known = [field.name for field in fields(Options)]
        if unknown := sorted(set(given) - set(known)):
            raise OptionsError(
                f"Unknown option: {', '.join(unknown)}. Options: {', '.join(known)}."
            )
        return replace(options or Options(), **given)

    @property
    def backend_names(self) -> tuple[str, ...]:
        """The named backends, in order; empty where a policy chooses."""
        if isinstance(self.backend, tuple):
            return self.backend
        is_name = isinstance(self.backend, str) and self.backend != "auto"
        return (str(self.backend),) if is_name else ()

    @property
    def measures_first(self) -> bool:
        """Whether the first call waits for the comparison; one plan gives all answers then."""
        is_limited = self.max_fallback_share is not None
        # Without the samples there is nothing to compare with, and what was decided is recalled.
        is_named = self.calibrate is not None and not self.calibrate.is_at_hand
        return self.start == "measured" or self.deterministic or is_limited or is_named

    @property
    def is_exact(self) -> bool:
        """Whether engines compute in the model's own dtypes."""
        return isinstance(self.accuracy, str)

    @property
    def keeps_nan(self) -> bool:
        """Whether a NaN or an infinity that arises inside may not be lost either."""
        return self.nan == "exact"

    @property
    def compares_slow_engines(self) -> bool:
        """Whether a comparison includes engines that compile for long."""
        return self.level in (2, 3) or self.budget_seconds >= LONG_BUDGET

    @property
    def has_children(self) -> bool:
        """Whether engines are met in child processes."""
        return self.isolate != "never"

    @property
    def limits(self) -> ChildLimits:
        """The limits of child processes."""
        return ChildLimits(self.deadline, self.memory_limit)

    @property
    def run_limits(self) -> RunLimits:
        """The limits of a call, for what the interpreter runs of it."""
        return self.limits.run_limits

    @property
    def config(self) -> Config:
        """The settings that a backend sees."""
        return Config(self.threads, self.memory_limit, self.deterministic, self.backend_config)

    def report(self, what: str, share: float) -> None:
        """Say what is being done."""
        if self.progress is not None:
            self.progress(what, min(max(share, 0.0), 1.0))


def _check_isolation() -> None:
    """Refuse to keep engines in children where there can be none."""
    from fusewire.process.guarantees import isolation_problem

    if (problem := isolation_problem()) is not None:
        raise IsolationError(
            f"{problem} Pass isolate='first', or run Linux in a container or virtual machine."
        )


def _check_config(config: object) -> None:
    """Raise OptionsError for what cannot be options of a backend; it says which ones it has."""
    how = "give names with words, numbers or tuples of these, as backend_config={'spinning': False}"
    if not isinstance(config, Mapping):
        raise OptionsError(f"backend_config={config!r}: {how}.")
    for name, value in config.items():
        parts = value if isinstance(value, tuple) else (value,)
        if not isinstance(name, str) or not all(isinstance(x, str | int | float) for x in parts):
            raise OptionsError(f"backend_config={config!r}: {how}, for the backend that is named.")


def _check_accuracy(accuracy: object) -> None:
    """Raise OptionsError for what is neither "exact" nor a bound nor a function."""
    asked = f"accuracy={accuracy!r}"
    if isinstance(accuracy, tuple):
        is_good = len(accuracy) == 2 and callable(accuracy[0]) and _is_number(accuracy[1])
        if not is_good:
            raise OptionsError(f"{asked}: a pair is a function and the least score that will do.")
    elif _is_number(accuracy):
        if not 0 < accuracy < 1:  # type: ignore[operator]  # it is a number
            raise OptionsError(
                f"{asked}: a bound on the relative error is above 0 and below 1, such as 1e-2. "
                "Give 'exact' for the model's own dtypes."
            )
    elif accuracy != EXACT and not callable(accuracy):
        raise OptionsError(
            f"{asked}: give 'exact', a bound such as 1e-2, or a function that takes the right "
            "outputs and those to check, and returns whether they will do."
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked_order(names: Sequence[Any]) -> tuple[str, ...]:
    """Return a list of backends as a tuple; OptionsError if it is not an order."""
    asked = f"backend={list(names)!r}"
    if not names:
        raise OptionsError(f"{asked}: the list is empty. Name a backend, or give 'auto'.")
    if not all(isinstance(name, str) for name in names):
        raise OptionsError(f"{asked}: a list has names of backends.")
    if "auto" in names:
        raise OptionsError(f"{asked}: 'auto' stands alone, since it chooses among all backends.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise OptionsError(f"{asked}: {', '.join(twice)} is listed twice. Name each backend once.")
    if FALLBACK in names[:-1]:
        raise OptionsError(
            f"{asked}: {FALLBACK} takes every node, so that nothing is left for the backends after "
            "it. Put it last, or leave it out."
        )
    return tuple(names)


_WIDTH = 95
# One sentence for each option: `help(fw.compile)` and the documentation show these.
MEANINGS = {
    "backend": 'a name, "auto" for the fastest right engine, several names in order, or a policy:'
    " `ForDevice`, `FirstWith`, or a function that picks a target",
    "device": "a device of the engine, such as cpu or webgpu:0; None takes the engine's first; of"
    " several backends, the first must have it",
    "level": '0 measures nothing; 1 compares engines, which "auto" does; 2 also compares those that'
    " compile for long, and every form; 3 also tunes kernels;"
    ' "recall" uses what an earlier process settled on, or raises',
    "fallback": "what to do with nodes that the engines refuse: run them on the reference and warn,"
    ' "allow" it silently, or raise an "error"',
    "max_crossings": "the most tensors that may cross between backends; beyond it, everything runs"
    " on the reference",
    "max_fallback_share": "the share of a plan's measured time, such as 0.01, that may be spent"
    " outside of the backends asked for; a plan beyond it is refused",
    "budget_seconds": "the time that a comparison of engines may take; from 90 s on, it includes"
    " engines that compile for half a minute",
    "accuracy": '"exact" computes in the model\'s own dtypes; a bound such as 1e-2 on the relative'
    " error of each output, or a function that accepts outputs, allows less where that is faster",
    "nan": '"inputs" keeps each NaN and infinity of an input, where an engine may lose one that'
    ' arises inside of its own forms of ops; "exact" forbids such forms, on every engine',
    "calibrate": "samples of inputs, each a tuple of arrays or a dict by name, or an .npz file with"
    " samples along the first axis; int8 is calibrated on half of them, and reduced precision is"
    " judged on the others",
    "threads": "the number of threads that an engine may use; None leaves it to the engine",
    "memory_limit": "bytes that an engine, or the host during a call, may use besides weights; None"
    " is a quarter of the machine's memory",
    "deadline": "seconds that an engine may take for the first compilation and run, and the host"
    " for its part of a call",
    "isolate": 'which calls of an engine run in a child process: the "first", which is tried'
    ' there, "always", or "never"',
    "cache": "keep artifacts, plans and measurements for the next process",
    "remote": "the store that machines share, asked for what this one has not recorded: s3://, gs://,"
    " az:// or a folder; None takes that of FUSEWIRE_REMOTE",
    "deterministic": "ask engines for the same bits in every run, and keep one plan from the first"
    " answer on",
    "canary": "check one call in so many again while the program runs; 0 checks none",
    "seed": "the seed for generated inputs",
    "start": '"now" answers the first call at once and compares engines behind it; "measured" waits'
    " for the comparison",
    "cast": '"same_kind" casts arrays of another dtype of the same kind to that of the input; None'
    " refuses them",
    "backend_config": "options of the backend's own; of several, those of the first",
    "progress": "a function that is called with the current step and the share of the budget used",
}


class OptionFields(TypedDict, total=False):
    """The options as keywords, for type checkers and editors; a test compares it with Options."""

    backend: Policy
    device: str | None
    level: int | Literal["recall"] | None
    fallback: Fallback
    max_crossings: int | None
    max_fallback_share: float | None
    budget_seconds: float
    accuracy: Accuracy
    nan: Nan
    calibrate: Any
    threads: int | None
    memory_limit: int | None
    deadline: float
    isolate: bool | Isolation
    cache: bool
    remote: str | None
    deterministic: bool
    canary: int
    seed: int
    start: Start
    cast: Literal["same_kind"] | None
    backend_config: Mapping[str, Fact]
    progress: Callable[[str, float], None] | None


Function = TypeVar("Function", bound=Callable[..., Any])


def documented(function: Function) -> Function:
    """Give a function that takes the options as keywords a signature and a list of them."""
    own = [x for x in signature(function).parameters.values() if x.kind is not x.VAR_KEYWORD]
    # Without a source, the function is a decorator; its default would say nothing to a reader.
    own = [x.replace(default=x.empty) if x.kind is x.POSITIONAL_OR_KEYWORD else x for x in own]
    lines, defaults = ["", "    Options, each a keyword:", ""], Options()
    for one in fields(Options):
        default = getattr(defaults, one.name)
        own.append(
            Parameter(one.name, Parameter.KEYWORD_ONLY, default=default, annotation=one.type)
        )
        text = f"{one.name} ({default!r}): {MEANINGS.get(one.name, '')}."
        lines += _wrapped(text)
    function.__signature__ = Signature(own, return_annotation="Program")  # type: ignore[attr-defined]  # functions take attributes
    function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n" + "\n".join(lines) + "\n    "
    return function


def _wrapped(text: str) -> list[str]:
    """Wrap an item of a list; importing textwrap would take longer than all else here."""
    lines = ["    *"]
    for word in text.split():
        if len(lines[-1]) + len(word) > _WIDTH:
            lines.append("     ")
        lines[-1] += f" {word}"
    return lines
