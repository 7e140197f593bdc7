"""Keep what torch.export prints and logs about a failure from the user: our error says it."""

from __future__ import annotations

import io
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_LOGGERS = ("torch.fx.experimental.symbolic_shapes", "torch.export._trace", "torch._dynamo")
# Exports change warnings and sys.stderr for a while, and torch.export has state of its own.
_ONE_AT_A_TIME = threading.RLock()


class _OtherThreads(io.TextIOBase):
    """Passes on what other threads write."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str, /) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()


@contextmanager
def quiet_export() -> Iterator[None]:
    """Run one export at a time, without its warnings and messages."""
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        # PyTorch warns of its own deprecated calls, and that layers assign their own weights.
        warnings.simplefilter("ignore")
        loggers = [logging.getLogger(name) for name in _LOGGERS]
        before, stream = [logger.disabled for logger in loggers], sys.stderr
        for logger in loggers:
            logger.disabled = True
        sys.stderr = _OtherThreads(stream)
        try:
            yield
        finally:
            sys.stderr = stream
            for logger, disabled in zip(loggers, before, strict=True):
                logger.disabled = disabled
