"""Does a program swap to Inductor, behind what it settled on, where Inductor is faster?

    python benchmarks/late_swap.py [--patience 300] [--priority normal] [--engines torch inductor]

Compiles a module that smooths images with the default budget, in which a compiler that takes half
a minute has no place, and calls it all the time. Reported are the seconds since the first call at
which the program settled, and at which the late search swapped it to a library of Inductor, with
the rows of ``why()`` at both moments. Every answer is held against the module's. The comparer runs
at the lowest priority: on a machine that others use, nothing is left for it, and ``--priority
normal`` shows the swap all the same. Exits with 1 if there was none.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CHANNELS, SIDE, STEPS = 16, 128, 6
# Calls leave the machine to the comparer for so many seconds.
PAUSE = 1.0
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}


def smoothing() -> tuple[Any, Any]:
    """Make a module of neighbours and conditions after a depthwise convolution; its input.

    Eager mode and engines of ready kernels write every difference of two slices to memory, where
    Inductor has one loop for a step; and XLA, which has loops too, is slow at the convolution.
    """
    import torch

    class Smoothing(torch.nn.Module):  # type: ignore[misc] # torch is untyped
        def __init__(self) -> None:
            super().__init__()
            self.depthwise = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS)

        def forward(self, x: Any) -> Any:
            y = self.depthwise(x)
            for _ in range(STEPS):
                inner, up, down = y[..., 1:-1, 1:-1], y[..., :-2, 1:-1], y[..., 2:, 1:-1]
                left, right = y[..., 1:-1, :-2], y[..., 1:-1, 2:]
                edge = (up - down).abs() + (left - right).abs()
                mean = 0.25 * (up + down + left + right)
                y = torch.where(edge > 1.0, inner, 0.5 * (inner + mean).clamp(-4.0, 4.0))
            return y

    torch.manual_seed(0)
    return Smoothing().eval(), torch.randn(1, CHANNELS, SIDE, SIDE)


def rows(program: Any) -> list[dict[str, Any]]:
    """Return what was tried, as far as a reader wants it."""
    return [
        {
            "name": row.name,
            "status": row.status,
            "ms": row.seconds and 1e3 * row.seconds,
            "chosen": row.is_chosen,
            "reason": row.reason,
        }
        for row in program.why().tried
    ]


def watch(patience: float) -> dict[str, Any]:
    """Call a program until it has swapped, or for so many seconds."""
    import torch

    import fusewire as fw

    module, x = smoothing()
    found: dict[str, Any] = {"settled": None, "swapped": None, "calls": 0}
    with torch.no_grad():
        torch.set_num_threads(1)
        wanted = module(x)
        # One thread each: two that wait for each other measure who else uses the machine.
        program = fw.compile(module, threads=1)
        start = time.perf_counter()

        def elapsed() -> float:
            return time.perf_counter() - start

        def once() -> None:
            torch.testing.assert_close(program(x), wanted, **TOLERANCE)
            found["calls"] += 1

        once()
        found["first"] = elapsed()
        _until(lambda: program.state == "settled", once, elapsed, patience)
        found |= {"settled": elapsed(), "settled_on": program.why().backend}
        found["rows"] = rows(program)
        if _until(lambda: bool(program.why().backend == "inductor"), once, elapsed, patience):
            found["swapped"] = elapsed()
        once()
        found |= {"late_rows": rows(program), "notes": list(program.why().notes)}
        program.close()
    return found


def _until(
    is_so: Callable[[], bool],
    once: Callable[[], None],
    elapsed: Callable[[], float],
    patience: float,
) -> bool:
    """Call all the time until something is so; returns whether it is, in so many seconds."""
    while not is_so():
        if elapsed() > patience:
            return False
        once()
        time.sleep(PAUSE)
    return True


def show(found: dict[str, Any]) -> None:
    """Print what happened, in order."""
    print(f"first answer after {found['first']:.2f} s")
    for moment, key in (("settled", "rows"), ("swapped", "late_rows")):
        at = found[moment]
        print(f"{moment}: {'never' if at is None else f'after {at:.0f} s'}")
        for row in found[key]:
            time_ = "" if row["ms"] is None else f"{row['ms']:.3f} ms"
            mark = ">" if row["chosen"] else " "
            print(f"  {mark} {row['name']:28} {row['status']:12} {time_:12} {row['reason']:.90}")
    print(*found["notes"], f"{found['calls']} calls, all right.", sep="\n")


def keep_engines(names: Sequence[str]) -> None:
    """Forget all engines but these and the reference, if any are named."""
    import fusewire as fw
    from fusewire.registry import REGISTRY

    for name in REGISTRY.backends.names() if names else ():
        if name not in (*names, "reference"):
            fw.unregister(name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patience", type=float, default=300.0, help="seconds")
    parser.add_argument("--priority", choices=["idle", "normal"], default="idle")
    parser.add_argument("--engines", nargs="+", default=[], help="these alone")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    import logging

    from fusewire.background import process

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    process.PRIORITY = args.priority
    keep_engines(args.engines)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSEWIRE_CACHE"] = folder
        # Nobody else's comparison is waited for.
        os.environ["XDG_RUNTIME_DIR"] = folder
        found = watch(args.patience)
    show(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    sys.exit(found["swapped"] is None)


if __name__ == "__main__":
    main()
