"""Objects in a bucket or a folder: get, put, list and remove by path, one request each.

Whatever goes wrong is a RemoteError. Must decide nothing: what to ask for, what to believe and how
long to wait is decided above, so that a simulated transport can take the place of this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, final

from fusewire.errors import RemoteError, install_advice

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# Seconds for a connection, and for a whole request: threads that nobody waits for end, too.
_CONNECT, _REQUEST = 1.0, 30.0
_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "file")


@dataclass(frozen=True)
class StoredObject:
    """An object as a listing shows it; ``modified`` is in seconds since 1970."""

    path: str
    size: int
    modified: float


class Transport(Protocol):
    """Objects by path; every method raises RemoteError, and no other error."""

    def get(self, path: str, most: int) -> bytes | None:
        """Return an object, None if there is none; more than ``most`` bytes are refused."""
        ...

    def put(self, path: str, payload: bytes, *, only_new: bool = False) -> bool:
        """Write an object; with ``only_new``, returns False if there is one already.

        A store without conditional writes replaces it and returns True.
        """
        ...

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """List the objects under a prefix."""
        ...

    def remove(self, path: str) -> None:
        """Remove an object, if it is there."""
        ...


@final
class ObjectTransport:
    """A bucket or a folder through obstore, which never retries here: the layer above does."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self._url = url

    def get(self, path: str, most: int) -> bytes | None:
        """Read an object in one request; what is larger than it may be is not read on."""
        import obstore

        with self._errors("read", path):
            try:
                reply = obstore.get(self._store, path)
            except FileNotFoundError:
                return None
            if reply.meta["size"] > most:
                said = f"{path} has {reply.meta['size']:,} bytes; at most {most:,} are expected."
                raise RemoteError(said, is_lasting=True)
            # The library reads as many bytes as the server announced, and no more.
            return bytes(reply.bytes())

    def put(self, path: str, payload: bytes, *, only_new: bool = False) -> bool:
        """Write an object in one request."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._errors("write", path):
            try:
                obstore.put(
                    self._store,
                    path,
                    payload,
                    mode="create" if only_new else "overwrite",
                    use_multipart=False,
                )
            except AlreadyExistsError:
                return False
            return True

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """List a prefix, a page of objects per request."""
        import obstore

        with self._errors("list", prefix):
            for page in obstore.list(self._store, prefix):
                for found in page:
                    modified = found["last_modified"].timestamp()
                    yield StoredObject(found["path"], found["size"], modified)

    def remove(self, path: str) -> None:
        """Remove an object."""
        import obstore

        with self._errors("remove", path):
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                return

    @contextmanager
    def _errors(self, what: str, path: str) -> Iterator[None]:
        """Turn what the library and the operating system raise into a RemoteError."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            if isinstance(error, RemoteError):
                raise
            said = " ".join(str(error).split())[:300]
            raise RemoteError(
                f"{self._url} cannot {what} {path}: {said}",
                is_lasting=isinstance(error, PermissionDeniedError | UnauthenticatedError),
            ) from None


def open_transport(url: str) -> ObjectTransport:
    """Open s3://, gs://, az:// or file:// (or the path of a folder); RemoteError if it is none.

    Credentials and endpoints are those of the environment: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL,
    GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and so on.
    """
    scheme, separator, _ = url.partition("://")
    if separator and scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        raise RemoteError(f"{url!r} is not the address of a shared store. Give one of: {known}.")
    try:
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, from_url
    except ImportError as error:
        raise RemoteError(
            f"A shared store needs the package obstore ({error}). {install_advice('remote')}"
        ) from None
    try:
        if not separator or scheme == "file":
            folder = Path(url.removeprefix("file://")).absolute()
            return ObjectTransport(LocalStore(folder, mkdir=True), url)
        store = from_url(
            url,
            client_options={
                "allow_http": _has_plain_endpoint(),
                "connect_timeout": timedelta(seconds=_CONNECT),
                "timeout": timedelta(seconds=_REQUEST),
            },
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=_REQUEST)},
        )
    except (BaseError, OSError, ValueError) as error:
        raise RemoteError(f"The shared store {url} cannot be opened: {error}") from None
    return ObjectTransport(store, url)


def _has_plain_endpoint() -> bool:
    """Tell whether the user named an endpoint without encryption, as in a test or a sidecar."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
    return any(os.environ.get(name, "").startswith("http://") for name in names)
