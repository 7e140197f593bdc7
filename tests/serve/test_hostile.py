"""Requests that are malformed, too large or slow get a 4xx or a closed connection."""

import socket
import time
from importlib import import_module
from typing import Any

import pytest

from tests.serve import conftest  # noqa: F401 # puts the folder of the campaigns on the path

hostile: Any = import_module("serving_hostile")


def test_hostile_requests_are_refused_and_the_service_is_unharmed(served: Any) -> None:
    good = hostile.post(hostile.said([hostile.tensor()]))
    expected = hostile.ask(served.port, good)
    assert expected.startswith("200")
    failures = []
    for kind, request in hostile.hostile_requests(100, 1):
        outcome = hostile.ask(served.port, request, ends=kind in hostile.UNFINISHED)
        if outcome != "closed" and not outcome.startswith("4"):
            failures.append((kind, outcome[:200], request[:300]))
    assert not failures
    assert hostile.ask(served.port, good) == expected


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"name": "y"}, "400 ", "the model takes x: float32[n, 256]"),
        ({"datatype": "FP64"}, "400 ", "The input x is FP32, not FP64."),
        ({"shape": [2, 256]}, "400 ", "have 256 elements, not 512"),
        ({"shape": [1 << 35, 256]}, "413 ", "RequestTooLarge"),
        ({"data": [True] * 256}, "400 ", "are not all FP32"),
    ],
)
def test_refusal_says_what_was_found(
    served: Any, changes: dict[str, Any], code: str, words: str
) -> None:
    request = hostile.post(hostile.said([hostile.tensor(**changes)]))
    outcome = hostile.ask(served.port, request)
    assert outcome.startswith(code)
    assert words in outcome


def test_body_beyond_the_limit_is_refused_before_it_is_read(served: Any) -> None:
    request = hostile.post(b"", length=2 << 20)
    assert hostile.ask(served.port, request).startswith("413")


def test_many_idle_connections_leave_room_for_requests(served: Any) -> None:
    opened = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(100)]
    try:
        for connection in opened:
            connection.sendall(b"POST /v2/models/mlp/infer HTTP/1.1\r\nX-Slow: ")
        start = time.monotonic()
        good = hostile.post(hostile.said([hostile.tensor()]))
        assert hostile.ask(served.port, good).startswith("200")
        assert time.monotonic() - start < 5
    finally:
        for connection in opened:
            connection.close()
