"""Backends that answer, and whose answers are odd: what crashes and hangs is in testing.chaos."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, final

import numpy as np

from fusewire.backends.reference.engine import ReferenceBackend
from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Gap,
    Held,
    Into,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.ir.graph import Array, Graph

_PARENT = "FUSEWIRE_ODD_PARENT"
os.environ.setdefault(_PARENT, str(os.getpid()))


def _raises() -> NoReturn:
    raise RuntimeError("odd")


def _info(**fields: Any) -> BackendInfo:
    return BackendInfo(**{"name": "odd", "version": "1", "description": "", "vendor": "", **fields})


@final
class OddExecutable(Executable):
    """Runs as another does, with an oddity."""

    closed = 0

    def __init__(self, inner: Executable, kind: str) -> None:
        self._inner = inner
        self._kind = kind

    @property
    def is_reentrant(self) -> bool:
        return _raises() if self._kind == "turn" else True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        found = self._inner.run(inputs)
        if self._kind == "writes":
            for value in inputs:
                if isinstance(value, np.ndarray):
                    value[...] = 0
        return found

    def close(self) -> None:
        OddExecutable.closed += 1


# What the properties give instead of what they should.
INFOS: dict[str, Callable[[], Any]] = {
    "info_raises": _raises,
    "info_is_none": lambda: None,
    "info_has_text_for_priority": lambda: _info(priority="high"),
    "info_has_text_for_api": lambda: _info(api="1.0"),
}
EXCHANGES: dict[str, Callable[[], Any]] = {
    "exchange_raises": _raises,
    "exchange_is_none": lambda: None,
}
# Written for other versions of the contract; nothing else is odd about them.
DATED: dict[str, Callable[[], Any]] = {
    "for_1_0": lambda: _info(api=(1, 0)),
    "for_3_9": lambda: _info(api=(3, 9)),
    "for_4_0": lambda: _info(api=(4, 0)),
}
KINDS = (*INFOS, *EXCHANGES, "load_is_none_in_the_parent", "turn", "writes")


@final
class OddBackend(Backend):
    """Runs everything as the reference does."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._inner = ReferenceBackend()

    @property
    def info(self) -> BackendInfo:
        info: BackendInfo = {**INFOS, **DATED}.get(self._kind, lambda: _info())()
        return info

    @property
    def gaps(self) -> Sequence[Gap]:
        return ()

    @property
    def exchange(self) -> Exchange:
        exchange: Exchange = EXCHANGES.get(self._kind, Exchange)()
        return exchange

    def probe(self) -> list[Device | Unavailable]:
        return [Device("cpu", "odd")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        return self._inner.claim(graph, device)

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        return self._inner.compile(region, device, config)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        is_parent = os.environ[_PARENT] == str(os.getpid())
        if self._kind == "load_is_none_in_the_parent" and is_parent:
            return None  # type: ignore[return-value]  # the oddity
        return OddExecutable(self._inner.load(artifact, device, weights), self._kind)


def __getattr__(name: str) -> Callable[[], OddBackend]:
    """Make each kind a reference: ``tests.odd:writes``; ``plain`` has no oddity."""
    if name not in (*KINDS, *DATED, "plain"):
        raise AttributeError(name)
    return lambda: OddBackend(name)
