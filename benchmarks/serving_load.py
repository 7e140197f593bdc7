"""A load client: keeps a number of connections busy, and counts answers and their times.

REST requests are written to plain sockets, so that the client costs little beside the server on the
same machine; gRPC goes through grpc.aio with bytes that were made once.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

NAMES = {"float32": "FP32", "int64": "INT64", "int32": "INT32", "uint8": "UINT8", "bool": "BOOL"}
METHOD = "/inference.GRPCInferenceService/ModelInfer"


@dataclass
class Figures:
    """What a run of the client saw; times in seconds."""

    seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.times, share)) if self.times else float("nan")

    def count(self, kind: str) -> None:
        self.errors[kind] = self.errors.get(kind, 0) + 1

    def row(self) -> dict[str, Any]:
        return {
            "requests": len(self.times),
            "per_second": round(self.rate, 1),
            "p50_ms": round(self.percentile(50) * 1e3, 2),
            "p99_ms": round(self.percentile(99) * 1e3, 2),
            "errors": dict(self.errors),
        }


def rest_request(model: str, inputs: Mapping[str, np.ndarray], version: str = "") -> bytes:
    """Write a whole HTTP request with binary tensors."""
    import json

    rows = [
        {"name": name, "datatype": NAMES[str(x.dtype)], "shape": list(x.shape),
         "parameters": {"binary_data_size": x.nbytes}}
        for name, x in inputs.items()
    ]  # fmt: skip
    header = json.dumps({"inputs": rows, "parameters": {"binary_data_output": True}}).encode()
    body = b"".join([header, *(x.tobytes() for x in inputs.values())])
    path = f"/v2/models/{model}/infer"
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n\r\n"
    ).encode() + body


def json_request(path: str, inputs: object) -> bytes:
    """Write a whole HTTP request with tensors as nested lists."""
    import json

    body = json.dumps({"inputs": inputs}).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: application/json\r\n\r\n"
    ).encode() + body


def grpc_request(model: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    from tritonclient.grpc import service_pb2 as messages

    request = messages.ModelInferRequest(model_name=model)
    for name, x in inputs.items():
        request.inputs.add(name=name, datatype=NAMES[str(x.dtype)], shape=x.shape)
        request.raw_input_contents.append(x.tobytes())
    raw: bytes = request.SerializeToString()
    return raw


class _Connection(asyncio.Protocol):
    """Sends the same request again as soon as it is answered."""

    def __init__(self, request: bytes, figures: Figures, until: float) -> None:
        self.request, self.figures, self.until = request, figures, until
        self.done = asyncio.get_running_loop().create_future()
        self.rest, self.head = -1, b""
        self.status = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._send()

    def _send(self) -> None:
        self.since = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.rest < 0:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            lines = self.head[:end].lower().split(b"\r\n")
            self.status = int(lines[0].split()[1])
            length = next(int(x[15:]) for x in lines if x.startswith(b"content-length:"))
            self.rest = length - (len(self.head) - end - 4)
            self.head = b""
        else:
            self.rest -= len(data)
        if self.rest == 0:
            self._answered()

    def _answered(self) -> None:
        self.rest = -1
        now = time.perf_counter()
        if self.status == 200:
            self.figures.times.append(now - self.since)
        else:
            self.figures.count(f"HTTP {self.status}")
        if now < self.until:
            self._send()
        else:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self.rest >= 0 or time.perf_counter() < self.until:
            self.figures.count("closed")
        if not self.done.done():
            self.done.set_result(None)


async def load_rest(port: int, request: bytes, connections: int, seconds: float) -> Figures:
    """Keep connections busy for some seconds."""
    figures, start = Figures(), time.perf_counter()
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(
            lambda: _Connection(request, figures, start + seconds), "127.0.0.1", port
        )
        for _ in range(connections)
    ]
    await asyncio.gather(*(protocol.done for _, protocol in made))
    figures.seconds = time.perf_counter() - start
    return figures


async def load_grpc(port: int, request: bytes, connections: int, seconds: float) -> Figures:
    """Keep as many calls as connections in flight, over at most 8 channels."""
    figures, start = Figures(), time.perf_counter()
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(min(connections, 8))
    ]

    async def calls(channel: grpc.aio.Channel) -> None:
        call = channel.unary_unary(METHOD)
        while (since := time.perf_counter()) < start + seconds:
            try:
                await call(request)
                figures.times.append(time.perf_counter() - since)
            except grpc.aio.AioRpcError as error:
                figures.count(error.code().name)

    await asyncio.gather(*(calls(channels[i % len(channels)]) for i in range(connections)))
    figures.seconds = time.perf_counter() - start
    for channel in channels:
        await channel.close()
    return figures
