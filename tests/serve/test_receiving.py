"""Messages of gRPC that do not come: what they take, how long they may, and who waits for them."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import grpc
import pytest

from fusewire.serve import receiving
from fusewire.serve.access import Access
from fusewire.serve.grpc_service import GrpcService
from fusewire.serve.limits import ServeLimits
from fusewire.serve.repository import Repository

SERVICE = "/inference.GRPCInferenceService/"
MB = 1 << 20
# Two messages that are prompt at a time, and two that are slow.
LIMITS = ServeLimits(body_bytes=MB, held_bytes=4 * MB, read_seconds=2.0)
# Types of frames of HTTP/2.
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
ENDS, ACKNOWLEDGES, IS_WHOLE = 1, 1, 4


def with_server(
    use: Callable[[int], None], access: Access = Access(), limits: ServeLimits = LIMITS
) -> None:
    """Run the gRPC side of a server without models in this process, and its client in a thread."""

    async def main() -> None:
        server = GrpcService(Repository([], limits, access)).server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            await asyncio.to_thread(use, port)
        finally:
            await server.stop(None)

    asyncio.run(main())


class Call:
    """A call over a connection of its own, whose message need not be whole."""

    def __init__(self, port: int, method: str = "ModelInfer") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self._buffer = b""
        # What may be sent: on the connection, and on its stream.
        self._windows = {0: 65_535, 1: 65_535}
        self.sent = 0
        self.end = ""
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._send(SETTINGS, 0, b"")
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": SERVICE + method,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        names = [bytes([len(name)]) + name.encode() for name in fields]
        texts = [bytes([len(text)]) + text.encode() for text in fields.values()]
        head = b"".join(b"\0" + a + b for a, b in zip(names, texts, strict=True))
        self._send(HEADERS, IS_WHOLE, head)

    def close(self) -> None:
        self._socket.close()

    def _send(self, kind: int, flags: int, payload: bytes) -> None:
        stream = 1 if kind in (DATA, HEADERS) else 0
        head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
        try:
            self._socket.sendall(head + struct.pack(">I", stream) + payload)
        except (BrokenPipeError, ConnectionResetError):
            self.end = self.end or "closed"

    def push(self, data: bytes, seconds: float) -> None:
        """Send as much of some data as the server takes in this time; never says that it ends."""
        until, at = time.monotonic() + seconds, 0
        while at < len(data) and not self.end and time.monotonic() < until:
            size = min(len(data) - at, 16_384, *self._windows.values())
            if size > 0:
                self._send(DATA, 0, data[at : at + size])
                at += size
                self._windows = {key: room - size for key, room in self._windows.items()}
            self.read(0.0 if size > 0 else 0.02)
        self.sent += at

    def read(self, seconds: float) -> None:
        """Read what the server sends, until a call ends or for so long."""
        until = time.monotonic() + seconds
        while not self.end:
            self._socket.settimeout(max(until - time.monotonic(), 0.001))
            try:
                received = self._socket.recv(1 << 16)
            except TimeoutError:
                return
            except ConnectionResetError:
                received = b""
            self.end = self.end if received else "closed"
            self._buffer += received
            while len(self._buffer) >= 9 + (size := int.from_bytes(self._buffer[:3])):
                kind, flags, stream = struct.unpack(">BBI", self._buffer[3:9])
                self._frame(kind, flags, stream, self._buffer[9 : 9 + size])
                self._buffer = self._buffer[9 + size :]

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW:
            self._windows[stream] += int.from_bytes(payload)
        elif kind == PING and not flags & ACKNOWLEDGES:
            self._send(PING, ACKNOWLEDGES, payload)
        elif kind == SETTINGS and not flags & ACKNOWLEDGES:
            settings = dict(struct.iter_unpack(">HI", payload))
            # The first window of a stream.
            self._windows[1] += settings.get(4, 65_535) - 65_535
            self._send(SETTINGS, ACKNOWLEDGES, b"")
        elif kind == HEADERS and flags & ENDS:
            names = ("RequestTimeout", "ServerBusy", "TokenError")
            found = [name for name in names if name.encode() in payload]
            self.end = found[0] if found else "ended"


@contextlib.contextmanager
def calls(port: int, count: int) -> Iterator[list[Call]]:
    """Begin so many calls, each on its own connection."""
    begun = [Call(port) for _ in range(count)]
    try:
        yield begun
    finally:
        for call in begun:
            call.close()


def announced(size: int) -> bytes:
    """Write a message of this size without its last byte."""
    return b"\0" + struct.pack(">I", size) + bytes(size - 1)


def answered(port: int, method: str, seconds: float = 10.0) -> str:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            channel.unary_unary(SERVICE + method)(b"", timeout=seconds)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def test_messages_that_are_not_whole_have_a_bound_and_an_end() -> None:
    def use(port: int) -> None:
        with calls(port, 12) as stalled:
            for call in stalled:
                call.push(announced(MB), 0.3)
            for call in stalled:
                call.read(0.0)
            # Four have places, and of each other the server has a window.
            assert sum(call.sent for call in stalled if not call.end) < 5 * MB
            for call in stalled:
                call.read(20)
            assert {call.end for call in stalled} == {"RequestTimeout", "ServerBusy"}
        assert answered(port, "ModelInfer") == "NOT_FOUND"

    with_server(use)


def test_slow_messages_do_not_keep_others_for_long() -> None:
    def use(port: int) -> None:
        with calls(port, 4) as stalled:
            for call in stalled:
                call.push(announced(MB), 0.1)
            start = time.monotonic()
            assert answered(port, "ModelInfer") == "NOT_FOUND"
            assert time.monotonic() - start < LIMITS.read_seconds

    with_server(use)


def test_health_waits_for_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "_MOMENT", 1.9)

    def use(port: int) -> None:
        with calls(port, 8) as stalled:
            for call in stalled:
                call.push(announced(1000), 0.05)
            start = time.monotonic()
            assert answered(port, "ServerLive") == "OK"
            assert time.monotonic() - start < 1

    with_server(use)


def test_message_without_a_token_is_not_waited_for() -> None:
    def use(port: int) -> None:
        with calls(port, 8) as stalled:
            for call in stalled:
                call.read(10)
            assert [call.end for call in stalled] == ["TokenError"] * 8
            assert not sum(call.sent for call in stalled)

    with_server(use, Access(token=b"t" * 32))


def test_connections_are_as_many_as_the_limit_says() -> None:
    def use(port: int) -> None:
        with calls(port, 6) as begun:
            for call in begun:
                call.read(0.5)
            assert [call.end == "closed" for call in begun] == [False] * 4 + [True] * 2

    with_server(use, limits=replace(LIMITS, connections=4, read_seconds=20.0))


def test_call_that_ends_without_a_message_is_refused() -> None:
    async def main() -> None:
        server = GrpcService(Repository([], LIMITS)).server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_unary(f"{SERVICE}ModelInfer")(iter(()))
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await server.stop(None)

    asyncio.run(main())


@pytest.mark.parametrize("size", [1, 100, MB - 100])
def test_client_that_leaves_in_a_message_is_no_error(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    def use(port: int) -> None:
        for _ in range(3):
            with calls(port, 4) as left:
                for call in left:
                    call.push(announced(MB)[:size], 0.2)
        time.sleep(3)
        assert answered(port, "ModelInfer") == "NOT_FOUND"

    with_server(use)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_call_that_ends_while_it_waits_takes_no_place_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "_MOMENT", 30.0)

    def use(port: int) -> None:
        for _ in range(3):
            with calls(port, 2) as reading, calls(port, 3) as waiting:
                for call in (*reading, *waiting):
                    call.push(announced(1000), 0.05)
                # Its deadline passes; the others leave.
                assert answered(port, "ModelInfer", 0.2) == "DEADLINE_EXCEEDED"
        assert answered(port, "ModelInfer") == "NOT_FOUND"

    with_server(use, limits=replace(LIMITS, read_seconds=60.0))
