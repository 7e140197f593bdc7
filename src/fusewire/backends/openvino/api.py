"""Import OpenVINO without its telemetry. The only file that imports it.

When ``openvino`` is imported, a thread of its telemetry forks the process to send a message. That
fork and a matmul of NumPy's in another thread wait for each other for ever (openvino 2026.4.1, the
OpenBLAS of numpy 2.4.6); and it takes 0.1 of the 0.25 s of the import. Without the telemetry
installed it does without, so for the length of the import there is none. Who imports ``openvino``
before us has it as they like.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TELEMETRY = "openvino_telemetry"


@contextmanager
def _without_telemetry() -> Iterator[None]:
    if _TELEMETRY in sys.modules:
        yield
        return
    # What Python itself takes for "there is none".
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_TELEMETRY]


with _without_telemetry():
    import openvino
    from openvino import opset1
    from openvino import opset16 as ops

__all__ = ["openvino", "ops", "opset1"]
