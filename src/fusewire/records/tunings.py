"""What is known of kernels that were tuned: kept as data, and checked when it is read."""

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
class Cut:
    """How a kernel is best cut, and how many times as fast that made it.

    ``is_other``: it is not what it has untuned. ``cache`` is "hit" for what was known. ``is_late``:
    not all was tried, and it is not kept.
    """

    key: str
    name: str
    count: int
    chosen: Mapping[str, Fact]
    gain: float
    is_other: bool
    cache: str = ""
    is_late: bool = False


def recall(records: Records, backend: Backend, device: Device, piece: Piece) -> Cut | None:
    """Give what is known of a kernel; what is not of its space is forgotten."""
    key = _key(backend, device, piece)
    held = records.get(key)
    if held is None:
        return None
    try:
        row = json.loads(held)
        chosen = _chosen(row["chosen"], piece)
        gain = float(row["gain"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        records.drop(key)
        return None
    if chosen is None or not 0 < gain < math.inf:
        records.drop(key)
        return None
    other = chosen != piece.untuned
    return Cut(piece.key, piece.name, piece.count, chosen, gain, other, cache="hit")


def keep(records: Records, backend: Backend, device: Device, piece: Piece, cut: Cut) -> None:
    """Keep what was found."""
    row = {"chosen": dict(cut.chosen), "gain": cut.gain}
    records.put(_key(backend, device, piece), json.dumps(row).encode())


def _chosen(held: Any, piece: Piece) -> dict[str, Fact] | None:
    """Take what is offered for this kernel, or nothing."""
    if not isinstance(held, dict) or set(held) != set(piece.axes):
        return None
    found: dict[str, Fact] = {}
    for name, values in piece.axes.items():
        value = tuple(held[name]) if isinstance(held[name], list) else held[name]
        same = [x for x in values if x == value and type(x) is type(value)]
        if not same:
            return None
        found[name] = same[0]
    return found


def _key(backend: Backend, device: Device, piece: Piece) -> Key:
    """Name what the best cut of a kernel depends on; its sizes are in its key."""
    its = {f"its_{name}": text for name, text in backend.fingerprint(device).items()}
    # Where a processor plays the device, it is the device.
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
