"""The first module of a child: ``python -m fusewire.process.start CONFINEMENT MODULE ...``.

It imports nothing that starts threads before the process is closed; see ``closed``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from fusewire.process.closed import begin


def main(confinement: str, module: str, *given: str) -> None:
    """Close this process as far as is possible before imports, and hand over to a module."""
    # Written here, because it is not writable later. If the machine runs out of memory, the kernel
    # kills this process and not the parent.
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - before any import
            file.write("1000")
    except OSError:
        pass
    begin(**json.loads(confinement))
    name, *descriptors = given
    importlib.import_module(module).main(name, *map(int, descriptors))
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
