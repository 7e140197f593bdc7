"""Records of tuned kernels: plain data, checked when it is read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusewire.contract.backend import Backend, Device, Fact
from fusewire.contract.tuning import Piece
from fusewire.records.entries import Records
from fusewire.records.keys import host_fields
from fusewire.store.key import Key


@dataclass(frozen=True)
class TunedKernel:
    """The chosen configuration of a kernel, and its speedup over the untuned one.

    ``is_other``: the configuration is not the untuned one. ``cache`` is "hit" if it was recalled.
    ``is_late``: time ran out before all values were tried, and no record is kept.
    """

    key: str
    name: str
    count: int
    chosen: Mapping[str, Fact]
    gain: float
    is_other: bool
    cache: str = ""
    is_late: bool = False


def recall(records: Records, backend: Backend, device: Device, piece: Piece) -> TunedKernel | None:
    """Recall a tuned kernel; a record outside of the kernel's search space is dropped."""
    key = _key(backend, device, piece)
    payload = records.get(key)
    if payload is None:
        return None
    try:
        row = json.loads(payload)
        chosen = _chosen(row["chosen"], piece)
        gain = float(row["gain"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        records.drop(key)
        return None
    if chosen is None or not 0 < gain < math.inf:
        records.drop(key)
        return None
    is_other = chosen != piece.untuned
    return TunedKernel(piece.key, piece.name, piece.count, chosen, gain, is_other, cache="hit")


def keep(
    records: Records, backend: Backend, device: Device, piece: Piece, kernel: TunedKernel
) -> None:
    """Record a tuned kernel."""
    row = {"chosen": dict(kernel.chosen), "gain": kernel.gain}
    records.put(_key(backend, device, piece), json.dumps(row).encode())


def _chosen(row: Any, piece: Piece) -> dict[str, Fact] | None:
    """Read a configuration; None unless this kernel offers every value of it."""
    if not isinstance(row, dict) or set(row) != set(piece.axes):
        return None
    chosen: dict[str, Fact] = {}
    for name, values in piece.axes.items():
        value = tuple(row[name]) if isinstance(row[name], list) else row[name]
        same = [x for x in values if x == value and type(x) is type(value)]
        if not same:
            return None
        chosen[name] = same[0]
    return chosen


def _key(backend: Backend, device: Device, piece: Piece) -> Key:
    """Name what the best configuration depends on; the kernel's own key has its sizes."""
    its = {f"its_{name}": text for name, text in backend.fingerprint(device).items()}
    # A software device is as fast as the processor that emulates it.
    host = dict(host_fields()) if device.is_software else {}
    space = json.dumps(dict(piece.axes), sort_keys=True)
    return Key.of(
        "tuning",
        kernel=piece.key,
        backend=backend.info.name,
        device=device.name,
        space=space,
        **its,
        **host,
    )
