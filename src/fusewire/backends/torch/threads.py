"""The number of threads that PyTorch uses, which belongs to the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusewire.contract.backend import Held


def threads_in(launch: Any) -> int | None:
    """Read the number of threads that an artifact is to run with; None if nobody chose it."""
    threads = launch.get("threads")
    return threads if isinstance(threads, int) else None


def run_with(
    threads: int, run: Callable[[Sequence[Any]], list[Held]], inputs: Sequence[Any]
) -> list[Held]:
    """Run with so many threads; whoever uses PyTorch beside us keeps theirs."""
    before = torch.get_num_threads()
    if before == threads:
        return run(inputs)
    torch.set_num_threads(threads)
    try:
        return run(inputs)
    finally:
        torch.set_num_threads(before)
