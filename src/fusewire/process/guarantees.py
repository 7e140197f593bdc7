"""What this system does not do for a user of Fusewire, in sentences.

``fusewire doctor`` prints them, and ``isolate="always"`` is refused by them: it promises limits on
every call, and a promise that nobody keeps is worse than none.
"""

from __future__ import annotations

import os
import sys

from fusewire.process.child import CAN_ISOLATE
from fusewire.process.lifeline import HAS_LIFELINES
from fusewire.system.beneath import can_open_in_steps
from fusewire.system.hardware import total_memory
from fusewire.system.locks import HAS_LOCKS
from fusewire.system.ownership import KNOWS_OWNERS
from fusewire.system.polling import CAN_POLL
from fusewire.system.processes import can_measure
from fusewire.system.sealed import CAN_SEAL


def isolation_problem() -> str | None:
    """Say in a sentence why calls cannot be isolated for good here; None if they can."""
    lacks = []
    if not CAN_ISOLATE:
        lacks.append("child processes")
    if not CAN_SEAL:
        lacks.append("shared memory that a child cannot shrink")
    if not CAN_POLL:
        lacks.append("one wait for a child's answer and for its end")
    if not can_measure():
        lacks.append("a way to see how much memory a child uses")
    if not lacks:
        return None
    said = lacks[0] if len(lacks) == 1 else f"{', '.join(lacks[:-1])} and {lacks[-1]}"
    return f"isolate='always' needs {said}, which this system ({sys.platform}) does not have."


def shortfalls() -> list[str]:
    """List what holds on Linux and does not hold here; ``closed`` says what children may do."""
    found = []
    if not CAN_ISOLATE:
        found.append("There are no child processes: pass isolate='never'.")
    if (problem := isolation_problem()) is not None:
        found.append(problem)
    if CAN_ISOLATE and not can_measure() and sys.platform != "win32":
        found.append("The memory limit of a child is not enforced: nothing says what it uses.")
    if CAN_ISOLATE and not HAS_LIFELINES and sys.platform != "win32":
        found.append(
            "A child that hangs in native code may outlive this process if this process is killed."
        )
    if not hasattr(os, "killpg"):
        found.append("Engines are not compared behind a program: its first call waits for that.")
    if total_memory() is None:
        found.append("The memory of the machine is unknown: limits assume 4 GiB.")
    if not HAS_LOCKS:
        found.append("Files cannot be locked: processes may compile the same thing twice.")
    if not KNOWS_OWNERS:
        found.append(
            "Who may read the cache and its key is not checked: keep both in your profile folder, "
            "where they are by default."
        )
    if not can_open_in_steps():
        found.append(
            "Models with external data are refused: a file beneath a folder cannot be opened "
            "safely."
        )
    return found
