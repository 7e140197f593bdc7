"""The REST application in this process, as an ASGI server calls it: sizes, names, answers, ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import struct
import threading
import tracemalloc
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.errors import CheckError, EngineError, FusewireError, RequestTimeout, ServerBusy
from fusewire.serve import header, rest
from fusewire.serve.access import Access
from fusewire.serve.datatypes import read_raw
from fusewire.serve.header import read_header
from fusewire.serve.limits import ServeLimits
from fusewire.serve.model import LoadedModel, ModelConfig, ServedModel
from fusewire.serve.pages import pages
from fusewire.serve.repository import Repository
from fusewire.serve.rest import RestApp
from fusewire.system.processes import descendants

INFER = "/v2/models/m/infer"
LENGTH = "inference-header-content-length"
OPTIONS = fw.Options(backend="reference", isolate=False, cache=False)
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


class Exchange:
    """A request in pieces, and what is sent back; its client stays until it ``left``."""

    def __init__(
        self,
        *pieces: bytes,
        path: str = INFER,
        method: str = "POST",
        length: int | None = None,
        declared: int | None = None,
    ) -> None:
        """``length`` is what a header says of the JSON part, ``declared`` of the whole body."""
        numbers = {LENGTH: length, "content-length": declared}
        rows = [(name.encode(), b"%d" % n) for name, n in numbers.items() if n is not None]
        self.scope = {"type": "http", "method": method, "path": path, "headers": rows}
        self.pieces = [*pieces]
        self.left = asyncio.Event()
        # Set before the last piece is given.
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.receives = 0
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        self.receives += 1
        if len(self.pieces) == 1:
            await self.goes_on.wait()
        if self.pieces:
            piece = self.pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        found: int = self.sent[0]["status"]
        return found

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def said(self) -> Any:
        """The JSON part of the answer."""
        return json.loads(self.body[: int(self.headers.get(LENGTH.encode(), len(self.body)))])


class Service:
    """The application, over a repository of one model, ``m``."""

    def __init__(self, app: RestApp, model: ServedModel, repository: Repository) -> None:
        self.app = app
        self.model = model
        self.repository = repository

    async def ask(self, exchange: Exchange) -> Exchange:
        async with asyncio.timeout(20):
            await self.app(exchange.scope, exchange.receive, exchange.send)
        return exchange

    def start(self, exchange: Exchange) -> asyncio.Task[Exchange]:
        return asyncio.create_task(self.ask(exchange))

    async def has_waiting(self, count: int) -> None:
        """Go on once so many requests wait for a batch."""
        while self.loaded.batcher.waiting != count:
            await asyncio.sleep(0)

    @property
    def loaded(self) -> LoadedModel:
        return self.repository.ready(self.model)


def run(
    source: Path,
    use: Callable[[Service], Coroutine[Any, Any, None]],
    limits: ServeLimits = ServeLimits(),
    access: Access = Access(),
    rows: int = 1,
    delay: float = 0.0,
) -> None:
    async def main() -> None:
        model = ServedModel(ModelConfig("m", source, OPTIONS, 1, rows, rows, delay), limits)
        await model.load()
        repository = Repository([model], limits, access)
        app = RestApp(repository, pages(repository))
        await use(Service(app, model, repository))
        await app.close()
        await model.close()

    asyncio.run(main())


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of rows: twice the numbers, and one more."""
    path = tmp_path_factory.mktemp("numbers") / "m.onnx"
    spec = fw.Spec(("n", 3), "float32")
    fw.save_onnx(lambda x: (ops.multiply(x, 2.0), ops.add(x, 1.0)), path, (spec,))
    return path


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of texts, one after another, and of a number beside them."""
    path = tmp_path_factory.mktemp("words") / "m.onnx"
    text, number = fw.Spec(("n",), "string"), fw.Spec((1,), "float32")
    fw.save_onnx(
        lambda x, y, k: (ops.concat(x, y, axis=0), ops.add(k, 1.0)), path, (text, text, number)
    )
    return path


def listed(x: np.ndarray = ROWS, **more: Any) -> bytes:
    item = {"name": "x", "datatype": "FP32", "shape": x.shape, "data": x.ravel().tolist()}
    return json.dumps({"inputs": [item], **more}).encode()


def header_of(x: np.ndarray = ROWS, **more: Any) -> bytes:
    """Say that the tensor follows, and that the answer is to be binary, too."""
    item: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": x.shape}
    item["parameters"] = {"binary_data_size": x.nbytes}
    return json.dumps(
        {"inputs": [item], "parameters": {"binary_data_output": True}} | more
    ).encode()


def binary(x: np.ndarray = ROWS, **more: Any) -> Exchange:
    head = header_of(x, **more)
    return Exchange(head + x.tobytes(), length=len(head))


def texts_of(*texts: str) -> Exchange:
    """Send each text to the first input, nothing to the second, and a number; all are binary."""
    packed = b"".join(struct.pack("<I", len(text)) + text.encode() for text in texts)
    empty = struct.pack("<I", 0) * len(texts)
    sizes = {"x": len(packed), "y": len(empty)}
    items = [
        {"name": name, "datatype": "BYTES", "shape": [len(texts)]}
        | {"parameters": {"binary_data_size": size}}
        for name, size in sizes.items()
    ]
    items.append({"name": "k", "datatype": "FP32", "shape": [1], "data": [0.5]})
    said = {"inputs": items, "parameters": {"binary_data_output": True}}
    head = json.dumps(said).encode()
    # In two pieces, the first of which ends in the middle of the tensors.
    body = packed + empty
    return Exchange(head + body[:3], body[3:], length=len(head))


def outputs_of(exchange: Exchange) -> list[np.ndarray]:
    """Read the outputs of the model of rows."""
    assert exchange.status == 200, exchange.body
    at, found = int(exchange.headers.get(LENGTH.encode(), 0)), []
    for row in exchange.said["outputs"]:
        if "data" in row:
            array = np.array(row["data"], np.float32)
        else:
            size = row["parameters"]["binary_data_size"]
            array = np.frombuffer(exchange.body[at : at + size], np.float32)
            at += size
        found.append(array.reshape(row["shape"]))
    return found


def check_rows(exchange: Exchange, x: np.ndarray = ROWS) -> None:
    doubled, increased = outputs_of(exchange)
    np.testing.assert_array_equal(doubled, x * 2)
    np.testing.assert_array_equal(increased, x + 1)


# -- which requests are for inference


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_only_http_is_answered(numbers: Path, kind: str) -> None:
    async def use(service: Service) -> None:
        for path in (INFER, "/v2"):
            exchange = Exchange(listed(), path=path)
            exchange.scope["type"] = kind
            exchange.left.set()
            await service.ask(exchange)
            assert (exchange.sent, exchange.receives) == ([], 0)

    run(numbers, use)


def test_pages_are_answered_beside_inference(numbers: Path) -> None:
    async def use(service: Service) -> None:
        page = await service.ask(Exchange(path="/v2/models/m", method="GET"))
        assert [port["name"] for port in page.said["inputs"]] == ["x"]
        check_rows(await service.ask(Exchange(listed())))

    run(numbers, use)


def test_inference_takes_a_post_request(numbers: Path) -> None:
    async def use(service: Service) -> None:
        exchange = await service.ask(Exchange(method="GET"))
        assert exchange.status == 400
        assert exchange.said["error"] == "Inference takes a POST request."

    run(numbers, use)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (INFER, 200),
        ("/v2/models/m/versions/1/infer", 200),
        ("/v2/models/m/versions/2/infer", 404),
        ("/v2/models/n/infer", 404),
        ("/v2/models/infer", 400),
        ("/v2/models/m/1/infer", 400),
        ("/v3/models/m/infer", 400),
        ("/v3/models/m/versions/1/infer", 400),
        ("/v2/models/m/version/1/infer", 400),
        ("/v2/models/m/versions/1/2/infer", 400),
        ("/infer", 400),
    ],
)
def test_path_names_model_and_version(numbers: Path, path: str, status: int) -> None:
    async def use(service: Service) -> None:
        for _ in range(2):
            exchange = await service.ask(Exchange(listed(), path=path))
            assert exchange.status == status

    run(numbers, use)


# -- how long a request is, and its parts


def test_request_in_one_piece_is_as_long_as_it_says(numbers: Path) -> None:
    head, tensor = header_of(), ROWS.tobytes()

    async def use(service: Service) -> None:
        check_rows(await service.ask(Exchange(head + tensor, length=len(head))))
        check_rows(await service.ask(Exchange(listed(), length=len(listed()))))
        for length, body, words in (
            (len(head), head + tensor[:-1], "23 bytes follow the header, which says 24"),
            (len(head), head + tensor + b"x", "25 bytes follow the header, which says 24"),
            (len(head) + 1, head, f"has {len(head) + 1} bytes of a body of {len(head)}"),
            (0, head, "The header is not JSON"),
        ):
            exchange = await service.ask(Exchange(body, length=length))
            assert exchange.status == 400
            assert words in exchange.said["error"]

    run(numbers, use)


@pytest.mark.parametrize("is_declared", [False, True])
def test_request_in_pieces_is_as_long_as_it_says(numbers: Path, is_declared: bool) -> None:
    head, tensor = header_of(), ROWS.tobytes()

    def pieces(body: bytes, length: int | None = None) -> Exchange:
        declared = len(body) if is_declared else None
        return Exchange(body[:20], body[20:-5], body[-5:], length=length, declared=declared)

    async def use(service: Service) -> None:
        check_rows(await service.ask(pieces(head + tensor, length=len(head))))
        check_rows(await service.ask(pieces(listed(), length=len(listed()))))
        check_rows(await service.ask(pieces(listed())))
        for length, body, words in (
            (len(head), head + tensor[:-1], "23 bytes follow the header, which says 24"),
            (len(head), head + tensor + b"x", "25 bytes follow the header, which says 24"),
            (len(head) + 1, head, f"has {len(head) + 1} bytes of a body of {len(head)}"),
            (None, head, "0 bytes follow the header, which says 24"),
        ):
            exchange = pieces(body, length)
            await service.ask(exchange)
            assert exchange.status == 400
            assert words in exchange.said["error"]

    run(numbers, use)


def test_header_is_read_before_the_tensors_come(numbers: Path) -> None:
    """Who says what is wrong need not send the rest."""

    async def use(service: Service) -> None:
        head = header_of()
        too_few = Exchange(head, b"", declared=len(head) + 23, length=len(head))
        wrong = header_of(parameters={"timeout": -1})
        unread = Exchange(wrong, b"", declared=len(wrong) + 24, length=len(wrong))
        for exchange, words in ((too_few, "23 bytes follow"), (unread, "timeout -1")):
            exchange.goes_on.clear()
            await service.ask(exchange)
            assert exchange.status == 400
            assert words in exchange.said["error"]

    run(numbers, use)


def test_json_part_may_have_so_many_bytes(numbers: Path) -> None:
    head = header_of()
    body = listed().ljust(len(head))

    async def use(service: Service) -> None:
        for pieces in ((body,), (body[:9], body[9:])):
            check_rows(await service.ask(Exchange(*pieces)))
            exchange = await service.ask(Exchange(*pieces[:-1], pieces[-1] + b" "))
            assert exchange.status == 413
            assert f"has {len(body) + 1} bytes or more" in exchange.said["error"]
        # The tensors behind it do not count.
        whole = head + ROWS.tobytes()
        for pieces in ((whole,), (whole[:9], whole[9:])):
            check_rows(await service.ask(Exchange(*pieces, length=len(head))))

    run(numbers, use, ServeLimits(json_bytes=len(body)))


def test_whole_request_may_have_so_many_bytes(numbers: Path) -> None:
    head, tensor = header_of(), ROWS.tobytes()

    async def use(service: Service) -> None:
        check_rows(await service.ask(Exchange(head, tensor, length=len(head))))
        longer = await service.ask(Exchange(head + b" ", tensor, length=len(head) + 1))
        assert longer.status == 413
        assert "RequestTooLarge" in longer.body.decode()

    run(numbers, use, ServeLimits(body_bytes=len(head) + len(tensor)))


def test_large_json_is_read_by_a_child(numbers: Path) -> None:
    body = listed()

    async def use(service: Service) -> None:
        check_rows(await service.ask(Exchange(body)))
        assert descendants(os.getpid()) == before
        check_rows(await service.ask(Exchange(body + b" ")))
        assert len(descendants(os.getpid())) > len(before)

    before = descendants(os.getpid())
    run(numbers, use, ServeLimits(json_at_once=len(body)))


@pytest.mark.parametrize("count", [1, 3])
def test_what_json_took_is_given_back_while_the_request_waits(
    numbers: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Its lists take many times the memory of the tensors."""
    rng = np.random.default_rng(0)
    body = listed(rng.standard_normal((10_000, 3)).astype(np.float32))
    step = -(-len(body) // count)
    generation_waits = asyncio.Event()

    async def use(service: Service) -> None:
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def submit(*arguments: Any) -> asyncio.Future[Any]:
            generation_waits.set()
            return waiting

        monkeypatch.setattr(service.loaded, "submit", submit)
        exchange = Exchange(*(body[at : at + step] for at in range(0, len(body), step)))
        tracemalloc.start()
        try:
            task = service.start(exchange)
            await generation_waits.wait()
            await asyncio.sleep(0)
            # The tensor has 120 kB; the JSON and its numbers have a megabyte or more.
            assert tracemalloc.get_traced_memory()[0] < 500_000
        finally:
            tracemalloc.stop()
        waiting.set_exception(ServerBusy("the end"))
        await task

    run(numbers, use, ServeLimits(json_at_once=1 << 20))


def test_model_is_replaced_while_tensors_come(numbers: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(numbers.read_bytes())
    spec = fw.Spec(("n", 3), "float32")

    async def use(service: Service) -> None:
        head = header_of()
        exchange = Exchange(head, ROWS.tobytes(), length=len(head))
        exchange.goes_on.clear()
        task = service.start(exchange)
        while exchange.receives < 2:
            await asyncio.sleep(0)
        # The new model has one output less.
        fw.save_onnx(lambda x: ops.add(x, 1.0), path, (spec,))
        await service.model.load()
        exchange.goes_on.set()
        await task
        assert exchange.said["model_version"] == "2"
        (increased,) = outputs_of(exchange)
        np.testing.assert_array_equal(increased, ROWS + 1)

    run(path, use)


def test_only_texts_are_read_in_a_thread(
    numbers: Path, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take long, and stop nobody else meanwhile; numbers are only looked at."""
    threads: set[bool] = set()

    def noted(*arguments: Any) -> Any:
        threads.add(threading.current_thread() is threading.main_thread())
        return read_raw(*arguments)

    monkeypatch.setattr(header, "read_raw", noted)

    async def use_numbers(service: Service) -> None:
        head = header_of()
        check_rows(await service.ask(Exchange(head, ROWS.tobytes(), length=len(head))))

    async def use_words(service: Service) -> None:
        assert (await service.ask(texts_of("a"))).status == 200

    run(numbers, use_numbers)
    assert threads == {True}
    threads.clear()
    run(words, use_words)
    assert threads == {False}


# -- what is remembered


def test_header_that_came_before_is_not_read_again(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []

    def noted(loaded: LoadedModel, raw: bytes, *more: Any) -> Any:
        read.append(raw)
        return read_header(loaded, raw, *more)

    monkeypatch.setattr(rest, "read_header", noted)
    monkeypatch.setattr(rest, "_KNOWN_BYTES", len(listed()))
    named = listed(ROWS[:1], id="a")
    assert len(named) < len(listed())

    async def use(service: Service) -> None:
        for body, times in ((listed(), 1), (listed() + b" ", 3), (named, 3)):
            read.clear()
            for _ in range(3):
                check_rows(await service.ask(Exchange(body)), ROWS[:1] if body is named else ROWS)
            assert len(read) == times

    run(numbers, use)


def test_so_many_headers_and_answers_are_remembered(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "_KNOWN", 2)

    async def use(service: Service) -> None:
        for count, kept in ((1, 1), (2, 2), (3, 1)):
            x = np.ones((count, 3), np.float32)
            check_rows(await service.ask(binary(x)), x)
            assert len(service.loaded.headers) == kept
            assert len(service.loaded.answers) == kept

    run(numbers, use)


def test_answer_is_remembered_by_its_shapes(numbers: Path) -> None:
    """Large answers are sent in parts; the first has what is the same for all of a shape."""
    x = np.ones((9000, 3), np.float32)

    async def use(service: Service) -> None:
        first, second, third = [await service.ask(binary(x)) for _ in range(3)]
        for exchange in (first, second, third):
            check_rows(exchange, x)
        assert first.sent[1]["body"] == second.sent[1]["body"]
        assert second.sent[1]["body"] is third.sent[1]["body"]

    run(numbers, use)


def test_answers_that_say_more_are_not_remembered(numbers: Path) -> None:
    mixed: list[dict[str, Any]] = [{"parameters": {"binary_data": False}}, {}]

    async def use(service: Service) -> None:
        named = await service.ask(binary(id="seven"))
        check_rows(named)
        assert named.said["id"] == "seven"
        in_json = await service.ask(Exchange(listed()))
        check_rows(in_json)
        assert "id" not in in_json.said
        assert in_json.headers[b"content-type"] == b"application/json"
        names = [port.name for port in service.loaded.outputs]
        for wanted, name in zip(mixed, names, strict=True):
            wanted["name"] = name
        both = await service.ask(binary(outputs=mixed))
        check_rows(both)
        assert ["data" in row for row in both.said["outputs"]] == [True, False]
        assert both.headers[b"content-type"] == b"application/octet-stream"
        assert not service.loaded.answers

    run(numbers, use)


def test_texts_of_one_shape_differ_in_size(words: Path) -> None:
    async def use(service: Service) -> None:
        for text in ("a", "bcd", ""):
            exchange = await service.ask(texts_of(text, text))
            texts, number = exchange.said["outputs"]
            assert texts["parameters"]["binary_data_size"] == 2 * len(text) + 16
            assert number["parameters"]["binary_data_size"] == 4
            assert exchange.body.endswith(np.float32(1.5).tobytes())

    run(words, use)


# -- how answers are sent


def test_long_answers_are_sent_in_parts_that_are_not_joined(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(service: Service) -> None:
        whole = await service.ask(binary())
        size = len(whole.body)
        assert whole.headers[b"content-length"] == b"%d" % size
        for most, messages in ((size, 1), (size - 1, 4)):
            monkeypatch.setattr(rest, "_JOINED_BYTES", most)
            exchange = await service.ask(binary())
            assert exchange.body == whole.body
            more = [message.get("more_body", False) for message in exchange.sent[1:]]
            assert more == [True] * (messages - 1) + [False]

    run(numbers, use)


@pytest.mark.parametrize(
    ("error", "status", "is_logged"),
    [
        (EngineError("it broke"), 500, True),
        (CheckError("9 is no index"), 400, False),
        (ServerBusy("come later", 7), 503, False),
        (RequestTimeout("too late"), 504, False),
    ],
)
def test_failures_of_the_server_are_logged(
    numbers: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: FusewireError,
    status: int,
    is_logged: bool,
) -> None:
    async def use(service: Service) -> None:
        def submit(*arguments: Any) -> Any:
            raise error

        monkeypatch.setattr(service.loaded, "submit", submit)
        exchange = await service.ask(Exchange(listed()))
        assert exchange.status == status
        assert exchange.said["code"] == type(error).__name__
        is_busy = isinstance(error, ServerBusy)
        assert exchange.headers.get(b"retry-after") == (b"7" if is_busy else None)
        assert b"www-authenticate" not in exchange.headers
        assert service.repository.held == 0

    with caplog.at_level(logging.ERROR, "fusewire.serve"):
        run(numbers, use)
    assert [record.fields["model"] for record in caplog.records] == ["m"] * is_logged  # type: ignore[attr-defined]


def test_request_without_a_token_is_told_which_to_send(numbers: Path) -> None:
    async def use(service: Service) -> None:
        for path in (INFER, "/v2"):
            exchange = await service.ask(Exchange(listed(), path=path))
            assert exchange.status == 401
            assert exchange.headers[b"www-authenticate"] == b"Bearer"

    run(numbers, use, access=Access((), b"a" * 32))


# -- requests that wait


@pytest.mark.parametrize(
    ("parameters", "limit", "words"),
    [
        ({"timeout": 50_000}, 60.0, "no answer within 0.05 seconds"),
        ({"timeout": 60_000_000}, 0.05, "no answer within 0.05 seconds"),
        # No timer is made for it: batches and the check of all that waits look at deadlines.
        ({}, 0.05, "not answered before its deadline"),
    ],
)
def test_request_waits_as_long_as_it_asks_and_may(
    numbers: Path, parameters: dict[str, Any], limit: float, words: str
) -> None:
    async def use(service: Service) -> None:
        exchange = await service.ask(Exchange(listed(parameters=parameters)))
        assert exchange.status == 504
        assert words in exchange.said["error"]

    run(numbers, use, ServeLimits(request_seconds=limit), rows=4, delay=0.2)


def test_client_that_leaves_is_not_answered(numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "_WATCH_AFTER", 0.0)

    async def use(service: Service) -> None:
        leaving, staying, last = (Exchange(listed(ROWS[:1])) for _ in range(3))
        tasks = [service.start(leaving), service.start(staying)]
        await service.has_waiting(2)
        await asyncio.sleep(0.01)
        tasks.append(service.start(last))
        leaving.left.set()
        await asyncio.gather(*tasks)
        assert leaving.sent == []
        check_rows(staying, ROWS[:1])
        check_rows(last, ROWS[:1])
        assert service.model.counts.cancelled == 1
        assert service.repository.held == 0

    run(numbers, use, rows=4, delay=0.2)


def test_what_a_client_sends_too_much_ends_nothing(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "_WATCH_AFTER", 0.0)

    async def use(service: Service) -> None:
        sending = Exchange(listed(ROWS[:1]))
        task = service.start(sending)
        await service.has_waiting(1)
        sending.pieces.append(b"more")
        await asyncio.sleep(0.01)
        await service.ask(Exchange(listed(ROWS[:1])))
        check_rows(await task, ROWS[:1])
        assert sending.receives == 2

    run(numbers, use, rows=4, delay=0.2)


def test_clients_that_are_answered_are_not_watched(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "_WATCH_AFTER", 0.0)

    async def use(service: Service) -> None:
        exchanges = []
        for _ in range(3):
            exchanges.append(await service.ask(Exchange(listed())))
            await asyncio.sleep(0.01)
        assert [exchange.receives for exchange in exchanges] == [1, 1, 1]

    run(numbers, use)


def test_clients_are_watched_once_they_have_waited(numbers: Path) -> None:
    async def use(service: Service) -> None:
        exchanges = [Exchange(listed(ROWS[:1])) for _ in range(3)]
        await asyncio.gather(*map(service.ask, exchanges))
        assert [exchange.receives for exchange in exchanges] == [1, 1, 1]

    run(numbers, use, rows=4, delay=0.05)


def test_server_that_ends_a_request_is_not_held_up(numbers: Path) -> None:
    async def use(service: Service) -> None:
        exchange = Exchange(listed(ROWS[:1]))
        task = service.start(exchange)
        await service.has_waiting(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert exchange.sent == []
        assert service.repository.held == 0

    run(numbers, use, rows=4, delay=0.2)
