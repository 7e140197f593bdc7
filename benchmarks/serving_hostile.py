"""Hostile HTTP requests for the server: malformed, lying, oversized or slow."""

import gzip
import json
import random
import socket
from collections.abc import Iterator
from functools import cache
from typing import Any

_PATH = "/v2/models/mlp/infer"


def ask(port: int, request: bytes, seconds: float = 5.0, *, ends: bool = False) -> str:
    """Send bytes, and perhaps end; returns the status and body, "closed" or "silent"."""
    with socket.create_connection(("127.0.0.1", port), seconds) as connection:
        answer = b""
        try:
            connection.sendall(request)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                answer += part
        except TimeoutError:
            return "silent"
        except OSError:
            pass
    if not answer.startswith(b"HTTP/1.1 "):
        return "closed" if not answer else f"odd {answer[:40]!r}"
    head, _, body = answer.partition(b"\r\n\r\n")
    return f"{head[9:12].decode()} {body.decode(errors='replace')}"


def post(body: bytes, *headers: str, path: str = _PATH, length: int | None = None) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        f"Content-Length: {len(body) if length is None else length}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body


def said(inputs: Any, **more: Any) -> bytes:
    return json.dumps({"inputs": inputs, **more}).encode()


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [1, 256], "data": [0.5] * 256} | changes


def binary(rng: random.Random, shape: Any, size: Any, sent: int, **changes: Any) -> bytes:
    item = {"name": "x", "datatype": "FP32", "shape": shape}
    item |= {"parameters": {"binary_data_size": size}, **changes}
    header = said([item])
    return post(header + rng.randbytes(sent), f"Inference-Header-Content-Length: {len(header)}")


def _words(rng: random.Random) -> Any:
    """Make some value that JSON has and that is probably wrong where it stands."""
    values: list[Any] = [
        None, True, -1, 1 << 70, 1e308, "x" * rng.randrange(100), [], {}, [[]], {"a": [1]},
        "\u202e\x00", -0.5,
    ]  # fmt: skip
    return rng.choice(values)


def _cut(rng: random.Random) -> bytes:
    whole = said([tensor()])
    return post(whole[: rng.randrange(len(whole))])


def _noise(rng: random.Random) -> bytes:
    return post(rng.randbytes(rng.randrange(1, 2000)))


def _field(rng: random.Random) -> bytes:
    name = rng.choice(["name", "datatype", "shape", "data"])
    value = _words(rng)
    return post(said([tensor(**{name: value})]))


def _lying_shape(rng: random.Random) -> bytes:
    rows = rng.choice([0, 2, 3, -1, 1 << 31, 1 << 62, 10**30])
    shape = rng.choice([[rows, 256], [256], [1, 256, 1], [1] * 100, [1, 255], [rows]])
    return post(said([tensor(shape=shape)]))


def _lying_size(rng: random.Random) -> bytes:
    size = rng.choice([0, 1, 1023, 1025, -1, 1 << 40, "1024", 1024.0, None])
    shape = rng.choice([[1, 256], [2, 256], [1 << 33, 256]])
    sent = rng.choice([0, 1, 1023, 1025, 4096])
    return binary(rng, shape, size, sent)


def _header_length(rng: random.Random) -> bytes:
    text = rng.choice(["-1", "0", "99999999", "1e3", "", "0x10", "9" * 40, "12 34"])
    return post(said([tensor()]), f"Inference-Header-Content-Length: {text}")


def _inputs(rng: random.Random) -> bytes:
    some = rng.choice([[], [tensor(), tensor()], [tensor(name="y")], [1], "x", {"a": 1}, [[]]])
    return post(said(some))


def _outputs(rng: random.Random) -> bytes:
    wanted = rng.choice([[{"name": "no"}], [1], "x", [{"name": "output"}] * 3, {"name": "output"}])
    return post(said([tensor()], outputs=wanted))


def _timeout(rng: random.Random) -> bytes:
    return post(said([tensor()], parameters={"timeout": rng.choice([-1, 0, "1", 1.5, [1]])}))


def _deep(rng: random.Random) -> bytes:
    depth = rng.choice([1000, 50_000, 200_000])
    return post(b'{"inputs": ' + b"[" * depth + b"]" * depth + b"}")


def _data(rng: random.Random) -> bytes:
    data: Any = rng.choice([
        [0.5] * 255, ["a"] * 256, [True] * 256, [[1], [1, 2]], [None] * 256, [1 << 200] * 256,
        [{}] * 256, [[0.5] * 256] * 2,
    ])  # fmt: skip
    return post(said([tensor(data=data)]))


def _large(rng: random.Random) -> bytes:
    return post(b"x", length=rng.choice([1 << 27, 1 << 40, 10**18]))


