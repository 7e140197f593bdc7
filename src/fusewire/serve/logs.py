"""Logs of the server: one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from fusewire.errors import visible

LOG = logging.getLogger("fusewire.serve")


class JsonLines(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Write time, level and event, and what the record adds."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": visible(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said)


def start_logging(level: str) -> None:
    """Write the logs of this package, and of what it stands on, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("fusewire", "uvicorn", "uvicorn.error", "grpc"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    logging.getLogger("uvicorn.error").handlers = []
    logging.getLogger("uvicorn.error").propagate = True
    # It warns of every request that is not HTTP, and anybody can send those.
    logging.getLogger("uvicorn").setLevel("ERROR")
    logging.getLogger("fusewire").setLevel(level.upper())


def log_event(event: str, **fields: Any) -> None:
    """Log something that an operator wants to know."""
    LOG.info(event, extra={"fields": fields})


def log_failure(model: str | None, protocol: str, error: BaseException) -> None:
    """Log a request that the server failed."""
    fields = {"model": model, "protocol": protocol, "code": type(error).__name__}
    LOG.error("%s", error, extra={"fields": fields})
