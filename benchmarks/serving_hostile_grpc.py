"""Hostile gRPC calls for the server: bytes that are no message, lying shapes, and floods."""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as messages

_INFER = "/inference.GRPCInferenceService/ModelInfer"
# Binary tensors of no model, of 48 MB, which gzip makes 47 kB.
_BOMB = b"\x3a\x80\x80\x80\x18" + bytes(48 << 20)
_PATHS = (
    "/inference.GRPCInferenceService/Infer",
    "/inference.GRPCInferenceService/ModelReady",
    "/inference.GRPCInferenceService/ModelMetadata",
)
# What a call may end with that the caller is to blame for.
EXPECTED = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,
)


def ask(channel: grpc.Channel, path: str, request: bytes, seconds: float = 20.0) -> str:
    """Send bytes as they are; returns the name of the code, and what it says."""
    is_bomb = len(request) == len(_BOMB) and request.startswith(_BOMB[:8])
    packing = grpc.Compression.Gzip if is_bomb else None
    try:
        answer = channel.unary_unary(path)(request, timeout=seconds, compression=packing)
    except grpc.RpcError as error:
        return f"{error.code().name} {error.details()}"
    return f"OK {len(answer)}"


def request(rows: int = 1, **changes: Any) -> Any:
    """Make a message that is right, but for what is changed in its tensor."""
    made = messages.ModelInferRequest(model_name="mlp")
    made.inputs.add(**{"name": "x", "datatype": "FP32", "shape": [rows, 256], **changes})
    made.raw_input_contents.append(np.full((rows, 256), 0.5, np.float32).tobytes())
    return made


def good() -> bytes:
    return bytes(request().SerializeToString())


def _noise(rng: random.Random) -> Any:
    return rng.randbytes(rng.randrange(1, 2000))


def _mutated(rng: random.Random) -> Any:
    """Change bytes that are not those of the tensor, of which any are right."""
    whole = bytearray(good())
    for _ in range(rng.randrange(1, 8)):
        whole[rng.randrange(30)] = rng.randrange(256)
    return bytes(whole)


def _cut(rng: random.Random) -> Any:
    whole = good()
    return whole[: rng.randrange(1, len(whole))]


def _shape(rng: random.Random) -> Any:
    sizes = [0, 2, 3, -1, 1 << 31, 1 << 62, -(1 << 63)]
    shape = [rng.choice(sizes), rng.choice([256, 255, *sizes])]
    return request(shape=rng.choice([shape, shape[:1], [1] * 100, [1, 256, 1], []]))


def _field(rng: random.Random) -> Any:
    name = rng.choice(["name", "datatype"])
    words = ["", "y", "FP64", "\x00", "\u202e" * 100, "x" * 100_000]
    changes: dict[str, Any] = {name: rng.choice(words)}
    return request(**changes)


def _raw(rng: random.Random) -> Any:
    made = request()
    del made.raw_input_contents[:]
    for _ in range(rng.randrange(3)):
        made.raw_input_contents.append(rng.randbytes(rng.choice([0, 1, 1023, 1025])))
    return made


def _contents(rng: random.Random) -> Any:
    made = request()
    del made.raw_input_contents[:]
    contents = made.inputs[0].contents
    match rng.randrange(3):
        case 0:
            contents.fp32_contents.extend([0.5] * rng.choice([1, 255, 257]))
        case 1:
            contents.int_contents.extend([1] * 256)
        case _:
            contents.bytes_contents.extend([b"\xff"] * 256)
    return made


def _inputs(rng: random.Random) -> Any:
    return good() + b"\x2a\x00" * rng.choice([1, 2000, 100_000])


def _flood(rng: random.Random) -> Any:
    """Send a few megabytes that become many times as many when they are read."""
    one = rng.choice([b"\x2a\x00", b"\x32\x00", b"\x22\x00"])
    return good() + one * (3 << 20)


def _numbers(rng: random.Random) -> Any:
    return _many_numbers()


