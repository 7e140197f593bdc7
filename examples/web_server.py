"""Serve a model to many threads: an HTTP server of the standard library.

    python examples/web_server.py

A program may be called from any number of threads. ``threads=1`` gives each call one thread of the
processor, which is best if many calls run at once. The server chooses its engine before it
accepts the first request, and the script then sends requests to it.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

import fusewire as fw

CLASSES = ("cat", "dog", "bird")
WEIGHTS = np.random.default_rng(0).standard_normal((32, len(CLASSES))).astype(np.float32)


def classify(features: Any, temperature: float = 1.0) -> Any:
    """Give the probability of every class."""
    scores = features @ WEIGHTS / temperature
    e = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


class Handler(BaseHTTPRequestHandler):
    """Answers ``POST /`` with the class of ``{"features": [...]}``."""

    server: ModelServer

    def do_POST(self) -> None:
        """Run the program in the thread of this request."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            features = np.array(body["features"], np.float32)[None]
            (probabilities,) = self.server.program(features=features)
            best = int(np.argmax(probabilities))
            answer = {"class": CLASSES[best], "probability": float(probabilities[best])}
            code = 200
        except (fw.FusewireError, KeyError, ValueError) as error:
            # The message names the input, what was found and what is wanted.
            answer, code = {"error": str(error)}, 400
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words: Any) -> None:
        """Write no log."""


class ModelServer(ThreadingHTTPServer):
    """Answers every request with one program, in a thread of its own."""

    def __init__(self, program: fw.Program) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.program = program


def ask(port: int, features: list[float]) -> tuple[int, dict[str, Any]]:
    """Send one request; gives the status and the answer."""
    data = json.dumps({"features": features}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", data)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def main() -> None:
    """Compile, warm up, serve 200 requests from 8 clients, and stop."""
    example = fw.Spec((1, 32), "float32")
    program = fw.compile(classify, example, threads=1, start="measured", budget_seconds=3)
    program(np.zeros((1, 32), np.float32))  # The engines are compared here.
    server = ModelServer(program)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    rows = np.random.default_rng(1).standard_normal((200, 32)).astype(np.float32)
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda row: ask(server.server_port, row.tolist()), rows))
    assert all(status == 200 for status, _ in answers)
    expected = [CLASSES[best] for best in classify(rows).argmax(axis=-1)]
    assert [answer["class"] for _, answer in answers] == expected
    print(f"{len(answers)} requests answered by {program.why().backend}")

    status, answer = ask(server.server_port, [1.0, 2.0])
    print(f"a bad request: {status}, {answer['error']}")
    assert status == 400
    server.shutdown()
    server.server_close()
    program.close()


if __name__ == "__main__":
    main()
