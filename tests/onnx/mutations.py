"""Damaged models: bytes of small real ones, changed in a way that a number tells again."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import onnx

import fusewire as fw
from fusewire.errors import FusewireError
from fusewire.ir.graph import Graph
from fusewire.onnx.read import wire
from tests.onnx import escapes, floods

LARGEST = 100_000
# Of the ONNX suite: control flow, sequences, strings, quantization, functions, classic models.
CASES = (
    "test_loop16_seq_none", "test_scan9_multi_state", "test_if_opt",
    "test_sequence_map_add_1_sequence_1_tensor_expanded", "test_string_split_basic",
    "test_lstm_with_peepholes", "test_qlinearmatmul_3D_int8_float32",
    "test_resize_tf_crop_and_resize", "test_attention_3d_gqa_softcap_expanded",
    "test_tfidfvectorizer_tf_batch_uniandbigrams_skip5", "test_dequantizelinear_int4",
    "test_ai_onnx_ml_tree_ensemble_single_tree", "test_range_int32_type_negative_delta_expanded",
)  # fmt: skip
LIGHT = ("light_bvlc_alexnet", "light_inception_v1")


def seeds() -> dict[str, bytes]:
    """Give 18 models of at most 100 kB that need nothing but the onnx package."""
    with warnings.catch_warnings():
        # Some cases of the suite divide by zero when they are made.
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        cases = {case.name: case.model for case in load_model_tests(kind="node")}
    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    found = {name: cases[name].SerializeToString() for name in CASES}
    found |= {name: (folder / f"{name}.onnx").read_bytes() for name in LIGHT}
    found["external data"] = escapes.model(escapes.at("weights.bin")).SerializeToString()
    found["functions"] = floods.calls(3, 2)
    found["sparse"] = floods.sparse(2, 3, 4)
    assert all(len(data) <= LARGEST for data in found.values())
    return found


_INTERESTING = (0x00, 0x01, 0x7F, 0x80, 0xFF, 0x0A, 0x12)
_NUMBERS = (b"\xff" * 9 + b"\x01", b"\x80\x80\x80\x80\x08", b"\xff\xff\xff\xff\x07", b"\x00")


def _span(data: bytearray, rng: random.Random, most: int = 64) -> slice:
    start = rng.randrange(len(data))
    return slice(start, start + rng.randint(1, most))


def _flip(data: bytearray, rng: random.Random, other: bytes) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(data: bytearray, rng: random.Random, other: bytes) -> None:
    data[rng.randrange(len(data))] = rng.choice((*_INTERESTING, rng.randrange(256)))


def _step(data: bytearray, rng: random.Random, other: bytes) -> None:
    place = rng.randrange(len(data))
    data[place] = (data[place] + rng.choice((-1, 1))) % 256


def _write_number(data: bytearray, rng: random.Random, other: bytes) -> None:
    number, place = rng.choice(_NUMBERS), rng.randrange(len(data))
    data[place : place + len(number) * rng.randrange(2)] = number


def _insert(data: bytearray, rng: random.Random, other: bytes) -> None:
    place = rng.randrange(len(data))
    data[place:place] = rng.randbytes(rng.randint(1, 8))


def _delete(data: bytearray, rng: random.Random, other: bytes) -> None:
    del data[_span(data, rng)]


def _repeat(data: bytearray, rng: random.Random, other: bytes) -> None:
    part = data[_span(data, rng)]
    place = rng.randrange(len(data))
    data[place:place] = part * rng.randint(1, 4)


def _copy_over(data: bytearray, rng: random.Random, other: bytes) -> None:
    part = data[_span(data, rng)]
    place = rng.randrange(len(data))
    data[place : place + len(part)] = part


def _splice(data: bytearray, rng: random.Random, other: bytes) -> None:
    place = rng.randrange(len(data))
    data[place : place + rng.randrange(64)] = other[_span(bytearray(other), rng)]


def _cut(data: bytearray, rng: random.Random, other: bytes) -> None:
    del data[rng.randrange(len(data)) :]


WAYS: Sequence[Callable[[bytearray, random.Random, bytes], None]] = (
    _flip, _flip, _flip, _set, _set, _step, _step, _write_number, _insert, _delete, _repeat,
    _copy_over, _splice, _cut,
)  # fmt: skip


def mutant(sources: Sequence[bytes], number: int) -> bytes:
    """Make the mutant of this number: mostly one or two changes, so that many still parse.

    Every fifth is changed in parts, and lengths are written anew, so that most of those parse.
    """
    rng = random.Random(number)
    data, times = rng.choice(sources), rng.choice((1, 1, 1, 2, 2, 3, 8))
    return (_damaged if number % 5 else _mended)(data, sources, rng, times)


def _damaged(data: bytes, sources: Sequence[bytes], rng: random.Random, times: int) -> bytes:
    made = bytearray(data)
    for _ in range(times):
        if made:
            rng.choice(WAYS)(made, rng, rng.choice(sources))
    return bytes(made)


def _mended(data: bytes, sources: Sequence[bytes], rng: random.Random, times: int) -> bytes:
    root = Part(0, 2, wire.model_kind(), data)
    for _ in range(times):
        messages = [part for part in root.walk() if part.parts]
        if not messages:
            break
        parts = rng.choice(messages).parts
        place = rng.randrange(len(parts))
        way = rng.randrange(8)
        if way == 0:
            del parts[place]
        elif way == 1:
            parts.insert(rng.randrange(len(parts) + 1), parts[place])
        elif way == 2:
            parts.insert(place, rng.choice(rng.choice(messages).parts).copy())
        elif way == 3:
            other = Part(0, 2, wire.model_kind(), rng.choice(sources))
            parts[place] = rng.choice([part for part in other.walk() if part is not other])
        else:
            parts[place] = _changed(parts[place], sources, rng)
    return root.body()


def _changed(part: Part, sources: Sequence[bytes], rng: random.Random) -> Part:
    """Change a number, or the bytes of a text or a message."""
    if part.form == 0:
        number = rng.choice((0, 1, 2, 7, 127, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1))
        return Part(part.number, 0, None, _varint(number))
    body = part.body()
    if part.form == 2 and rng.randrange(2) and not part.parts:
        body = _damaged(body or b"x", sources, rng, 1)
    elif body:
        place = rng.randrange(len(body))
        body = body[:place] + bytes([rng.randrange(256)]) + body[place + 1 :]
    return Part(part.number, part.form, None, body)


class Part:
    """A field of a message, as Protocol Buffers write it; messages are taken apart."""

    def __init__(self, number: int, form: int, kind: wire.MessageKind | None, data: bytes) -> None:
        self.number, self.form, self._data = number, form, data
        self.parts: list[Part] = []
        if kind is not None:
            children = kind.children
            end = 0
            for field, place, length in wire.fields(data, 0, len(data)):
                form = _form(data, end)
                held = (
                    data[place : place + length] if form == 2 else data[_after(data, end) : place]
                )
                self.parts.append(Part(field, form, children.get(field), held))
                end = place + length

    def walk(self) -> Iterator[Part]:
        stack = [self]
        while stack:
            part = stack.pop()
            yield part
            stack.extend(part.parts)

    def copy(self) -> Part:
        """Give a part that cannot come to contain itself; it is not taken apart again."""
        return Part(self.number, self.form, None, self.body())

    def body(self) -> bytes:
        return b"".join(part.written() for part in self.parts) if self.parts else self._data

    def written(self) -> bytes:
        body = self.body()
        length = _varint(len(body)) if self.form == 2 else b""
        return _varint(self.number << 3 | self.form) + length + body


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes(made) + bytes([number])


def _form(data: bytes, at: int) -> int:
    return data[at] & 7


def _after(data: bytes, at: int) -> int:
    """Find the end of a tag."""
    while data[at] > 127:
        at += 1
    return at + 1


def outcome(path: Path) -> str:
    """Load a model and read all its constants; name the error of ours that refused it."""
    try:
        for graph in fw.load(path).walk():
            _touch(graph)
    except FusewireError as error:
        kinds = (kind.__name__ for kind in type(error).__mro__)
        return next(name for name in kinds if not name.startswith("_"))
    return "loaded"


def _touch(graph: Graph) -> None:
    for value in graph.constants:
        assert value.constant is not None
        _ = value.constant.array