@cache
def _many_numbers() -> bytes:
    made = request()
    del made.raw_input_contents[:]
    made.inputs[0].contents.int_contents.extend([0] * (6 << 20))
    return bytes(made.SerializeToString())


def field(number: int, body: bytes) -> bytes:
    """Write a field of a message as the bytes that it is on the wire."""
    head = b""
    for part in (number << 3 | 2, len(body)):
        while part > 0x7F:
            head += bytes([part & 0x7F | 0x80])
            part >>= 7
        head += bytes([part])
    return head + body


@cache
def walked() -> dict[str, bytes]:
    """Make messages of up to 4 MB that take long to walk, to parse or to read, for their bytes."""
    numbers = request(7000)
    del numbers.raw_input_contents[:]
    numbers.inputs[0].contents.int_contents.extend([1] * 1_792_000)
    right = request(3900)
    del right.raw_input_contents[:]
    right.inputs[0].contents.fp32_contents.extend([0.5] * 998_400)
    return {
        "parameters": good() + field(5, b"\x22\x00" * 2000) * 1000,
        "contents": good() + field(5, b"\x2a\x00" * 2000) * 1000,
        "texts": good() + field(5, field(5, b"\x42\x00" * 16_000)) * 120,
        "texts-of-an-input": good() + field(5, field(5, b"\x42\x00" * 16_000) * 120),
        "lists": good() + field(5, field(5, field(2, bytes(100)) * 15_000)),
        "shape": good() + field(5, field(3, bytes(4_000_000))),
        "outputs": good() + field(6, b"\x12\x00" * 500_000) * 4,
        "choices": good() + field(4, field(2, b"\x08\x01" * 2_000_000)),
        "integers": bytes(numbers.SerializeToString()),
        # This one is right, and answered.
        "floats": bytes(right.SerializeToString()),
    }


def _walked(rng: random.Random) -> Any:
    return rng.choice([raw for name, raw in walked().items() if name != "floats"])


def _outputs(rng: random.Random) -> Any:
    made = request()
    for _ in range(rng.choice([1, 3, 5000])):
        made.outputs.add(name=rng.choice(["no", ""]))
    return made


def _timeout(rng: random.Random) -> Any:
    made = request()
    made.parameters["timeout"].int64_param = rng.choice([0, -1, -(1 << 63)])
    return made


def _model(rng: random.Random) -> Any:
    made = request()
    made.model_name = rng.choice(["", "none", "../mlp", "m" * 100_000, "\n{}"])
    return made


def _version(rng: random.Random) -> Any:
    made = request()
    made.model_version = rng.choice(["9", "-1", "v" * 100_000])
    return made


def _bomb(rng: random.Random) -> Any:
    return _BOMB


def _large(rng: random.Random) -> Any:
    return good() + bytes(rng.choice([65, 80]) << 20)


KINDS = (
    _noise, _mutated, _cut, _shape, _field, _raw, _contents, _inputs, _outputs, _timeout, _model,
    _version,
)  # fmt: skip
# Take megabytes each, so that few are sent.
HEAVY = (_flood, _bomb, _numbers, _large, _bomb, _walked)


def hostile_calls(count: int, seed: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name of a kind, a path and the bytes to send."""
    rng = random.Random(seed)
    for number in range(count):
        kinds = HEAVY if number % 100 == 99 else KINDS
        # Clients with other seeds begin with other floods, so that few calls have them all.
        turn = number // 100 + seed if kinds is HEAVY else number
        make = kinds[turn % len(kinds)]
        made = make(rng)
        sent = made if isinstance(made, bytes) else made.SerializeToString()
        path = rng.choice(_PATHS) if rng.random() < 0.05 else _INFER
        yield make.__name__.strip("_"), path, sent


def is_refused(outcome: str, kind: str, path: str) -> bool:
    """Tell whether an answer says that the caller is wrong; some changes leave a call right."""
    code = outcome.partition(" ")[0]
    may_be_right = path != _INFER or kind in ("mutated", "cut", "noise", "shape")
    return (code == "OK" and may_be_right) or code in {one.name for one in EXPECTED}
