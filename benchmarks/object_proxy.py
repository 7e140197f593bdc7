"""A proxy before an HTTP server that fails in one of several ways, on the loopback interface.

"works" passes everything on; "down" refuses connections; "slow" answers after 10 s; "throttles"
answers 503; "corrupts" changes one byte in a hundred of what the server sends, after its headers.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from typing import final

MODES = ("works", "down", "slow", "throttles", "corrupts")
_LATE = 10.0
_SHARE = 0.01
_BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@final
class FaultyProxy:
    """Listens on a port of its own while its block runs."""

    def __init__(self, target: str, mode: str, seed: int = 0) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = host, int(port)
        self._mode = mode
        self._draw = random.Random(seed)
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> FaultyProxy:
        if self._mode != "down":
            self._listener.listen(128)
            threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if self._mode == "throttles":
                client.recv(2**16)
                client.sendall(_BUSY)
                return
            if self._mode == "slow":
                time.sleep(_LATE)
            with socket.create_connection(self._target) as server:
                back = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
                back.start()
                while part := client.recv(2**16):
                    server.sendall(part)
                server.shutdown(socket.SHUT_WR)
                back.join(30)

    def _pass_on(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := server.recv(2**16):
                client.sendall(self._changed(part) if self._mode == "corrupts" else part)

    def _changed(self, part: bytes) -> bytes:
        changed = bytearray(part)
        start = part.find(b"\r\n\r\n") + 4 if part.startswith(b"HTTP/") else 0
        for at in range(start, len(part)):
            if self._draw.random() < _SHARE:
                changed[at] ^= self._draw.randint(1, 255)
        return bytes(changed)
