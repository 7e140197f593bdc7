"""The first module of a child: ``python -m fusewire.process.start CONFINEMENT MODULE ...``.

It imports nothing that starts threads before the process is closed; see ``closed``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from fusewire.process.closed import begin
from fusewire.system.spawn import received

# In thousandths of the machine's memory: a bit more than the quarter that a child may hold.
_OOM_POINTS = 300


def _offer_to_die_first() -> None:
    """Have the kernel kill this process before its parent if the machine runs out of memory.

    Not before everybody else, as the largest value would: whoever uses much more is to blame.
    """
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:  # noqa: PTH123 - before any import
            inherited = max(int(file.read()), 0)
            file.seek(0)
            file.write(str(min(inherited + _OOM_POINTS, 1000)))
    except (OSError, ValueError):
        pass


def main(confinement: str, module: str, *given: str) -> None:
    """Close this process as far as is possible before imports, and hand over to a module."""
    # Here, because it is not writable later.
    _offer_to_die_first()
    begin(**json.loads(confinement))
    name, *descriptors = given
    importlib.import_module(module).main(name, *map(received, descriptors))
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
