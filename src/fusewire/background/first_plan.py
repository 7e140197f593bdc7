"""What serves a program before engines are compared."""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.planning.candidates import Candidate
from fusewire.program.entry import Entry


@dataclass(frozen=True, eq=False)
class FirstPlan:
    """The entry that serves first, its candidate, and its name among those that are compared.

    With ``is_function`` the user's own function runs, and the candidate is the reference. With
    ``is_judged`` an earlier search found it right.
    """

    entry: Entry
    candidate: Candidate
    name: str
    is_function: bool = False
    is_judged: bool = False

    @property
    def is_trusted(self) -> bool:
        """Whether its answers need no judge."""
        return self.is_function or self.candidate.target.backend.info.trusted
