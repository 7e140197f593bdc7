"""Whether a backend runs an op: its samples are asked for, as the graphs of users are."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from fusewire.contract.backend import Gap
from fusewire.contract.devices import answers_to
from fusewire.dtypes import DType, dtype, float32
from fusewire.errors import DTypeError, RegistryError
from fusewire.ops.declare import Op
from fusewire.ops.interpret import graph_of
from fusewire.ops.table import get_op
from fusewire.planning.claims import ask
from fusewire.planning.policy import TargetFinder
from fusewire.planning.target import Target
from fusewire.process.child import CAN_ISOLATE
from fusewire.registry import REGISTRY, Registry


@dataclass(frozen=True)
class Support:
    """How many samples of an op a device takes; true if it takes all of them.

    ``reason`` says why the first of the others is refused, or what is known to be wrong.
    """

    taken: int
    samples: int
    reason: str = ""

    def __bool__(self) -> bool:
        return self.taken == self.samples and not self.reason


def supports(
    backend: str,
    op: str,
    dtype: Any = None,
    device: str | None = None,
    *,
    registry: Registry | None = None,
) -> Support:
    """Ask a backend whether it runs an op in a dtype on a device; nothing is compiled.

    Without a dtype, it is float32, or the first that the op takes. ``bool`` of the answer is true
    if every sample is taken, by the op itself or by what it is made of.

    >>> import fusewire as fw
    >>> bool(fw.supports("reference", "softmax", "float64"))
    True
    """
    declared = get_op(op)
    of = _dtype(declared, dtype)
    target = _target(registry or REGISTRY, backend, device)
    gap = _gap(target, op, of)
    if gap is not None:
        return Support(0, 1, f"{backend} is known to get {op} wrong: {gap.reason}")
    taken, reasons = 0, []
    drawn = [x for x in declared.samples() if x.only is None or of in x.only]
    for number, sample in enumerate(drawn):
        seed = zlib.crc32(f"{op}-{number}-{of.name}".encode())
        graph, _ = graph_of(declared, sample.make(of, seed), sample.attrs)
        claimed = ask(target, graph)
        taken += claimed.takes_all()
        reasons += [refusal.reason for refusal in claimed.refusals.values()]
    return Support(taken, len(drawn), reasons[0] if reasons else "")


def _dtype(op: Op[Any], asked: Any) -> DType:
    if asked is None:
        return float32 if float32 in op.dtypes else op.dtypes[0]
    of = dtype(asked)
    if of not in op.dtypes:
        known = ", ".join(x.name for x in op.dtypes)
        raise DTypeError(f"{op.name} does not take {of.name}, on any backend. It takes {known}.")
    return of


def _target(registry: Registry, backend: str, device: str | None) -> Target:
    targets = TargetFinder(registry, isolate=CAN_ISOLATE).targets(backend)
    for target in targets:
        if answers_to(target.device, device):
            return target
    have = ", ".join(target.device.id for target in targets)
    raise RegistryError(f"{backend} was asked about {device} and has {have}.")


def _gap(target: Target, op: str, of: DType) -> Gap | None:
    return next((x for x in target.backend.gaps if x.op == op and x.dtype in (None, of.name)), None)
