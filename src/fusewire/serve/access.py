"""Who may ask the server for what: hosts, web pages, and tokens.

A browser sends what any web page asks it to, to addresses that only its user reaches. It says so:
in ``Origin``, and in ``Host``, where the page resolved a name of its own to such an address. What a
page may send without asking first has one of three content types, none of which is served.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewire.errors import (
    MediaTypeError,
    OptionsError,
    RequestForbidden,
    TokenError,
)

# Variables that a token is read from if no file is named.
TOKEN, LOAD_TOKEN = "FUSEWIRE_SERVE_TOKEN", "FUSEWIRE_SERVE_LOAD_TOKEN"
# Whatever the name, where a proxy checks it.
ANY_HOST = "*"
_LOCAL = ("localhost", ".localhost")
_TYPES = (b"application/json", b"application/octet-stream")
_BEARER = b"bearer "
# Whoever restarts or balances servers asks for these, without a token.
_PROBES = ("/v2/health/live", "/v2/health/ready")
_LEAST_TOKEN, _MOST_TOKEN = 16, 4096
_KNOWN = 256
# An IPv6 address in brackets, or a name, and a port.
_HOST = re.compile(r"(?:\[(?P<address>[^\]]+)\]|(?P<name>[0-9a-z._~-]+))(?::[0-9]{0,5})?")


@dataclass(frozen=True)
class Access:
    """What a request must have: a ``Host`` that is known, and a token, if there is one.

    Addresses and localhost are known. With a ``token``, requests must have it, but for probes; with
    a ``load_token``, loading a model needs that one. With the first alone, nobody may load.
    """

    hosts: tuple[str, ...] = ()
    token: bytes | None = None
    load_token: bytes | None = None

    def __post_init__(self) -> None:
        """Refuse what is no token: nobody may leave out an empty one."""
        for token in (self.token, self.load_token):
            if token is not None:
                _checked(token, "Access")

    def check(self, authorization: bytes | None) -> None:
        """Raise TokenError without the right token; whoever may load may ask, too."""
        if self.token is not None:
            _check_token(authorization, [x for x in (self.token, self.load_token) if x is not None])

    def check_load(self, authorization: bytes | None) -> None:
        """Raise TokenError without the token for loading, RequestForbidden if there is none."""
        if self.load_token is not None:
            _check_token(authorization, [self.load_token])
        elif self.token is not None:
            raise RequestForbidden(
                "Nobody may load models here. Start the server with --load-token-file, too."
            )


def _check_token(authorization: bytes | None, accepted: list[bytes]) -> None:
    sent = authorization or b""
    found = sent[len(_BEARER) :].strip() if sent[: len(_BEARER)].lower() == _BEARER else b""
    if not any(hmac.compare_digest(found, token) for token in accepted):
        raise TokenError("The request needs a token: send it as 'Authorization: Bearer TOKEN'.")


class Doorkeeper:
    """Checks the headers of HTTP requests against what the server allows."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._hosts = {host.lower() for host in access.hosts}
        # Of hosts that were checked before.
        self._known: set[bytes] = set()

    def check(self, scope: Mapping[str, Any]) -> None:
        """Raise RequestForbidden, MediaTypeError or TokenError if a request may not be answered."""
        hosts, origin, kinds, authorization = [], None, [], None
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origin = value
            elif name == b"content-type":
                kinds.append(value)
            elif name == b"authorization":
                authorization = value
        for host in hosts:
            if host not in self._known:
                self._check_host(host)
        if len(hosts) > 1:
            raise RequestForbidden("The request has several Host headers.")
        if origin is not None and origin not in _own_origins(hosts):
            raise RequestForbidden(
                f"The request comes from a web page of {_shown(origin)}. Pages of other hosts may "
                "not use this server."
            )
        if scope["method"] == "POST" and (kinds or origin is not None):
            _check_type(kinds)
        if scope["path"] not in _PROBES:
            self._access.check(authorization)

    def _check_host(self, host: bytes) -> None:
        name = _host_name(host)
        if not (ANY_HOST in self._hosts or name in self._hosts or _is_local(name)):
            raise RequestForbidden(
                f"The server does not know the Host {_shown(host)}. If it is a name of this "
                f"machine or of a proxy, start the server with --allow-host {_shown(name or host)}."
            )
        if len(self._known) < _KNOWN:
            self._known.add(host)


def _host_name(host: bytes) -> str | None:
    """Return a host without its port, in lower case; None if it is neither name nor address."""
    parts = _HOST.fullmatch(host.decode("latin-1").lower())
    if parts is None:
        return None
    name, address = parts["name"], parts["address"]
    if address is None:
        return str(name)
    return str(address) if ":" in address and _is_address(address) else None


def _is_local(name: str | None) -> bool:
    """Tell whether a name is an address, which no page can have resolved, or localhost."""
    return name is not None and (name == _LOCAL[0] or name.endswith(_LOCAL[1]) or _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _own_origins(hosts: Iterable[bytes]) -> list[bytes]:
    return [scheme + host for host in hosts for scheme in (b"http://", b"https://")]


def _check_type(kinds: list[bytes]) -> None:
    """Refuse what pages send without asking. Clients that are no browsers may leave it out."""
    found = [kind.partition(b";")[0].strip().lower() for kind in kinds]
    if len(found) != 1 or found[0] not in _TYPES:
        shown = _shown(kinds[0]) if kinds else "nothing"
        raise MediaTypeError(
            f"The Content-Type is {shown}. Send application/json, or application/octet-stream for "
            "binary tensors."
        )


def _shown(text: bytes | str) -> str:
    whole = text.decode("latin-1") if isinstance(text, bytes) else text
    return repr(whole[:80])


def read_token(path: Path | None, variable: str) -> bytes | None:
    """Read a token from a file, or from the environment; None if there is neither."""
    if path is not None:
        try:
            return _checked(path.read_bytes().strip(), str(path))
        except OSError as error:
            raise OptionsError(f"{path} cannot be read: {error.strerror}.") from None
    text = os.environ.get(variable)
    return None if text is None else _checked(os.fsencode(text).strip(), variable)


def _checked(token: bytes, where: str) -> bytes:
    is_good = _LEAST_TOKEN <= len(token) <= _MOST_TOKEN and all(0x21 <= x <= 0x7E for x in token)
    if not is_good:
        raise OptionsError(
            f"The token in {where} must have {_LEAST_TOKEN} to {_MOST_TOKEN} visible ASCII "
            f"characters; it has {len(token)} bytes. Make one with: openssl rand -hex 32"
        )
    return token