def _short(rng: random.Random) -> bytes:
    return post(said([tensor()]), length=rng.randrange(5000, 50000))


def _chunked(rng: random.Random) -> bytes:
    lines = [f"POST {_PATH} HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", "", ""]
    head = "\r\n".join(lines).encode()
    return head + rng.choice([b"zz\r\n", b"-5\r\nabc", b"ffffffffffffffffff\r\nx", b"5\r\nab\r\n0"])


def _zipped(rng: random.Random) -> bytes:
    body = rng.choice([rng.randbytes(200), _bomb(), b""])
    return post(body, f"Content-Encoding: {rng.choice(['gzip', 'deflate', 'br', 'x'])}")


@cache
def _bomb() -> bytes:
    return gzip.compress(bytes(100 << 20))


def _path(rng: random.Random) -> bytes:
    path = rng.choice([
        "/v2/models/none/infer", "/v2/models/mlp/versions/9/infer", "/v2/models//infer",
        "/v2/models/mlp/a/b/c/infer", "/infer", "/v2/models/%00/infer", "/v2/models/../infer",
        "/v2/models/mlp", "/v2/none", "/" + "a" * 5000,
    ])  # fmt: skip
    return post(said([tensor()]), path=path)


def _method(rng: random.Random) -> bytes:
    method = rng.choice(["GET", "PUT", "DELETE", "PATCH", "BREW"])
    return f"{method} {_PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


def _not_http(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 5000))


def _long_headers(rng: random.Random) -> bytes:
    lines = [f"X-{n}: {'a' * 1000}" for n in range(rng.choice([100, 300]))]
    return post(b"", *lines)


def _unfinished(rng: random.Random) -> bytes:
    whole = post(said([tensor()]))
    end = whole.index(b"\r\n\r\n")
    return whole[: rng.randrange(1, end)]


@cache
def _structures() -> tuple[bytes, ...]:
    """Make bodies that take the most time or memory to parse, for their bytes."""
    most = 4_000_000
    bodies = (
        b'{"inputs":[' + b"[]," * (most // 3) + b"0]}",
        b'{"inputs":[' + b"{}," * (most // 3) + b"0]}",
        b'{"inputs":[' + b'"",' * (most // 3) + b"0]}",
        said([tensor(data=[1] * (most // 3))]),
        said([tensor(data=["x" * 2_000_000, *[""] * 400_000])]),
        said([tensor(data=["x" * 100_000, *[""] * 2500])]),
        said([tensor(data=[10**4000] * 900)]),
        said([tensor(data=[[[]] * 100_000, 1])]),
        said([tensor()], parameters={str(n): n for n in range(200_000)}),
    )
    whole = [post(body) for body in bodies]
    return (*whole, *(post(gzip.compress(x), "Content-Encoding: gzip") for x in bodies))


def _structure(rng: random.Random) -> bytes:
    return rng.choice(_structures())


def _long_tensor(rng: random.Random) -> bytes:
    """Inflate to far more than the JSON part says."""
    header = binary(rng, [1, 256], 1024, 0).partition(b"\r\n\r\n")[2]
    length = f"Inference-Header-Content-Length: {len(header)}"
    return post(_inflating(header), length, "Content-Encoding: gzip")


@cache
def _inflating(header: bytes) -> bytes:
    return gzip.compress(header + bytes(60 << 20))


def _page(rng: random.Random) -> bytes:
    """Send what a web page makes a browser send."""
    whole = post(said([tensor()]), "Content-Type: text/plain", "Origin: http://evil.com")
    host = rng.choice([b"localhost", b"evil.com"])
    path = rng.choice([_PATH, "/v2/repository/models/mlp/load"])
    return whole.replace(b"Host: localhost", b"Host: " + host).replace(
        _PATH.encode(), path.encode()
    )


# Take megabytes each where nothing is counted, so that few are sent.
HEAVY = (_structure, _long_tensor, _structure, _page)
KINDS = (
    _cut, _noise, _field, _lying_shape, _lying_size, _header_length, _inputs, _outputs, _timeout,
    _deep, _data, _large, _short, _chunked, _zipped, _path, _method, _not_http, _long_headers,
    _unfinished,
)  # fmt: skip


# The server must wait for more of these; here, they end.
UNFINISHED = ("short", "chunked", "unfinished", "not_http", "large")


def hostile_requests(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name of a kind and the bytes to send."""
    rng = random.Random(seed)
    for number in range(count):
        heavy = number // 20 % len(HEAVY)
        make = HEAVY[heavy] if number % 20 == 19 else KINDS[number % len(KINDS)]
        yield make.__name__.strip("_"), make(rng)
