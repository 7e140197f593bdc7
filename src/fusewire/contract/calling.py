"""How a source of another library is called: with values of that library, and state of its own.

A module of PyTorch takes tensors in any structure, and reads parameters that may change between
calls. A program of such a source takes its calls apart into flat arrays, which a ``FlatSource``
takes, and puts the results together again. Must never name a library.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from fusewire.ir.graph import Array

Arguments: TypeAlias = tuple[Any, ...]
Named: TypeAlias = Mapping[str, Any]
# Takes flat outputs, and the arguments of their call.
Restore: TypeAlias = Callable[[Sequence[Array], Arguments, Named], Any]


class StateGuard(abc.ABC):
    """The state of a source at one moment: what an engine that was given it depends on."""

    @abc.abstractmethod
    def holds(self) -> bool:
        """Return whether the source still has this state; called before every engine call."""

    @abc.abstractmethod
    def is_passing(self) -> bool:
        """Return whether it may come back: a mode is switched, and the weights are the same."""


class CallForm(abc.ABC):
    """One structure of arguments: how such calls become arrays, and arrays results."""

    @property
    @abc.abstractmethod
    def source(self) -> Any:
        """What a frontend reads: it takes these arrays, and returns flat arrays."""

    @abc.abstractmethod
    def arrays(self, arguments: Arguments, named: Named) -> Arguments:
        """Return the tensors of a call as arrays that share their memory.

        ValueError if a tensor has no memory that an array could share.
        """

    @abc.abstractmethod
    def note(self, arguments: Arguments, named: Named, result: Any) -> None:
        """Note what the source itself returned for such arguments."""

    @abc.abstractmethod
    def restorer(self, arguments: Arguments, named: Named) -> Restore:
        """Return what makes results of flat outputs, whose memory they take over.

        For calls with the key of this one, and only after the source was read. TraceError if an
        engine cannot return what the source does, such as a view of an argument.
        """


class Calling(abc.ABC):
    """Calls one source, and tells which of its calls an engine may answer."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the source."""

    @abc.abstractmethod
    def key(self, arguments: Arguments, named: Named) -> Hashable:
        """Return the same for calls that one answer fits: their structure, types and modes."""

    @abc.abstractmethod
    def call(self, arguments: Arguments, named: Named) -> Any:
        """Have the source itself answer, as it would without us."""

    @abc.abstractmethod
    def infer(self, arguments: Arguments, named: Named) -> Any:
        """Have the source itself answer a call that an engine might answer, too."""

    @abc.abstractmethod
    def mode(self) -> str | None:
        """Say why the source itself must answer for now, in a sentence; None if it need not."""

    @abc.abstractmethod
    def refusal(self, arguments: Arguments, named: Named) -> str | None:
        """Say why only the source can answer calls with the key of this one; None if it need not.

        A sentence, like ``mode``.
        """

    @abc.abstractmethod
    def form(self, arguments: Arguments, named: Named) -> CallForm:
        """Return the form of a call; calls with the same structure have the same object."""

    @abc.abstractmethod
    def guard(self) -> StateGuard:
        """Note the state of the source as it is now."""

    @abc.abstractmethod
    def results(self, result: Any) -> dict[str, Any]:
        """Return the tensors of a result, by name."""
