"""Headless Chromium, driven over a pipe by the DevTools protocol; nothing listens on a port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# What Debian, Ubuntu, Fedora and Google call it.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    # A page that asks for anything on a network does not get it.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)


# The protocol is spoken on descriptors 3 and 4. Copies come first: the pipes may be these two.
_START = """
import os, sys
ends = [os.dup(os.dup(os.dup(int(end)))) for end in sys.argv[1:3]]
for end, wanted in zip(ends, (3, 4)):
    os.dup2(end, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""


def executable() -> str | None:
    """Find a browser; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One page of a browser."""

    def __init__(self, read: int, write: int) -> None:
        self._read = os.fdopen(read, "rb", buffering=0)
        self._write = os.fdopen(write, "wb", buffering=0)
        self._pending = b""
        self._last = 0
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and keep the events that come before its answer."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters, **self._session}
        self._write.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            data = self._read.read(1 << 20)
            assert data, "the browser has ended"
            self._pending += data
        message, _, self._pending = self._pending.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, path: Path, ready: str, seconds: float = 30) -> None:
        """Open a file, and wait until an expression is true in it."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait(ready, seconds)

    def wait(self, expression: str, seconds: float = 10) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"{expression} is not true; {self.problems()}"
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def prefer(self, **features: str) -> None:
        """Set what the user prefers: ``color_scheme="dark"``."""
        named = [{"name": f"prefers-{key.replace('_', '-')}", "value": value}
                 for key, value in features.items()]  # fmt: skip
        self.call("Emulation.setEmulatedMedia", features=named)

    def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Press the mouse at a place."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, text: str = "") -> None:
        """Press a key."""
        codes = {"Enter": 13, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, "Escape": 27}
        words: dict[str, Any] = {"key": key, "code": key}
        words["windowsVirtualKeyCode"] = codes.get(key, 0)
        given = {"Enter": "\r"}.get(key, text)
        self.call("Input.dispatchKeyEvent", type="keyDown", text=given, **words)
        self.call("Input.dispatchKeyEvent", type="keyUp", **words)

    def picture(self, path: Path, height: int | None = None) -> None:
        """Take a picture of the window, or of the page down to a height."""
        more: dict[str, Any] = {}
        if height is not None:
            width = self.evaluate("innerWidth")
            clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
            more = {"clip": clip, "captureBeyondViewport": True}
        answer = self.call("Page.captureScreenshot", format="png", **more)
        path.write_bytes(base64.b64decode(answer["data"]))

    def problems(self) -> list[str]:
        """List errors and warnings of the console, exceptions, and requests beyond the file."""
        found = []
        for event in self.events:
            about = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(str(about["exceptionDetails"]))
                case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                    found.append(about["entry"]["text"])
                case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                    found.append(str(about["args"]))
                case "Network.requestWillBeSent" if not _is_own(about["request"]["url"]):
                    found.append(f"asked for {about['request']['url']}")
        return found


def _is_own(url: str) -> bool:
    return url.startswith(("file:", "about:", "data:"))


@contextmanager
def tab() -> Iterator[Tab]:
    """Start a browser with one empty page, and end it."""
    found = executable()
    assert found is not None, "ask executable() first"
    to_browser, ours_out = os.pipe()
    ours_in, from_browser = os.pipe()

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [found, *_OPTIONS, f"--user-data-dir={profile}"]
        ends = str(to_browser), str(from_browser)
        process = subprocess.Popen(
            [sys.executable, "-c", _START, *ends, *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        opened = None
        try:
            opened = Tab(ours_in, ours_out)
            yield opened
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if opened is not None:
                opened._read.close()
                opened._write.close()
