"""Web pages get no answer, and tokens are asked for where there are any."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import pytest

from fusewire.errors import MediaTypeError, OptionsError, RequestForbidden, TokenError
from fusewire.process.confinement import Confinement
from fusewire.serve.access import TOKEN, Access, Doorkeeper, read_token
from tests.serve.conftest import campaigns

hostile: Any = import_module("serving_hostile")
calls: Any = import_module("serving_hostile_grpc")

INFER, LOAD = "/v2/models/mlp/infer", "/v2/repository/models/mlp/load"
ASKS, LOADS = "a" * 32, "b" * 32


def sent(path: str, *headers: str, body: bytes | None = None) -> bytes:
    if body is None:
        body = hostile.said([hostile.tensor()]) if path == INFER else b""
    lines = [f"POST {path} HTTP/1.1", f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


@pytest.mark.parametrize("path", [INFER, LOAD])
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (["Host: evil.com"], "403"),
        (["Host: evil.com:8000"], "403"),
        (["Host: 127.0.0.1.evil.com"], "403"),
        (["Host: [::1]evil.com"], "403"),
        (["Host: [::1"], "403"),
        (["Host: [localhost]"], "403"),
        (["Host: [evil:.localhost]"], "403"),
        (["Host: [127.0.0.1]"], "403"),
        (["Host: ::1"], "403"),
        (["Host: localhost:80@evil.com"], "403"),
        (["Host: localhost:80:90"], "403"),
        (["Host: localhost:8O"], "403"),
        (["Host: localhost/evil.com"], "403"),
        (["Host:"], "403"),
        (["Host: localhost", "Host: evil.com"], "4"),
        (["Host: localhost", "Origin: http://evil.com"], "403"),
        (["Host: localhost", "Origin: null"], "403"),
        (["Host: localhost", "Content-Type: text/plain"], "415"),
        (["Host: localhost", "Content-Type: application/x-www-form-urlencoded"], "415"),
        (["Host: localhost", "Content-Type: multipart/form-data; boundary=x"], "415"),
        (["Host: localhost", "Origin: http://localhost"], "415"),
    ],
)
def test_request_of_a_web_page_is_refused(
    served: Any, path: str, headers: list[str], code: str
) -> None:
    assert hostile.ask(served.port, sent(path, *headers)).startswith(code)


@pytest.mark.parametrize(
    "headers",
    [
        ["Host: localhost"],
        ["Host: 127.0.0.1:8000"],
        ["Host: [::1]:8000"],
        ["Host: [FE80::1%eth0]"],
        ["Host: LOCALHOST:"],
        ["Host: 10.0.0.7"],
        ["Host: my.localhost"],
        ["Host: localhost", "Content-Type: application/json; charset=utf-8"],
        ["Host: localhost", "Origin: http://localhost", "Content-Type: application/json"],
    ],
)
def test_request_of_a_client_is_answered(served: Any, headers: list[str]) -> None:
    assert hostile.ask(served.port, sent(INFER, *headers)).startswith("200")


def test_page_that_resolved_its_name_to_the_server_reads_nothing(served: Any) -> None:
    for path in ("/v2", "/metrics", "/v2/models/mlp"):
        page = f"GET {path} HTTP/1.1\r\nHost: evil.com\r\nConnection: close\r\n\r\n".encode()
        assert hostile.ask(served.port, page).startswith("403")


def scope(host: str, **more: str) -> dict[str, Any]:
    headers = {"host": host, **{name.replace("_", "-"): text for name, text in more.items()}}
    rows = [(name.encode(), text.encode()) for name, text in headers.items()]
    return {"method": "POST", "path": INFER, "headers": rows}


def test_hosts_are_those_that_were_named() -> None:
    keeper = Doorkeeper(Access(("models.example.com",)))
    for _ in range(2):
        keeper.check(scope("Models.Example.com:8000"))
        with pytest.raises(RequestForbidden, match=r"--allow-host 'other\.example\.com'"):
            keeper.check(scope("other.example.com"))
    Doorkeeper(Access(("*",))).check(scope("whatever"))
    with pytest.raises(RequestForbidden, match=r"web page of 'https://evil\.com'"):
        Doorkeeper(Access(("*",))).check(scope("whatever", origin="https://evil.com"))
    with pytest.raises(MediaTypeError, match="The Content-Type is 'text/plain'"):
        keeper.check(scope("localhost", content_type="text/plain"))


@pytest.mark.parametrize(
    ("access", "asks", "loads"),
    [
        (Access(), {"", ASKS, LOADS}, {"", ASKS, LOADS}),
        (Access((), ASKS.encode()), {ASKS}, set()),
        (Access((), None, LOADS.encode()), {"", ASKS, LOADS}, {LOADS}),
        (Access((), ASKS.encode(), LOADS.encode()), {ASKS, LOADS}, {LOADS}),
    ],
    ids=["open", "token", "load-token", "both"],
)
def test_each_right_has_its_token(access: Access, asks: set[str], loads: set[str]) -> None:
    for check, allowed in ((access.check, asks), (access.check_load, loads)):
        for token in ("", ASKS, LOADS, ASKS[:-1], ASKS + "a"):
            header = f"Bearer {token}".encode() if token else None
            if token in allowed or allowed == {"", ASKS, LOADS}:
                check(header)
                continue
            with pytest.raises((TokenError, RequestForbidden)):
                check(header)
            with pytest.raises((TokenError, RequestForbidden)):
                check(f"Basic {token}".encode())


def test_token_is_read_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{ASKS}\n")
    monkeypatch.setenv(TOKEN, LOADS)
    assert read_token(file, TOKEN) == ASKS.encode()
    assert read_token(None, TOKEN) == LOADS.encode()
    # So that another server of this process has it, too.
    assert read_token(None, TOKEN) == LOADS.encode()
    assert TOKEN not in Confinement().environment("")
    for text in ("", " \n", "short", "a" * 20 + " b", "\u00e4" * 20):
        file.write_text(text)
        monkeypatch.setenv(TOKEN, text)
        for path in (file, None):
            with pytest.raises(OptionsError, match="openssl rand"):
                read_token(path, TOKEN)
        with pytest.raises(OptionsError, match="openssl rand"):
            Access((), text.encode())
        with pytest.raises(OptionsError, match="openssl rand"):
            Access((), None, text.encode())
    monkeypatch.delenv(TOKEN)
    assert read_token(None, TOKEN) is None
    with pytest.raises(OptionsError, match="cannot be read"):
        read_token(tmp_path / "none", TOKEN)


@pytest.fixture(scope="module")
def guarded(mlp: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("token") / "load"
    file.write_text(LOADS)
    command = campaigns.ours(mlp, "--backend", "onnxruntime", "--load-token-file", str(file))
    with campaigns.serving(command, {TOKEN: ASKS}) as server:
        yield server


def test_server_with_tokens_asks_for_them(guarded: Any) -> None:
    host, bearer = "Host: localhost", "Authorization: Bearer "
    expected = {
        (INFER, ""): "401", (INFER, ASKS): "200", (INFER, LOADS): "200", (INFER, "x" * 32): "401",
        (LOAD, ""): "401", (LOAD, ASKS): "401", (LOAD, LOADS): "200", (LOAD, "x" * 32): "401",
    }  # fmt: skip
    for (path, token), code in expected.items():
        headers = [host, bearer + token] if token else [host]
        assert hostile.ask(guarded.port, sent(path, *headers)).startswith(code), (path, token)
    url = f"http://127.0.0.1:{guarded.port}"
    for path in (
        "no/health/ready",
        "health/ready/",
        "models/health/ready",
        "models/mlp/versions/health/ready",
    ):
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(f"{url}/v2/{path}")
        refused.value.close()
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(f"{url}/metrics")
    assert refused.value.headers["www-authenticate"] == "Bearer"
    refused.value.close()
    with urllib.request.urlopen(f"{url}/v2/health/ready") as ready:
        assert ready.status == 200


def test_calls_need_the_token_too(guarded: Any) -> None:
    service = "/inference.GRPCInferenceService/"
    with grpc.insecure_channel(f"127.0.0.1:{guarded.grpc_port}") as channel:
        assert channel.unary_unary(f"{service}ServerLive")(b"")
        for metadata, name, is_allowed in (
            ((), "ModelInfer", False),
            ((("authorization", "Bearer x"),), "ModelInfer", False),
            ((), "ServerMetadata", False),
            ((("authorization", f"Bearer {ASKS}"),), "ModelInfer", True),
            ((("authorization", f"Bearer {ASKS}"),), "ServerMetadata", True),
        ):
            call = channel.unary_unary(service + name)
            body = calls.good() if name == "ModelInfer" else b""
            if is_allowed:
                assert call(body, metadata=metadata)
                continue
            with pytest.raises(grpc.RpcError) as error:
                call(body, metadata=metadata)
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
